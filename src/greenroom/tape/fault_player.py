"""The far end of one connection that plays a fault script, and has answered what the script leaves alone.

Each request is answered in a task of its own, after the faults that are due at its step. What a fault does to the
connection is up to the `Wire`, and what a request is answered with to the `Responder` behind it: a tape, or the fake
server of a test. This module only decides what happens, and when.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from ..actors.peer import Exchange, LostReason
from ..protocol.errors import Reach
from ..protocol.events import NoteCode
from ..protocol.fault_plan import STEP_OF, FaultEntry, FaultPlan, perform
from ..protocol.jsonrpc.terms import INTERNAL_ERROR, RpcError
from ..protocol.lifecycle import Reason

Answer = bytes | RpcError  # a result is JSON
TAIL: Final = 3  # last lines of stderr, as many as the runtime quotes
LIST_CHANGED: Final = "notifications/tools/list_changed"


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

    def note(self, code: NoteCode, text: str) -> None:
        """Let the runtime note something odd about the server."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send the client a notification."""
        ...

    def lose(self, reason: LostReason) -> None:
        """The connection is over. Open exchanges are left to their owner."""
        ...


class Responder(Protocol):
    """What answers, and what knows the script."""

    @property
    def plan(self) -> FaultPlan:
        """The faults of this start."""
        ...

    async def due_for(self, step: str, exchange: Exchange) -> Sequence[FaultEntry]:
        """The faults to play for this request, which has arrived."""
        ...

    async def answer_to(self, exchange: Exchange) -> Answer | None:
        """What the request is answered with; None: nothing."""
        ...

    def note_fault(self, fault: FaultEntry) -> None: ...

    def change_tools(self, names: Sequence[str]) -> None: ...


class FaultPlayer:
    """It is the `Player` of its script."""

    def __init__(self, behind: Responder, wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        self.is_hung = False  # it reads everything and answers nothing more
        self._behind = behind
        self._wire = wire
        self._tasks = tasks
        self.late: dict[Exchange, Answer] = {}  # answered when they are cancelled
        self._stderr: list[str] = []
        self._begun: anyio.Event | None = None  # set once it reads requests
        self._busy = 0  # requests that it works on
        self._quiet = 0  # the number of this quiet time
        self._is_expired = False

    def begin(self) -> None:
        """It has been started. From now on it reads, unless its script says otherwise."""
        if due := self._behind.plan.due("start"):
            self._begun = anyio.Event()
            self._tasks.start_soon(self._begin, due)
        else:
            self._rest()

    async def _begin(self, due: Sequence[FaultEntry]) -> None:
        await self._play(due)
        if self._begun is not None and not self.is_hung:
            self._begun.set()
        self._rest()

    async def close(self, seconds: float = 0.0) -> None:
        """It is asked to end, and takes so many seconds. Returns when it has ended by itself, which may be never."""
        if self.is_hung:
            return
        await pause(seconds)
        decided = await self._play(self._behind.plan.due("stop"))
        if decided is not None:
            await anyio.sleep_forever()

    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._stderr[-TAIL:])

    # ---- answering --------------------------------------------------------------------------------------------------

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, as the script wants it."""
        self._busy += 1
        self._quiet += 1
        if self._begun is not None:
            await self._begun.wait()
        if self.is_hung:  # it has read the request, and that is all
            return
        step = STEP_OF.get(exchange.method)
        due = await self._behind.due_for(step, exchange) if step else ()
        decided = await self._play(due) if due else None
        if self._is_expired or (decided is not None and decided.do == "crash_before"):
            self._lose_unsent(exchange, decided)
        elif decided is None or decided.do in ("answer_twice", "answer_late"):
            await self._answer_well(exchange, decided.do if decided else "")
        elif decided.do == "refuse":
            code = INTERNAL_ERROR if decided.code is None else decided.code
            self._wire.end(exchange, RpcError(code, decided.text or ""))
        self._busy -= 1
        self._rest()

    def abandoned(self, exchange: Exchange) -> None:
        """Its owner does not wait any more: now comes an answer that the script wants to be late."""
        if exchange in self.late:
            self._wire.end(exchange, self.late.pop(exchange))

    async def _answer_well(self, exchange: Exchange, how: str) -> None:
        answer = await self._behind.answer_to(exchange)
        if answer is None:
            return
        if how == "answer_late" and self._wire.is_waiting(exchange):
            self.late[exchange] = answer
            return
        self._wire.end(exchange, answer)
        if how == "answer_twice" and not self._is_mute:
            self._wire.note(NoteCode.LATE_ANSWER, "a late or second answer: by its script")

    def _lose_unsent(self, exchange: Exchange, decided: FaultEntry | None) -> None:
        """The connection is over, and it is proved that the request did not run."""
        if self.is_over:
            return
        exchange.reach = Reach.NOT_SENT
        if self._is_expired or decided is None:
            self._wire.lose(LostReason("session expired: HTTP 404", loss=Reason.EXPIRED))
        else:
            self.crash(1 if decided.exit_code is None else decided.exit_code, decided.signal, decided.text)

    # ---- playing its script -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._wire.is_over

    @property
    def _is_mute(self) -> bool:
        return self.is_over or self.is_hung

    async def _play(self, due: Sequence[FaultEntry]) -> FaultEntry | None:
        playing = perform(due, self)
        while True:
            try:
                seconds = next(playing)
            except StopIteration as end:
                return end.value
            await pause(seconds)

    def _rest(self) -> None:
        """Nothing is being answered. Wait for the faults that are due when it has been idle for a while."""
        times = self._behind.plan.idle_times()
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
            await self._play(self._behind.plan.due_idle(after))

    def note_fault(self, fault: FaultEntry) -> None:
        self._behind.note_fault(fault)

    def talk_junk(self) -> None:
        if not self._is_mute:
            self._wire.note(NoteCode.JUNK, "junk on stdout: by its script")

    def flood(self, notifications: int, stderr: int) -> None:
        if stderr:
            self.write_stderr("e" * stderr)
        for number in range(notifications):
            if self._is_mute:
                return
            self._wire.tell("notifications/message", {"level": "info", "data": number})

    def change_tools(self, names: Sequence[str]) -> None:
        self._behind.change_tools(names)
        if not self._is_mute:
            self._wire.tell(LIST_CHANGED, None)

    def hang(self) -> None:
        self.is_hung: bool = True

    def write_stderr(self, text: str) -> None:
        self._stderr.append(text)

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        """Its process ends, with this exit code or by this signal. `last_words`: its last line on stderr."""
        if last_words:
            self.write_stderr(last_words)
        code = exit_code if signal_name is None else -signal.Signals[signal_name].value
        text = f"exited with code {code}" if code >= 0 else f"killed by {signal_name}"
        self._wire.lose(LostReason(text, code, self.stderr_tail()))

    def expire(self) -> None:
        self._is_expired = True


def tools_named(names: Sequence[str], known: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """These tools: those that are `known`, and others of which nothing else is said."""
    by_name = {name: tool for tool in known if isinstance(name := tool.get("name"), str)}
    return [by_name.get(name) or {"name": name, "inputSchema": {"type": "object"}} for name in names]


async def pause(seconds: float) -> None:
    """Wait. With `inf`, for ever."""
    if seconds == math.inf:
        await anyio.sleep_forever()
    elif seconds:
        await anyio.sleep(seconds)
