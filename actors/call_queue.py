"""The calls of one address: which wait, which are in flight, and how each of them ends.

A server actor holds one queue. A call is in one place at a time: `waiting` (for a connection, for a free place, or for
the circuit breaker) or `open` (in flight). What waits outlives incarnations. `Load` counts both over all scopes of the
server, the room counts the bytes of what waits, and the bounds are checked before a call is accepted, never after.
Places (calls in flight) belong to the server, over all its scopes: an address that finds none free is listed in
`Load.held`, and the next free place goes to the address that has waited longest.

Accepting, sending and ending are plain steps in the task that brings the message. The queue reads little of its
actor: its `life` and its `incarnation`. It tells the actor that a call waits (`request_start`), that the last call is
over (`begin_idling`), that the server hangs, or that a step of the queue raised (`declare_hung`, `stop_for_bug`).

Before a call is taken out, its outcome is made, and its server and the circuit breaker are told. If one of these
raises, the call is still in its place, and `ServerActor.stop_for_bug` ends it.

Ending a call may run its owner's callback. That may do anything: call again, cancel another call, raise. So a call
is taken out before it is ended, each loop goes over a copy, and looks again whether a call is still in its place. An
exception from a callback becomes a note; it is not a bug of Greenroom.

Rejected: a queue and a table of what is in flight as two classes. A call moves between them, their loops end in each
other, and they shared every field.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol.errors import BadArguments, CallError, ProtocolFault, Reach, UsageError
from ..protocol.jsonrpc.encoding import weigh
from ..protocol.lifecycle import Means, Reason, State
from ..protocol.upstream_error import NEW_PROCESS
from . import call_errors
from .peer import NOT_SENT, LostReason, login_needed

if TYPE_CHECKING:
    from ..protocol.address import Address
    from ..protocol.errors import Busy
    from ..protocol.jsonrpc.terms import RpcError
    from ..protocol.lifecycle import Ending
    from .call import Call
    from .request_terms import RequestTerms
    from .room_context import RoomContext
    from .server import ServerActor, Supervisor
    from .timers import Alarm


CONNECTED: Final = State.CONNECTED  # as in `peer`: named several times on every call's way


_TOLD: Final = frozenset({"tools/call", "resources/read", "prompts/get"})  # their results reach a client


class Load:
    """The calls of one server, over all its scopes, counted against its bounds. (It is no struct: each call counts
    here, and a field of a struct takes ten times as long to set.)"""

    __slots__ = ("held", "in_flight", "queued")

    def __init__(self) -> None:
        self.in_flight: int = 0
        self.queued: int = 0
        self.held: dict[CallQueue, None] | None = None  # what waits for a place, longest first


class Replacement(msgspec.Struct, eq=False):
    """Why the process that a session had before was ended. The first result from the new one tells the session, because
    what the old one kept for it is gone."""

    ending: Ending
    is_told: bool = False

    def __str__(self) -> str:
        return f"the one before was ended ({self.ending}); what it kept for this session is gone"

    def tell(self, server: str, call: Call) -> None:
        if not self.is_told and call.method in _TOLD:
            self.is_told = True
            text = f'Server "{server}" has a new process: {self}.'
            call.news = {NEW_PROCESS: {"server": server, "cause": self.ending.cause.value, "message": text}}


class CallQueue:
    __slots__ = (
        "_serving", "actor", "address", "alarm", "context", "load", "open", "record", "replacement",
        "terms", "waiting", "was_called",
    )  # fmt: skip

    def __init__(self, actor: ServerActor) -> None:
        self.actor: ServerActor = actor
        self.address: Address = actor.address
        self.alarm: Alarm = actor.alarm
        self.context: RoomContext = actor.context
        self.record: Supervisor = actor.record
        self.load: Load = actor.record.load
        self.open: dict[Call, None] = {}  # in flight, oldest first
        self.waiting: deque[Call] = deque()  # in the order in which they will be sent
        self.terms: RequestTerms | None = None  # of the present server, if there are any
        self.was_called: bool = False  # the present incarnation has been sent a call
        self.replacement: Replacement | None = None  # what a session has to know of the process before
        self._serving: bool = False

    @property
    def in_flight(self) -> int:
        """The calls of this address that are sent and not answered."""
        return len(self.open)

    @property
    def queued(self) -> int:
        """Those that are accepted and not sent."""
        return len(self.waiting)

    # What a call asks of it (`call.CallOwner`).

    @property
    def connected_at(self) -> float:
        return self.actor.connected_at

    def incarnation(self) -> int:
        return self.actor.life.incarnation

    @property
    def protocol_version(self) -> str | None:
        """What the server speaks now; None before the handshake."""
        peer = self.actor.peer
        return peer.protocol_version if peer is not None else None

    # A call comes: it is accepted, or refused at once.

    def submit(self, call: Call) -> None:
        """Accept a call, or raise the `CallError` that refuses it. An accepted call ends exactly once."""
        context = self.context
        connected = self.actor.life.state is CONNECTED
        if not connected or self.record.guarded:
            try:
                refusal = self.record.refuses(self.actor, call)
                if refusal is None and self.waiting:
                    self._let_go()
            except Exception as error:
                refusal = self.actor.stop_for_bug(error)
            if refusal is not None:
                self._refuse(call, refusal)
            connected = self.actor.life.state is CONNECTED
        busy = self.load.in_flight  # a server has one place at least
        has_place = not busy or busy < self.record.most_in_flight(context.settings)
        direct = connected and has_place and not self.waiting
        if not direct and (full := self._full(call)) is not None:
            self._refuse(call, full)
        tally = context.tally
        tally.accepted = call.number = tally.accepted + 1
        call.owner = self
        call.accepted_at = context.backend.now()
        if call.on_end is None and call.waiter is None:
            call.waiter = context.backend.waiter()
        if context.watchers.accepted:
            context.watchers.tell(context.watchers.accepted, call)
        try:
            if direct:
                self._send(call)
            else:
                self.add(call)
                if connected:  # otherwise nobody would send it when another scope holds the missing place
                    self.serve()
        except Exception as error:
            self.actor.stop_for_bug(error)

    def _let_go(self) -> None:
        """The oldest waiting call may have become the circuit breaker's probe. It goes now, whether the call that came
        finds a place behind it or not."""
        if self.actor.life.state is CONNECTED:
            self.serve()
        else:
            self.actor.request_start()

    def cancel(self, call: Call, reason: str) -> None:
        """The caller no longer waits: the call ends now, as cancelled."""
        try:
            if call in self.open:
                self._abandon(call, reason)
                self._end(call)
            elif call in self.waiting:
                self._end_waiting(call)
            self.call_over()
        except Exception as error:
            self.actor.stop_for_bug(error)

    def _refuse(self, call: Call, refusal: CallError) -> None:
        if call.is_probe:
            self.record.call_unanswered(self.actor, call)
        raise refusal

    def _full(self, call: Call) -> Busy | None:
        """The error with which this call must be refused instead of queued; None when it may wait."""
        settings = self.context.settings
        if self.load.queued >= (self.record.definition.max_queued or settings.max_queued):
            return self._busy()
        call.weight = weigh(call.params)
        most = settings.max_queued_bytes
        if self.context.queued_bytes + call.weight > most:
            return self._busy(f"the parameters of waiting calls would be over {most:,} bytes")
        return None

    def _busy(self, why: str = "") -> Busy:
        return call_errors.busy_error(
            self.address.server,
            (*self.open, *self.waiting),
            self.context.backend.now(),
            in_flight=self.load.in_flight,
            queued=self.load.queued,
            why=why,
        )

    # It waits.

    def add(self, call: Call, *, first: bool = False) -> None:
        """Let the call wait, behind the others or before them (`first`). It needs a connection."""
        now = self.context.backend.now()
        call.deadline = min(now + self.context.settings.queue_timeout, call.wait_by)
        self.load.queued += 1
        self.context.queued_bytes += call.weight
        if first:
            self.waiting.appendleft(call)
        else:
            self.waiting.append(call)
        self.alarm.wake_by(call.deadline)
        self.actor.request_start()

    def _uncount(self, call: Call) -> None:
        self.load.queued -= 1
        self.context.queued_bytes -= call.weight

    def hand_over(self, place: Callable[[Call], ServerActor]) -> None:
        """Let each waiting call wait at its place, which is another actor of the same server for some of them."""
        for call, actor in [(call, place(call)) for call in self.waiting]:
            if actor is not self.actor:
                self.waiting.remove(call)
                self._uncount(call)
                call.owner = actor.calls
                actor.calls.add(call)
                actor.calls.serve()

    def serve(self) -> None:
        """Send the calls that wait, as far as there are places. Places that become free meanwhile are used by this same
        loop."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._may_send_next():
                call = self.waiting.popleft()
                self._uncount(call)
                self._send(call)
        finally:
            self._serving = False

    def _may_send_next(self) -> bool:
        if not self.waiting or self.actor.life.state is not CONNECTED:
            return False
        if self.load.in_flight >= self.record.most_in_flight(self.context.settings):
            self._hold_back()
            return False
        return not self.record.guarded or self.record.may_send(self.actor, self.waiting[0])

    def _hold_back(self) -> None:
        """All places are taken: wait for the next free one, in whatever scope that is."""
        if self.load.held is None:
            self.load.held = {}
        self.load.held.setdefault(self)

    def share_places(self) -> None:
        """Give a free place to that address of this server which has waited longest for one."""
        load, most = self.load, self.record.most_in_flight(self.context.settings)
        while load.held and load.in_flight < most:
            queue = next(iter(load.held))
            del load.held[queue]
            queue.serve()

    @property
    def waiting_since(self) -> float:
        """Since when the oldest waiting call has waited; `inf` when there is none."""
        return min(map(self._since, self.waiting), default=float("inf"))

    def _since(self, call: Call) -> float:
        return call.deadline - self.context.settings.queue_timeout

    # It is sent: from here on it is in flight.

    def _send(self, call: Call) -> None:
        """Hand the call to the peer. It may be in flight already: then its server has asked for more input."""
        if call not in self.open:
            self.load.in_flight += 1
            self.open[call] = None
            if self.terms is not None:
                self.terms.stamp(call, self.actor)
        context, incarnation = self.context, self.actor.incarnation
        assert incarnation is not None
        if context.stamp_trace is not None:
            try:
                call.trace = context.stamp_trace(call)
            except Exception as error:  # the program's own exporter, say
                context.watchers.raised(context.stamp_trace, error)
        if context.watchers.sending:
            context.watchers.tell(context.watchers.sending, call)
        try:
            incarnation.peer.request(call)
        except UsageError as error:  # its arguments cannot be written as JSON
            self.give_up(call, BadArguments(str(error), server=self.address.server))
            return
        if call.reach is NOT_SENT and call in self.open:
            # The pipe is full: the call's own clock starts when it is sent, so until then the queue's applies.
            call.sent_at = context.backend.now()  # since when the server has heard nothing
            call.deadline = call.sent_at + context.settings.queue_timeout
            self.alarm.wake_by(call.deadline)

    def send_again(self, call: Call, more: Mapping[str, Any]) -> None:
        """The input that the server wanted has been found: send the same call with it."""
        if call in self.open and self.actor.peer is not None:
            call.params = {**(call.params or {}), **more}
            call.begin_again()
            self._send(call)

    def exchange_sent(self, call: Call) -> None:
        """A write has accepted the first byte of the call: its own clock starts."""
        context, timeout = self.context, call.timeout
        settings, tally = context.settings, context.tally
        call.sent_at = now = context.backend.now()
        tally.sent = call.order = tally.sent + 1
        self.was_called = True
        if timeout is None:
            timeout = call.timeout = self.record.definition.call_timeout or settings.call_timeout
        total = settings.call_total_timeout
        call.deadline = deadline = now + timeout
        call.total_deadline = now + total if total > timeout else deadline
        if self.alarm.when > deadline:
            self.alarm.wake_by(deadline)
        if context.watchers.sent:
            context.watchers.tell(context.watchers.sent, call)

    def exchange_progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """Progress restarts the call's clock, up to its total."""
        if call.timeout is not None:
            call.deadline = min(self.context.backend.now() + call.timeout, call.total_deadline)
        watchers = self.context.watchers
        watchers.tell(watchers.progressed, call, params)
        self.report(call, params)

    def report(self, call: Call, params: Mapping[str, Any]) -> None:
        """Tell the caller of its progress, if it wants to know."""
        if call.on_progress is not None:
            try:
                call.on_progress(params)
            except Exception as error:
                self.context.note_raised("the callback of a call", error, self.address)

    # It is answered.

    def exchange_ended(self, call: Call, result: bytes | None, error: RpcError | None) -> None:
        if call not in self.open:
            return  # it has its outcome already
        try:
            if error is not None:
                self._refused(call, error)
                return
            if self.terms is not None and result and self._goes_on(call, self.terms, result):
                return
            if self.record.guarded:
                self.record.answered(self.actor, call)
            self._take_off(call)
            if self.replacement is not None:
                self.replacement.tell(self.address.server, call)
            incarnation = self.actor.incarnation
            assert incarnation is not None
            # When it came was asked when it was read: to ask again takes a tenth of what a call may cost here.
            heard = incarnation.peer.last_heard
            call.end(self.context, heard, result)
            self.call_over(heard)
        except Exception as bug:
            self.actor.stop_for_bug(bug)

    def _refused(self, call: Call, error: RpcError) -> None:
        """The answer is an error."""
        error = call_errors.without_secrets(error, self.context.secrets.of(self.address))
        if error.broken:
            self._broke(call, error)
        else:
            failure = call_errors.answer_error(self.address.server, call, error)
            if self.record.guarded:
                self.record.answered(self.actor, call)
            self._take_off(call)
            call.end(self.context, self.context.backend.now(), error=failure)
        self.call_over()

    def _goes_on(self, call: Call, terms: RequestTerms, result: bytes) -> bool:
        """Whether the answer is not final, because the server runs a task for it, or wants more input first. Then the
        call stays in flight. For the circuit breaker's probe a task is an answer."""
        incarnation = self.actor.incarnation
        assert incarnation is not None
        try:
            task = terms.task_in(call, result)
            wanting = terms.input_in(call, result) if task is None else None
        except ProtocolFault as problem:
            self.give_up(call, problem)
            return True
        if task is not None and incarnation.tasks is not None:
            if self.record.guarded:
                self.record.answered(self.actor, call)
            incarnation.tasks.follow(call, task)
        elif wanting is not None:
            call.deadline = call.total_deadline
            incarnation.requests.find_input(call, wanting)
        return task is not None or wanting is not None

    # It ends without an answer.

    def give_up(self, call: Call, error: CallError) -> None:
        """End a call in flight with this error, which is ours."""
        if call in self.open:
            self._take_off(call)
            self._end(call, error)
            self.call_over()

    def end_task(self, call: Call, error: CallError) -> None:
        """End a call whose server goes on with its task, with an error of our own."""
        if call in self.open:
            self._abandon(call, "given up")
            self._end(call, error)
            self.call_over()

    def _abandon(self, call: Call, reason: str) -> None:
        """Take a call out of those in flight, and tell its server that nobody wants the answer any more."""
        incarnation = self.actor.incarnation
        assert incarnation is not None
        if incarnation.tasks is not None and call.method == "tools/call":
            incarnation.tasks.cancel(call)
        incarnation.peer.abandon(call, reason)
        self._take_off(call)

    def _take_off(self, call: Call) -> None:
        """Take a call out of those in flight."""
        if call in self.open:
            del self.open[call]
            self.load.in_flight -= 1
            if call.asking is not None:
                call.asking.cancel()

    def _end(self, call: Call, error: CallError | None = None) -> None:
        """End a call that has been taken out and got no answer; without an error, its caller has cancelled it."""
        bug = None
        if call.is_probe:
            try:
                self.record.call_unanswered(self.actor, call)
            except Exception as problem:
                bug = problem
        call.end(self.context, self.context.backend.now(), error=error)
        if bug is not None:
            self.actor.stop_for_bug(bug)

    def _end_waiting(self, call: Call, error: CallError | None = None) -> None:
        """End a call that waits. When it was the last one, no call here needs a connection any more."""
        self.waiting.remove(call)
        self._uncount(call)
        try:
            if not self.waiting:
                self.record.withdraw_start(self.actor)
        finally:
            self._end(call, error)

    def call_over(self, at: float | None = None) -> None:
        """A call is no longer in flight, or no longer waits, since `at` (None: now): send the next, become idle, or go
        on draining."""
        if self.load.held:
            self.share_places()
        if self.waiting and self.actor.life.state is CONNECTED:
            self.serve()
        if not self.open and (not self.waiting or self.actor.life.state is State.DRAINING):
            self.actor.begin_idling(at)

    # The connection is lost or drained.

    def lose_all(self, reason: LostReason) -> None:
        """The connection is gone."""
        # The youngest first: a call that is queued again goes to the head, so the old order remains.
        for call in reversed(tuple(self.open)):
            if call in self.open:
                self._lose(call, reason)
        self.share_places()

    def _lose(self, call: Call, reason: LostReason) -> None:
        """Send the call again, once, if it cannot have run or may run twice. Otherwise fail it. A server may move more
        than once before a call reaches it, so that bounds the time of the call and not their number."""
        server, ending = self.address.server, self.actor.life.ending
        if call.may_be_repeated and ending is not None and ending.cause.has(Means.REQUEUES):
            if reason.loss is Reason.MOVED and call.reach is Reach.NOT_SENT:
                self._wait_again(call, wait_by=call.accepted_at + self.context.settings.queue_timeout)
            else:
                call.lost_before = True
                self._wait_again(call)
            return
        if reason.loss is Reason.NEEDS_AUTH and call.reach is Reach.NOT_SENT:
            error: CallError = login_needed(server, reason.text)
        else:
            error = call_errors.lost_error(server, reason, call.reach)
        self._take_off(call)
        self._end(call, error)

    def _wait_again(self, call: Call, wait_by: float = math.inf) -> None:
        """Let a call in flight wait once more, before the others, unless what it would use has changed since it was
        sent: only calls that wait were refused then."""
        self._take_off(call)
        call.back_to_queue(wait_by)
        kept_out = self.record.keeps_out(self.actor, call) if self.record.guarded else None
        if kept_out is not None:
            self._end(call, kept_out)
        else:
            self.add(call, first=True)

    def _broke(self, call: Call, error: RpcError) -> None:
        """The exchange of the call broke while the connection goes on. Send the call once more if that is harmless,
        otherwise fail it."""
        if call.may_be_repeated and self.actor.life.state is CONNECTED:
            call.lost_before = True
            self._wait_again(call)
        else:
            reason = LostReason(error.message)
            lost = call_errors.lost_error(self.address.server, reason, call.reach, "gave no answer")
            self._take_off(call)
            self._end(call, lost)

    def incarnation_over(self, ending: Ending) -> None:
        """The incarnation is over for this reason, and there will be another. If it was called, it may have kept
        something for its session."""
        if self.was_called and self.address.is_session:
            self.replacement = Replacement(ending)
        self.was_called = False

    def expire_drained(self) -> None:
        """The drain deadline: the time of all calls in flight is up."""
        server, ending = self.address.server, self.actor.life.ending
        for call in tuple(self.open):
            if call in self.open:
                error = call_errors.drained_error(server, call, ending)
                self._abandon(call, ending.cause.value if ending else "drained")
                self._end(call, error)
        self.share_places()

    def fail_all(self, error: CallError) -> None:
        """No answer can come any more for any of the calls in flight."""
        for call in tuple(self.open):
            if call in self.open:
                own = error.copy(call.reach)
                self._take_off(call)
                self._end(call, own)
        self.share_places()

    def fail_waiting(self, error: CallError) -> None:
        """End the calls that wait now. A call that a callback adds meanwhile is accepted or refused like any new
        call."""
        failed = list(self.waiting)
        self.waiting.clear()
        for call in failed:
            self._uncount(call)
        for call in failed:
            self._end(call, error.copy())

    def refuse_waiting(self, error: CallError, since: float) -> None:
        """End the calls that have waited since `since` or longer; the others wait on."""
        for call in [call for call in self.waiting if self._since(call) <= since]:
            if call in self.waiting:
                self._end_waiting(call, error.copy())

    def refuse_each(self, why: Callable[[Call], CallError | None]) -> None:
        """End each waiting call for which `why(call)` returns an error."""
        refused = [(call, error) for call in self.waiting if (error := why(call)) is not None]
        for call, error in refused:
            if call in self.waiting:
                self._end_waiting(call, error)
        if refused:
            self.call_over()

    # Its time is up.

    @property
    def next_deadline(self) -> float:
        """When the next call's time is up; `inf` when there is none."""
        return min((call.deadline for call in (*self.waiting, *self.open)), default=float("inf"))

    def expire(self, now: float) -> None:
        """End the calls whose time is up."""
        self._expire_waiting(now)
        self._expire_sent(now)

    def _expire_waiting(self, now: float) -> None:
        """End the calls that have waited for all their time."""
        expired = [call for call in self.waiting if call.deadline <= now]
        for call in expired:
            if call in self.waiting:
                waited = self.context.settings.queue_timeout
                self._end_waiting(
                    call, call_errors.not_ready_error(self.address.server, waited, self.actor.doing)
                )
        if expired:
            self.call_over()

    def _expire_sent(self, now: float) -> None:
        """End the calls whose time is up. If the server was silent meanwhile, that counts as one failure, however many
        calls it ends."""
        expired = [call for call in self.open if call.deadline <= now and not self._may_wait(call, now)]
        if not expired:
            return
        actor = self.actor
        assert actor.incarnation is not None
        heard = actor.incarnation.peer.last_heard
        silent = any(heard <= call.sent_at for call in expired)
        # The circuit breaker first, then the calls: a caller that tries again at once must see it as it is now.
        hung = silent and self.record.silent(actor)
        for call in expired:
            if call in self.open:
                waited = self.context.settings.queue_timeout
                error = call_errors.timed_out_error(self.address.server, call, waited)
                self._abandon(call, "timed out")
                self._end(call, error)
        if hung:
            actor.declare_hung()
        self.call_over()

    def _may_wait(self, call: Call, now: float) -> bool:
        """While the server waits for its client, its calls do not time out: people take their time."""
        if call.timeout is None or now >= call.total_deadline or not self.actor.is_asking:
            return False
        call.deadline = min(now + call.timeout, call.total_deadline)
        return True
