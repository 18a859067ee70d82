"""Fake servers whose tools run as tasks, in both eras, in virtual time.

A `TaskServer` makes a task of each call that wants one, and keeps it as a test moves it: `say`, `ask`, `finish`,
`fail`. `seen` is what it was asked about its tasks, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import attrs

from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.testing.fake_servers import FakeCall, FakeServer, tool

EXTENSION = "io.modelcontextprotocol/tasks"
UNKNOWN = RpcError(-32602, "Task not found")


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


async def _listen(_params: Mapping[str, Any]) -> Any:
    await anyio.sleep_forever()


@attrs.define(eq=False)
class TaskServer:
    """`interval`: milliseconds between looks, as it asks for; None: it does not say."""

    modern: bool
    interval: int | None = 1000
    tasks: dict[str, dict[str, Any]] = attrs.field(factory=dict[str, dict[str, Any]])
    results: dict[str, Any] = attrs.field(factory=dict[str, Any])
    seen: list[tuple[str, Mapping[str, Any], float]] = attrs.field(
        factory=lambda: list[tuple[str, Mapping[str, Any], float]]()
    )
    fake: FakeServer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        tools = [tool("slow"), tool("quick")]
        if not self.modern:
            tools[0]["execution"] = {"taskSupport": "required"}
        self.fake = FakeServer(tools, handler=self._call, capabilities=self._capabilities())
        answers = {"tasks/get": self._get, "tasks/cancel": self._cancel}
        answers |= {"tasks/update": self._update} if self.modern else {"tasks/result": self._result}
        for method, answer in answers.items():
            self.fake.methods[method] = self._noted(method, answer)
        if self.modern:
            found = {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}, **self._capabilities()},
            }
            self.fake.methods["server/discover"] = lambda _params: found
            self.fake.methods["subscriptions/listen"] = self._noted("subscriptions/listen", _listen)

    def asked(self, method: str) -> list[Mapping[str, Any]]:
        """The params of each request of this method."""
        return [params for each, params, _at in self.seen if each == method]

    def times(self, method: str) -> list[float]:
        return [round(at, 3) for each, _params, at in self.seen if each == method]

    # ---- what a test does to its tasks ------------------------------------------------------------------------------

    def say(self, message: str, *, task: str = "t1", status: str = "working", tell: bool = False) -> None:
        self.tasks[task] |= {"status": status, "statusMessage": message}
        if tell:
            self.tell(task)

    def finish(self, result: Mapping[str, Any], *, task: str = "t1", tell: bool = False) -> None:
        self.results[task] = result
        self.tasks[task] |= {"status": "completed", **({"result": result} if self.modern else {})}
        if tell:
            self.tell(task)

    def fail(self, code: int, message: str, *, task: str = "t1") -> None:
        self.results[task] = RpcError(code, message)
        error = {"error": {"code": code, "message": message}} if self.modern else {}
        self.tasks[task] |= {"status": "failed", **error}

    def ask(self, requests: Mapping[str, Any], *, task: str = "t1") -> None:
        self.tasks[task] |= {"status": "input_required", "inputRequests": requests}

    def tell(self, task: str = "t1") -> None:
        method = "notifications/tasks" if self.modern else "notifications/tasks/status"
        for connection in self.fake.connections:
            connection.tell(method, self.tasks[task])

    # ---- how it answers ---------------------------------------------------------------------------------------------

    def _capabilities(self) -> dict[str, Any]:
        if self.modern:
            return {"extensions": {EXTENSION: {}}}
        return {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}

    def _noted(self, method: str, answer: Any) -> Any:
        def noted(params: Mapping[str, Any]) -> Any:
            self.seen.append((method, params, anyio.current_time()))
            return answer(params)

        return noted

    def _call(self, call: FakeCall) -> dict[str, Any]:
        params = self.fake.calls[-1]
        if call.tool == "quick" or not (self.modern or "task" in params):
            return said("at once")
        name = f"t{len(self.tasks) + 1}"
        times = {"createdAt": "2026-11-27T00:00:00Z", "lastUpdatedAt": "2026-11-27T00:00:00Z"}
        task = {"taskId": name, "status": "working", **times, ("ttlMs" if self.modern else "ttl"): 60_000}
        if self.interval is not None:
            task["pollIntervalMs" if self.modern else "pollInterval"] = self.interval
        self.tasks[name] = task
        return {"resultType": "task", **task} if self.modern else {"task": dict(task)}

    def _get(self, params: Mapping[str, Any]) -> Any:
        task = self.tasks.get(params["taskId"])
        return UNKNOWN if task is None else {"resultType": "complete", **task}

    async def _result(self, params: Mapping[str, Any]) -> Any:
        name = params["taskId"]
        while name not in self.results:
            await anyio.sleep(0.01)
        related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": name}}}
        result = self.results[name]
        return result if isinstance(result, RpcError) else {**result, **related}

    def _update(self, params: Mapping[str, Any]) -> Any:
        task = self.tasks[params["taskId"]]
        task["status"] = "working"
        del task["inputRequests"]
        return {"resultType": "complete"}

    def _cancel(self, params: Mapping[str, Any]) -> Any:
        task = self.tasks[params["taskId"]]
        task["status"] = "cancelled"
        return {"resultType": "complete"} if self.modern else task
