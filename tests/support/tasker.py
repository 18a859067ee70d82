"""A stdio server whose tool `slow` runs as a task, in either era.

    python -S tasker.py LOG [--modern]

A task takes three looks: at the first it is half done and reports progress, at the second it asks
(`elicitation/create`) if it was called with `{"ask": true}`, at the third it is done, unless it was called with
`{"endless": true}`. Each message it gets is appended
to LOG as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}


def tasker(log: Path, *options: str) -> dict[str, Any]:
    """The entry of such a server."""
    return {"command": sys.executable, "args": ["-S", __file__, os.fspath(log), *options]}


def heard(log: Path, method: str) -> list[dict[str, Any]]:
    """The params of each message of this method."""
    said = [json.loads(line) for line in log.read_text().splitlines()]
    return [each.get("params") or {} for each in said if each.get("method") == method]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


class Server:
    def __init__(self, modern: bool) -> None:
        self.modern = modern
        self.looks: dict[str, int] = {}
        self.endless = False
        self.asks: dict[str, bool] = {}
        self.answers: dict[str, Any] = {}
        self.tokens: dict[str, Any] = {}
        self.waiting: dict[str, Any] = {}  # requests for results, by task

    def able(self) -> dict[str, Any]:
        if self.modern:
            return {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        return {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}

    def take(self, message: dict[str, Any]) -> Any:
        method: str | None = message.get("method")
        params, rpc_id = message.get("params") or {}, message.get("id")
        if method is None:
            if str(rpc_id).startswith("ask-"):
                self.answered(str(rpc_id)[4:], message.get("result"))
            return None
        task = params.get("taskId")
        who = {"name": "tasker", "version": "1"}
        match method:
            case "initialize" if not self.modern:
                return {"protocolVersion": "2025-11-25", "capabilities": self.able(), "serverInfo": who}
            case "server/discover" if self.modern:
                return {"supportedVersions": ["2026-07-28"], "capabilities": self.able(), "serverInfo": who}
            case "tools/list":
                support = {} if self.modern else {"execution": {"taskSupport": "required"}}
                return {"tools": [{"name": "slow", "inputSchema": {"type": "object"}, **support}]}
            case "tools/call":
                return self.called(params)
            case "tasks/get" if task in self.looks:
                return self.looked(task)
            case "tasks/result" if task in self.looks:
                self.waiting[task] = rpc_id
                if self.asks[task] and task not in self.answers:
                    meta = {"io.modelcontextprotocol/related-task": {"taskId": task}}
                    send(id=f"ask-{task}", method="elicitation/create", params={**FORM, "_meta": meta})
                    return None
                return self.result(task)
            case "tasks/update" if task in self.looks:
                self.answers[task] = params["inputResponses"]["q"]
                return {"resultType": "complete"}
            case "tasks/cancel":
                return {"resultType": "complete"}
            case _:
                if rpc_id is not None:
                    send(id=rpc_id, error={"code": -32601, "message": f"Method not found: {method}"})
                return None

    def called(self, params: dict[str, Any]) -> dict[str, Any]:
        declared = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        is_able = "io.modelcontextprotocol/tasks" in declared.get("extensions", {})
        if not (is_able if self.modern else "task" in params):
            return {"content": [{"type": "text", "text": "no task was wanted"}], "isError": True}
        name = f"task-{len(self.looks) + 1}"
        self.looks[name] = 0
        self.endless = params.get("arguments", {}).get("endless") is True
        self.asks[name] = params.get("arguments", {}).get("ask") is True
        self.tokens[name] = params.get("_meta", {}).get("progressToken")
        return {"resultType": "task", **self.told(name)} if self.modern else {"task": self.told(name)}

    def told(self, name: str) -> dict[str, Any]:
        looks, at = self.looks[name], "2026-11-27T00:00:00Z"
        needs = self.asks[name] and name not in self.answers and looks >= 2
        status = "input_required" if needs else "completed" if looks >= 3 and not self.endless else "working"
        found: dict[str, Any] = {"taskId": name, "status": status, "createdAt": at, "lastUpdatedAt": at}
        found |= {"ttlMs": None, "pollIntervalMs": 100} if self.modern else {"ttl": None, "pollInterval": 100}
        if looks:
            found["statusMessage"] = "half"
        if needs and self.modern:
            found["inputRequests"] = {"q": {"method": "elicitation/create", "params": FORM}}
        if status == "completed" and self.modern:
            found["result"] = self.result(name)
        return found

    def looked(self, name: str) -> dict[str, Any]:
        self.looks[name] += 1
        if self.looks[name] == 1 and self.tokens[name] is not None:
            said = {"progressToken": self.tokens[name], "progress": 7, "message": "by itself"}
            send(method="notifications/progress", params=said)
        return {"resultType": "complete", **self.told(name)} if self.modern else self.told(name)

    def result(self, name: str) -> dict[str, Any]:
        said = self.answers[name]["action"] if self.asks[name] else "done"
        return {"content": [{"type": "text", "text": said}]}

    def answered(self, name: str, answer: Any) -> None:
        self.answers[name] = answer
        send(id=self.waiting.pop(name), result=self.result(name))


def main() -> None:
    server = Server("--modern" in sys.argv)
    for line in sys.stdin:
        with open(sys.argv[1], "a") as log:
            log.write(line)
        message = json.loads(line)
        result = server.take(message)
        if result is not None:
            send(id=message["id"], result=result)


if __name__ == "__main__":
    main()
