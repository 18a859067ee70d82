"""A small server over stdio that keeps state: its one tool adds one, and answers with the sum."""

from __future__ import annotations

import json
import sys

_TOOL = {"name": "add", "inputSchema": {"type": "object"}}


def main() -> None:
    count = 0
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        answer = {"jsonrpc": "2.0", "id": asked["id"]}
        method = asked["method"]
        if method == "initialize":
            answer["result"] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "counter", "version": "1"},
            }
        elif method == "tools/list":
            answer["result"] = {"tools": [_TOOL]}
        elif method == "tools/call":
            count += 1
            answer["result"] = {"content": [{"type": "text", "text": str(count)}]}
        elif method == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": f"Method not found: {method}"}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
