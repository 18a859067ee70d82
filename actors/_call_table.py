"""The call table: accepts, sends and ends the calls of one address.

A server actor holds one. A call is in one place at a time: `waiting` (queued, see `_waiting_calls`) or `open` (in
flight). `Load` counts both over all scopes of the server. Its bounds are checked before a call is accepted, never
after. `_call_endings` handles calls that get no answer, and `_call_errors` makes their errors.

Accepting, sending and ending are plain steps in the task that brings the message. The table reads little of its
actor: its `life`, its `peer` and its `alarm`. It tells the actor that a call waits (`request_start`), that the
last call is over (`idling.rest`), that a call needs more input, that the server hangs, or that a step of the table
raised (`steps.find_input`, `steps.declare_hung`, `steps.stop_for_bug`).

What ends a call cannot fail: its outcome is made, and its server and the gate are told, before it is taken off.
Should one of these raise, the call is still on the table, and `Steps.stop_for_bug` ends it.

Ending a call may run its owner's callback. That may do anything: call again, cancel another call, raise. So a call
is taken off before it is ended, and loops look again after each end. An exception from a callback becomes a note;
it is not a bug of Greenroom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..protocol.errors import BadArguments, CallError, Reach, UsageError
from ..protocol.events import CallAccepted, CallEnded, CallEvent, CallSent
from ..protocol.jsonrpc import LOG_LEVEL_KEY, MODERN_VERSIONS, RpcError
from ..protocol.lifecycle import State
from . import _call_endings as endings
from . import _call_errors as errors
from ._call_events import measured
from ._inputs import needs_input
from ._peer import NOT_SENT
from ._waiting_calls import WaitingCalls

if TYPE_CHECKING:
    from ._call import Call
    from ._server import ServerActor

CONNECTED: Final = State.CONNECTED  # as in `_peer`: named several times on every call's way


class CallTable:
    __slots__ = (
        "actor", "address", "context", "introduces", "logs_by_request", "open", "record", "supervisor", "waiting",
    )  # fmt: skip

    def __init__(self, actor: ServerActor) -> None:
        self.actor = actor
        self.address = actor.address
        self.context = actor.context
        self.record = actor.record
        self.supervisor = actor.supervisor
        self.open: dict[Call, None] = {}  # in flight, oldest first
        self.waiting = WaitingCalls(self, actor.mailbox.user)
        self.introduces = False  # requests say what their client can answer, or some of them do: 2026-07-28
        self.logs_by_request = False  # and only for requests that name a level: 2026-07-28

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Accept a call, or refuse it by raising its `CallError`. Accepted, it ends exactly once."""
        actor, record, waiting = self.actor, self.record, self.waiting
        connected = actor.life.state is CONNECTED
        if not connected or record.guarded:
            try:
                refusal = self.supervisor.refusal(actor, call)
            except Exception as error:
                refusal = actor.steps.stop_for_bug(error)
            if refusal is not None:
                self._refuse(call, refusal)
        direct = (
            connected
            and not waiting.calls
            and record.load.in_flight < record.most_in_flight(self.context.settings)
        )
        if not direct:
            full = waiting.refusal(call)
            if full is not None:
                self._refuse(call, full)
        self._accept(call)
        try:
            if direct:
                self.send(call)
            else:
                waiting.add(call)
                if connected:  # otherwise nobody would send it when another scope holds the missing place
                    waiting.hold_back()
        except Exception as error:
            actor.steps.stop_for_bug(error)

    def cancel(self, call: Call, reason: str) -> None:
        """The caller no longer waits: the call ends now, as cancelled."""
        try:
            if call in self.open:
                self.abandon(call, reason)
                self.end(call)
            elif call in self.waiting.calls:
                self.waiting.end(call)
            self.call_over()
        except Exception as error:
            self.actor.steps.stop_for_bug(error)

    def _refuse(self, call: Call, refusal: CallError) -> None:
        self.context.tally.refuse(refusal)
        if call.is_probe:
            self.supervisor.call_unanswered(self.actor, call)
        refusal.tool = refusal.tool or call.tool
        raise refusal

    def _accept(self, call: Call) -> None:
        context = self.context
        context.tally.accepted += 1
        context.calls += 1
        call.number = context.calls
        call.owner = self
        call.accepted_at = context.backend.now()
        if call.on_end is None:
            call.waiter = context.backend.waiter()
        if context.events.call_readers:
            self._tell(call, CallAccepted)
        else:
            context.events.seq += 1

    # ---- at the peer ------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Hand the call to the peer: from here on it is in flight."""
        self.record.load.in_flight += 1
        self.open[call] = None
        if self.introduces:
            _introduce(self, call)
        if self.logs_by_request or self.record.log_level is not None:
            _ask_for_logs(self, call)
        self._request(call)

    def _request(self, call: Call) -> None:
        peer = self.actor.peer
        assert peer is not None
        try:
            peer.request(call)
        except UsageError as error:  # its arguments cannot be written as JSON
            self.give_up(call, BadArguments(str(error), server=self.address.server))
            return
        if call.reach is NOT_SENT and call in self.open:
            # The pipe is full: the call's own clock starts when it is sent, so until then the queue's applies.
            call.sent_at = self.context.backend.now()  # since when the server has heard nothing
            call.deadline = call.sent_at + self.context.settings.queue_timeout
            self.actor.alarm.wake_by(call.deadline)

    def send_again(self, call: Call, more: Mapping[str, Any]) -> None:
        """The input that the server wanted has been found: send the same call with it."""
        if call in self.open and self.actor.peer is not None:
            call.params = {**(call.params or {}), **more}
            call.reach = Reach.NOT_SENT
            self._request(call)

    def give_up(self, call: Call, error: CallError) -> None:
        """End a call in flight with an error of our own."""
        if call in self.open:
            self.take_off(call)
            self.end(call, error)
            self.call_over()

    def abandon(self, call: Call, reason: str) -> None:
        """Take the call off, and tell its server that nobody wants the answer."""
        assert self.actor.peer is not None
        self.actor.peer.abandon(call, reason)
        self.take_off(call)

    def take_off(self, call: Call) -> None:
        """The call is no longer in flight."""
        if call in self.open:
            del self.open[call]
            self.record.load.in_flight -= 1
            if call.asking is not None:
                call.asking.cancel()

    # ---- what a call tells ------------------------------------------------------------------------------------------

    @property
    def connected_at(self) -> float:
        return self.actor.connected_at

    @property
    def protocol_version(self) -> str | None:
        """What the server speaks now; None while it is not connected."""
        return self.actor.peer.protocol_version if self.actor.peer is not None else None

    def exchange_sent(self, call: Call) -> None:
        """The first byte was accepted: the call's own clock starts."""
        context, alarm = self.context, self.actor.alarm
        now, settings = context.backend.now(), context.settings
        timeout, total = call.timeout, settings.call_total_timeout
        if timeout is None:
            timeout = call.timeout = self.record.definition.call_timeout or settings.call_timeout
        call.sent_at = now
        call.deadline = deadline = now + timeout
        call.total_deadline = now + total if total > timeout else deadline
        if alarm.when > deadline:
            alarm.wake_by(deadline)
        if context.events.call_readers:
            self._tell(call, CallSent)
        else:
            context.events.seq += 1

    def exchange_ended(self, call: Call, result: bytes | None, error: RpcError | None) -> None:
        if call not in self.open:
            return  # it has its outcome already
        actor = self.actor
        try:
            if result is not None and self.introduces and self._lacks_input(call, result):
                return
            failure = None
            if error is not None:
                error = errors.without_secrets(error, self.context.secrets.of(self.address))
                if error.broken:
                    endings.broke(self, call, error)
                    return
                failure = errors.answered_with(self.address.server, call, error)
            if self.record.guarded:
                self.supervisor.answered(actor, call)
            self.take_off(call)
            self.finish(call, result, failure)
            self.call_over()
        except Exception as bug:
            actor.steps.stop_for_bug(bug)

    def _lacks_input(self, call: Call, result: bytes) -> bool:
        """The answer is not final: the server wants more input first. Then the call stays in flight."""
        wanting = needs_input(call, result, call.protocol_version)
        if wanting is None:
            return False
        call.deadline = call.total_deadline
        self.actor.steps.find_input(call, wanting)
        return True

    def exchange_progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """Progress restarts the call's clock, up to its total."""
        if call.timeout is not None:
            call.deadline = min(self.context.backend.now() + call.timeout, call.total_deadline)
        if call.on_progress is not None:
            try:
                call.on_progress(params)
            except Exception as error:
                self._note_raised(error)

    # ---- calls out --------------------------------------------------------------------------------------------------

    def end(self, call: Call, error: CallError | None = None) -> None:
        """End a call that got no answer; without an error, its caller has cancelled it."""
        bug = None
        if call.is_probe:
            try:
                self.supervisor.call_unanswered(self.actor, call)
            except Exception as problem:
                bug = problem
        self.finish(call, None, error)
        if bug is not None:
            self.actor.steps.stop_for_bug(bug)

    def finish(self, call: Call, result: bytes | None, error: CallError | None) -> None:
        """Report its outcome to the event stream and to its owner."""
        context = self.context
        if not call.finish(context.tally, result=result, error=error):
            return
        try:
            if context.events.call_readers:
                self._tell(call, CallEnded)
            else:
                context.events.seq += 1
        finally:
            if call.on_end is not None:
                try:
                    call.on_end(call)
                except Exception as problem:
                    self._note_raised(problem)

    def _note_raised(self, error: Exception) -> None:
        """A callback of a call's owner raised: that is the owner's error, and becomes a note."""
        self.actor.note_raised("the callback of a call", error)

    def _tell(self, call: Call, what: type[CallEvent]) -> None:
        """Emit an event. Call this only when somebody reads call events. An event that nobody reads takes a number too,
        but the caller takes it without this call: that is cheaper, three times for each call of a user."""
        self.context.events.emit(
            what,
            self.address,
            self.actor.life.incarnation,
            call=call.number,
            method=call.method,
            tool=call.tool,
            client=call.client,
            in_flight=len(self.open),
            queued=len(self.waiting.calls),
            **measured(call, what, self.context.backend.now()),
        )

    def call_over(self) -> None:
        """A call is no longer in flight, or no longer waits: send the next, rest, or go on draining."""
        waiting, actor = self.waiting, self.actor
        if self.record.load.held:
            self.share_places()
        if waiting.calls and actor.life.state is CONNECTED:
            waiting.serve()
        if not self.open and (not waiting.calls or actor.life.state is State.DRAINING):
            actor.idling.rest()

    def share_places(self) -> None:
        """A free place goes to the address of this server that has waited longest for one."""
        load, most = self.record.load, self.record.most_in_flight(self.context.settings)
        while load.held and load.in_flight < most:
            waiting = next(iter(load.held))
            del load.held[waiting]
            waiting.serve()

    # ---- time -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the calls whose time is up."""
        self.waiting.expire(now)
        endings.expire_sent(self, now)

    @property
    def next_deadline(self) -> float:
        """When the next call's time is up; `inf` when there is none."""
        return min((self.waiting.next_deadline, *(call.deadline for call in self.open)))


def _introduce(table: CallTable, call: Call) -> None:
    """From 2026-07-28 on each request says what its client can answer: what this one's can, and not another's. A client
    of that time is served in it also where the connection was made for older ones, if it can be."""
    peer = table.actor.peer
    assert peer is not None
    greeting = table.supervisor.greeting(table.actor, call)
    call.version = peer.beside if greeting.modern else None
    if call.version is not None or peer.protocol_version in MODERN_VERSIONS:
        call.declares = greeting.capabilities


def _ask_for_logs(table: CallTable, call: Call) -> None:
    """From 2026-07-28 on each request carries the level; a level that the caller set stays."""
    level = table.supervisor.log_level(table.actor, call)
    if level is not None and call.protocol_version in MODERN_VERSIONS:
        params = call.params or {}
        said: Mapping[str, Any] = params.get("_meta") or {}
        call.params = {**params, "_meta": {LOG_LEVEL_KEY: level, **said}}
