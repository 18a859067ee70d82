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
PIECE = b"x" * 65_536  # what a pipe holds


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        arguments: dict[str, Any] = params.get("arguments") or {}
        return {
            "content": [{"type": "text", "text": "" if "size" in arguments else arguments.get("text", "")}]
        }
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "echo", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {} if method == "ping" else None


def write_long(line: str, size: int) -> None:
    """Write an answer whose text is empty with `size` characters in it. To make all of a long text and its JSON before
    anything is written takes thirty times as long."""
    head, quotes, tail = line.encode().rpartition(b'""')
    out = sys.stdout.buffer
    out.write(head + quotes[:1])
    for _ in range(size // len(PIECE)):
        out.write(PIECE)
    out.write(PIECE[: size % len(PIECE)] + quotes[1:] + tail)


def main() -> None:
    for request in sys.stdin.buffer:
        message = json.loads(request)
        if "id" not in message:
            continue
        method: str = message["method"]
        params: dict[str, Any] = message.get("params") or {}
        result = answer(method, params)
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if result is None:
            del reply["result"]
            reply["error"] = {"code": -32601, "message": f"Method not found: {method}"}
        line = json.dumps(reply) + "\n"
        arguments: dict[str, Any] = params.get("arguments") or {}
        if method == "tools/call" and arguments.get("size", 0) > 0:
            write_long(line, arguments["size"])
        else:
            sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # nothing to tidy up, and a client waits for the end
