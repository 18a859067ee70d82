"""A stdio MCP server that lists what its client can be asked, with no SDK beneath it.

    python -S capable.py [NAME]

It has a tool `ask_X` for each capability X that its client declared (`elicitation`, `sampling`, `roots`): it asks, and
answers with what it was told. `count` counts its calls, `slow` takes some seconds, `named` lists a further resource
with the name that it is given, and says so. NAME, if there is one, is in the name of its first resource.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

ASKED = {
    "elicitation": (
        "elicitation/create",
        {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
    ),
    "sampling": ("sampling/createMessage", {"messages": [], "maxTokens": 5}),
    "roots": ("roots/list", {}),
}

declared: dict[str, Any] = {}
asked: dict[str, Any] = {}  # our requests: the call that waits for the answer
names = sys.argv[1:]
count = 0


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def finish(number: Any, text: str) -> None:
    send(id=number, result={"content": [{"type": "text", "text": text}]})


def tools() -> list[Any]:
    found = ["count", "slow", "named", *(f"ask_{name}" for name in ASKED if name in declared)]
    return [{"name": name, "inputSchema": {"type": "object"}} for name in found]


def call(number: Any, name: str, arguments: Any) -> None:
    global count
    if name == "count":
        count += 1
        finish(number, str(count))
    elif name == "slow":
        wait = arguments.get("seconds", 1)
        threading.Thread(target=lambda: (time.sleep(wait), finish(number, "slept")), daemon=True).start()
    elif name == "named":
        names.append(arguments["who"])
        send(method="notifications/resources/list_changed")
        finish(number, "named")
    else:
        method, params = ASKED[name.removeprefix("ask_")]
        asked[f"q{number}"] = number
        send(id=f"q{number}", method=method, params=params)


for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        finish(asked.pop(number), json.dumps(message.get("result", message.get("error"))))
    elif method == "initialize":
        declared = params["capabilities"]
        said = {"tools": {"listChanged": True}, "resources": {"listChanged": True}}
        info = {"name": "capable", "version": "1"}
        send(
            id=number,
            result={"protocolVersion": "2025-11-25", "capabilities": said, "serverInfo": info},
        )
    elif method == "tools/list":
        send(id=number, result={"tools": tools()})
    elif method == "resources/list":
        listed = [{"uri": f"user://{name}/mail", "name": f"mail of {name}"} for name in names]
        send(id=number, result={"resources": listed})
    elif method == "resources/templates/list":
        send(id=number, result={"resourceTemplates": []})
    elif method == "tools/call":
        call(number, params["name"], params.get("arguments") or {})
    elif method == "ping":
        send(id=number, result={})
    elif number is not None:
        send(id=number, error={"code": -32601, "message": f"Method not found: {method}"})
