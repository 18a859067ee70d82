"""`mcp_execute` runs a line of Python at the door of `serve --expose meta`."""

import json
import subprocess
import sys

REQUESTS = (
    (
        "initialize",
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "us", "version": "1"}},
    ),
    ("tools/call", {"name": "mcp_execute", "arguments": {"code": "6 * 7"}}),
)
command = [sys.executable, "-m", "greenroom", "serve", "--expose", "meta"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gateway:
    for number, (method, params) in enumerate(REQUESTS):
        gateway.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
        )
        gateway.stdin.flush()
        answer = {}
        while answer.get("id") != number:
            answer = json.loads(gateway.stdout.readline())
    gateway.stdin.close()
assert "42" in json.dumps(answer["result"]["content"]), answer
