"""A server that says what is in a file: `python -S leaker.py FILE`.

FILE holds a JSON value. Each call of a tool says it as a progress message, as a log message and on standard error, and
then answers with it: `text`, `structured`, `failed` (a result with `isError`), `refused` (a JSON-RPC error), `long` (in
the middle of a long text), `linked` (in a link, a title and an embedded resource).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOLS = ("text", "structured", "failed", "refused", "long", "linked")
LINES = 3_000


def leaker(file: str) -> dict[str, Any]:
    """The entry of a server that says what is in `file`."""
    return {"command": sys.executable, "args": ["-S", os.path.abspath(__file__), file]}


def _result(tool: str, value: Any) -> dict[str, Any]:
    said = value if isinstance(value, str) else json.dumps(value)
    block = {"type": "text", "text": said}
    if tool == "structured":
        return {"content": [block], "structuredContent": {"found": value}, "_meta": {"x/found": value}}
    if tool == "long":
        line = "a line of a long text\n" * LINES
        return {"content": [{"type": "text", "text": f"{line}{said}\n{line}{said}"}]}
    if tool == "linked":
        resource = {"uri": "made:one", "text": said}
        link = {"type": "resource_link", "uri": "made:two", "name": "two", "title": said, "description": said}
        return {"content": [{"type": "resource", "resource": resource}, link]}
    return {"content": [block], "isError": tool == "failed"}


def _say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def _call(key: Any, params: dict[str, Any], file: str) -> None:
    with open(file) as opened:
        value = json.load(opened)
    said = value if isinstance(value, str) else json.dumps(value)
    print(f"error: {said}", file=sys.stderr, flush=True)
    _say({"method": "notifications/message", "params": {"level": "error", "logger": said, "data": value}})
    _say({"method": "notifications/message", "params": {"level": "error", "data": {"said": said}}})
    token = params.get("_meta", {}).get("progressToken")
    if token is not None:
        progress = {"progressToken": token, "progress": 1, "message": said}
        _say({"method": "notifications/progress", "params": progress})
    if params["name"] == "refused":
        _say({"id": key, "error": {"code": -32000, "message": said, "data": {"list": [value, said]}}})
    else:
        _say({"id": key, "result": _result(params["name"], value)})


def _serve(file: str) -> None:
    able = {"tools": {}, "logging": {}}
    hello = {"capabilities": able, "serverInfo": {"name": "leaker", "version": "1"}}
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        if method == "tools/call":
            _call(message["id"], params, file)
        elif method == "initialize":
            _say({"id": message["id"], "result": {**hello, "protocolVersion": "2025-11-25"}})
        else:
            _say({"id": message["id"], "result": {"tools": tools} if method == "tools/list" else {}})


if __name__ == "__main__":
    _serve(sys.argv[1])
