"""Calls: one request of a user, and its exactly one outcome.

A `Call` is the exchange itself, so a call on a connected server costs one object and one wait. The caller that
started it owns its end: a waiter for a task in `wait`, or a callback for a door that has no task per call.
`finish` is first-write-wins. Everything that can end a call goes through it: the answer, a timeout, a lost
connection, the drain deadline, its caller's cancellation. So there is exactly one outcome by construction. The
tally for the drain report is counted in the same step.

An open call is in one place at a time: queued in a mailbox, or in flight at a peer. Its `reach` only grows there;
a call that is replayed after a lost connection starts again at NOT_SENT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel
import msgspec

from ..protocol.errors import CallError, GreenroomError, Reach
from ..protocol.events import CallAccepted, CallEvent, CallSent
from ..protocol.result import says_error
from .peer import NOT_SENT, Cancellable, Exchange, ExchangeOwner

if TYPE_CHECKING:
    from ..protocol.address import Address
    from .backend import Waiter


LARGE_RESULT = 1 << 20  # bytes of a result that takes milliseconds to read
Progress = Callable[[Mapping[str, Any]], None]


class Table(ExchangeOwner, Protocol):
    """What a call needs of the table that accepted it."""

    address: Address

    @property
    def protocol_version(self) -> str | None: ...

    @property
    def connected_at(self) -> float: ...

    @property
    def incarnation(self) -> int: ...

    def cancel(self, call: Call, reason: str) -> None: ...


class Watch(Protocol):
    """Is told when a call is sent."""

    def sending(self, call: Call) -> None:
        """The call is about to be written. Its trace may still be set."""
        ...


class Tally(msgspec.Struct):
    """The numbers of the drain report: every accepted call is in exactly one of the other three."""

    accepted: int = 0
    completed: int = 0  # got a result, even one that the tool calls an error
    failed: int = 0  # a typed error
    cancelled: int = 0  # by the caller, before there was an outcome
    refusals: dict[str, int] = msgspec.field(
        default_factory=dict[str, int]
    )  # never accepted, by code: no part of the sum

    def refuse(self, error: GreenroomError) -> None:
        """A call failed before it was accepted."""
        self.refusals[error.code] = self.refusals.get(error.code, 0) + 1

    @property
    def refused(self) -> int:
        return sum(self.refusals.values())

    @property
    def open(self) -> int:
        return self.accepted - self.completed - self.failed - self.cancelled


class Call(Exchange):
    """One accepted (or refused) request. Read `result`, `error` and `cancelled` once `ended` is true."""

    takes_inputs: bool = False  # the caller itself handles a result that asks for more input
    asking: Cancellable | None = None  # set while input for it is being found, or its task awaited
    task: str | None = None  # its server runs this task for it
    on_task: Callable[[], object] | None = None  # called when that is known; must not raise
    rounds: int = 0
    pauses: int = 0
    waiter: Waiter | None = None
    result: bytes | None = None
    error: CallError | None = None
    ended: bool = False
    cancelled: bool = False
    lost_before: bool = False
    was_sent: bool = False  # an earlier attempt of it: it may have run, wherever this one ends
    is_probe: bool = False
    client: str | None = None  # the session it came from
    watch: Watch | None = None  # is told that it is about to be sent
    approval: str | None = None  # what was decided, if somebody had to allow it
    is_allowed: bool = False  # a person has said yes to it before it was made
    # Its call table writes these when it accepts it.
    owner: Table | None = None  # that table
    number: int = 0
    order: int = 0  # the how manieth of the room's calls to be sent, the last time it was; 0: it never was
    accepted_at: float = 0.0
    sent_at: float = 0.0
    queue_deadline: float = 0.0
    weight: int = 0  # bytes of its parameters, once it has to wait
    wait_by: float = math.inf  # its caller has already waited for the name to become known: that counts, too
    deadline: float = 0.0
    total_deadline: float = 0.0

    def __init__(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        tool: str | None = None,
        timeout: float | None = None,
        replayable: bool = False,
        on_end: Callable[[Call], None] | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.tool = tool
        self.timeout = timeout  # seconds from being sent; None: the server's
        self.replayable = replayable  # the tool declares that running it twice is harmless
        self.on_end = on_end
        self.on_progress = on_progress
        if on_progress is not None:
            self.wants_progress = True

    # ---- the caller's side ------------------------------------------------------------------------------------------

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """The caller does not wait any more. A queued call is dropped; of a sent call the server is told. Does nothing
        for a call that has ended."""
        if not self.ended and self.owner is not None:
            self.owner.cancel(self, reason)

    async def wait(self) -> bytes:
        """Wait for the result, and return its raw JSON. Raises the call's `CallError`. Cancelling this cancels the
        call."""
        if not self.ended:
            assert self.waiter is not None
            try:
                await self.waiter.wait()
            except BaseException:
                self.cancel()
                raise
        if self.error is not None:
            raise self.error
        assert self.result is not None
        if len(self.result) >= LARGE_RESULT:
            await _let_others_go_first()
        return self.result

    @property
    def protocol_version(self) -> str | None:
        """The protocol version that it was spoken in. Read it while the call ends: afterwards the connection may be
        another."""
        return self.version or (self.owner.protocol_version if self.owner is not None else None)

    @property
    def met_a_start(self) -> bool:
        """Whether its server was connected after the call was accepted. Read it while the call ends."""
        return self.owner is not None and self.owner.connected_at > self.accepted_at

    # ---- the one end ------------------------------------------------------------------------------------------------

    def finish(self, tally: Tally, *, result: bytes | None = None, error: CallError | None = None) -> bool:
        """Set the outcome, once. Without a result and an error the caller has cancelled the call. Returns False when it
        had ended already. Its call table then runs the callback."""
        if self.ended:
            return False
        if self.was_sent and self.reach is Reach.NOT_SENT:
            self.reach: Reach = Reach.SENT
            error = None if error is None else error.after_sending()
        self.ended = True
        self.result, self.error = result, error
        if result is not None:
            tally.completed += 1
        elif error is not None:
            error.tool = error.tool or self.tool
            tally.failed += 1
        else:
            self.cancelled = True
            tally.cancelled += 1
        if self.waiter is not None:
            self.waiter.set()
        return True

    @property
    def outcome(self) -> str:
        """The outcome as one word for the event stream."""
        if self.cancelled:
            return "cancelled"
        return self.error.code if self.error is not None else "result"

    def back_to_queue(self, wait_by: float = math.inf) -> None:
        """The connection was lost: it waits to be sent once more. `wait_by`: until when it may wait, if
        that is before its queue's time is up."""
        self.version: str | None = None
        self.declares: Mapping[str, Any] | None = None
        self.task: str | None = None
        self.wait_by = wait_by
        self.begin_again()

    def begin_again(self) -> None:
        """It is about to be sent once more."""
        self.was_sent = self.was_sent or self.reach is not Reach.NOT_SENT
        self.reach = Reach.NOT_SENT


async def _let_others_go_first() -> None:
    """Give others their turn around a large result. Reading it took the loop a while, and its caller's decoding
    takes as long again. In between, one turn lets answers that arrived meanwhile be read, and one lets their
    callers run."""
    await anyio.lowlevel.cancel_shielded_checkpoint()
    await anyio.lowlevel.cancel_shielded_checkpoint()


# ---- The fields of an event about a call, apart from its caller and its server --------------------------------------


def measured(call: Call, what: type[CallEvent], now: float) -> dict[str, Any]:
    """The seconds that the call has taken so far, and its outcome if it has ended."""
    if what is CallAccepted:
        return {}
    was_sent = call.reach is not NOT_SENT
    waited = (call.sent_at if was_sent else now) - call.accepted_at
    if what is CallSent:
        return {"waited": waited}
    taken = now - call.sent_at if was_sent else None
    is_error = call.result is not None and says_error(call.result)
    return {
        "outcome": call.outcome,
        "is_error": is_error,
        "reach": call.reach,
        "waited": waited,
        "taken": taken,
    }
