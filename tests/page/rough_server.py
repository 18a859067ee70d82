"""A stdio MCP server that does what its tools are told: `python -S rough_server.py [NAME-OF-A-TOOL DESCRIPTION]…`.

`echo` says its text again (with `fails` as an error, with `aloud` on stderr, too), `slow` takes some seconds, `die`
ends the process, and `erase` says that it destroys something, and takes `seconds`. Each further pair of arguments is a
tool of that name, with that description; `@FILE`: the one in this file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SLOW: dict[str, Any] = {"type": "object", "properties": {"seconds": {"type": "number", "minimum": 0}}}
READS = {"readOnlyHint": True}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def tools() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": "echo",
            "description": "Says it again.",
            "inputSchema": TEXT,
            "annotations": READS,
        },
        {
            "name": "slow",
            "description": "Takes its time.",
            "inputSchema": SLOW,
            "annotations": READS,
        },
        {"name": "die", "description": "Ends itself.", "inputSchema": NOTHING, "annotations": READS},
        {
            "name": "erase",
            "description": "Erases a text.",
            "inputSchema": TEXT,
            "annotations": {"destructiveHint": True},
        },
    ]
    more = sys.argv[1:]
    for name, said in zip(more[::2], more[1::2], strict=True):
        about = Path(said[1:]).read_text() if said.startswith("@") else said
        found.append(
            {"name": name, "title": about, "description": about, "inputSchema": TEXT, "annotations": READS}
        )
    return found


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(key: Any, params: dict[str, Any]) -> None:
    arguments = params.get("arguments") or {}
    match params["name"]:
        case "slow":
            time.sleep(float(arguments.get("seconds", 1)))
            text = "at last"
        case "die":
            print("It ends itself now.", file=sys.stderr, flush=True)
            os._exit(7)
        case _:
            time.sleep(float(arguments.get("seconds", 0)))
            text = str(arguments.get("text", ""))
            if arguments.get("aloud"):
                print(text, file=sys.stderr, flush=True)
    said: dict[str, Any] = {"isError": True} if arguments.get("fails") else {}
    send(id=key, result={"content": [{"type": "text", "text": text}], **said})


def main() -> None:
    print("It has begun.", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        key, method = message.get("id"), message.get("method")
        if key is None or method is None:
            continue
        match method:
            case "initialize":
                about = {"name": "rough", "version": "1"}
                version = message["params"]["protocolVersion"]
                send(
                    id=key,
                    result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about},
                )
            case "tools/list":
                send(id=key, result={"tools": tools()})
            case "tools/call":
                threading.Thread(target=call, args=(key, message["params"]), daemon=True).start()
            case "ping":
                send(id=key, result={})
            case _:
                send(id=key, error={"code": -32601, "message": f"There is no {method}."})


main()
