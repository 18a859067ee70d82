"""A real server that tells what it was started with: its `TOKEN`, its `PLAIN`, and its arguments."""

from __future__ import annotations

import sys
from typing import Any

from greenroom import Greenroom

# Answers with its environment and arguments; a tool `die` says them on stderr and ends.
TELLER = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    said = json.dumps([os.environ.get("TOKEN"), os.environ.get("PLAIN"), sys.argv[1:]])
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "teller", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("tell", "die")]}
    elif message["method"] == "tools/call":
        if message["params"]["name"] == "die":
            print("fatal:", said, file=sys.stderr, flush=True)
            sys.exit(3)
        result = {"content": [{"type": "text", "text": said}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def teller(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-c", TELLER], "bootstrap": False, **more}


def room_of(settings: Any = None, **servers: Any) -> Greenroom:
    config = {"mcpServers": servers, "settings": settings or {}}
    return Greenroom.open(config, cache_path=":memory:")
