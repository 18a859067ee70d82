"""A stdio server that answers a call when it is told to: `python -S answers_when_told.py FOLDER`.

It says by files in the folder that it was asked (`asked`) and has answered (`answered`), and answers when there is a
file `answer`.
"""

from __future__ import annotations

import json
import os
import sys
import time

folder = sys.argv[1]
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if "id" not in message or not method:
        continue
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        answer["result"] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "told", "version": "1"},
        }
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "slow", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        open(os.path.join(folder, "asked"), "w").close()
        while not os.path.exists(os.path.join(folder, "answer")):
            time.sleep(0.005)
        answer["result"] = {"content": [{"type": "text", "text": "the answer"}]}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if method == "tools/call":
        open(os.path.join(folder, "answered"), "w").close()
