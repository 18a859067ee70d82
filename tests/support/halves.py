"""A stdio server that cuts emojis in two in every text that it sends, as JavaScript does.

`HALF` is such a half in its JSON; with the argument `raw` it sends bytes that are not UTF-8 instead. Its tool `ask`
asks for the client's roots under an id that is cut, and returns what came.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

HALF = rb"\ud83d"
RAW = b"\xed\xa0\xbd"  # the same half as bytes, which is not UTF-8
_MARK = "HERE"


def entry(*how: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", os.path.abspath(__file__), *how]}


TOOL: dict[str, Any] = {"name": "say", "description": f"cut {_MARK}", "inputSchema": {"type": "object"}}
RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": {"name": f"cut {_MARK}", "version": "1"},
        "instructions": f"cut {_MARK}",
    },
    "tools/list": {"tools": [TOOL, {**TOOL, "name": "fail"}, {**TOOL, "name": "ask"}]},
    "resources/list": {"resources": [{"uri": "cut://1", "name": f"cut {_MARK}"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": "cut://1", "text": f"cut {_MARK}"}]},
}


def main() -> None:
    half = RAW if "raw" in sys.argv else HALF
    asked: Any = None

    def write(message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode().replace(_MARK.encode(), half)
        os.write(1, line + b"\n")

    def result(text: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text}]}

    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, rpc_id = message.get("method"), message.get("id")
        if method is None:
            write({"id": asked, "result": result(f"{message['id'] == chr(0xD83D)} {sorted(message)}")})
        elif rpc_id is None:
            continue
        elif method == "tools/call":
            name = message["params"]["name"]
            if name == "fail":
                write({"id": rpc_id, "error": {"code": -32000, "message": f"cut {_MARK}", "data": [_MARK]}})
            elif name == "ask":
                asked = rpc_id
                write({"id": _MARK, "method": "roots/list"})
            else:
                heard = message["params"].get("arguments", {}).get("text", "")
                write({"id": rpc_id, "result": result(f"cut {_MARK}, heard {heard}")})
        elif method in RESULTS:
            write({"id": rpc_id, "result": RESULTS[method]})
        else:
            write({"id": rpc_id, "error": {"code": -32601, "message": "no"}})


if __name__ == "__main__":
    main()
