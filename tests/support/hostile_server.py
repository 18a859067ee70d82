"""A stdio server for attacks: `python -S hostile_server.py VERSION [LINE-AT-INITIALIZE TIMES]`.

It speaks VERSION and has two tools. `echo` returns its arguments. `say` writes raw bytes in place of its answer:
`before`, then `middle` as often as `count` says, then `after`; `ID` in them stands for the request's id.
"""

from __future__ import annotations

import json
import os
import sys


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def say(key: object, before: str, middle: str, count: int, after: str) -> None:
    mark = json.dumps(key)
    write(before.replace("ID", mark).encode("latin-1"))
    piece = middle.replace("ID", mark).encode("latin-1")
    many = max(1, (1 << 20) // max(1, len(piece)))
    while count > 0:
        write(piece * min(many, count))
        count -= many
    write(after.replace("ID", mark).encode("latin-1"))


def answer(message: dict[str, object], version: str) -> None:
    key, method = message["id"], message["method"]
    params = message.get("params") or {}
    assert isinstance(params, dict)
    result: object = {}
    if method == "initialize" and version < "2026":
        info = {"name": "hostile", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "server/discover" and version >= "2026":
        result = {"supportedVersions": [version], "capabilities": {"tools": {}}}
    elif method == "tools/list":
        schema = {"type": "object"}
        result = {"tools": [{"name": name, "inputSchema": schema} for name in ("echo", "say")]}
    elif method == "tools/call" and params["name"] == "say":
        say(key, **params["arguments"])
        return
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(params["arguments"])}]}
    elif method != "ping":
        error = {"code": -32601, "message": "Method not found"}
        write(json.dumps({"jsonrpc": "2.0", "id": key, "error": error}).encode() + b"\n")
        return
    write(json.dumps({"jsonrpc": "2.0", "id": key, "result": result}).encode() + b"\n")


for line in sys.stdin.buffer:
    said = json.loads(line)
    if "id" in said and "method" in said:
        answer(said, sys.argv[1])
    elif said.get("method") == "notifications/initialized" and len(sys.argv) > 2:
        for _ in range(int(sys.argv[3]) // 1000):
            write((sys.argv[2].encode() + b"\n") * 1000)
