"""The server actor: everything of one address, in steps that do not wait.

An actor is a record with a mailbox. Its `CallQueue` accepts, sends and ends its calls; the rest it does itself: it
moves through its life, knows how long it has had nothing to do, and who else waits for its connection. No task wakes
up to read a mailbox: whatever brings a message (a caller, a pump, a timer) handles it at once. So a call on a
connected server is admitted and written in its caller's own task, and an idle actor has no task at all. From
connecting to closed there is one task, `Incarnation.run`, which owns only the connection.

There are two lanes. System messages (`inbox`) are handled in the order they came, one at a time, even when handling
one brings the next. Calls wait in the user lane (`calls.waiting`) while there is no connection, or all its places are
taken, and outlive incarnations there.

Only `lifecycle.step` moves the life. The effects that it returns are performed at once. The owner task and the pumps
only *send messages* (`ServerLists`, `ConnectFailure`, `ConnectionLoss`, `TaskOver`), each with its incarnation's
number. So a late message of incarnation n never touches n + 1.

An exception in a step is a bug of ours. It ends this incarnation as `failed: bug`, with all its calls; other servers
go on. After that the same happens as after any other loss.

An actor has nothing to do when no call is in flight, none waits and nobody holds a lease. Its idle time counts from
the end of its last call, or from when it connected. When the idle time is over, the pool's minimum may still keep the
actor. In that case the pool stops it later, as soon as the minimum allows.

An actor may not decide whether to connect, what follows an ending, or how long to idle. It asks its server's record.
"""

from __future__ import annotations

import enum
import math
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from ..catalogue.quarantine import Quarantine
from ..config.model import ServerDefinition, Settings
from ..protocol.address import Address
from ..protocol.errors import Bug, CallError, ConnectFailed, NeedsAuth, Reach
from ..protocol.events import WAITING, Note, NoteCode, Place, Transition
from ..protocol.lifecycle import (
    Cause,
    Effect,
    Ending,
    Life,
    Means,
    Reason,
    State,
    Trigger,
    is_late,
    settle,
    step,
)
from ..protocol.safe_text import in_words, unhidden
from . import call_errors
from .call_queue import CONNECTED, CallQueue, Load
from .connection import (
    ConnectFailure,
    ConnectionLoss,
    Incarnation,
    Message,
    ServerLists,
    StopOrder,
    TaskOver,
)
from .host import Declaration
from .peer import Handshake, Listing, LostReason, connect_failed, identity_needed, login_needed
from .request_terms import RequestTerms
from .room_context import RoomContext
from .server_reports import Subscriptions
from .timers import Alarm

if TYPE_CHECKING:
    from .call import Call
    from .peer import Peer
    from .timers import Timer


class ClosingAction(enum.Enum):
    """What the supervisor decides after an incarnation has closed."""

    IDLE = "idle"  # the next incarnation waits for a reason to connect; a queued call is one
    CONNECT = "connect"  # it connects without such a reason
    DOWN = "down"  # queued calls fail; only an explicit connect, restart or reload brings it back
    GONE = "gone"  # the address is gone


class ClosingDecision(msgspec.Struct, frozen=True):
    then: ClosingAction
    error: CallError | None = None  # for queued calls, when they are to fail


