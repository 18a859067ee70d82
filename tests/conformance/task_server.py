"""The server that the suite's scenarios of tasks ask for: 2026-07-28 on stdio, by hand, since the SDK has no tasks.

    python tests/conformance/task_server.py [--makes-tasks]

It has no tasks of its own, so the gateway in front of it makes one of each call that takes longer than `taskAfterMs`.
With `--makes-tasks` it makes one of each call of a tool that takes long, as the extension says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"
TIMES = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z"}
Params = Mapping[str, Any]


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": said}], **more}


def question(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": f"{name}?", "requestedSchema": schema},
    }


# ---- the tools: each is given its arguments, and the answers to what it has asked so far ----------------------------


async def greet(arguments: Params, _given: Params) -> dict[str, Any]:
    return text(f"Hello, {arguments.get('name')}!")


async def slow_compute(arguments: Params, _given: Params) -> dict[str, Any]:
    await asyncio.sleep(arguments.get("seconds", 1))
    return text(f"computed {arguments.get('label')}")


async def failing_job(_arguments: Params, _given: Params) -> dict[str, Any]:
    await asyncio.sleep(1)
    return text("it failed", isError=True)


async def protocol_error_job(_arguments: Params, _given: Params) -> dict[str, Any]:
    await asyncio.sleep(1)
    raise Refused(-32603, "the job has crashed")


async def confirm_delete(arguments: Params, given: Params) -> dict[str, Any]:
    return await _asking(given, "confirm", then=f"deleted {arguments.get('filename')}")


async def multi_input(_arguments: Params, given: Params) -> dict[str, Any]:
    return await _asking(given, "name", "confirm", then="both were given")


async def ask_then_work(_arguments: Params, given: Params) -> dict[str, Any]:
    if "user_name" not in given:  # it asks at once, and only then it takes long
        return {"resultType": "input_required", "inputRequests": {"user_name": question("name")}}
    await asyncio.sleep(1)
    return text(f"Hello, {given['user_name'].get('content', {}).get('name')}!")


async def _asking(given: Params, *names: str, then: str) -> dict[str, Any]:
    await asyncio.sleep(1)
    if missing := {name: question(name) for name in names if name not in given}:
        return {"resultType": "input_required", "inputRequests": missing}
    return text(then)


Tool = Callable[[Params, Params], Awaitable[dict[str, Any]]]
TOOLS: dict[str, Tool] = {
    "greet": greet,
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
    "test_tool_with_task": ask_then_work,
}


# ---- its own tasks --------------------------------------------------------------------------------------------------


class Task:
    def __init__(self, name: str, arguments: Params, given: Params) -> None:
        self.said: dict[str, Any] = {"status": "working"}
        self._given = dict(given)
        self._call = name, arguments
        self._work = asyncio.create_task(self._run())

    async def _run(self) -> None:
        name, arguments = self._call
        try:
            result = await TOOLS[name](arguments, self._given)
        except Refused as refused:
            self.said = {"status": "failed", "error": {"code": refused.code, "message": str(refused)}}
            return
        if result["resultType"] == "input_required":
            self.said = {"status": "input_required", "inputRequests": result["inputRequests"]}
        else:
            self.said = {"status": "completed", "result": result}

    def give(self, responses: Params) -> None:
        asked = self.said.get("inputRequests", {})
        self._given |= {key: value for key, value in responses.items() if key in asked}
        if asked and asked.keys() <= self._given.keys():
            self.said = {"status": "working"}
            self._work = asyncio.create_task(self._run())

    def cancel(self) -> None:
        if self.said["status"] in ("working", "input_required"):
            self._work.cancel()
            self.said = {"status": "cancelled"}


class Server:
    def __init__(self, *, makes_tasks: bool) -> None:
        self._makes_tasks = makes_tasks
        self._tasks: dict[str, Task] = {}
        self._open: dict[Any, asyncio.Task[None]] = {}

    def take(self, line: bytes) -> None:
        message = json.loads(line)
        params = message.get("params") or {}
        if "id" in message:
            self._open[message["id"]] = asyncio.create_task(
                self._answer(message["id"], message["method"], params)
            )
        elif message["method"] == "notifications/cancelled" and params.get("requestId") in self._open:
            self._open[params["requestId"]].cancel()

    async def _answer(self, key: Any, method: str, params: Params) -> None:
        try:
            body: dict[str, Any] = {"result": await self._result(method, params)}
        except Refused as refused:
            body = {"error": {"code": refused.code, "message": str(refused)}}
        finally:
            del self._open[key]
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": key, **body}) + "\n")
        sys.stdout.flush()

    async def _result(self, method: str, params: Params) -> dict[str, Any]:
        match method:
            case "server/discover":
                extensions = {"extensions": {EXTENSION: {}}} if self._makes_tasks else {}
                return {
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}, **extensions},
                }
            case "tools/list":
                schema = {"type": "object"}
                return {
                    "resultType": "complete",
                    "tools": [{"name": name, "inputSchema": schema} for name in TOOLS],
                }
            case "tools/call":
                return await self._call(params)
            case "tasks/get" | "tasks/update" | "tasks/cancel":
                return self._about_task(method, params)
            case _:
                raise Refused(-32601, f"Method not found: {method}")

    async def _call(self, params: Params) -> dict[str, Any]:
        name, arguments, given = (
            params["name"],
            params.get("arguments") or {},
            params.get("inputResponses") or {},
        )
        is_quick = name == "greet" or (name == "test_tool_with_task" and not given)
        if is_quick or not self._makes_tasks:
            return await TOOLS[name](arguments, given)
        task_id = f"task-{len(self._tasks)}"
        self._tasks[task_id] = Task(name, arguments, given)
        return {
            "resultType": "task",
            "taskId": task_id,
            "status": "working",
            "ttlMs": None,
            "pollIntervalMs": 200,
            **TIMES,
        }

    def _about_task(self, method: str, params: Params) -> dict[str, Any]:
        task = self._tasks.get(params["taskId"])
        if task is None:
            raise Refused(-32602, "Task not found")
        if method == "tasks/get":
            said = {"taskId": params["taskId"], "ttlMs": None, "pollIntervalMs": 200, **TIMES, **task.said}
            return {"resultType": "complete", **said}
        task.cancel() if method == "tasks/cancel" else task.give(params["inputResponses"])
        return {"resultType": "complete"}


async def main() -> None:
    server = Server(makes_tasks="--makes-tasks" in sys.argv)
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        server.take(line)


if __name__ == "__main__":
    asyncio.run(main())
