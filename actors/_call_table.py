"""The call table: where the calls of one address are accepted, queued, sent and ended.

The half of a server actor that deals with calls; the other half (`_server`) deals with its life, and the two meet in
the hooks that stand first in the class: `request_start` (a call is waiting), `_rest` (the last call is over),
`_unresponsive`, `_park`, and a few that only ask.

Accepting, sending and ending are plain steps in the task of whoever brings the message. A call is in one place at a
time: `mailbox.user` (queued) or `_open` (in flight); `Load` counts both over all scopes of the server, and its bounds
are checked before a call is accepted, never after.

Ending a call may run its owner's callback, and that may do anything: call again, cancel another, raise. So a call is
taken off before it is ended, loops look again after each end, and what a callback raises is a note, no bug of ours.

One alarm. All deadlines of an actor (queued calls, sent calls, idling, draining) share one timer, set to the earliest
of them; it is only ever moved forward, and looks again when it rings. So accepting or ending a call touches no timer
in the common case, and an idle actor is woken at most once.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..protocol.address import Address
from ..protocol.config import ServerDefinition
from ..protocol.errors import (
    BadArguments,
    Busy,
    CallError,
    CallTimeout,
    Drained,
    ProtocolFault,
    Reach,
    RemoteError,
    ServerLost,
    UsageError,
)
from ..protocol.events import CallAccepted, CallEnded, CallEvent, CallSent, Note, NoteCode
from ..protocol.jsonrpc import LOG_LEVEL_KEY, MODERN_VERSIONS, RpcError, encode_json, weigh
from ..protocol.lifecycle import Life, Means, Reason, State
from ._call import Call
from ._inputs import needs_input
from ._mailbox import Mailbox
from ._messages import Message, describe, login_needed
from ._peer import NOT_SENT, LostReason, Peer
from ._room_context import Record, RoomContext, Supervisor

if TYPE_CHECKING:
    from ._timers import Timer

CONNECTED: Final = State.CONNECTED  # as in `_peer`: named several times on every call's way

# Endings after which a call that never reached the server may wait for the next incarnation.


class CallTable:
    __slots__ = (
        "_alarm",
        "_idle_since",
        "_logs_by_request",
        "_open",
        "_serving",
        "address",
        "context",
        "life",
        "mailbox",
        "peer",
        "record",
        "supervisor",
    )  # fmt: skip

    def __init__(
        self, address: Address, record: Record, context: RoomContext, supervisor: Supervisor
    ) -> None:
        self.address = address
        self.record = record
        self.context = context
        self.supervisor = supervisor
        self.life = Life()
        # Unbounded here: the bound is the server's, over all its scopes, and is checked in `submit`.
        self.mailbox: Mailbox[Message, Call] = Mailbox(1 << 60, self._run)
        self.peer: Peer | None = None
        self._open: dict[Call, None] = {}  # in flight, oldest first
        self._serving = False
        self._logs_by_request = False  # and only for those that name a level: 2026-07-28
        self._idle_since = -math.inf
        self._alarm: Timer | None = None

    @property
    def definition(self) -> ServerDefinition:
        return self.record.definition

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def queued(self) -> int:
        return len(self.mailbox.user)

    # ---- hooks of the other half ------------------------------------------------------------------------------------

    def _run(self) -> None:
        raise NotImplementedError

    def request_start(self) -> None:
        """A call is waiting for a connection."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Nothing is in flight and nothing is queued any more."""
        raise NotImplementedError

    def _unresponsive(self) -> None:
        """The supervisor says that the server hangs."""
        raise NotImplementedError

    def _park(self, error: Exception) -> None:
        """A step raised: a bug in Greenroom."""
        raise NotImplementedError

    def _find_input(self, call: Call, result: dict[str, Any]) -> None:
        """The server wants more before it can answer; ends in `send_again` or `give_up`."""
        raise NotImplementedError

    def _is_asked(self) -> bool:
        """Whether the server waits for an answer from its client."""
        raise NotImplementedError

    def doing(self) -> str:
        """What a queued call is waiting for, in words."""
        raise NotImplementedError

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Accept a call, or refuse it by raising its `CallError`. Accepted, it ends exactly once."""
        record = self.record
        connected = self.life.state is CONNECTED
        if not connected or record.guarded:
            refusal = self.supervisor.refusal(self, call)
            if refusal is not None:
                self._refuse(call, refusal)
        direct = connected and not self.mailbox.user and record.load.in_flight < self._most_in_flight()
        if not direct:
            self._check_room_to_wait(call)
        self._accept(call)
        try:
            if direct:
                self._send(call)
            else:
                self._enqueue(call)
                if connected:  # else nobody would serve it when the place that is missing is another scope's
                    record.load.held.setdefault(self)
        except Exception as error:
            self._park(error)

    def cancel(self, call: Call, reason: str) -> None:
        """The caller has left; its call has its outcome now."""
        try:
            if call in self._open:
                self._abandon(call, reason)
                self._end(call)
            elif call in self.mailbox.user:
                self._unqueue(call)
                self._end(call)
            self._call_over()
        except Exception as error:
            self._park(error)

    def _most_in_flight(self) -> int:
        return self.record.definition.max_in_flight or self.context.settings.max_in_flight

    def _most_queued(self) -> int:
        return self.record.definition.max_queued or self.context.settings.max_queued

    def _check_room_to_wait(self, call: Call) -> None:
        """A call that cannot be sent now is bounded by its server's queue, and by what the room keeps for all."""
        if self.record.load.queued >= self._most_queued():
            self._refuse(call, self._busy())
        call.weight = weigh(call.params)
        most = self.context.settings.max_queued_bytes
        if self.context.queued_bytes + call.weight > most:
            self._refuse(call, self._busy(f"the parameters of waiting calls would be over {most:,} bytes"))

    def _refuse(self, call: Call, refusal: CallError) -> None:
        self.context.tally.refuse(refusal)
        if call.is_probe:
            self.supervisor.left(self, call)
        refusal.tool = refusal.tool or call.tool
        raise refusal

    def _busy(self, why: str = "") -> Busy:
        record, now = self.record, self.context.backend.now()
        oldest = now - min((call.accepted_at for call in (*self._open, *self.mailbox.user)), default=now)
        return Busy(
            self.address.server,
            in_flight=record.load.in_flight,
            queued=record.load.queued,
            oldest_age=oldest,
            retry_after=max(0.1, min(5.0, oldest)),
            why=why,
        )

    def _accept(self, call: Call) -> None:
        context = self.context
        context.tally.accepted += 1
        context.calls += 1
        call.number = context.calls
        call.actor = self
        call.accepted_at = context.backend.now()
        if call.on_end is None:
            call.waiter = context.backend.waiter()
        if context.events.call_readers:
            self._tell_call(call, CallAccepted)
        else:
            context.events.seq += 1

    def _enqueue(self, call: Call, *, first: bool = False) -> None:
        call.queue_deadline = min(
            self.context.backend.now() + self.context.settings.queue_timeout, call.wait_by
        )
        self._wake_by(call.queue_deadline)
        self.record.load.queued += 1
        self.context.queued_bytes += call.weight
        if first:
            self.mailbox.user.appendleft(call)
        else:
            self.mailbox.put(call)
        self.request_start()

    def _unqueue(self, call: Call) -> None:
        self.mailbox.user.remove(call)
        self._no_longer_waits(call)
        if not self.mailbox.user:
            self.supervisor.withdraw_start(self)

    def _no_longer_waits(self, call: Call) -> None:
        self.record.load.queued -= 1
        self.context.queued_bytes -= call.weight

    def _queued_at(self, call: Call) -> float:
        return call.queue_deadline - self.context.settings.queue_timeout

    # ---- at the peer ------------------------------------------------------------------------------------------------

    def _send(self, call: Call) -> None:
        self.record.load.in_flight += 1
        self._open[call] = None
        call.sent_at = self.context.backend.now()  # if the pipe is full: since when it has heard nothing
        if self._logs_by_request or self.record.log_level is not None:
            self._ask_for_logs(call)
        self._request(call)

    def _request(self, call: Call) -> None:
        assert self.peer is not None
        try:
            self.peer.request(call)
        except UsageError as error:  # its arguments are no JSON
            self.give_up(call, BadArguments(str(error), server=self.address.server))
            return
        if call.reach is NOT_SENT and call in self._open:
            # The pipe is full: its clock starts when it is sent, so until then the queue's applies.
            call.deadline = call.sent_at + self.context.settings.queue_timeout
            self._wake_by(call.deadline)

    def _ask_for_logs(self, call: Call) -> None:
        """From 2026-07-28 on the level is said with each request; what the caller said itself stays."""
        assert self.peer is not None
        level = self.record.log_level or self.context.host.greeting(self.address).log_level
        if level is not None and self.peer.protocol_version in MODERN_VERSIONS:
            params = call.params or {}
            said: Mapping[str, Any] = params.get("_meta") or {}
            call.params = {**params, "_meta": {LOG_LEVEL_KEY: level, **said}}

    def send_again(self, call: Call, more: Mapping[str, Any]) -> None:
        """The input its server wanted has been found: the same call, with it."""
        if call in self._open and self.peer is not None:
            call.params = {**(call.params or {}), **more}
            call.reach = Reach.NOT_SENT
            call.sent_at = self.context.backend.now()  # as in `_send`
            self._request(call)

    def give_up(self, call: Call, error: CallError) -> None:
        """End a call in flight with an error of our own."""
        if call in self._open:
            self._take_off(call)
            self._end(call, error)
            self._call_over()

    def _abandon(self, call: Call, reason: str) -> None:
        assert self.peer is not None
        self._take_off(call)
        self.peer.abandon(call, reason)

    def _take_off(self, call: Call) -> None:
        if call in self._open:
            del self._open[call]
            self.record.load.in_flight -= 1
            if call.asking is not None:
                call.asking.cancel()

    def call_sent(self, call: Call) -> None:
        """The first byte was accepted: the call's own clock starts (DESIGN, Calls)."""
        context = self.context
        now, settings = context.backend.now(), context.settings
        timeout, total = call.timeout, settings.call_total_timeout
        if timeout is None:
            timeout = call.timeout = self.record.definition.call_timeout or settings.call_timeout
        call.sent_at = now
        call.deadline = deadline = now + timeout
        call.total_deadline = now + total if total > timeout else deadline
        if self._alarm is None or self._alarm.when > deadline:
            self._wake_by(deadline)
        if context.events.call_readers:
            self._tell_call(call, CallSent)
        else:
            context.events.seq += 1

    def call_answered(self, call: Call, result: bytes | None, error: RpcError | None) -> None:
        if call not in self._open:
            return  # it has its outcome already
        try:
            if (
                result is not None
                and self.peer is not None
                and self.peer.protocol_version in MODERN_VERSIONS
                and self._lacks_input(call, result)
            ):
                return
            self._take_off(call)
            if error is not None:
                error = self._without_secrets(error)
            if error is not None and error.broken:
                self._broke(call, error)
                return
            if self.record.guarded:
                self.supervisor.answered(self, call)
            self._finish(call, result, None if error is None else self._remote_error(call, error))
            self._call_over()
        except Exception as bug:
            self._park(bug)

    def _lacks_input(self, call: Call, result: bytes) -> bool:
        """The answer is not the end: the server wants more first. Then the call stays in flight."""
        assert self.peer is not None
        wanting = needs_input(call, result, self.peer.protocol_version)
        if wanting is None:
            return False
        call.deadline = call.total_deadline
        self._find_input(call, wanting)
        return True

    def _broke(self, call: Call, error: RpcError) -> None:
        """Its exchange broke and the connection lives on: send it once more if that is harmless, else it fails."""
        if self._may_replay(call) and self.life.state is CONNECTED:
            call.back_to_queue()
            self._enqueue(call, first=True)
        else:
            self._end(call, self._lost_error(LostReason(error.message), call.reach, "gave no answer"))
        self._call_over()

    def call_progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """Progress restarts the call's clock, up to its total."""
        if call.timeout is not None:
            call.deadline = min(self.context.backend.now() + call.timeout, call.total_deadline)
        if call.on_progress is not None:
            try:
                call.on_progress(params)
            except Exception as error:
                self._note_raised(error)

    def _remote_error(self, call: Call, error: RpcError) -> CallError:
        server = self.address.server
        if error.fault:
            return ProtocolFault(error.message, server=server, reach=call.reach, tool=call.tool)
        return RemoteError(error.message, server=server, rpc_code=error.code, data=error.data, tool=call.tool)

    def hidden(self, text: str) -> str:
        """What a server, a library or the system says of a failure, without this server's secrets."""
        return self.context.secrets.of(self.address.server).without(text)

    def _without_secrets(self, error: RpcError) -> RpcError:
        known, data = self.context.secrets.of(self.address.server), error.data
        if data is not None and known.stand_in(encode_json(data).decode(errors="replace")):
            data = known.without_any(data)
        return attrs.evolve(error, message=known.without(error.message), data=data)

    # ---- calls out --------------------------------------------------------------------------------------------------

    def _end(self, call: Call, error: CallError | None = None) -> None:
        """The end of a call that was not answered."""
        if call.is_probe:
            self.supervisor.left(self, call)
        self._finish(call, None, error)

    def _finish(self, call: Call, result: bytes | None, error: CallError | None) -> None:
        context = self.context
        if not call.finish(context.tally, result=result, error=error):
            return
        if context.events.call_readers:
            self._tell_call(call, CallEnded)
        else:
            context.events.seq += 1
        if call.on_end is not None:
            try:
                call.on_end(call)
            except Exception as problem:
                self._note_raised(problem)

    def _note_raised(self, error: Exception) -> None:
        """A callback of a call's owner raised: the owner's own affair, and worth a note."""
        text = "".join(traceback.format_exception(error))
        self.note(NoteCode.CALLBACK, f"the callback of a call raised\n{text}")

    def _call_over(self) -> None:
        """A call has left the connection or the queue: serve the next, rest, or go on draining."""
        if self.record.load.held:
            self._share_places()
        if self.mailbox.user and self.life.state is CONNECTED:
            self._serve()
        if not self._open and (not self.mailbox.user or self.life.state is State.DRAINING):
            self._rest()

    def _serve(self) -> None:
        """Send what is queued, as far as there are places. What ends meanwhile leaves its place to this same loop."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._may_send_next():
                call = self.mailbox.user.popleft()
                self._no_longer_waits(call)
                self._send(call)
        finally:
            self._serving = False

    def _share_places(self) -> None:
        """Places are the server's, over all its scopes: a free one goes to the call table that has been held back
        longest."""
        load = self.record.load
        while load.held and load.in_flight < self._most_in_flight():
            table = next(iter(load.held))
            del load.held[table]
            table._serve()

    def _may_send_next(self) -> bool:
        if not self.mailbox.user or self.life.state is not CONNECTED:
            return False
        if self.record.load.in_flight >= self._most_in_flight():
            self.record.load.held.setdefault(self)
            return False
        return not self.record.guarded or self.supervisor.may_send(self, self.mailbox.user[0])

    def _lose_all(self, reason: LostReason) -> None:
        # The youngest first: each that is queued again goes to the head, so they stand there in their old order.
        for call in reversed(tuple(self._open)):
            if call in self._open:
                self._lose(call, reason)
        self._share_places()

    def _lose(self, call: Call, reason: LostReason) -> None:
        """The connection is gone under it: replay, once, what cannot have run or may run twice; else it fails."""
        self._take_off(call)
        ending = self.life.ending
        if self._may_replay(call) and ending is not None and ending.cause.has(Means.REQUEUES):
            call.back_to_queue()
            self._enqueue(call, first=True)
        elif reason.loss is Reason.NEEDS_AUTH and call.reach is Reach.NOT_SENT:
            self._end(call, login_needed(self.address.server, reason.text))
        else:
            self._end(call, self._lost_error(reason, call.reach))

    def _may_replay(self, call: Call) -> bool:
        """True once for a call that did not run, or that may run twice."""
        return not call.lost_before and (call.reach is Reach.NOT_SENT or call.replayable)

    def _lost_error(self, reason: LostReason, reach: Reach, what: str = "was lost") -> ServerLost:
        return ServerLost(
            f'Server "{self.address.server}" {what}: {describe(reason)}; {reach.words}.',
            server=self.address.server,
            reach=reach,
            exit_code=reason.exit_code,
            stderr_tail=reason.stderr_tail,
        )

    def _expire_all(self) -> None:
        """The drain deadline: what is still in flight has had its time."""
        ending = self.life.ending
        for call in tuple(self._open):
            if call not in self._open:
                continue  # cancelled by the callback of one before it
            self._abandon(call, ending.cause.value if ending else "drained")
            server = self.address.server
            text = f'Server "{server}" was drained ({ending}) before the call was done; {call.reach.words}.'
            self._end(call, Drained(text, server=server, reach=call.reach))
        self._share_places()

    def _fail_queued(self, error: CallError) -> None:
        """Those queued now: what a callback queues meanwhile is a new call, accepted or refused on its own."""
        failed, self.mailbox.user = self.mailbox.user, deque()
        for call in failed:
            self._no_longer_waits(call)
        for call in failed:
            self._end(call, error.copy())

    def _fail_open(self, error: CallError) -> None:
        for call in tuple(self._open):
            if call in self._open:
                self._take_off(call)
                self._end(call, error.copy(call.reach))
        self._share_places()

    def _tell_call(self, call: Call, what: type[CallEvent]) -> None:
        """To be called when somebody reads of calls. An event that nobody reads has its number all the same, and taking
        that costs less without a call of ours: three times for each call of a user's."""
        self.context.events.emit(
            what,
            self.address,
            self.life.incarnation,
            call=call.number,
            method=call.method,
            tool=call.tool,
            client=call.client,
            in_flight=len(self._open),
            queued=len(self.mailbox.user),
            **_measured(call, what, self.context.backend.now()),
        )

    def note(self, code: NoteCode, words: str) -> None:
        """Something worth a line of the log."""
        self.context.events.emit(Note, self.address, self.life.incarnation, code=code, words=words)

    # ---- the one alarm ----------------------------------------------------------------------------------------------

    def _wake_by(self, when: float) -> None:
        alarm = self._alarm
        if alarm is not None:
            if alarm.when <= when:
                return
            alarm.cancel()
            self._alarm = None
        if when < math.inf:
            self._alarm = self.context.timers.at(when, self._ring)

    def _ring(self) -> None:
        """The alarm: whatever is due, then set it to what is due next."""
        self._alarm = None
        try:
            now = self.context.backend.now()
            self._expire_queued(now)
            self._expire_sent(now)
            self._expire_life(now)
            self._wake_by(
                self._next_deadline(now)
            )  # the same moment: what a later look would miss is not yet due
        except Exception as error:
            self._park(error)

    def _expire_queued(self, now: float) -> None:
        expired = [call for call in self.mailbox.user if call.queue_deadline <= now]
        for call in expired:
            if call not in self.mailbox.user:
                continue  # cancelled by the callback of one before it
            what = self.doing()
            self._unqueue(call)
            waited = self.context.settings.queue_timeout
            text = f'Server "{self.address.server}" was not ready within {waited:g}s ({what}); {Reach.NOT_SENT.words}.'
            server = self.address.server
            self._end(call, CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited))
        if expired:
            self._call_over()

    def _expire_sent(self, now: float) -> None:
        """Calls whose time is up. However many they are, a server that was silent meanwhile has failed once."""
        expired = [call for call in self._open if call.deadline <= now and not self._may_wait(call, now)]
        if not expired:
            return
        assert self.peer is not None
        heard = self.peer.last_heard
        silent = any(heard <= call.sent_at for call in expired)
        # First the gate, then the calls: a caller that tries again at once meets the gate as it is now.
        hung = silent and self.supervisor.silent(self)
        for call in expired:
            if call in self._open:
                self._abandon(call, "timed out")
                self._end(call, self._timeout_error(call))
        if hung:
            self._unresponsive()
        self._call_over()

    def _may_wait(self, call: Call, now: float) -> bool:
        """While the server waits for its client, its calls do not time out: people take their time."""
        if call.timeout is None or now >= call.total_deadline or not self._is_asked():
            return False
        call.deadline = min(now + call.timeout, call.total_deadline)
        return True

    def _timeout_error(self, call: Call) -> CallTimeout:
        server = self.address.server
        if call.reach is Reach.NOT_SENT:
            waited = self.context.settings.queue_timeout
            text = f'Server "{server}" read nothing for {waited:g}s; {call.reach.words}.'
        elif call.deadline == call.total_deadline > call.sent_at + (call.timeout or 0.0):
            waited = call.total_deadline - call.sent_at
            text = f'Server "{server}" was not done within {waited:g}s, for all its progress; {call.reach.words}.'
        else:
            waited = call.timeout or 0.0
            text = f'Server "{server}" did not answer within {waited:g}s; {call.reach.words}.'
        return CallTimeout(text, server=server, reach=call.reach, timeout=waited)

    def _expire_life(self, now: float) -> None:
        """Deadlines of the other half."""
        raise NotImplementedError

    def _life_deadline(self, now: float) -> float:
        raise NotImplementedError

    def _next_deadline(self, now: float) -> float:
        nearest = self._life_deadline(now)
        for call in self._open:
            nearest = min(nearest, call.deadline)
        for call in self.mailbox.user:
            nearest = min(nearest, call.queue_deadline)
        return nearest


def _measured(call: Call, what: type[CallEvent], now: float) -> dict[str, Any]:
    """What an event says of a call besides who and where."""
    if what is CallAccepted:
        return {}
    was_sent = call.reach is not NOT_SENT
    waited = (call.sent_at if was_sent else now) - call.accepted_at
    if what is CallSent:
        return {"waited": waited}
    taken = now - call.sent_at if was_sent else None
    return {"outcome": call.outcome, "reach": call.reach, "waited": waited, "taken": taken}
