"""The desk: where the calls of one address are accepted, queued, sent and ended.

The half of a server actor that deals with calls; the other half (`_server`) deals with its life, and the two meet in
four hooks: `_want` (a call is waiting), `_rest` (the last call is over), `_unresponsive`, `_park`.

Accepting, sending and ending are plain steps in the task of whoever brings the news. A call is in one place at a time:
`mailbox.user` (queued) or `_open` (in flight); `Record` counts both over all scopes of the server, and its bounds are
checked before a call is accepted, never after.

One alarm. All deadlines of an actor (queued calls, sent calls, idling, draining) share one timer, set to the earliest
of them; it is only ever moved forward, and looks again when it rings. So accepting or ending a call touches no timer
in the common case, and an idle actor is woken at most once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from ..protocol.events import Kind
from ..protocol.lifecycle import Cause, Life, State
from ._call import Call
from ._mailbox import Mailbox
from ._news import News, describe, login_needed
from ._peer import Loss, LostReason, Peer, RpcError
from ._stage import Director, Record, Stage

if TYPE_CHECKING:
    from ._timers import Timer

# Endings after which a call that never reached the server may wait for the next incarnation.
_REQUEUEING = (Cause.LOST, Cause.RESTART, Cause.RELOAD)


class CallDesk:
    __slots__ = (
        "_alarm", "_idle_since", "_open", "address", "director", "life", "mailbox", "peer", "record", "stage",
    )  # fmt: skip

    def __init__(self, address: Address, record: Record, stage: Stage, director: Director) -> None:
        self.address = address
        self.record = record
        self.stage = stage
        self.director = director
        self.life = Life()
        # Unbounded here: the bound is the server's, over all its scopes, and is checked in `submit`.
        self.mailbox: Mailbox[News, Call] = Mailbox(1 << 60, self._run)
        self.peer: Peer | None = None
        self._open: dict[Call, None] = {}  # in flight, oldest first
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

    @property
    def is_resting(self) -> bool:
        """Nothing in flight, nothing queued."""
        return not self._open and not self.mailbox.user

    # ---- hooks of the other half ------------------------------------------------------------------------------------

    def _run(self) -> None:
        raise NotImplementedError

    def _want(self) -> None:
        """A call is waiting for a connection."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Nothing is in flight and nothing is queued any more."""
        raise NotImplementedError

    def _unresponsive(self) -> None:
        """The director says the server hangs."""
        raise NotImplementedError

    def _park(self, error: Exception) -> None:
        """A bug of ours came up in a step."""
        raise NotImplementedError

    def _doing(self) -> str:
        """What a queued call is waiting for, in words."""
        raise NotImplementedError

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Accept a call, or refuse it by raising its `CallError`. Accepted, it ends exactly once."""
        record = self.record
        connected = self.life.state is State.CONNECTED
        if not connected or record.guarded:
            refusal = self.director.refusal(self, call)
            if refusal is not None:
                self._refuse(call, refusal)
        limit_in_flight, limit_queued = self._bounds()
        direct = connected and not self.mailbox.user and record.in_flight < limit_in_flight
        if not direct and record.queued >= limit_queued:
            self._refuse(call, self._busy())
        self._accept(call)
        try:
            if direct:
                self._send(call)
            else:
                self._enqueue(call)
        except Exception as error:
            self._park(error)

    def cancel(self, call: Call, reason: str) -> None:
        """The caller has left; its call has its outcome now."""
        if call in self._open:
            assert self.peer is not None
            self._take_off(call)
            self.peer.abandon(call, reason)
            self._end(call)
        elif call in self.mailbox.user:
            self._unqueue(call)
            self._end(call)
        if call.is_probe:
            self.director.left(self, call)
        self._call_over()

    def _bounds(self) -> tuple[int, int]:
        definition, settings = self.record.definition, self.stage.settings
        return (
            definition.max_in_flight or settings.max_in_flight,
            definition.max_queued or settings.max_queued,
        )

    def _refuse(self, call: Call, refusal: CallError) -> None:
        self.stage.tally.refused += 1
        refusal.tool = refusal.tool or call.tool
        raise refusal

    def _busy(self) -> Busy:
        record, now = self.record, self.stage.rim.now()
        oldest = now - min((call.accepted_at for call in (*self._open, *self.mailbox.user)), default=now)
        return Busy(
            self.address.server,
            in_flight=record.in_flight,
            queued=record.queued,
            oldest_age=oldest,
            retry_after=max(0.1, min(5.0, oldest)),
        )

    def _accept(self, call: Call) -> None:
        stage = self.stage
        stage.tally.accepted += 1
        stage.calls += 1
        call.number = stage.calls
        call.actor = self
        call.accepted_at = stage.rim.now()
        if call.on_end is None:
            call.waiter = stage.rim.waiter()
        self._tell_call(call, "accepted")

    def _enqueue(self, call: Call, *, first: bool = False) -> None:
        call.queue_deadline = self.stage.rim.now() + self.stage.settings.queue_timeout
        self._wake_by(call.queue_deadline)
        self.record.queued += 1
        if first:
            self.mailbox.user.appendleft(call)
        else:
            self.mailbox.put(call)
        self._want()

    def _unqueue(self, call: Call) -> None:
        self.mailbox.user.remove(call)
        self.record.queued -= 1
        if not self.mailbox.user:
            self.director.unwant(self)

    # ---- at the peer ------------------------------------------------------------------------------------------------

    def _send(self, call: Call) -> None:
        assert self.peer is not None
        self.record.in_flight += 1
        self._open[call] = None
        try:
            self.peer.request(call)
        except UsageError as error:  # its arguments are no JSON
            self._take_off(call)
            self._end(call, BadArguments(str(error), server=self.address.server))
            self._call_over()
            return
        if call.reach is Reach.NOT_SENT and call in self._open:
            # The pipe is full: its clock starts when it is sent, so until then the queue's applies.
            call.deadline = self.stage.rim.now() + self.stage.settings.queue_timeout
            self._wake_by(call.deadline)

    def _take_off(self, call: Call) -> None:
        if call in self._open:
            del self._open[call]
            self.record.in_flight -= 1

    def call_sent(self, call: Call) -> None:
        """The first byte was accepted: the call's own clock starts (DESIGN, Calls)."""
        now, settings = self.stage.rim.now(), self.stage.settings
        timeout = call.timeout or self.record.definition.call_timeout or settings.call_timeout
        call.timeout = timeout
        call.sent_at = now
        call.deadline = now + timeout
        call.total_deadline = now + max(timeout, settings.call_total_timeout)
        self._wake_by(call.deadline)
        self._tell_call(call, "sent")

    def call_answered(self, call: Call, result: bytes | None, error: RpcError | None) -> None:
        self._take_off(call)
        if error is None:
            call.finish(self.stage.tally, result=result)
        elif error.broken:
            self._broke(call, error)
            return
        else:
            call.finish(self.stage.tally, error=self._remote_error(call, error))
        self._tell_call(call, "ended")
        if self.record.guarded:
            self.director.answered(self, call)
        self._call_over()

    def _broke(self, call: Call, error: RpcError) -> None:
        """Its exchange broke and the connection lives on: send it once more if that is harmless, else it fails."""
        if call.is_probe:
            self.director.left(self, call)
        if self._may_replay(call) and self.life.state is State.CONNECTED:
            call.back_to_queue()
            self._enqueue(call, first=True)
        else:
            self._end(call, self._lost_error(LostReason(error.message), call.reach))
        self._call_over()

    def call_progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """Progress restarts the call's clock, up to its total."""
        if call.timeout is not None:
            call.deadline = min(self.stage.rim.now() + call.timeout, call.total_deadline)
        if call.on_progress is not None:
            call.on_progress(params)

    def _remote_error(self, call: Call, error: RpcError) -> CallError:
        server = self.address.server
        if error.fault:
            return ProtocolFault(error.message, server=server, reach=call.reach, tool=call.tool)
        return RemoteError(error.message, server=server, rpc_code=error.code, data=error.data, tool=call.tool)

    # ---- calls out --------------------------------------------------------------------------------------------------

    def _end(self, call: Call, error: CallError | None = None) -> None:
        if call.finish(self.stage.tally, error=error):
            self._tell_call(call, "ended")

    def _call_over(self) -> None:
        """A call has left the connection or the queue: serve the next, or rest."""
        if self.mailbox.user:
            if self.life.state is State.CONNECTED:
                self._serve()
        elif not self._open:
            self._rest()

    def _serve(self) -> None:
        """Send what is queued, as far as there are places."""
        queue, limit = self.mailbox.user, self._bounds()[0]
        while queue and self.record.in_flight < limit and self.life.state is State.CONNECTED:
            call = queue.popleft()
            self.record.queued -= 1
            self._send(call)

    def _lose_all(self, reason: LostReason) -> None:
        # The youngest first: each that is queued again goes to the head, so they stand there in their old order.
        for call in reversed(tuple(self._open)):
            self._lose(call, reason)

    def _lose(self, call: Call, reason: LostReason) -> None:
        """The connection is gone under it: replay, once, what cannot have run or may run twice; else it fails."""
        self._take_off(call)
        ending = self.life.ending
        if self._may_replay(call) and ending is not None and ending.cause in _REQUEUEING:
            call.back_to_queue()
            self._enqueue(call, first=True)
        elif reason.loss is Loss.NEEDS_AUTH and call.reach is Reach.NOT_SENT:
            self._end(call, login_needed(self.address.server, reason.text))
        else:
            self._end(call, self._lost_error(reason, call.reach))

    def _may_replay(self, call: Call) -> bool:
        """Once, and only what did not run or may run twice."""
        return not call.lost_before and (call.reach is Reach.NOT_SENT or call.replayable)

    def _lost_error(self, reason: LostReason, reach: Reach) -> ServerLost:
        words = "it was not sent" if reach is Reach.NOT_SENT else "the call was sent and may have run"
        return ServerLost(
            f'Server "{self.address.server}" was lost: {describe(reason)}; {words}.',
            server=self.address.server,
            reach=reach,
            exit_code=reason.exit_code,
            stderr_tail=reason.stderr_tail,
        )

    def _expire_all(self) -> None:
        """The drain deadline: what is still in flight has had its time."""
        ending = self.life.ending
        for call in tuple(self._open):
            assert self.peer is not None
            self._take_off(call)
            self.peer.abandon(call, ending.cause.value if ending else "drained")
            text = f'Server "{self.address.server}" was drained ({ending}) before the call was done.'
            self._end(call, Drained(text, server=self.address.server, reach=call.reach))

    def _fail_queued(self, error: CallError) -> None:
        while self.mailbox.user:
            call = self.mailbox.user.popleft()
            self.record.queued -= 1
            self._end(call, error.twin())

    def _fail_open(self, error: CallError) -> None:
        for call in tuple(self._open):
            self._take_off(call)
            self._end(call, error.twin(call.reach))

    def _tell_call(self, call: Call, what: str) -> None:
        self.stage.events.emit(
            Kind.CALL,
            self.address,
            self.life.incarnation,
            detail=what,
            in_flight=len(self._open),
            queued=len(self.mailbox.user),
            call=call.number,
            outcome=call.outcome if call.ended else None,
        )

    # ---- the one alarm ----------------------------------------------------------------------------------------------

    def _wake_by(self, when: float) -> None:
        alarm = self._alarm
        if alarm is not None:
            if alarm.when <= when:
                return
            alarm.cancel()
            self._alarm = None
        if when < math.inf:
            self._alarm = self.stage.timers.at(when, self._ring)

    def _ring(self) -> None:
        """The alarm: whatever is due, then set it to what is due next."""
        self._alarm = None
        try:
            now = self.stage.rim.now()
            self._expire_queued(now)
            self._expire_sent(now)
            self._expire_life(now)
            self._wake_by(self._next_deadline())
        except Exception as error:
            self._park(error)

    def _expire_queued(self, now: float) -> None:
        for call in [call for call in self.mailbox.user if call.queue_deadline <= now]:
            doing = self._doing()
            self._unqueue(call)
            waited = self.stage.settings.queue_timeout
            text = f'Server "{self.address.server}" was not ready within {waited:g}s ({doing}); the call was not sent.'
            server = self.address.server
            self._end(call, CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited))
            if call.is_probe:
                self.director.left(self, call)

    def _expire_sent(self, now: float) -> None:
        for call in [call for call in self._open if call.deadline <= now]:
            if call.ended:
                continue  # a hang declared for the one before ended this one too
            assert self.peer is not None
            silent = self.peer.last_heard <= call.sent_at
            self._take_off(call)
            self.peer.abandon(call, "timed out")
            self._end(call, self._timeout_error(call))
            if self.director.timed_out(self, call, silent=silent):
                self._unresponsive()
            self._call_over()

    def _timeout_error(self, call: Call) -> CallTimeout:
        server = self.address.server
        if call.reach is Reach.NOT_SENT:
            waited = self.stage.settings.queue_timeout
            text = f'Server "{server}" read nothing for {waited:g}s; the call was not sent.'
        else:
            waited = call.timeout or 0.0
            text = f'Server "{server}" did not answer within {waited:g}s; the call was sent and may have run.'
        return CallTimeout(text, server=server, reach=call.reach, timeout=waited)

    def _expire_life(self, now: float) -> None:
        """Deadlines of the other half."""
        raise NotImplementedError

    def _life_deadline(self) -> float:
        raise NotImplementedError

    def _next_deadline(self) -> float:
        nearest = self._life_deadline()
        for call in self._open:
            nearest = min(nearest, call.deadline)
        for call in self.mailbox.user:
            nearest = min(nearest, call.queue_deadline)
        return nearest
