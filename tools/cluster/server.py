"""A server that writes down its life: when it was born, every tenth of a second that it lives, each call that it runs.

`python server.py FOLDER NAME`. It uses only the standard library, and runs each call in a thread. Times are those of
the machine's monotonic clock, so the lives of several processes can be compared.
"""

import json
import os
import sys
import threading
import time
from typing import Any

TOOL = {
    "name": "work",
    "description": "Waits for some seconds",
    "inputSchema": {
        "type": "object",
        "properties": {"call": {"type": "string"}, "who": {"type": "string"}, "seconds": {"type": "number"}},
        "required": ["call", "who", "seconds"],
    },
}


def main(folder: str, name: str) -> None:
    path = os.path.join(folder, f"{name}.{os.getpid()}.{time.monotonic_ns()}.log")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    writing = threading.Lock()

    def note(what: str, **more: object) -> None:
        os.write(log, (json.dumps({"at": time.monotonic(), "what": what, **more}) + "\n").encode())

    def say(message: object) -> None:
        with writing:
            print(json.dumps(message), flush=True)

    def beat() -> None:
        while True:
            time.sleep(0.1)
            note("beat")

    def run(number: object, arguments: dict[str, object]) -> None:
        seconds = arguments["seconds"]
        assert isinstance(seconds, (int, float))
        note("ran", call=arguments["call"], who=arguments["who"])
        time.sleep(seconds)
        text = {"type": "text", "text": f"{name} {os.getpid()}"}
        say({"jsonrpc": "2.0", "id": number, "result": {"content": [text]}})

    note("born")
    threading.Thread(target=beat, daemon=True).start()
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        head: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                info = {"name": name, "version": "1"}
                able: dict[str, Any] = {"tools": {}}
                about = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}
                say({**head, "result": about})
            case "tools/list":
                say({**head, "result": {"tools": [TOOL]}})
            case "tools/call":
                job = (message["id"], message["params"]["arguments"])
                threading.Thread(target=run, args=job, daemon=True).start()
            case "ping":
                say({**head, "result": {}})
            case method:
                say({**head, "error": {"code": -32601, "message": f"Method not found: {method}"}})
    note("end")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
