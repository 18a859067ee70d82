"""A small server over stdio that keeps state: its tool `add` adds one, and answers with the sum; `reset` begins anew.

`counter.py LOG N`: it writes a line to LOG each time, and dies of the Nth before it answers.
"""

from __future__ import annotations

import json
import os
import sys

_TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "reset")]


def note(log: str, deadly: int) -> None:
    """Write down that the tool has run; the Nth time of all, die of it."""
    with open(log, "a+") as file:
        file.write("ran\n")
        file.flush()
        file.seek(0)
        if len(file.readlines()) == deadly:
            os._exit(1)


def times_noted(log: str) -> int:
    with open(log) as file:
        return len(file.readlines())


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
            answer["result"] = {"tools": _TOOLS}
        elif method == "tools/call":
            count = 0 if asked["params"]["name"] == "reset" else count + 1
            if count and len(sys.argv) > 1:
                note(sys.argv[1], int(sys.argv[2]))
            answer["result"] = {"content": [{"type": "text", "text": str(count)}]}
        elif method == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": f"Method not found: {method}"}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
