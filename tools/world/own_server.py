"""A stdio server that lists the tools in a file, and says of each call what it brought: `own_server.py FILE`.

It says it as hexadecimal digits of JSON, which no framework reads or writes anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

tools = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def answer(method: str, params: Json) -> Json | None:
    if method == "initialize":
        info = {"name": "own-tools", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        came = json.dumps([params["name"], params.get("arguments") or {}])
        return {"content": [{"type": "text", "text": f"came {came.encode().hex()}"}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params") or {})
    refused = {"code": -32601, "message": "Method not found"}
    said: Json = {"error": refused} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
