"""Calls: one request of a user, and its exactly one outcome.

A call begins where somebody asks, before its name is looked up (`supervisor.port`). So whatever refuses it, an
unknown name, a person, a full queue, ends that call, and there is no request that is no call yet.

A `Call` is the exchange itself, so a call on a connected server costs one object and one wait. The caller that
started it owns its end: a waiter for a task in `wait`, or a callback for a door that has no task per call.
`end` is first-write-wins. Everything that can end a call goes through it: a refusal, the answer, a timeout, a lost
connection, the drain deadline, its caller's cancellation. So there is exactly one outcome by construction. In the same
step it is counted for the drain report, and the watchers are told (`watchers`).

An open call is in one place at a time: with who asks for it, queued in a mailbox, or in flight at a peer. Its `reach`
only grows there; a call that is replayed after a lost connection starts again at NOT_SENT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel
import msgspec

from ..protocol.address import Address
from ..protocol.errors import CallError, Reach
from ..protocol.jsonrpc.outgoing import result_with_meta
from .peer import NOT_SENT, Cancellable, Exchange, ExchangeOwner

if TYPE_CHECKING:
    from ..protocol.trace_context import TraceContext
    from .backend import Waiter
    from .room_context import RoomContext
    from .watchers import CallView


LARGE_RESULT = 1 << 20  # bytes of a result that takes milliseconds to read
Progress = Callable[[Mapping[str, Any]], None]


class CallOwner(ExchangeOwner, Protocol):
    """What a call needs of the queue that accepted it, or of the gate that holds it before (`safety.approval_gate`)."""

    address: Address

    @property
    def protocol_version(self) -> str | None: ...

    @property
    def connected_at(self) -> float: ...

    def incarnation(self) -> int:
        """The one that it is in now. (No property, for each call asks, and would wait three times as long.)"""
        ...

    @property
    def in_flight(self) -> int: ...

    @property
    def queued(self) -> int: ...

    def cancel(self, call: Call, reason: str) -> None: ...


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Who asks for calls: by which door, in which session (None: the room itself), for whom, and with which program, as
    far as that is known."""

    door: str = "embedded"
    session: str | None = None
    subject: str | None = None
    client: object = None  # what the program says of itself


NOBODY = Origin()


class Tally:
    """The numbers of the drain report: every accepted call is completed, failed, cancelled or still open. (It is no
    struct, as `call_queue.Load`.)"""

    __slots__ = ("accepted", "cancelled", "completed", "failed", "refusals", "sent")

    def __init__(self) -> None:
        self.accepted: int = 0
        self.completed: int = 0  # got a result, even one that the tool calls an error
        self.failed: int = 0  # a typed error
        self.cancelled: int = 0  # by the caller, before there was an outcome
        self.sent: int = 0  # one that was sent again counts again, so it is no part of the sum
        self.refusals: dict[str, int] = {}  # never accepted, by code: no part of the sum, either

    def count(self, call: Call) -> None:
        """The call has ended without a result, or before it was accepted."""
        if not call.number:
            self.refusals[call.outcome] = self.refusals.get(call.outcome, 0) + 1
        elif call.error is not None:
            self.failed += 1
        else:
            self.cancelled += 1

    @property
    def refused(self) -> int:
        return sum(self.refusals.values())

    @property
    def open(self) -> int:
        return self.accepted - self.completed - self.failed - self.cancelled


