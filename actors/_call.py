"""Calls: one request of a user, and its exactly one outcome.

A `Call` is the exchange itself, so a call on a connected server costs one object and one wait. Whoever started it owns
its end: a waiter for a task that sits in `wait`, or a callback for a door that has no task per call. `finish` is
first-write-wins; everything that can end a call (the answer, a timeout, a lost connection, the drain deadline, its
caller's cancelling) goes through it, so the outcome is one by construction. The tally that the drain report is made of
is counted in the same step.

While it is open a call is in one place at a time: queued in a mailbox, or in flight at a peer. `reach` only grows
while it is there; a call that is replayed after a lost connection starts again at NOT_SENT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel
import attrs

from ..protocol.errors import CallError, GreenroomError, Reach
from ..protocol.jsonrpc import RpcError
from ._peer import Exchange

if TYPE_CHECKING:
    from anyio import CancelScope

    from ..protocol.address import Address
    from ._backend import Waiter

LARGE_RESULT = 1 << 20  # bytes of a result from which on looking at it takes milliseconds

Progress = Callable[[Mapping[str, Any]], None]


class Table(Protocol):
    """What a call needs of the table that accepted it."""

    address: Address

    @property
    def protocol_version(self) -> str | None: ...

    def call_sent(self, call: Call) -> None: ...

    def call_answered(self, call: Call, result: bytes | None, error: RpcError | None) -> None: ...

    def call_progressed(self, call: Call, params: Mapping[str, Any]) -> None: ...

    def cancel(self, call: Call, reason: str) -> None: ...


@attrs.define
class Tally:
    """What the drain report says: every accepted call is in exactly one of the other three."""

    accepted: int = 0
    completed: int = 0  # an answer with a result, also one the tool calls an error
    failed: int = 0  # a typed error
    cancelled: int = 0  # by the caller, before there was an outcome
    refusals: dict[str, int] = attrs.field(
        factory=dict[str, int]
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

    takes_inputs: bool = False  # a result that asks for more input is the caller's to deal with
    asking: CancelScope | None = None  # input for it is being found
    rounds: int = 0
    pauses: int = 0
    waiter: Waiter | None = None
    result: bytes | None = None
    error: CallError | None = None
    ended: bool = False
    cancelled: bool = False
    lost_before: bool = False
    is_probe: bool = False
    client: str | None = None  # the session it came from
    # What its call table writes when it accepts it.
    table: Table | None = None
    number: int = 0
    accepted_at: float = 0.0
    sent_at: float = 0.0
    queue_deadline: float = 0.0
    weight: int = 0  # bytes of its parameters, once it has to wait
    wait_by: float = math.inf  # its caller has waited before, for its name to be known: that counts, too
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

    # ---- the peer's side --------------------------------------------------------------------------------------------

    def sent(self) -> None:
        assert self.table is not None
        self.table.call_sent(self)

    def end(self, result: bytes | None, error: RpcError | None) -> None:
        assert self.table is not None
        self.table.call_answered(self, result, error)

    def progress(self, params: Mapping[str, Any]) -> None:
        assert self.table is not None
        self.table.call_progressed(self, params)

    # ---- the caller's side ------------------------------------------------------------------------------------------

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """The caller leaves. Queued: it is forgotten. Sent: the server is told. Ended: nothing."""
        if not self.ended and self.table is not None:
            self.table.cancel(self, reason)

    async def wait(self) -> bytes:
        """The raw JSON of the result. Raises the call's `CallError`; being cancelled cancels the call."""
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
        """What its server speaks. Ask while the call ends: afterwards the connection may be another."""
        return self.table.protocol_version if self.table is not None else None

    # ---- the one end ------------------------------------------------------------------------------------------------

    def finish(self, tally: Tally, *, result: bytes | None = None, error: CallError | None = None) -> bool:
        """The outcome, once; with neither, the caller has cancelled it. False when there was one already. Its call
        table then runs the callback."""
        if self.ended:
            return False
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
        """One word for the event stream."""
        if self.cancelled:
            return "cancelled"
        return self.error.code if self.error is not None else "result"

    def back_to_queue(self) -> None:
        """Its connection was lost: as if it had never been sent."""
        self.lost_before = True
        self.wait_by = math.inf
        self.reach = Reach.NOT_SENT


async def _let_others_go_first() -> None:
    """Reading a large result took the loop a while, and its caller will decode it, which takes as long again. Between
    the two come those whose answers arrived meanwhile: one turn for the answers to be read, one for their callers."""
    await anyio.lowlevel.cancel_shielded_checkpoint()
    await anyio.lowlevel.cancel_shielded_checkpoint()
