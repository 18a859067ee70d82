"""The smallest useful stdio MCP server, and the fastest: what is measured against it is the other side.

    python -S echo.py

It has one tool, `echo`: `{"text": …}` comes back, `{"size": n}` brings n characters.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # `typing` would double the time this takes to start
if TYPE_CHECKING:
    from typing import Any

TOOL: dict[str, Any] = {
    "name": "echo",
    "description": "Echo the text back",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "size": {"type": "integer"}},
    },
    "annotations": {"readOnlyHint": True},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        arguments: dict[str, Any] = params.get("arguments") or {}
        text = "x" * arguments["size"] if "size" in arguments else arguments.get("text", "")
        return {"content": [{"type": "text", "text": text}]}
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "echo", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if result is None:
            del reply["result"]
            reply["error"] = {"code": -32601, "message": f"Method not found: {message['method']}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # nothing to tidy up, and a client waits for the end
