"""The server actor: everything of one address, in steps that do not wait.

An actor is a record with a mailbox. Its state is a `Life`, moved only by `lifecycle.step`; the effects that come back
are performed here, at once, by whoever brought the message: a caller, a pump, a timer. Nobody wakes up to read a
mailbox, so a call on a connected server is admitted and written in its caller's own task, and an idle actor has no task
at all. From connecting to closed there is one task, `Incarnation.run`, which owns the connection and nothing else; it
and the pumps only *tell*: `Ready`, `Failed`, `Lost`, `Gone`, each with its incarnation's number, so a late message of
incarnation n never touches n + 1.

Two lanes. System messages are handled in the order they came, one at a time, also when handling one brings the next.
Calls wait in the user lane while there is no connection (or all its places are taken) and outlive incarnations there.

What an actor may not do is decide: whether to connect, what follows an ending, how long to idle is asked of the
`Supervisor`. An exception in a step is a bug: it ends this incarnation as `failed: bug`, and the other servers serve
on.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol.address import Address
from ..protocol.config import Era
from ..protocol.errors import Bug, CallError, CallTimeout, ConnectFailed, NeedsAuth, Reach
from ..protocol.events import NoteCode, Transition
from ..protocol.jsonrpc import MODERN_VERSIONS
from ..protocol.lifecycle import Cause, Effect, Ending, Life, Reason, State, Trigger, is_late, settle, step
from ..protocol.secrets import in_words
from ._call import Call
from ._call_table import CONNECTED, CallTable
from ._host import Greeting
from ._incarnation import Incarnation
from ._inputs import answer_inputs
from ._messages import (
    Failed,
    Gone,
    Leave,
    Listed,
    Lost,
    Message,
    Ready,
    connect_failed,
    describe,
    login_needed,
)
from ._peer import LostReason
from ._room_context import Next, Record, RoomContext, Supervisor
from ._start import Start
from ._subscriptions import Subscriptions
from ._waits import Told, Waits


class ServerActor(CallTable):
    __slots__ = (
        "_idle_time",
        "_incarnation",
        "_leases",
        "_stepping",
        "connected_at",
        "failed_at",
        "failure",
        "loss",
        "start",
        "subscriptions",
        "waits",
    )

    def __init__(
        self, address: Address, record: Record, context: RoomContext, supervisor: Supervisor
    ) -> None:
        super().__init__(address, record, context, supervisor)
        self.start = Start()  # the supervisor moves it
        self.connected_at = -math.inf
        self.failure: CallError | None = None  # why it last failed, until it connects again
        self.failed_at = -math.inf
        self.subscriptions = Subscriptions()
        self.loss = Reason.DIED  # how its connection was lost, if it was
        self.waits = Waits()
        self._leases = 0
        self._idle_time = math.inf  # as the supervisor said when it connected, or its policy changed
        self._incarnation: Incarnation | None = None
        self._stepping = False

    @property
    def is_resting(self) -> bool:
        """Nothing in flight, nothing queued, and nobody holds a lease."""
        return not self._open and not self.mailbox.user and not self._leases

    @property
    def idle_since(self) -> float:
        """When its last call ended, or it connected."""
        return self._idle_since

    @property
    def idle_until(self) -> float:
        """When its idle time is over, if it rests. One that is there after that is kept by the pool's minimum."""
        return self._idle_since + self._idle_time

    @property
    def is_idle(self) -> bool:
        """It is connected, does nothing, and has not been told to go."""
        return self.life.state is CONNECTED and self.is_resting and not self.is_leaving

    @property
    def is_leaving(self) -> bool:
        """It is on its way out, or has been told to go and is in the middle of another step."""
        told = self.mailbox.system
        return self.life.state is State.DRAINING or (bool(told) and any(isinstance(m, Leave) for m in told))

    @property
    def is_awaited(self) -> bool:
        """Calls, waits or subscribed resources want a connection."""
        return bool(self.mailbox.user or self.subscriptions.uris or self.is_waited_for)

    @property
    def is_waited_for(self) -> bool:
        """Somebody other than a call waits for a connection."""
        return any(True for _ in self.waits.open(self.life))

    @property
    def is_asked_for_by_name(self) -> bool:
        """Of those who wait for a connection, somebody asked for it by name."""
        return any(wait.by_name for wait in self.waits.open(self.life))

    @property
    def is_connected(self) -> bool:
        return self.life.state is State.CONNECTED

    @property
    def is_installing(self) -> bool:
        """It is connecting, and its command may still be installing it."""
        connecting = self.life.state is State.CONNECTING
        return connecting and self._incarnation is not None and self._incarnation.is_installing

    @property
    def last_line(self) -> str:
        """What it wrote last to its stderr, while there is an incarnation."""
        return self._incarnation.last_line if self._incarnation is not None else ""

    @property
    def pid(self) -> int | None:
        return self._incarnation.pid if self._incarnation is not None else None

    def __repr__(self) -> str:
        return f"<ServerActor {self.address} {self.life.state.value} #{self.life.incarnation}>"

    # ---- what is asked of it ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Granted by the supervisor: gate, slot and permit are had. Joins an attempt under way."""
        if self.life.state is State.IDLE:
            try:
                self._move(Trigger.CONNECT)
            except Exception as error:  # here, or it would be the bug of whoever freed the permit
                self._park(error)

    def tell(self, message: Message) -> None:
        """Put it in the system lane: handled now, or right after what is being handled."""
        self.mailbox.put_system(message)

    def leave(self, ending: Ending, patience: float | None = None) -> None:
        """Ask this incarnation to end. `patience` None: the server's drain time. An idle actor closes at once."""
        if patience is None:
            patience = self.definition.drain_timeout or self.context.settings.drain_timeout
        self.tell(Leave(ending, patience))

    def on_connected(self, told: Told, *, by_name: bool = False) -> Callable[[], None]:
        """Call `told(None)` when it is next connected, `told(error)` when that fails. Returns how to stop waiting."""
        return self.waits.add(told, self.context.backend.now(), self.life, by_name=by_name)

    @property
    def declared(self) -> Mapping[str, Any] | None:
        """The client capabilities its server was told; None when it has not been met."""
        greeting = self._incarnation.greeting if self._incarnation is not None else None
        return greeting.capabilities if greeting is not None else None

    def is_outdated(self, greeting: Greeting) -> bool:
        """Whether its server was told of other capabilities than these, or cannot ask a client that waits for it. A
        server that took no handshake when it was offered one is left as it is."""
        told = self._incarnation.greeting if self._incarnation is not None else None
        if told is None or told == greeting or self.address.is_call:
            return False
        if told.capabilities != greeting.capabilities:
            return True
        is_older = self.peer is not None and self.peer.protocol_version not in MODERN_VERSIONS
        may_change = greeting.by_handshake and not told.by_handshake and self.definition.era is Era.AUTO
        return may_change and not is_older

    def subscriptions_changed(self) -> None:
        """What it is to tell us has changed: a live server hears of it."""
        listening = self._incarnation.listening if self._incarnation is not None else None
        if listening is not None and self.is_connected:
            listening.refresh()
            listening.tell_level()
        self.rearm()

    def notify_server(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell a connected server something; nothing is queued for the next incarnation."""
        if self.is_connected and self.peer is not None:
            self.peer.notify(method, params)

    @property
    def awaited_since(self) -> float:
        """Since when the longest waiting call or wait waits; `inf` when there is none."""
        calls = (self._queued_at(call) for call in self.mailbox.user)
        return min((self.waits.since(self.life), *calls))

    def refuse_waiting(self, why: str, since: float) -> None:
        """What it waits for does not come: who has waited since `since` or longer is told so, the others wait on."""
        server, waited = self.address.server, self.context.settings.acquire_timeout
        text = f'Server "{server}" was not started within {waited:g}s: {why}; {Reach.NOT_SENT.words}.'
        error = CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)
        had_calls = bool(self.mailbox.user)
        for call in [call for call in self.mailbox.user if self._queued_at(call) <= since]:
            if call in self.mailbox.user:
                self._unqueue(call)
                self._end(call, error.copy())
        self.waits.tell_early(error, since, self.life)
        self.supervisor.withdraw_start(self)
        if had_calls:
            self._call_over()

    def stop_time(self) -> float:
        """Seconds the process tree has for its end."""
        limit = self.definition.stop_timeout or self.context.settings.stop_timeout
        return max(0.1, min(limit, self.context.stop_by - self.context.backend.now()))

    def abort(self, error: CallError) -> None:
        """The room has ended under it: whatever is still open fails, at once. Nothing is sent."""
        self._fail_queued(error)  # first: a place that is freed is not for them
        self._fail_open(error)
        self.waits.tell(error)

    def serve(self) -> None:
        """Queued calls that were held back may go."""
        self._call_over()

    def lease(self) -> Callable[[], None]:
        """Somebody is about to call it, or decides whether to: until the returned function is called, it is in use, and
        neither its idle time nor pressure ends it."""
        self._leases += 1
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self._leases -= 1
                self._call_over()

        return release

    def rearm(self) -> None:
        """Its policy changed: look again at its idle time, its health, its places."""
        self._idle_time = self.supervisor.idle_timeout(self)
        self._wake_by(self.idle_until if self.is_idle else self._life_deadline(self.context.backend.now()))
        if self._incarnation is not None:
            self._incarnation.rearm()
        self._share_places()

    def shorten_idle(self, seconds: float) -> None:
        """It is connected and nobody wanted it to be: unless it is called, it stays this long at most."""
        self._idle_time = min(self._idle_time, seconds)

    def note_bug(self, error: BaseException) -> None:
        """The traceback of an error of ours, into the event stream."""
        text = "".join(traceback.format_exception(error))
        self.note(NoteCode.BUG, text)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The bell of the mailbox: handle what is in the system lane, one step after the other."""
        if self._stepping:
            return
        self._stepping = True
        try:
            while self.mailbox.system:
                message = self.mailbox.system.popleft()
                try:
                    self._handle(message)
                except Exception as error:
                    self._park(error)
        finally:
            self._stepping = False

    def _handle(self, message: Message) -> None:
        if isinstance(message, Leave):
            self._on_leave(message)
            return
        if message.incarnation != self.life.incarnation:
            return  # of an earlier incarnation
        match message:
            case Ready():
                self._on_ready(message)
            case Failed():
                self._on_failed(message)
            case Lost():
                self._on_lost(message.reason)
            case Gone():
                self._on_gone()
            case Listed() if self.life.state is State.CONNECTED:
                self.supervisor.listed(self, message.handshake, message.listing, message.revision)
            case Listed():
                pass

    def _on_ready(self, message: Ready) -> None:
        if is_late(self.life, Trigger.READY):
            return
        assert self._incarnation is not None
        peer = self.peer = self._incarnation.peer
        is_newer = peer.protocol_version in MODERN_VERSIONS
        self._logs_by_request = is_newer and "logging" in message.handshake.capabilities
        self.connected_at = self.context.backend.now()
        self.failure = None
        self.loss = Reason.DIED
        self._idle_time = self.supervisor.idle_timeout(self)
        self.supervisor.ready(self, message.handshake, message.listing, message.revision)
        if self.is_outdated(self.context.host.greeting(self.address)):
            # What can be answered has changed while it started. What it has is known; its calls wait for the next.
            self._move(Trigger.STOP, Ending(Cause.RESTART, reason=Reason.NEW_ANSWERS))
            return
        self._move(Trigger.READY)
        self.waits.tell(None)
        if self.is_resting:
            self._rest(self.connected_at)  # not a later look at the clock: idle since then is never called

    def _on_failed(self, message: Failed) -> None:
        if is_late(self.life, Trigger.FAILED):
            return
        if self.life.state is State.CONNECTED:  # the owner task itself broke: as good as lost
            if isinstance(message.error, Bug):
                self._stop_for(message.error)
            else:
                self._on_lost(LostReason(str(message.error)))
            return
        self._remember(message.error)
        self._move(Trigger.FAILED, Ending(_cause_of(message.error), _reason_of(message.error)))

    def _on_lost(self, reason: LostReason) -> None:
        state, self.loss = self.life.state, reason.loss
        wants_login = reason.loss is Reason.NEEDS_AUTH
        if state is State.CONNECTING:
            error = self._connect_error(reason)
            self._remember(error)
            ending = Ending(Cause.CONNECT_FAILED, _reason_of(error))
            login = Ending(Cause.NEEDS_AUTH, reason.text, reason.loss)
            self._move(Trigger.FAILED, login if wants_login else ending)
        elif state is State.CONNECTED or (state is State.DRAINING and not self.life.stopping):
            cause = Cause.NEEDS_AUTH if wants_login else Cause.LOST
            self._remember(self._lost_error(reason, Reach.NOT_SENT))
            self._move(Trigger.LOST, Ending(cause, describe(reason), reason.loss))
        # Else we are stopping it: that it goes is no news.

    def _connect_error(self, reason: LostReason) -> CallError:
        server = self.address.server
        if reason.loss is Reason.NEEDS_AUTH:
            return login_needed(server, reason.text)
        return connect_failed(server, reason)

    def _on_leave(self, message: Leave) -> None:
        state = self.life.state
        if state is State.CLOSED:
            return
        if state in (State.IDLE, State.CONNECTING) or message.patience <= 0:
            self._move(Trigger.STOP, message.ending)
        else:
            self._move(Trigger.DRAIN, message.ending, self.context.backend.now() + message.patience)
        if self._incarnation is not None:
            self._incarnation.hurry()

    def _on_gone(self) -> None:
        """The owner task has ended. It said why before, unless it was cancelled from outside: then say it here."""
        if self.life.state is State.CONNECTING:
            self._move(
                Trigger.FAILED, Ending(Cause.CONNECT_FAILED, "the attempt was cancelled", Reason.CANCELLED)
            )
        elif self.life.state is State.CONNECTED:
            self._move(Trigger.LOST, Ending(Cause.LOST, "its owner task was cancelled", Reason.CANCELLED))
        self._lose_all(LostReason("the connection is gone"))
        self._incarnation = None
        self.peer = None
        self._move(Trigger.GONE)

    def _remember(self, error: CallError) -> None:
        self.failure = error
        self.failed_at = self.context.backend.now()

    def _park(self, error: Exception) -> None:
        """A bug of ours. This server stops here; the event carries the traceback."""
        server = self.address.server
        self.note_bug(error)
        self._stop_for(
            Bug(
                f'Server "{server}" was parked by an error in Greenroom itself: {self.hidden(in_words(error))}',
                server=server,
            )
        )

    def _stop_for(self, bug: Bug) -> None:
        """Nothing here waits for anything any more, whatever else is broken; the tree is stopped."""
        self._remember(bug)
        self.supervisor.parked(self, bug)
        self._fail_queued(bug)  # first: a place that is freed is not for them
        self._fail_open(bug)
        self.waits.tell(bug)
        if self.life.state is not State.CLOSED:
            try:
                self._move(Trigger.STOP, Ending(Cause.BUG, str(bug)))
                return
            except Exception as error:  # closing is what is broken
                self.note_bug(error)
        if self.life.state is State.CLOSED:
            self.life = Life(incarnation=self.life.incarnation + 1)

    # ---- moves and their effects ------------------------------------------------------------------------------------

    def _move(self, trigger: Trigger, ending: Ending | None = None, deadline: float | None = None) -> None:
        before = self.life
        self.life, effects = step(
            before, trigger, ending=ending, deadline=deadline, in_flight=len(self._open)
        )
        if self.life.state is not before.state:
            self._tell_transition(before.state)
        if trigger in (Trigger.FAILED, Trigger.LOST):
            # Before its calls hear of it: who tries again at once meets the gate as it is now.
            assert self.life.ending is not None
            self.supervisor.failed(self, self.life.ending)
        self._perform(effects)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Effect.OPEN:
                    self._incarnation = Incarnation(self, self.life.incarnation)
                    self.context.spawn(self._incarnation.run)
                case Effect.SERVE:
                    self._serve()
                case Effect.ARM_DEADLINE:
                    assert self.life.deadline is not None
                    self._wake_by(self.life.deadline)
                case Effect.LOSE_CALLS:
                    lost = self._incarnation.lost if self._incarnation is not None else None
                    self._lose_all(lost or LostReason("the connection was lost"))
                case Effect.EXPIRE_CALLS:
                    self._expire_all()
                case Effect.STOP_TREE:
                    if self._incarnation is not None:
                        self._incarnation.leave()
                case Effect.ANNOUNCE:
                    self._announce()

    def _announce(self) -> None:
        """Closed. The supervisor says what follows; calls that may not wait for it fail now."""
        closed, ending = self.life.incarnation, self.life.ending
        assert ending is not None
        decision = self.supervisor.closed(self, ending)
        if decision.then is not Next.GONE:
            self.life = Life(incarnation=self.life.incarnation + 1)
            self._tell_transition(State.CLOSED)
        if decision.error is not None:
            self._fail_queued(decision.error)
            # Those who came while it was cleared away wait for the next one, if there is to be one.
            self.waits.tell(decision.error, up_to=closed if decision.then is Next.CONNECT else math.inf)
        if decision.then is Next.CONNECT or (decision.then is Next.IDLE and self.is_awaited):
            self.request_start()

    def _tell_transition(self, before: State) -> None:
        life, ending = self.life, self.life.ending
        self.context.events.emit(
            Transition,
            self.address,
            life.incarnation,
            before=before,
            after=life.state,
            cause=ending.cause if ending is not None else None,
            reason=ending.reason if ending is not None else None,
            seconds=ending.seconds if ending is not None else None,
            words=ending.words if ending is not None else "",
            in_flight=len(self._open),
            queued=len(self.mailbox.user),
        )

    # ---- hooks of the call table ------------------------------------------------------------------------------------

    def request_start(self) -> None:
        """A call is waiting, a watcher, or its policy wants it connected."""
        if self.life.state is State.IDLE:
            self.supervisor.request_start(self)

    def _rest(self, since: float | None = None) -> None:
        """The last call is over: begin to idle (`since`; now when not given), or go on draining."""
        if self.life.state is CONNECTED and not self._leases:
            self._idle_since = self.context.backend.now() if since is None else since
            if self._alarm is None or self._alarm.when > self.idle_until:
                self._wake_by(self.idle_until)
            if self.context.pressed:
                self.supervisor.rested(self)
        elif self.life.state is State.DRAINING:
            self.life, effects = settle(self.life)
            self._perform(effects)
        if self.address.is_call and not self._leases and not self.is_installing:
            self.leave(Ending(Cause.SCOPE_ENDED, reason=Reason.CALL_OVER), 0)

    def _unresponsive(self) -> None:
        assert self._incarnation is not None
        self.tell(Lost(self.life.incarnation, self._incarnation.give_up("unresponsive", Reason.UNRESPONSIVE)))

    def _find_input(self, call: Call, result: dict[str, Any]) -> None:
        assert self._incarnation is not None
        questions = self._incarnation.questions

        async def find() -> None:
            try:
                await answer_inputs(self, call, result, questions)
            except Exception as error:
                self._park(error)

        self.context.spawn(find)

    def _is_asked(self) -> bool:
        return self._incarnation is not None and len(self._incarnation.questions) > 0

    def doing(self) -> str:
        if self.life.state is State.IDLE:
            return f"waiting for {self.start.waiting_for or 'its start'}"
        if self.is_installing:
            took = self.context.backend.now() - self.start.waits_since
            line = f": {self.last_line}" if self.last_line else ""
            return f"installing for {took:.0f} s, which goes on{line}"
        tail = self._incarnation.stderr_tail() if self._incarnation is not None else ()
        return f"still {self.life.state.value}" + (f"; stderr: {' — '.join(tail)}" if tail else "")

    def _expire_life(self, now: float) -> None:
        if self.life.state is State.DRAINING:
            if now >= self._life_deadline(now):
                self._move(Trigger.DEADLINE)
        elif not self.is_idle or now < self.idle_until:
            return
        elif self._idle_since > self.connected_at and self._idle_time < self.supervisor.idle_timeout(self):
            self.rearm()  # it has been called since its time was shortened
        elif self.supervisor.may_expire(self):  # else the pool takes it when its minimum allows
            ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=self._idle_time)
            self._move(Trigger.DRAIN, ending, now)

    def _life_deadline(self, now: float) -> float:
        """When draining has waited long enough, or idling. An idle time that is over is the pool's affair."""
        life = self.life
        if life.state is CONNECTED:
            if self.is_resting and self.idle_until > now:
                return self.idle_until
        elif life.state is State.DRAINING and not life.stopping and life.deadline is not None:
            return life.deadline
        return math.inf


def _reason_of(error: CallError) -> str:
    """Why, for those who say themselves that a connect failed, and of which server."""
    return error.reason if isinstance(error, ConnectFailed) else str(error)


def _cause_of(error: CallError) -> Cause:
    """What an attempt that ended with this error ends as."""
    match error:
        case Bug():
            return Cause.BUG
        case NeedsAuth():
            return Cause.NEEDS_AUTH
        case _:
            return Cause.CONNECT_FAILED
