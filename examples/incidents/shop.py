"""A small MCP server with the troubles of real ones: `python3 shop.py orders`, `… search`, `… mail`.

* `orders_find` answers at once. `orders_total` ends the process while the file `totals.locked` is there.
* `search_text` and `reports_make` take as many seconds as they are asked to, and do one thing after another.
* `mail_send` answers at once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = {
    "orders": {"find": "The orders of a customer", "total": "What was sold in a month"},
    "search": {"text": "Search all documents"},
    "reports": {"make": "Make a report"},
    "mail": {"send": "Send a message"},
}
READS = ("find", "total", "text")


def answer(tool: str, arguments: dict[str, Any]) -> str:
    match tool:
        case "find":
            return f"{arguments['customer']}: 3 orders, the last one on Monday"
        case "total":
            if Path("totals.locked").exists():
                print("orders: the table totals is locked, giving up", file=sys.stderr, flush=True)
                sys.exit(3)
            return f"{arguments['month']}: 1,204 orders, 88,310.50"
        case "text":
            time.sleep(arguments["seconds"])
            return f"12 documents about {arguments['text']}"
        case "make":
            time.sleep(arguments["seconds"])
            return f"{arguments['what']}: 40 pages"
        case _:
            return "sent"


def reply(name: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": name, "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        tools = [
            {
                "name": tool,
                "description": what,
                "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": tool in READS},
            }
            for tool, what in TOOLS[name].items()
        ]
        return {"tools": tools}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": answer(params["name"], params.get("arguments") or {})}]}
    return {}


def main(name: str) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            result = reply(name, message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


main(sys.argv[1])
