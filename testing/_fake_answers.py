"""How one incarnation of a fake server behaves: it plays its script, and answers what the script leaves alone.

Each request is answered in a task of its own, after the faults that are due at its step. What a fault does to the
connection is up to the `Wire`: this module only decides what happens, and when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ..actors import Exchange
from ..protocol.jsonrpc import RpcError
from ._fault_plan import FaultPlan, perform
from ._faults import Fault
from ._vocabulary import STEP_OF, Entry

if TYPE_CHECKING:
    from ._fake import FakeServer

Answer = Mapping[str, Any] | RpcError


class Wire(Protocol):
    """The connection, as its far end sees it."""

    @property
    def is_over(self) -> bool: ...

    def is_waiting(self, exchange: Exchange) -> bool:
        """Whether the exchange has no answer yet, and its owner still wants one."""
        ...

    def end(self, exchange: Exchange, answer: Answer) -> None:
        """Answer the exchange, if it is still waiting."""
        ...

    def expire(self, exchange: Exchange) -> None:
        """The session is unknown: the exchange did not run, and the connection is over."""
        ...

    def note(self, text: str) -> None:
        """The runtime notes something odd about the server."""
        ...

    def junk(self) -> None:
        """The server writes what is no message."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """The server sends a notification."""
        ...

    def write_stderr(self, text: str) -> None: ...

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None: ...


class FakeAnswers:
    """The far end of one connection. It is the `Player` of its script."""

    def __init__(self, server: FakeServer, start: int, wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        self.is_hung = False  # it reads everything and answers nothing more
        self.late: dict[Exchange, Answer] = {}  # answered when they are cancelled
        self._server = server
        self._start = start
        self._wire = wire
        self._tasks = tasks
        self._plan = FaultPlan(server.script.entries, start)
        self._tools: Sequence[Mapping[str, Any]] | None = None  # its own, once they have changed
        self._begun: anyio.Event | None = None  # set once it reads requests
        self._busy = 0  # requests that it works on
        self._quiet = 0  # the number of this quiet time
        self._is_expired = False

    def begin(self) -> None:
        """It has been started. From now on it reads, unless its script says otherwise."""
        if due := self._plan.due("start"):
            self._begun = anyio.Event()
            self._tasks.start_soon(self._begin, due)
        else:
            self._rest()

    async def _begin(self, due: list[Entry]) -> None:
        await self._play(due)
        if self._begun is not None and not self.is_hung:
            self._begun.set()
        self._rest()

    async def close(self) -> None:
        """It is asked to end. Returns when it has ended by itself, which may be never."""
        if self.is_hung:
            return
        await pause(self._server.stop_latency)
        decided = await self._play(self._plan.due("stop"))
        if decided is not None:
            await anyio.sleep_forever()

    # ---- answering --------------------------------------------------------------------------------------------------

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, as the script wants it."""
        self._busy += 1
        self._quiet += 1
        if self._begun is not None:
            await self._begun.wait()
        step = STEP_OF.get(exchange.method)
        due = self._plan.due(step, (exchange.params or {}).get("name")) if step else []
        decided = await self._play(due) if due else None
        if self._is_expired:
            self._wire.expire(exchange)
        elif decided is None or decided.do in ("answer_twice", "answer_late"):
            await self._answer_well(exchange, decided.do if decided else "")
        elif decided.do == "refuse":
            code = -32603 if decided.code is None else decided.code
            self._wire.end(exchange, RpcError(code, decided.text or ""))
        self._busy -= 1
        self._rest()

    async def _answer_well(self, exchange: Exchange, how: str) -> None:
        answer = await self._answer_to(exchange)
        if how == "answer_late" and self._wire.is_waiting(exchange):
            self.late[exchange] = answer
            return
        self._wire.end(exchange, answer)
        if how == "answer_twice" and not self._is_mute:
            self._wire.note("a late or second answer: by its script")

    async def _answer_to(self, exchange: Exchange) -> Answer:
        server, params = self._server, exchange.params or {}
        match exchange.method:
            case "initialize":
                await pause(server.greet_latency)
                return self._greeting(params)
            case "tools/list":
                listed = (
                    server.tools if self._tools is None else self._tools
                )  # as they were when it was asked
                await pause(server.list_latency)
                return {"tools": listed}
            case "tools/call":
                await pause(server.call_latency)
                error = server.call_error
                return RpcError(*error) if error else server.handler(params.get("arguments") or {})
            case "ping":
                await pause(server.ping_latency)
                return {}
            case other:
                return RpcError(-32601, f"Method not found: {other}")

    def _greeting(self, params: Mapping[str, Any]) -> Answer:
        if self._server.refuse_greeting is not None:
            return RpcError(-32603, self._server.refuse_greeting)
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "fake", "version": "1"},
        }

    # ---- playing its script -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._wire.is_over

    @property
    def _is_mute(self) -> bool:
        return self.is_over or self.is_hung

    async def _play(self, due: list[Entry]) -> Entry | None:
        playing = perform(due, self)
        while True:
            try:
                seconds = next(playing)
            except StopIteration as end:
                return end.value
            await pause(seconds)

    def _rest(self) -> None:
        """Nothing is being answered. Wait for the faults that are due when it has been idle for a while."""
        times = self._plan.idle_times()
        if times and not self._busy:
            self._quiet += 1
            self._tasks.start_soon(self._idle, self._quiet, times)

    async def _idle(self, quiet: int, times: Sequence[float]) -> None:
        waited = 0.0
        for after in times:
            await anyio.sleep(after - waited)
            waited = after
            if self._quiet != quiet or self._is_mute:
                return
            await self._play(self._plan.due_idle(after))

    def note_fault(self, fault: Entry) -> None:
        self._server.played.append((self._start, Fault(**fault.said())))

    def talk_junk(self) -> None:
        if not self._is_mute:
            self._wire.junk()

    def flood(self, notifications: int, stderr: int) -> None:
        if stderr:
            self._wire.write_stderr("e" * stderr)
        for number in range(notifications):
            if self._is_mute:
                return
            self._wire.tell("notifications/message", {"level": "info", "data": number})

    def change_tools(self, names: Sequence[str]) -> None:
        known = {tool["name"]: tool for tool in (*self._server.tools, *(self._tools or ()))}
        self._tools = [known.get(name) or {"name": name, "inputSchema": {"type": "object"}} for name in names]
        if not self._is_mute:
            self._wire.tell("notifications/tools/list_changed", None)

    def hang(self) -> None:
        self.is_hung = True

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        self._wire.crash(exit_code, signal_name, last_words)

    def expire(self) -> None:
        self._is_expired = True


async def pause(seconds: float) -> None:
    """Wait. With `inf`, for ever."""
    if seconds == math.inf:
        await anyio.sleep_forever()
    elif seconds:
        await anyio.sleep(seconds)