class Supervisor(Protocol):
    """The record of a server, as its actors see it: what they have in common, what they ask, and to whom they report.
    It is a `ServerRecord` of the supervisor, a room above this one. A session's actor has a record of its own, with
    its server's load. Plain functions; called from inside an actor's step."""

    definition: ServerDefinition
    load: Load
    era_hint: str | None  # the protocol version the server chose last: saves the probe
    log_level: str | None  # the least level it shall log
    # The circuit breaker has something to decide, or something is quarantined: ask before each call.
    guarded: bool
    quarantined: Quarantine  # what has changed and must not be used
    listing: Listing | None  # what it listed last
    odd: str | None  # the first odd thing that the latest incarnation did, in words

    def remark(self, words: str | None, code: NoteCode = NoteCode.ODD) -> None:
        """Note in words that the server did something odd; None when a new incarnation begins."""
        ...

    def most_in_flight(self, settings: Settings) -> int:
        """How many calls this server may have in flight, over all its scopes."""
        ...

    def refuses(self, actor: ServerActor, call: Call) -> CallError | None:
        """The error with which this call must be refused now, or None. May make the call the circuit breaker's
        probe."""
        ...

    def keeps_out(self, actor: ServerActor, call: Call) -> CallError | None:
        """The error with which a call is refused that would use what has changed; None: it may be sent again."""
        ...

    def request_start(self, actor: ServerActor) -> None:
        """The idle actor has a reason to connect. Ends in `actor.connect()`, at once or later, or in
        `withdraw_start`. May be called again."""
        ...

    def withdraw_start(self, actor: ServerActor) -> None:
        """A reason to connect is gone, because its last waiting call left. Without any reason the start leaves every
        queue."""
        ...

    def ready(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None: ...

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        """The server said that its lists changed, and they have been read again."""
        ...

    def answered(self, actor: ServerActor, call: Call) -> None: ...

    def declaration(self, actor: ServerActor, call: Call) -> Declaration:
        """What the server is told of the client of this call: which requests it can answer, and in which era."""
        ...

    def level_for(self, actor: ServerActor, call: Call) -> str | None:
        """The least level of logs that the request of this call asks for (2026-07-28). None: no logs."""
        ...

    def may_send(self, actor: ServerActor, call: Call) -> bool:
        """Whether a call that was queued may be sent now. May make it the circuit breaker's probe."""
        ...

    def silent(self, actor: ServerActor) -> bool:
        """Calls got no answer in time, and nothing at all was heard meanwhile. True: the server hangs."""
        ...

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        """The circuit breaker's probe has ended without an answer: it was cancelled, or never sent."""
        ...

    def stopped_for_bug(self, actor: ServerActor) -> None:
        """A step of the actor raised. From now on its calls are refused with the error code `bug`."""
        ...

    def failed(self, actor: ServerActor, ending: Ending) -> None:
        """An attempt to connect has failed, or the connection is lost. Its process tree may still have to be
        stopped."""
        ...

    def closed(self, actor: ServerActor, ending: Ending) -> ClosingDecision:
        """Nothing is left of this incarnation. Returns what happens next."""
        ...

    def became_idle(self, actor: ServerActor) -> None:
        """The actor has nothing to do any more. Called only if it is not in the list of idle actors yet
        (`is_listed_idle`)."""
        ...

    def leaving(self, actor: ServerActor) -> None:
        """The actor begins to stop, or has been told to stop. May be called again."""
        ...

    def may_expire(self, actor: ServerActor) -> bool:
        """Whether the actor may stop, now that its idle time is over. If not, the supervisor stops it once it may."""
        ...

    def connect_timeout(self, actor: ServerActor) -> float:
        """Seconds that the actor's next attempt to connect has for opening, handshake and listing."""
        ...

    def health_interval(self, actor: ServerActor) -> float:
        """Seconds of silence after which the server's health is checked; `inf` for never."""
        ...

    def idle_timeout(self, actor: ServerActor) -> float:
        """Seconds without a call after which the actor may stop; `inf` for never."""
        ...


_NEW: Final = Life()

# The losses that are no failure of the server.
_LOSSES: Final = {Reason.NEEDS_AUTH: Cause.NEEDS_AUTH, Reason.MOVED: Cause.MOVED}

WaitCallback = Callable[[CallError | None], None]


class ConnectionWait(msgspec.Struct, eq=False):
    """Somebody other than a call waits for an actor's connection. It waits for a certain incarnation: the present one,
    or the next one if the present one is already ending. So the actor knows which waits get the error of a failed
    attempt (those for that attempt) and which go on (those begun after the failure)."""

    told: WaitCallback  # called once: with None when it is connected, with the error when that fails
    since: float
    incarnation: int  # the first incarnation that it waits for
    by_name: bool = False  # bypasses the circuit breaker, and even if the server was taken down


class Start(msgspec.Struct, eq=False):
    """Where one actor is on its way to its connection. Times are of the room's clock, in seconds.

    Each actor has one, which is in exactly one `Place`. The place tells what the actor waits for, and whether it holds
    a slot or a start permit; nothing else stores that. So leaving every queue is one move, and no two lists can
    disagree about their members. The actor reads its start; the supervisor moves it, in one function (`Starts.move`).
    """

    place: Place = Place.OUT
    since: float = -math.inf  # when it came to this place
    began: float = -math.inf  # when it last left `OUT`
    number: int = 0  # the how manieth of its room that came to wait for a slot
    by_policy: bool = False  # its lifecycle or a discovery wants it: no caller that leaves can undo it
    after_failure: bool = False  # it follows a loss or a failure: restart intensity counts it
    may_take_over: bool = True  # a child that was started ahead; not after one that has ended at once
    deadline: Timer | None = None  # until when it may wait for a slot

    @property
    def waiting_for(self) -> str | None:
        return self.place.value if self.place in WAITING else None

    @property
    def waits_since(self) -> float:
        """When the present wait began: for its turn to connect, or for its connection."""
        return self.since if self.place in (Place.STARTING, Place.OPENING) else self.began


class ServerActor:
    __slots__ = (
        "_idle_time", "_is_handling", "_is_of_call", "_waits", "address", "alarm", "calls", "connected_at", "context",
        "idle_since", "inbox", "incarnation", "is_listed_idle", "leases", "life", "record", "start", "subscriptions",
    )  # fmt: skip

    def __init__(self, address: Address, record: Supervisor, context: RoomContext) -> None:
        self.address: Address = address
        self._is_of_call = address.is_call  # asked at the end of each call
        self.record: Supervisor = record
        self.context: RoomContext = context
        self.life: Life = _NEW  # `move` moves it
        self.start: Start = Start()  # the supervisor moves it
        self.incarnation: Incarnation | None = None  # from connecting to closed
        self.connected_at: float = -math.inf
        self.idle_since: float = -math.inf  # when its last call ended, or it connected
        # The supervisor looks at it by itself when it looks for an idle actor.
        self.is_listed_idle: bool = False
        self.leases: int = 0  # of callers who are about to call it
        # As the supervisor answered when it connected or its policy changed.
        self._idle_time: float = math.inf
        self._waits: list[ConnectionWait] = []  # in order of arrival
        self._is_handling: bool = False  # a system message
        self.subscriptions: Subscriptions = Subscriptions()
        self.inbox: deque[Message] = deque()  # the system lane
        self.alarm: Alarm = Alarm(context.timers, self._ring)
        self.calls: CallQueue = CallQueue(self)

    def __repr__(self) -> str:
        return f"<ServerActor {self.address} {self.life.state.value} #{self.life.incarnation}>"

    # How it is.

    @property
    def definition(self) -> ServerDefinition:
        return self.record.definition

    @property
    def peer(self) -> Peer | None:
        """What speaks with its server; None before the handshake."""
        incarnation = self.incarnation
        return incarnation.peer if incarnation is not None and incarnation.reports is not None else None

    @property
    def in_flight(self) -> int:
        return len(self.calls.open)

    @property
    def queued(self) -> int:
        return len(self.calls.waiting)

    @property
    def is_connected(self) -> bool:
        return self.life.state is CONNECTED

    @property
    def has_nothing_to_do(self) -> bool:
        """Nothing in flight, nothing queued, and nobody holds a lease."""
        return not self.calls.open and not self.calls.waiting and not self.leases

    @property
    def is_idle(self) -> bool:
        """It is connected, has nothing to do, and has not been told to stop."""
        return self.life.state is CONNECTED and self.has_nothing_to_do and not self.is_stopping

    @property
    def is_unused(self) -> bool:
        """Whether this incarnation can end without loss: nobody has called it or subscribed to it, and nobody is about
        to."""
        is_listed_only = self.idle_since <= self.connected_at and not self.subscriptions.uris
        return not self.is_connected or (self.has_nothing_to_do and is_listed_only)

    @property
    def is_stopping(self) -> bool:
        """It is stopping, or has been told to stop while another step runs."""
        return self.life.state is State.DRAINING or any(isinstance(each, StopOrder) for each in self.inbox)

    @property
    def is_installing(self) -> bool:
        """It is connecting, and its command may still be installing it."""
        connecting = self.life.state is State.CONNECTING
        return connecting and self.incarnation is not None and self.incarnation.is_installing

    @property
    def is_asking(self) -> bool:
        """Whether the server waits for an answer from its client."""
        return self.incarnation is not None and len(self.incarnation.requests) > 0

    @property
    def doing(self) -> str:
        """What a waiting call is waiting for, in words."""
        if self.life.state is State.IDLE:
            return f"waiting for {self.start.waiting_for or 'its start'}"
        incarnation = self.incarnation
        if self.is_installing:
            took = self.context.backend.now() - self.start.waits_since
            wrote = incarnation.last_line if incarnation is not None else ""
            return f"installing for {took:.0f} s, which goes on" + (f": {wrote}" if wrote else "")
        tail = incarnation.stderr_tail() if incarnation is not None else ()
        odd = f"; {self.record.odd}" if self.record.odd else ""
        return f"still {self.life.state.value}{odd}" + (f"; stderr: {' — '.join(tail)}" if tail else "")

    @property
    def pid(self) -> int | None:
        """The pid of its process, while it has one."""
        return self.incarnation.pid if self.incarnation is not None else None

    @property
    def last_heard(self) -> float | None:
        """When it was last heard, by the room's clock; None: it is not connected."""
        is_there = self.is_connected and self.incarnation is not None
        return self.incarnation.peer.last_heard if is_there and self.incarnation is not None else None

    @property
    def last_line(self) -> str:
        """The last line of its stderr; empty when there is none."""
        return self.incarnation.last_line if self.incarnation is not None else ""

    @property
    def declared(self) -> Mapping[str, Any] | None:
        """The client capabilities that the server was told; None before the handshake."""
        declaration = self.incarnation.declaration if self.incarnation is not None else None
        return declaration.capabilities if declaration is not None else None

    # What others ask of it.

    def tell(self, message: Message) -> None:
        """Put a message in the system lane. It is handled now, or right after the message that is being handled."""
        self.inbox.append(message)
        self._handle_messages()

    def stop(self, ending: Ending, patience: float | None = None) -> None:
        """Ask this incarnation to end. `patience`: the seconds that its calls have to finish; None: the server's drain
        time. An idle actor closes at once."""
        if patience is None:
            patience = self.definition.drain_timeout or self.context.settings.drain_timeout
        if self.life.state in (State.CONNECTING, CONNECTED):
            self.record.leaving(self)
        self.tell(StopOrder(ending, patience))

    def connect(self) -> None:
        """Connect. The supervisor has granted the start: the circuit breaker allows it, and the actor holds a slot and
        a permit. Joins an attempt that is already running."""
        if self.life.state is State.IDLE:
            try:
                self.move(Trigger.CONNECT)
            except Exception as error:  # or it would count as a bug of the actor that freed the permit
                self.stop_for_bug(error)

    def somebody_waits(self) -> None:
        """Somebody waits for the attempt to connect that may be under way: it has the configured limit from now on."""
        if self.life.state is State.CONNECTING and self.incarnation is not None:
            self.incarnation.somebody_waits()

    def request_start(self) -> None:
        """Ask the supervisor for a start, because a call, another wait or the server's policy needs the connection."""
        if self.life.state is State.IDLE:
            self.record.request_start(self)

    def list_again(self, told: WaitCallback) -> None:
        """Have a connected server list what it has again. Calls `told(None)` when its lists have been read, or
        `told(error)` when reading failed or the connection ended first."""
        assert self.incarnation is not None
        self.incarnation.look_again(told)

    def subscriptions_changed(self) -> None:
        """Its subscriptions or its log level have changed: tell a live server."""
        reports = self.incarnation.reports if self.incarnation is not None else None
        if reports is not None and self.is_connected:
            reports.refresh()
            reports.tell_level()
        self.rearm()

    def rearm(self) -> None:
        """Its policy changed: look again at its idle time, its health and its places."""
        self._ask_idle_time()
        now = self.context.backend.now()
        self.alarm.wake_by(self.idle_until if self.is_idle else self._next_deadline(now))
        if self.incarnation is not None:
            self.incarnation.rearm()
        self.calls.share_places()

    def declare_hung(self) -> None:
        """The supervisor has found that the server hangs: end the connection as lost."""
        assert self.incarnation is not None
        reason = self.incarnation.give_up("unresponsive", Reason.UNRESPONSIVE)
        self.tell(ConnectionLoss(self.life.incarnation, reason))

    def abort(self, error: CallError) -> None:
        """The room has ended while the actor lives: fail everything that is still open, at once. Nothing is sent."""
        self.calls.fail_waiting(error)  # first: they must not get a place that is freed below
        try:
            self.calls.fail_all(error)
        finally:
            self._end_waits(self._waits[:], error)

    # What it reports.

    def hidden(self, text: str) -> str:
        """The text of a failure, from a server, a library or the system, without this server's secrets and without
        characters that a terminal obeys or hides."""
        return self.context.secrets.of(self.address).without(unhidden(text))

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.context.events.emit(Note, self.address, self.life.incarnation, code=code, words=words)

    def note_bug(self, error: BaseException) -> None:
        """Put the traceback of an error of ours into the event stream."""
        self.note(NoteCode.BUG, "".join(traceback.format_exception(error)))

    # Messages.

    def _handle_messages(self) -> None:
        """Handle the messages of the system lane, one after the other."""
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self.inbox:
                message = self.inbox.popleft()
                try:
                    self._handle(message)
                except Exception as error:
                    self.stop_for_bug(error)
        finally:
            self._is_handling = False

    def _handle(self, message: Message) -> None:
        if isinstance(message, StopOrder):
            self._on_stop(message)
            return
        if message.incarnation != self.life.incarnation:
            return  # of an earlier incarnation
        match message:
            case ServerLists() if self.life.state is CONNECTED:
                self._on_listed(message)
            case ServerLists():
                self._on_ready(message)
            case ConnectFailure():
                self._on_failed(message)
            case ConnectionLoss():
                self._on_lost(message.reason)
            case TaskOver():
                self._on_gone()

    def _on_listed(self, message: ServerLists) -> None:
        if self.calls.terms is not None:
            self.calls.terms.learn(message.handshake, message.listing)
        self._tell_listed(message)
        self.record.listed(self, message.handshake, message.listing, message.revision)
        self.record.listing = message.listing

    def _on_ready(self, message: ServerLists) -> None:
        if is_late(self.life, Trigger.READY):
            return
        assert self.incarnation is not None
        self.calls.terms = RequestTerms.of(self.incarnation.peer, message.handshake, message.listing)
        self._tell_listed(message)
        self.connected_at = self.context.backend.now()
        self._ask_idle_time()
        self.record.ready(self, message.handshake, message.listing, message.revision)
        self.record.listing = message.listing
        self.move(Trigger.READY)
        replacement = self.calls.replacement
        if replacement is not None and not replacement.is_told:
            self.note(NoteCode.NEW_PROCESS, f"a new process: {replacement}")
        self._end_waits(self._waits[:], None)
        if self.has_nothing_to_do:
            # Not a later look at the clock: idle since then is never called.
            self.begin_idling(self.connected_at)

    def _tell_listed(self, message: ServerLists) -> None:
        watchers = self.context.watchers
        if watchers.listed and self.incarnation is not None:
            declared = self.incarnation.declaration
            offers: Mapping[str, Any] = {} if declared is None else declared.capabilities
            said = message.handshake, message.listing, offers
            watchers.tell(watchers.listed, self.address, message.incarnation, *said)

    def _on_failed(self, message: ConnectFailure) -> None:
        if is_late(self.life, Trigger.FAILED):
            return
        if isinstance(message.error, Bug):
            self._stop_for(message.error)
            return
        if self.life.state is State.CONNECTED:  # the owner task itself broke: treated as a lost connection
            self._on_lost(LostReason(str(message.error)))
            return
        error = message.error
        self.move(Trigger.FAILED, Ending(_cause_of(error), _reason_of(error), error=error))

    def _on_lost(self, reason: LostReason) -> None:
        life, server = self.life, self.address.server
        if life.state is State.CONNECTING:
            error = _error_of(server, reason)
            cause, words, loss = _LOSSES.get(reason.loss, Cause.CONNECT_FAILED), reason.text, reason.loss
            if cause is Cause.CONNECT_FAILED and loss is not Reason.NO_IDENTITY:
                words, loss = _reason_of(error), None
            self.move(Trigger.FAILED, Ending(cause, words, loss, error=error))
        elif life.state is State.CONNECTED or (life.state is State.DRAINING and not life.stopping):
            cause = _LOSSES.get(reason.loss, Cause.LOST)
            error = call_errors.lost_error(server, reason, Reach.NOT_SENT)
            self.move(Trigger.LOST, Ending(cause, reason.in_words(), reason.loss, error=error))

    def _on_stop(self, message: StopOrder) -> None:
        state = self.life.state
        if state is State.CLOSED:
            return
        if state in (State.IDLE, State.CONNECTING) or message.patience <= 0:
            self.move(Trigger.STOP, message.ending)
        else:
            self.move(Trigger.DRAIN, message.ending, self.context.backend.now() + message.patience)
        if self.incarnation is not None:
            self.incarnation.hurry()

    def _on_gone(self) -> None:
        """The owner task has ended. It has sent the reason before this, unless it was cancelled from outside; then the
        reason is made up here."""
        try:
            if self.life.state is State.CONNECTING:
                self.move(
                    Trigger.FAILED,
                    Ending(Cause.CONNECT_FAILED, "the attempt was cancelled", Reason.CANCELLED),
                )
            elif self.life.state is State.CONNECTED:
                self.move(Trigger.LOST, Ending(Cause.LOST, "its owner task was cancelled", Reason.CANCELLED))
            self.calls.lose_all(LostReason("the connection is gone"))
        finally:
            self.incarnation = None
        self.move(Trigger.GONE)

    # Moves and their effects.

    def move(self, trigger: Trigger, ending: Ending | None = None, deadline: float | None = None) -> None:
        """Take one step of the lifecycle table, and perform its effects."""
        before = self.life
        self.life, effects = step(before, trigger, ending=ending, deadline=deadline, in_flight=self.in_flight)
        if self.life.state is not before.state:
            self._tell_transition(before.state)
            if self.life.state is State.DRAINING:
                self.record.leaving(self)
        is_counted = before.ending is not None and before.ending.cause.has(Means.FAILED)
        is_bug = ending is not None and ending.cause is Cause.BUG and not is_counted
        if is_bug or trigger in (Trigger.FAILED, Trigger.LOST):
            # Before its calls are told: a caller that tries again at once must see the circuit breaker as it is now.
            assert self.life.ending is not None
            self.record.failed(self, self.life.ending)
        self._perform(effects)

    def _settle(self) -> None:
        """The actor drains and its last call is over, so stop its server."""
        self.life, effects = settle(self.life)
        self._perform(effects)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Effect.OPEN:
                    self.record.remark(None)
                    incarnation = Incarnation(self, self.life.incarnation)
                    self.context.spawn(incarnation.run)
                    self.incarnation = incarnation
                case Effect.SERVE:
                    self.calls.serve()
                case Effect.ARM_DEADLINE:
                    assert self.life.deadline is not None
                    self.alarm.wake_by(self.life.deadline)
                case Effect.LOSE_CALLS:
                    lost = self.incarnation.lost if self.incarnation is not None else None
                    self.calls.lose_all(lost or LostReason("the connection was lost"))
                case Effect.EXPIRE_CALLS:
                    self.calls.expire_drained()
                case Effect.STOP_TREE:
                    if self.incarnation is not None:
                        self.incarnation.cancel()
                case Effect.ANNOUNCE:
                    self._announce()

    def _announce(self) -> None:
        """The incarnation is closed. The supervisor decides what happens next; calls that may not wait for that fail
        now."""
        closed, ending = self.life.incarnation, self.life.ending
        assert ending is not None
        decision = self.record.closed(self, ending)
        if decision.then is not ClosingAction.GONE:
            self.calls.incarnation_over(ending)
            self.life = Life(incarnation=self.life.incarnation + 1)
            self._tell_transition(State.CLOSED)
        if decision.error is not None:
            self.calls.fail_waiting(decision.error)
            # Those who came during the clean-up wait for the next incarnation, if there will be one.
            up_to = closed if decision.then is ClosingAction.CONNECT else math.inf
            self._end_waits([wait for wait in self._waits if wait.incarnation <= up_to], decision.error)
        if decision.then is ClosingAction.CONNECT or (
            decision.then is ClosingAction.IDLE and self.is_awaited
        ):
            self.request_start()

    def _tell_transition(self, before: State) -> None:
        life = self.life
        ending = life.ending
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
            in_flight=self.in_flight,
            queued=self.queued,
        )

    # Bugs of ours.

    def stop_for_bug(self, error: Exception) -> Bug:
        """Stop this incarnation because of a bug of ours. The event has the traceback. Returns the error that its calls
        get."""
        server = self.address.server
        try:
            self.note_bug(error)
            what = self.hidden(in_words(error))
        except Exception:  # not even that can be told
            what = type(error).__name__
        bug = Bug(f'Server "{server}" was stopped by an error in Greenroom itself: {what}', server=server)
        self._stop_for(bug)
        return bug

    def _stop_for(self, bug: Bug) -> None:
        """Release everybody who waits for this actor, and stop the process tree. Each step is tried, even if one before
        it failed."""
        self._try(partial(self.record.stopped_for_bug, self))
        self._try(partial(self.abort, bug))
        if self.life.state is State.CLOSED:  # what follows its end is broken: once more
            self.life = Life(incarnation=self.life.incarnation + 1)
        self._try(partial(self.move, Trigger.STOP, Ending(Cause.BUG, str(bug), error=bug)))
        if self.life.state is not State.DRAINING:
            return
        if self.incarnation is not None:  # what raised may have kept it from being told
            self.incarnation.cancel()
        else:  # its owner task has ended, or never began
            self._try(partial(self.move, Trigger.GONE))

    def _try(self, act: Callable[[], object]) -> None:
        """Do one part of the clean-up after a bug. If it raises, the other parts are done all the same."""
        try:
            act()
        except Exception as error:
            self.note_bug(error)
            if self.life.state is State.CLOSED:
                self.life = Life(incarnation=self.life.incarnation + 1)

    # Idle time.

    @property
    def idle_until(self) -> float:
        """When its idle time is over, if it has nothing to do."""
        return self.idle_since + self._idle_time

    @property
    def stops_idle_at(self) -> float:
        """When it is stopped if nobody calls it: one that was called has its whole idle time again."""
        is_called = self.idle_since > self.connected_at
        return self.idle_since + self.record.idle_timeout(self) if is_called else self.idle_until

    def lease(self) -> Callable[[], None]:
        """Take a lease, for a caller that is about to call the actor or is deciding whether to. Until the returned
        function is called, neither idle time nor pressure ends the self."""
        self.leases += 1
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self.leases -= 1
                self.calls.call_over()

        return release

    def begin_idling(self, since: float | None = None) -> None:
        """The last call is over: begin to idle (from `since`, or from now), or go on draining."""
        if self.life.state is CONNECTED and not self.leases:
            self.idle_since = since = self.context.backend.now() if since is None else since
            if self.alarm.when > since + self._idle_time:
                self.alarm.wake_by(since + self._idle_time)
            if not self.is_listed_idle:
                self.record.became_idle(self)
        elif self.life.state is State.DRAINING:
            self._settle()
        if self._is_of_call and not self.leases and not self.is_installing:
            self.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.CALL_OVER), 0)

    def shorten_idle_time(self, seconds: float) -> None:
        """Let the actor, which is connected although nobody requested it, stay at most this long, unless it is
        called."""
        self._idle_time = min(self._idle_time, seconds)

    def _ask_idle_time(self) -> None:
        """Ask the supervisor for the idle time under the present policy."""
        self._idle_time = self.record.idle_timeout(self)

    def _expire_idle(self, now: float) -> None:
        """Stop the actor if its idle time is over and the supervisor allows it."""
        if not self.is_idle or now < self.idle_until:
            return
        if self.idle_since > self.connected_at and self._idle_time < self.record.idle_timeout(self):
            self.rearm()  # called since its idle time was shortened
        elif self.record.may_expire(self):  # otherwise the pool stops it when its minimum allows
            ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=self._idle_time)
            self.move(Trigger.DRAIN, ending, now)

    # Who waits for its connection, apart from its calls.

    @property
    def is_awaited(self) -> bool:
        """Calls, waits or subscribed resources need a connection."""
        return bool(self.calls.waiting or self.subscriptions.uris or self.is_waited_for)

    @property
    def is_waited_for(self) -> bool:
        """Somebody other than a call waits for a connection."""
        return bool(self._waits and self._open_waits())

    @property
    def is_asked_for_by_name(self) -> bool:
        """One of those who wait for a connection asked for it by name."""
        return bool(self._waits) and any(wait.by_name for wait in self._open_waits())

    @property
    def awaited_since(self) -> float:
        """Since when the oldest call or wait has waited; `inf` when there is none."""
        return min((self.calls.waiting_since, *(wait.since for wait in self._open_waits())))

    def on_connected(self, told: WaitCallback, *, by_name: bool = False) -> Callable[[], None]:
        """Call `told(None)` when the actor is connected the next time, or `told(error)` when that fails. Returns the
        function that stops the wait."""
        is_over = self.life.state in (State.DRAINING, State.CLOSED)
        wait = ConnectionWait(told, self.context.backend.now(), self.life.incarnation + is_over, by_name)
        self._waits.append(wait)

        def stop_waiting() -> None:
            if wait in self._waits:
                self._waits.remove(wait)

        return stop_waiting

    def refuse_waiting(self, why: str, since: float) -> None:
        """The connection does not come in time. Calls and waits that began at `since` or earlier get the error of
        `why`; the others wait on."""
        error = call_errors.not_started_error(self.address.server, self.context.settings.acquire_timeout, why)
        had_calls = bool(self.calls.waiting)
        self.calls.refuse_waiting(error, since)
        self._end_waits([wait for wait in self._open_waits() if wait.since <= since], error)
        self.record.withdraw_start(self)
        if had_calls:
            self.calls.call_over()

    def forget_names(self) -> None:
        """The server was taken down: earlier requests by name count as ordinary requests from now on."""
        for wait in self._waits:
            wait.by_name = False

    def _open_waits(self) -> list[ConnectionWait]:
        """The waits that still count: not those whose attempt has failed and is being cleaned up."""
        life = self.life
        is_failed = life.ending is not None and life.ending.cause.has(Means.NO_START)
        return [wait for wait in self._waits if not is_failed or wait.incarnation > life.incarnation]

    def _end_waits(self, waits: list[ConnectionWait], error: CallError | None) -> None:
        """Tell these waits how they end."""
        for wait in waits:
            if wait in self._waits:  # unless an earlier callback ended this wait
                self._waits.remove(wait)
                wait.told(error)

    # Time.

    def _ring(self) -> None:
        """Do everything that is due now, then set the alarm to the time at which the next thing is due."""
        try:
            now = self.context.backend.now()
            self.calls.expire(now)
            self._expire(now)
            # With the same `now` throughout: what falls due during this is for the next alarm.
            self.alarm.wake_by(min(self._next_deadline(now), self.calls.next_deadline))
        except Exception as error:
            self.stop_for_bug(error)

    def _expire(self, now: float) -> None:
        """Stop the actor if its drain time or its idle time is over."""
        if self.life.state is not State.DRAINING:
            self._expire_idle(now)
        elif now >= self._next_deadline(now):
            self.move(Trigger.DEADLINE)

    def _next_deadline(self, now: float) -> float:
        """When the drain time or the idle time ends. After its idle time an actor is stopped by the pool, so there is
        no deadline."""
        life = self.life
        if life.state is State.CONNECTED:
            if self.has_nothing_to_do and self.idle_until > now:
                return self.idle_until
        elif life.state is State.DRAINING and not life.stopping and life.deadline is not None:
            return life.deadline
        return math.inf


def _reason_of(error: CallError) -> str:
    """The reason alone, without the words that the connect failed and of which server, which its readers add."""
    return error.reason if isinstance(error, ConnectFailed) else str(error)


def _error_of(server: str, reason: LostReason) -> CallError:
    """The error of an attempt to connect that ended so."""
    match reason.loss:
        case Reason.NEEDS_AUTH:
            return login_needed(server, reason.text)
        case Reason.NO_IDENTITY:
            return identity_needed(server, reason.text)
        case _:
            return connect_failed(server, reason)


def _cause_of(error: CallError) -> Cause:
    """The ending of an attempt that failed with this error."""
    match error:
        case Bug():
            return Cause.BUG
        case NeedsAuth():
            return Cause.NEEDS_AUTH
        case _:
            return Cause.CONNECT_FAILED
