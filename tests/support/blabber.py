"""A server that gives away everything it was given: `python -S blabber.py [WHEN] ARGUMENT…`, or `… http` over HTTP.

It shows its arguments, its environment, and over HTTP each request's path and headers. WHEN is `start` (it fails at
once) or `list` (it fails when its tools are listed). Otherwise it fails when one of these tools is called: `refuse` (a
JSON-RPC error), `junk` (a line that is not JSON), `die`. Over HTTP the URL's path has these words, or `401`, `500`,
`html`, `login`.
"""

from __future__ import annotations

import json
import os
import sys

TOOLS = ("refuse", "junk", "die")


def everything() -> str:
    return " | ".join([*sys.argv, *(f"{name}={value}" for name, value in os.environ.items())])


def result_of(message: dict[str, object]) -> object:
    if message["method"] == "initialize":
        info = {"name": "blabber", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    return {} if message["method"] == "ping" else None


def error(key: object, said: str) -> bytes:
    data = {"list": [said, {said: 1}], "quoted": repr(said)}
    return json.dumps(
        {"jsonrpc": "2.0", "id": key, "error": {"code": -32000, "message": said, "data": data}}
    ).encode()


def on_stdio() -> None:
    when = sys.argv[1] if len(sys.argv) > 1 else ""
    if when == "start":
        sys.stderr.write(f"Error: cannot use {everything()}\nfatal: {everything()!r}\n")
        raise SystemExit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = None if message["method"] == when == "tools/list" else result_of(message)
        tool = (message.get("params") or {}).get("name")
        if result is not None:
            write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
        elif tool == "die":
            sys.stderr.write(f"Error: {everything()}\n")
            raise SystemExit(4)
        else:
            if tool == "junk":
                write(f"debug: {everything()}".encode())
            write(error(message["id"], everything()))


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    on_stdio()