class Call(Exchange):
    """One request, from when it is asked for. Read `result`, `error` and `cancelled` once `ended` is true."""

    owner: CallOwner | None = None  # the queue that has it
    server: str | None = None  # as far as it is known
    view: CallView | None = None  # as the watchers of a program see it
    has_target: bool = False  # its server is found, and its params have that server's own names
    began_at: float = 0.0  # as far as anybody watches for it
    ended_at: float = 0.0

    asked_by: Any = None  # what its `on_end` has to know beside the call; for nobody else
    takes_inputs: bool = False  # the caller itself handles a result that asks for more input
    asking: Cancellable | None = None  # set while input for it is being found, or its task awaited
    task: str | None = None  # its server runs this task for it
    on_task: Callable[[], object] | None = None  # called when that is known; must not raise
    rounds: int = 0
    pauses: int = 0
    result: bytes | None = None
    error: CallError | None = None
    cancelled: bool = False
    lost_before: bool = False
    was_sent: bool = False  # an earlier attempt of it: it may have run, wherever this one ends
    is_probe: bool = False
    approval: str | None = None  # what was decided, if somebody had to allow it
    is_allowed: bool = False  # a person has said yes to it before it was made
    news: Mapping[str, Any] | None = None  # for `_meta` of its result: what its session has to be told
    # Its queue writes these when it accepts it.
    number: int = 0  # 0: it was not accepted
    order: int = 0  # the how manieth of the room's calls to be sent, the last time it was; 0: it never was
    accepted_at: float = 0.0
    sent_at: float = 0.0
    weight: int = 0  # bytes of its parameters, once it has to wait
    wait_by: float = math.inf  # its caller has already waited for the name to become known: that counts, too
    total_deadline: float = 0.0

    def __init__(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        # By their names, please, but where every call comes: there a name costs much. There is no `*`, because each
        # that is left out would be looked up, for each call.
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
        self.on_end: Callable[[Call], None] | None = on_end
        self.on_progress = on_progress
        self.origin: Origin = NOBODY  # until it begins
        self.trace: TraceContext | None = None
        self.waiter: Waiter | None = None
        self.reach: Reach = NOT_SENT
        self.ended: bool = False

    # The caller's side.

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
        return self.result if self.news is None else result_with_meta(self.result, self.news)

    @property
    def protocol_version(self) -> str | None:
        """The protocol version that it was spoken in. Read it while the call ends: afterwards the connection may be
        another."""
        return self.version or (self.owner.protocol_version if self.owner is not None else None)

    @property
    def met_a_start(self) -> bool:
        """Whether its server was connected after the call was accepted. Read it while the call ends."""
        return self.owner is not None and self.owner.connected_at > self.accepted_at

    # The one end.

    def end(
        self,
        context: RoomContext,
        at: float,
        result: bytes | None = None,
        error: CallError | None = None,
        is_raised: bool = False,
    ) -> bool:
        """Set the outcome, once. Without a result and an error the caller has cancelled the call. `is_raised`: its
        caller gets the error where he asked, and no callback. Returns False when it had ended already."""
        if self.ended:
            return False
        if result is None and self.reach is NOT_SENT and self.was_sent:
            self.reach: Reach = Reach.SENT
            error = None if error is None else error.after_sending()
        self.ended = True
        self.result, self.error, self.ended_at = result, error, at
        if result is None:
            if error is None:
                self.cancelled = True
            else:
                error.tool = error.tool or self.tool
                # A call that was refused while its name was looked up has the server that its error is about.
                self.server = self.server or error.server or None
            context.tally.count(self)
        else:
            context.tally.completed += 1
        if self.waiter is not None:
            self.waiter.set()
        for watcher in context.watchers.ended:  # as in `tell`; each call comes here, so a step is saved
            try:
                watcher(self)
            except Exception as problem:
                context.watchers.raised(watcher, problem)
        on_end = self.on_end
        if on_end is not None and not is_raised:
            try:
                on_end(self)
            except Exception as problem:  # its caller's, and no bug of ours
                context.note_raised("the callback of a call", problem, self.address)
        return True

    @property
    def address(self) -> Address | None:
        """Where it is, or for which server it was asked; None: that is not known."""
        if self.owner is not None:
            return self.owner.address
        return None if self.server is None else Address(self.server)

    @property
    def original(self) -> str | None:
        """The server's own name, or URI, for what is asked; None until its server is found."""
        if not self.has_target:
            return None
        said = (self.params or {}).get("uri" if self.method == "resources/read" else "name")
        return None if said is None else str(said)

    @property
    def client(self) -> str | None:
        """The session that it came from; None: the room itself."""
        return self.origin.session

    @property
    def outcome(self) -> str:
        """The outcome as one word for the event stream."""
        if self.cancelled:
            return "cancelled"
        return self.error.code if self.error is not None else "result"

    @property
    def may_be_repeated(self) -> bool:
        """Whether it may be sent again: it did not run, or it may run twice. True only once for a call."""
        return not self.lost_before and (self.reach is Reach.NOT_SENT or self.replayable)

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
