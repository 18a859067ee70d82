"""One incarnation of a fake server: the connection, its peer, and the far end of it, in one object.

A request is accepted at once and answered by a task of its own, after the faults that are due at its step. What a real
process would do is said in the words the runtime hears from one: a crash is `on_lost` with an exit code and the tail
of stderr, junk is a note, a hanging server accepts everything and answers nothing.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..actors import Exchange, LostReason, Peer, PeerHooks, current_backend
from ..protocol.errors import Reach, UsageError
from ..protocol.jsonrpc import RpcError
from ..protocol.lifecycle import Reason
from ._fault_plan import FaultPlan, perform
from ._faults import Fault
from ._vocabulary import STEP_OF, Entry

if TYPE_CHECKING:
    from ._fake import FakeServer

HEARS_THE_TAIL: Final = 3  # lines of stderr, as the runtime quotes them


class FakeConnection:
    """A `Connection` and its `Peer` in one."""

    def __init__(self, server: FakeServer, start: int, hooks: PeerHooks, tasks: anyio.abc.TaskGroup) -> None:
        self.server = server
        self.start = start
        self.hooks = hooks
        self.pid: int | None = None
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self._tasks = tasks
        self._backend = current_backend()
        self._plan = FaultPlan(server.script.entries, start)
        self._tools: Sequence[Mapping[str, Any]] | None = None  # its own, once they have changed
        self._stderr: list[str] = []
        self._open: set[Exchange] = set()
        self._late: dict[Exchange, Mapping[str, Any] | RpcError] = {}  # answered when they are cancelled
        self._begun: anyio.Event | None = None  # set once it reads what it is asked
        self._busy = 0  # requests it works on
        self._quiet = 0  # the number of this quiet time
        self._over = False
        self._hung = False
        self._expired = False

    @property
    def peer(self) -> Peer:
        return self

    # ---- Peer -------------------------------------------------------------------------------------------------------

    def request(self, exchange: Exchange) -> None:
        if self.server.strict_json:
            _check_json(exchange.params)
        self._open.add(exchange)
        if self.server.blocked:
            return
        if exchange.method == "tools/call":
            self.server.calls.append(exchange.params or {})
        self.server.pings += exchange.method == "ping"
        exchange.reach = Reach.SENT
        exchange.sent()
        self._tasks.start_soon(self._answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.discard(exchange)
            self.server.cancelled += exchange.method == "tools/call"
            if exchange in self._late:
                self._end(exchange, self._late.pop(exchange))

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        pass

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        pass

    # ---- Connection -------------------------------------------------------------------------------------------------

    @property
    def last_line(self) -> str:
        return ""

    def signs(self) -> object:
        return None

    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._stderr[-HEARS_THE_TAIL:])

    async def stop(self, grace: float) -> None:
        with anyio.move_on_after(grace):
            if self.is_over:
                await self.pause(self.server.wreck_latency)
            elif not self._hung:
                await self._close_slowly()
        self.kill_now()

    def kill_now(self) -> None:
        self._over = True
        self._open.clear()
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.live -= 1

    # ---- its far end ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """It has been started: from now on it reads, unless its script says otherwise."""
        if due := self._plan.due("start"):
            self._begun = anyio.Event()
            self._tasks.start_soon(self._begin, due)
        else:
            self._rest()

    def lose(self, reason: LostReason) -> None:
        """The connection is over; open exchanges are left to their owner."""
        if not self._over:
            self._over = True
            self._open.clear()
            self.hooks.on_lost(reason)

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress on every open call."""
        self.last_heard = self._backend.now()
        for exchange in tuple(self._open):
            exchange.progress(params)

    async def pause(self, seconds: float) -> None:
        if seconds == math.inf:
            await anyio.sleep_forever()
        elif seconds:
            await anyio.sleep(seconds)

    async def _begin(self, due: list[Entry]) -> None:
        await self._play(due)
        if self._begun is not None and not self._hung:
            self._begun.set()
        self._rest()

    async def _close_slowly(self) -> None:
        await self.pause(self.server.stop_latency)
        decided = await self._play(self._plan.due("stop"))
        if decided is not None:
            await anyio.sleep_forever()

    # ---- answering --------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        self._busy += 1
        self._quiet += 1
        if self._begun is not None:
            await self._begun.wait()
        step = STEP_OF.get(exchange.method)
        due = self._plan.due(step, (exchange.params or {}).get("name")) if step else []
        decided = await self._play(due) if due else None
        if self._expired:
            self._forget(exchange)
        elif decided is None or decided.do in ("answer_twice", "answer_late"):
            await self._answer_well(exchange, decided.do if decided else "")
        elif decided.do == "refuse":
            self._end(
                exchange, RpcError(-32603 if decided.code is None else decided.code, decided.text or "")
            )
        self._busy -= 1
        self._rest()

    async def _answer_well(self, exchange: Exchange, how: str) -> None:
        result = await self._result_of(exchange)
        if how == "answer_late" and exchange in self._open:
            self._late[exchange] = result
            return
        self._end(exchange, result)
        if how == "answer_twice" and not self._is_mute:
            self.hooks.on_note("a late or second answer: by its script")

    async def _result_of(self, exchange: Exchange) -> Mapping[str, Any] | RpcError:
        server, params = self.server, exchange.params or {}
        match exchange.method:
            case "initialize":
                await self.pause(server.greet_latency)
                return self._greeting(params)
            case "tools/list":
                listed = server.tools if self._tools is None else self._tools  # as they are when it is asked
                await self.pause(server.list_latency)
                return {"tools": listed}
            case "tools/call":
                await self.pause(server.call_latency)
                error = server.call_error
                return RpcError(*error) if error else server.handler(params.get("arguments") or {})
            case "ping":
                await self.pause(server.ping_latency)
                return {}
            case other:
                return RpcError(-32601, f"Method not found: {other}")

    def _greeting(self, params: Mapping[str, Any]) -> Mapping[str, Any] | RpcError:
        if self.server.refuse_greeting is not None:
            return RpcError(-32603, self.server.refuse_greeting)
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "fake", "version": "1"},
        }

    def _end(self, exchange: Exchange, result: Mapping[str, Any] | RpcError) -> None:
        if self.server.deaf or self._hung:
            return
        self.last_heard = self._backend.now()  # a late answer is a sign of life too
        if exchange not in self._open:
            return
        self._open.discard(exchange)
        exchange.reach = Reach.ANSWERED
        if isinstance(result, RpcError):
            exchange.end(None, result)
        else:
            exchange.end(json.dumps(result).encode(), None)

    def _forget(self, exchange: Exchange) -> None:
        """The session is unknown, which proves that this request has not run."""
        if not self._over:
            exchange.reach = Reach.NOT_SENT
            self.lose(LostReason("session expired: HTTP 404", loss=Reason.EXPIRED))

    # ---- playing its script -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def _is_mute(self) -> bool:
        return self._over or self._hung

    async def _play(self, due: list[Entry]) -> Entry | None:
        playing = perform(due, self)
        while True:
            try:
                seconds = next(playing)
            except StopIteration as end:
                return end.value
            await self.pause(seconds)

    def _rest(self) -> None:
        """Nothing is being answered: how long will that last?"""
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
        self.server.played.append((self.start, Fault(**fault.said())))

    def talk_junk(self) -> None:
        if not self._is_mute:
            self.last_heard = self._backend.now()
            self.hooks.on_note("junk on stdout: by its script")

    def flood(self, notifications: int, stderr: int) -> None:
        if stderr:
            self._stderr.append("e" * stderr)
        for number in range(notifications):
            if self._is_mute:
                return
            self.last_heard = self._backend.now()
            self.hooks.on_notification("notifications/message", {"level": "info", "data": number})

    def change_tools(self, names: Sequence[str]) -> None:
        self._tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        if not self._is_mute:
            self.hooks.on_notification("notifications/tools/list_changed", None)

    def hang(self) -> None:
        self._hung = True

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        if last_words:
            self._stderr.append(last_words)
        code = exit_code if signal_name is None else -signal.Signals[signal_name].value
        text = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name}"
        self.lose(LostReason(text, code, self.stderr_tail()))

    def expire(self) -> None:
        self._expired = True


def _check_json(params: object) -> None:
    """As a real peer does. Raises `UsageError`."""
    try:
        json.dumps(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"This cannot be sent as JSON: {error}") from None
