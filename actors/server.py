"""The server actor: everything of one address, in steps that do not wait.

An actor is a record with a mailbox. The objects it holds do the work: `steps` moves it through its life; `calls`
accepts, sends and ends its calls; `idling` says how long it has had nothing to do; `waits` lists who else waits
for its connection. No task wakes up to read a mailbox: whatever brings a message (a caller, a pump, a timer)
handles it at once. So a call on a connected server is admitted and written in its caller's own task, and an idle
actor has no task at all. From connecting to closed there is one task, `Incarnation.run`, which owns only the
connection.

There are two lanes. System messages are handled in the order they came, one at a time, even when handling one
brings the next. Calls wait in the user lane while there is no connection (or all its places are taken), and
outlive incarnations there.

An actor may not decide whether to connect, what follows an ending, or how long to idle. It asks the `Supervisor`.
"""

from __future__ import annotations

import enum
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import msgspec

from ..catalogue.quarantine import NOTHING, Quarantine
from ..config.model import Era, ServerDefinition, Settings
from ..config.secrets import in_words
from ..protocol.address import Address
from ..protocol.errors import Bug, CallError, ConnectFailed, NeedsAuth, Reach
from ..protocol.events import WAITING, Note, NoteCode, Place, Transition
from ..protocol.jsonrpc.terms import MODERN_VERSIONS
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
from ..protocol.safe_text import unhidden
from ..protocol.tasks import has_tasks, runs_only_so
from . import calls as endings
from . import calls as errors
from .calls import CONNECTED, CallTable, answer_inputs
from .host import Declaration, covers
from .incarnation import Failed, Gone, Incarnation, Listed, Lost, Message, Ready, Stop, Subscriptions
from .mailbox import Mailbox
from .peer import Handshake, Listing, LostReason, connect_failed, describe, login_needed
from .room_context import RoomContext
from .timers import Alarm

if TYPE_CHECKING:
    from .call import Call
    from .calls import WaitingCalls
    from .peer import Peer
    from .timers import Timer


class Load(msgspec.Struct, eq=False):
    """The calls of one server, over all its scopes, counted against its bounds."""

    in_flight: int = 0
    queued: int = 0
    held: dict[WaitingCalls, None] = msgspec.field(
        default_factory=dict["WaitingCalls", None]
    )  # longest first


@attrs.define(eq=False)
class Record:
    """What the actors of one server have in common. A session's actor has its own record, with its server's load."""

    definition: ServerDefinition
    load: Load = attrs.field(factory=Load)
    era_hint: str | None = None  # the protocol version the server chose last: saves the probe
    log_level: str | None = None  # the least level it shall log
    # The circuit breaker has something to decide, or something is quarantined: ask before each call.
    guarded: bool = False
    quarantined: Quarantine = NOTHING  # what has changed and must not be used
    listing: Listing | None = None  # what it listed last
    odd: str | None = None  # the first odd thing that the latest incarnation did, in words

    def remark(self, words: str | None) -> None:
        """Note in words that the server did something odd; None when a new incarnation begins."""
        if words is None or self.odd is None:
            self.odd = words

    def most_in_flight(self, settings: Settings) -> int:
        """How many calls this server may have in flight, over all its scopes."""
        return self.definition.max_in_flight or settings.max_in_flight


class Next(enum.Enum):
    """What the supervisor decides after an incarnation has closed."""

    IDLE = "idle"  # the next incarnation waits for a reason to connect; a queued call is one
    CONNECT = "connect"  # it connects without such a reason
    DOWN = "down"  # queued calls fail; only an explicit connect, restart or reload brings it back
    GONE = "gone"  # the address is gone


class Decision(msgspec.Struct, frozen=True):
    then: Next
    error: CallError | None = None  # for queued calls, when they are to fail


class Supervisor(Protocol):
    """What an actor asks of its supervisor, and reports to it. Plain functions; called from inside an actor's
    step."""

    def refusal(self, actor: ServerActor, call: Call) -> CallError | None:
        """The error with which this call must be refused now, or None. May make the call the circuit breaker's
        probe."""
        ...

    def request_start(self, actor: ServerActor) -> None:
        """The idle actor has a reason to connect. Ends in `actor.steps.connect()`, at once or later, or in
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

    def log_level(self, actor: ServerActor, call: Call) -> str | None:
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

    def closed(self, actor: ServerActor, ending: Ending) -> Decision:
        """Nothing is left of this incarnation. Returns what happens next."""
        ...

    def became_idle(self, actor: ServerActor) -> None:
        """The actor has nothing to do any more. Called only if it is not in the list of idle actors yet
        (`is_listed`)."""
        ...

    def leaving(self, actor: ServerActor) -> None:
        """The actor begins to stop, or has been told to stop. May be called again."""
        ...

    def may_expire(self, actor: ServerActor) -> bool:
        """Whether the actor may stop, now that its idle time is over. If not, the supervisor stops it once it may."""
        ...

    def health_interval(self, actor: ServerActor) -> float:
        """Seconds of silence after which the server's health is checked; `inf` for never."""
        ...

    def idle_timeout(self, actor: ServerActor) -> float:
        """Seconds without a call after which the actor may stop; `inf` for never."""
        ...


_NEW: Final = Life()


class ServerActor:
    __slots__ = (
        "address",
        "alarm",
        "calls",
        "connected_at",
        "context",
        "idling",
        "incarnation",
        "life",
        "mailbox",
        "record",
        "start",
        "steps",
        "subscriptions",
        "supervisor",
        "waits",
    )

    def __init__(
        self, address: Address, record: Record, context: RoomContext, supervisor: Supervisor
    ) -> None:
        self.address: Address = address
        self.record: Record = record
        self.context: RoomContext = context
        self.supervisor: Supervisor = supervisor
        self.life: Life = _NEW  # `steps` moves it
        self.start: Start = Start()  # the supervisor moves it
        self.incarnation: Incarnation | None = None  # from connecting to closed
        self.connected_at: float = -math.inf
        self.subscriptions: Subscriptions = Subscriptions()
        self.steps: Steps = Steps(self)
        # Unbounded here: the bound is the server's, over all its scopes, and is checked in `CallTable.submit`.
        self.mailbox: Mailbox[Message, Call] = Mailbox(1 << 60, self.steps.run)
        self.alarm: Alarm = Alarm(context.timers, self._ring)
        self.calls: CallTable = CallTable(self)
        self.idling: Idling = Idling(self)
        self.waits: Waits = Waits()

    def __repr__(self) -> str:
        return f"<ServerActor {self.address} {self.life.state.value} #{self.life.incarnation}>"

    # ---- how it is --------------------------------------------------------------------------------------------------

    @property
    def definition(self) -> ServerDefinition:
        return self.record.definition

    @property
    def peer(self) -> Peer | None:
        """What speaks with its server; None before the handshake."""
        incarnation = self.incarnation
        return incarnation.peer if incarnation is not None and incarnation.listening is not None else None

    @property
    def in_flight(self) -> int:
        return len(self.calls.open)

    @property
    def queued(self) -> int:
        return len(self.mailbox.user)

    @property
    def is_connected(self) -> bool:
        return self.life.state is CONNECTED

    @property
    def has_nothing_to_do(self) -> bool:
        """Nothing in flight, nothing queued, and nobody holds a lease."""
        return not self.calls.open and not self.mailbox.user and not self.idling.leases

    @property
    def is_idle(self) -> bool:
        """It is connected, has nothing to do, and has not been told to stop."""
        return self.life.state is CONNECTED and self.has_nothing_to_do and not self.is_stopping

    @property
    def is_stopping(self) -> bool:
        """It is stopping, or has been told to stop while another step runs."""
        told = self.mailbox.system
        return self.life.state is State.DRAINING or (bool(told) and any(isinstance(m, Stop) for m in told))

    @property
    def is_installing(self) -> bool:
        """It is connecting, and its command may still be installing it."""
        connecting = self.life.state is State.CONNECTING
        return connecting and self.incarnation is not None and self.incarnation.is_installing

    @property
    def is_asking(self) -> bool:
        """Whether the server waits for an answer from its client."""
        return self.incarnation is not None and len(self.incarnation.server_requests) > 0

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
    def is_awaited(self) -> bool:
        """Calls, waits or subscribed resources need a connection."""
        return bool(self.mailbox.user or self.subscriptions.uris or self.is_waited_for)

    @property
    def is_waited_for(self) -> bool:
        """Somebody other than a call waits for a connection."""
        return bool(self.waits) and any(True for _ in self.waits.open(self.life))

    @property
    def is_asked_for_by_name(self) -> bool:
        """One of those who wait for a connection asked for it by name."""
        return any(wait.by_name for wait in self.waits.open(self.life))

    @property
    def awaited_since(self) -> float:
        """Since when the oldest call or wait has waited; `inf` when there is none."""
        return min(self.waits.since(self.life), self.calls.waiting.since)

    # ---- what others ask of the actor -------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Put a message in the system lane. It is handled now, or right after the message that is being handled."""
        self.mailbox.put_system(message)

    def stop(self, ending: Ending, patience: float | None = None) -> None:
        """Ask this incarnation to end. `patience`: the seconds that its calls have to finish; None: the server's drain
        time. An idle actor closes at once."""
        if patience is None:
            patience = self.definition.drain_timeout or self.context.settings.drain_timeout
        if self.life.state is CONNECTED:
            self.supervisor.leaving(self)
        self.tell(Stop(ending, patience))

    def on_connected(self, told: Told, *, by_name: bool = False) -> Callable[[], None]:
        """Call `told(None)` when the actor is connected the next time, or `told(error)` when that fails. Returns the
        function that stops the wait."""
        return self.waits.add(told, self.context.backend.now(), self.life, by_name=by_name)

    def list_again(self, told: Told) -> None:
        """Have a connected server list what it has again. Calls `told(None)` when its lists have been read, or
        `told(error)` when reading failed or the connection ended first."""
        assert self.incarnation is not None
        self.incarnation.look_again(told)

    def request_start(self) -> None:
        """Ask the supervisor for a start, because a call, another wait or the server's policy needs the connection."""
        if self.life.state is State.IDLE:
            self.supervisor.request_start(self)

    def refuse_waiting(self, why: str, since: float) -> None:
        """The connection does not come in time. Calls and waits that began at `since` or earlier get the error of
        `why`; the others wait on."""
        error = errors.not_started_error(self.address.server, self.context.settings.acquire_timeout, why)
        had_calls = bool(self.mailbox.user)
        self.calls.waiting.refuse(error, since)
        self.waits.tell_early(error, since, self.life)
        self.supervisor.withdraw_start(self)
        if had_calls:
            self.calls.call_over()

    def subscriptions_changed(self) -> None:
        """Its subscriptions or its log level have changed: tell a live server."""
        listening = self.incarnation.listening if self.incarnation is not None else None
        if listening is not None and self.is_connected:
            listening.refresh()
            listening.tell_level()
        self.rearm()

    def rearm(self) -> None:
        """Its policy changed: look again at its idle time, its health and its places."""
        self.idling.ask_time()
        now = self.context.backend.now()
        self.alarm.wake_by(self.idling.until if self.is_idle else self.steps.next_deadline(now))
        if self.incarnation is not None:
            self.incarnation.rearm()
        self.calls.share_places()

    # ---- what the actor reports -------------------------------------------------------------------------------------

    def hidden(self, text: str) -> str:
        """The text of a failure, from a server, a library or the system, without this server's secrets and without
        characters that a terminal obeys or hides."""
        return self.context.secrets.of(self.address).without(unhidden(text))

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.context.events.emit(Note, self.address, self.life.incarnation, code=code, words=words)

    def note_raised(self, what: str, error: BaseException) -> None:
        """Write to the log that a function of the embedding program raised this error, with the traceback."""
        text = "".join(traceback.format_exception(error))
        self.note(NoteCode.CALLBACK, f"{what} raised\n{text}")

    def note_bug(self, error: BaseException) -> None:
        """Put the traceback of an error of ours into the event stream."""
        self.note(NoteCode.BUG, "".join(traceback.format_exception(error)))

    # ---- the alarm --------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Do everything that is due now, then set the alarm to the time at which the next thing is due."""
        try:
            now = self.context.backend.now()
            self.calls.expire(now)
            self.steps.expire(now)
            # With the same `now` throughout: what falls due during this is for the next alarm.
            self.alarm.wake_by(min(self.steps.next_deadline(now), self.calls.next_deadline))
        except Exception as error:
            self.steps.stop_for_bug(error)


# ---- The steps of a server actor: what each system message does to its life -----------------------------------------
#
# Only `lifecycle.step` moves the life. The effects that it returns are performed here, at once. The owner task and
# the pumps only *send messages*: `Ready`, `Failed`, `Lost`, `Gone`, each with its incarnation's number. So a late
# message of incarnation n never touches n + 1.
#
# An exception in a step is a bug of ours. It ends this incarnation as `failed: bug`, with all its calls; other servers
# go on. After that the same happens as after any other loss.


class Steps:
    __slots__ = ("_actor", "_stepping")

    def __init__(self, actor: ServerActor) -> None:
        self._actor = actor
        self._stepping = False

    # ---- messages ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Handle the messages of the system lane, one after the other. The mailbox calls this when a message comes."""
        if self._stepping:
            return
        self._stepping = True
        system = self._actor.mailbox.system
        try:
            while system:
                message = system.popleft()
                try:
                    self._handle(message)
                except Exception as error:
                    self.stop_for_bug(error)
        finally:
            self._stepping = False

    def _handle(self, message: Message) -> None:
        actor = self._actor
        if isinstance(message, Stop):
            self._on_stop(message)
            return
        if message.incarnation != actor.life.incarnation:
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
            case Listed() if actor.life.state is State.CONNECTED:
                self._learn_tasks(message)
                self._record(message)
                actor.supervisor.listed(actor, message.handshake, message.listing, message.revision)
                actor.record.listing = message.listing
            case Listed():
                pass

    def _record(self, message: Ready | Listed) -> None:
        actor = self._actor
        if actor.context.recording is not None and actor.incarnation is not None:
            declared = actor.incarnation.declaration
            offers: Mapping[str, Any] = {} if declared is None else declared.capabilities
            said = message.handshake, message.listing, offers
            actor.context.recording.listed(actor.address, message.incarnation, *said)

    def _on_ready(self, message: Ready) -> None:
        actor = self._actor
        if is_late(actor.life, Trigger.READY):
            return
        assert actor.incarnation is not None
        peer = actor.incarnation.peer
        speaks_newer = peer.protocol_version in MODERN_VERSIONS or peer.beside is not None
        actor.calls.introduces = speaks_newer
        actor.calls.logs_by_request = speaks_newer and "logging" in message.handshake.capabilities
        handshake = message.handshake
        actor.calls.has_tasks = has_tasks(handshake.protocol_version, handshake.capabilities) or has_tasks(
            MODERN_VERSIONS[-1], handshake.beside
        )
        actor.calls.may_go_on = speaks_newer or actor.calls.has_tasks
        self._learn_tasks(message)
        self._record(message)
        actor.connected_at = actor.context.backend.now()
        actor.idling.ask_time()
        actor.supervisor.ready(actor, message.handshake, message.listing, message.revision)
        actor.record.listing = message.listing
        if is_outdated(actor, actor.context.host.declaration(actor.address)):
            # The host's capabilities changed while it started. Its lists are known; its calls wait for the next
            # incarnation.
            self.move(Trigger.STOP, Ending(Cause.RESTART, reason=Reason.NEW_ANSWERS))
            return
        self.move(Trigger.READY)
        actor.waits.tell(None)
        if actor.has_nothing_to_do:
            # Not a later look at the clock: idle since then is never called.
            actor.idling.begin(actor.connected_at)

    def _learn_tasks(self, message: Ready | Listed) -> None:
        """Which tools run only as tasks. A server that does not declare tasks is not asked for any."""
        handshake, tools = message.handshake, message.listing.tools or ()
        asks = not handshake.is_stateless and has_tasks(handshake.protocol_version, handshake.capabilities)
        named = (str(tool.get("name")) for tool in tools if runs_only_so(tool)) if asks else ()
        self._actor.calls.only_as_task = frozenset(named)

    def _on_failed(self, message: Failed) -> None:
        actor = self._actor
        if is_late(actor.life, Trigger.FAILED):
            return
        if isinstance(message.error, Bug):
            self._stop_for(message.error)
            return
        if actor.life.state is State.CONNECTED:  # the owner task itself broke: treated as a lost connection
            self._on_lost(LostReason(str(message.error)))
            return
        error = message.error
        self.move(Trigger.FAILED, Ending(_cause_of(error), _reason_of(error), error=error))

    def _on_lost(self, reason: LostReason) -> None:
        life, server = self._actor.life, self._actor.address.server
        wants_login = reason.loss is Reason.NEEDS_AUTH
        if life.state is State.CONNECTING:
            error = login_needed(server, reason.text) if wants_login else connect_failed(server, reason)
            cause, words = _LOSSES.get(reason.loss, Cause.CONNECT_FAILED), reason.text
            if cause is Cause.CONNECT_FAILED:
                words = _reason_of(error)
            loss = None if cause is Cause.CONNECT_FAILED else reason.loss
            self.move(Trigger.FAILED, Ending(cause, words, loss, error=error))
        elif life.state is State.CONNECTED or (life.state is State.DRAINING and not life.stopping):
            cause = _LOSSES.get(reason.loss, Cause.LOST)
            error = errors.lost_error(server, reason, Reach.NOT_SENT)
            self.move(Trigger.LOST, Ending(cause, describe(reason), reason.loss, error=error))
        # In all other states the server is being stopped, so the end of its connection is expected.

    def _on_stop(self, message: Stop) -> None:
        actor = self._actor
        state = actor.life.state
        if state is State.CLOSED:
            return
        if state in (State.IDLE, State.CONNECTING) or message.patience <= 0:
            self.move(Trigger.STOP, message.ending)
        else:
            self.move(Trigger.DRAIN, message.ending, actor.context.backend.now() + message.patience)
        if actor.incarnation is not None:
            actor.incarnation.hurry()

    def _on_gone(self) -> None:
        """The owner task has ended. It has sent the reason before this, unless it was cancelled from outside; then the
        reason is made up here."""
        actor = self._actor
        try:
            if actor.life.state is State.CONNECTING:
                self.move(
                    Trigger.FAILED,
                    Ending(Cause.CONNECT_FAILED, "the attempt was cancelled", Reason.CANCELLED),
                )
            elif actor.life.state is State.CONNECTED:
                self.move(Trigger.LOST, Ending(Cause.LOST, "its owner task was cancelled", Reason.CANCELLED))
            endings.lose_all(actor.calls, LostReason("the connection is gone"))
        finally:
            actor.incarnation = None
        self.move(Trigger.GONE)

    # ---- steps that others call -------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect. The supervisor has granted the start: the circuit breaker allows it, and the actor holds a slot and
        a permit. Joins an attempt that is already running."""
        if self._actor.life.state is State.IDLE:
            try:
                self.move(Trigger.CONNECT)
            except (
                Exception
            ) as error:  # caught here, or it would count as a bug of the actor that freed the permit
                self.stop_for_bug(error)

    def settle(self) -> None:
        """The actor drains and its last call is over, so stop its server."""
        actor = self._actor
        actor.life, effects = settle(actor.life)
        self._perform(effects)

    def declare_hung(self) -> None:
        """The supervisor has found that the server hangs: end the connection as lost."""
        actor = self._actor
        assert actor.incarnation is not None
        reason = actor.incarnation.give_up("unresponsive", Reason.UNRESPONSIVE)
        actor.tell(Lost(actor.life.incarnation, reason))

    def find_input(self, call: Call, result: dict[str, Any]) -> None:
        """The server needs more input before it can answer; ends in `CallTable.send_again` or `give_up`."""
        actor = self._actor
        assert actor.incarnation is not None
        server_requests = actor.incarnation.server_requests

        async def find() -> None:
            try:
                await answer_inputs(actor.calls, call, result, server_requests)
            except Exception as error:
                self.stop_for_bug(error)

        actor.context.spawn(find)

    def abort(self, error: CallError) -> None:
        """The room has ended while the actor lives: fail everything that is still open, at once. Nothing is sent."""
        actor = self._actor
        actor.calls.waiting.fail(error)  # first: they must not get a place that is freed below
        try:
            endings.fail_all(actor.calls, error)
        finally:
            actor.waits.tell(error)

    def stop_for_bug(self, error: Exception) -> Bug:
        """Stop this incarnation because of a bug of ours. The event has the traceback. Returns the error that its calls
        get."""
        actor = self._actor
        server = actor.address.server
        try:
            actor.note_bug(error)
            what = actor.hidden(in_words(error))
        except Exception:  # not even that can be told
            what = type(error).__name__
        bug = Bug(f'Server "{server}" was stopped by an error in Greenroom itself: {what}', server=server)
        self._stop_for(bug)
        return bug

    def _stop_for(self, bug: Bug) -> None:
        """Release everybody who waits for this actor, and stop the process tree. Each step is tried, even if one before
        it failed."""
        actor = self._actor
        self._try(partial(actor.supervisor.stopped_for_bug, actor))
        self._try(partial(self.abort, bug))
        if actor.life.state is State.CLOSED:  # what follows its end is broken: once more
            actor.life = Life(incarnation=actor.life.incarnation + 1)
        self._try(partial(self.move, Trigger.STOP, Ending(Cause.BUG, str(bug), error=bug)))
        if actor.life.state is not State.DRAINING:
            return
        if actor.incarnation is not None:  # what raised may have kept it from being told
            actor.incarnation.cancel()
        else:  # its owner task has ended, or never began
            self._try(partial(self.move, Trigger.GONE))

    def _try(self, act: Callable[[], object]) -> None:
        """Do one part of the clean-up after a bug. If it raises, the other parts are done all the same."""
        actor = self._actor
        try:
            act()
        except Exception as error:
            actor.note_bug(error)
            if actor.life.state is State.CLOSED:
                actor.life = Life(incarnation=actor.life.incarnation + 1)

    # ---- time -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Stop the actor if its drain time or its idle time is over."""
        if self._actor.life.state is not State.DRAINING:
            self._actor.idling.expire(now)
        elif now >= self.next_deadline(now):
            self.move(Trigger.DEADLINE)

    def next_deadline(self, now: float) -> float:
        """When the drain time or the idle time ends. After its idle time an actor is stopped by the pool, so there is
        no deadline."""
        actor, life = self._actor, self._actor.life
        if life.state is State.CONNECTED:
            if actor.has_nothing_to_do and actor.idling.until > now:
                return actor.idling.until
        elif life.state is State.DRAINING and not life.stopping and life.deadline is not None:
            return life.deadline
        return math.inf

    # ---- moves and their effects ------------------------------------------------------------------------------------

    def move(self, trigger: Trigger, ending: Ending | None = None, deadline: float | None = None) -> None:
        """Take one step of the lifecycle table, and perform its effects."""
        actor, before = self._actor, self._actor.life
        actor.life, effects = step(
            before, trigger, ending=ending, deadline=deadline, in_flight=actor.in_flight
        )
        if actor.life.state is not before.state:
            self._tell_transition(before.state)
            if actor.life.state is State.DRAINING:
                actor.supervisor.leaving(actor)
        is_counted = before.ending is not None and before.ending.cause.has(Means.FAILED)
        is_bug = ending is not None and ending.cause is Cause.BUG and not is_counted
        if is_bug or trigger in (Trigger.FAILED, Trigger.LOST):
            # Before its calls are told: a caller that tries again at once must see the circuit breaker as it is now.
            assert actor.life.ending is not None
            actor.supervisor.failed(actor, actor.life.ending)
        self._perform(effects)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        actor = self._actor
        for effect in effects:
            match effect:
                case Effect.OPEN:
                    actor.record.remark(None)
                    incarnation = Incarnation(actor, actor.life.incarnation)
                    actor.context.spawn(incarnation.run)
                    actor.incarnation = incarnation
                case Effect.SERVE:
                    actor.calls.waiting.serve()
                case Effect.ARM_DEADLINE:
                    assert actor.life.deadline is not None
                    actor.alarm.wake_by(actor.life.deadline)
                case Effect.LOSE_CALLS:
                    lost = actor.incarnation.lost if actor.incarnation is not None else None
                    endings.lose_all(actor.calls, lost or LostReason("the connection was lost"))
                case Effect.EXPIRE_CALLS:
                    endings.expire_drained(actor.calls)
                case Effect.STOP_TREE:
                    if actor.incarnation is not None:
                        actor.incarnation.cancel()
                case Effect.ANNOUNCE:
                    self._announce()

    def _announce(self) -> None:
        """The incarnation is closed. The supervisor decides what happens next; calls that may not wait for that fail
        now."""
        actor = self._actor
        closed, ending = actor.life.incarnation, actor.life.ending
        assert ending is not None
        decision = actor.supervisor.closed(actor, ending)
        if decision.then is not Next.GONE:
            actor.life = Life(incarnation=actor.life.incarnation + 1)
            self._tell_transition(State.CLOSED)
        if decision.error is not None:
            actor.calls.waiting.fail(decision.error)
            # Those who came during the clean-up wait for the next incarnation, if there will be one.
            actor.waits.tell(decision.error, up_to=closed if decision.then is Next.CONNECT else math.inf)
        if decision.then is Next.CONNECT or (decision.then is Next.IDLE and actor.is_awaited):
            actor.request_start()

    def _tell_transition(self, before: State) -> None:
        actor, life = self._actor, self._actor.life
        ending = life.ending
        actor.context.events.emit(
            Transition,
            actor.address,
            life.incarnation,
            before=before,
            after=life.state,
            cause=ending.cause if ending is not None else None,
            reason=ending.reason if ending is not None else None,
            seconds=ending.seconds if ending is not None else None,
            words=ending.words if ending is not None else "",
            in_flight=actor.in_flight,
            queued=actor.queued,
        )


# The losses that are no failure of the server.
_LOSSES: Final = {Reason.NEEDS_AUTH: Cause.NEEDS_AUTH, Reason.MOVED: Cause.MOVED}


def _reason_of(error: CallError) -> str:
    """The reason alone, without the words that the connect failed and of which server, which its readers add."""
    return error.reason if isinstance(error, ConnectFailed) else str(error)


def _cause_of(error: CallError) -> Cause:
    """The ending of an attempt that failed with this error."""
    match error:
        case Bug():
            return Cause.BUG
        case NeedsAuth():
            return Cause.NEEDS_AUTH
        case _:
            return Cause.CONNECT_FAILED


# ---- How long one actor has had nothing to do, and when that has been long enough -----------------------------------
#
# An actor has nothing to do when no call is in flight, none waits and nobody holds a lease. Its idle time counts from
# the end of its last call, or from when it connected. When the idle time is over, the pool's minimum may still keep the
# actor. In that case the pool stops it later, as soon as the minimum allows.


class Idling:
    __slots__ = ("_actor", "_time", "is_listed", "leases", "since")

    def __init__(self, actor: ServerActor) -> None:
        self._actor = actor
        self._time = math.inf  # as the supervisor answered when it connected or its policy changed
        self.since: float = -math.inf  # when its last call ended, or it connected
        self.leases: int = 0
        self.is_listed: bool = False  # the supervisor looks at it by itself when it looks for an idle actor

    @property
    def until(self) -> float:
        """When its idle time is over, if it has nothing to do."""
        return self.since + self._time

    def lease(self) -> Callable[[], None]:
        """Take a lease, for a caller that is about to call the actor or is deciding whether to. Until the returned
        function is called, neither idle time nor pressure ends the actor."""
        self.leases += 1
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self.leases -= 1
                self._actor.calls.call_over()

        return release

    def ask_time(self) -> None:
        """Ask the supervisor for the idle time under the present policy."""
        self._time = self._actor.supervisor.idle_timeout(self._actor)

    def shorten(self, seconds: float) -> None:
        """Let the actor, which is connected although nobody requested it, stay at most this long, unless it is
        called."""
        self._time = min(self._time, seconds)

    def begin(self, since: float | None = None) -> None:
        """The last call is over: begin to idle (from `since`, or from now), or go on draining."""
        actor = self._actor
        state = actor.life.state
        if state is CONNECTED and not self.leases:
            self.since = actor.context.backend.now() if since is None else since
            until = self.since + self._time
            if actor.alarm.when > until:
                actor.alarm.wake_by(until)
            if not self.is_listed:
                actor.supervisor.became_idle(actor)
        elif state is State.DRAINING:
            actor.steps.settle()
        if actor.address.is_call and not self.leases and not actor.is_installing:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.CALL_OVER), 0)

    def expire(self, now: float) -> None:
        """Stop the actor if its idle time is over and the supervisor allows it."""
        actor = self._actor
        if not actor.is_idle or now < self.until:
            return
        if self.since > actor.connected_at and self._time < actor.supervisor.idle_timeout(actor):
            actor.rearm()  # called since its idle time was shortened
        elif actor.supervisor.may_expire(actor):  # otherwise the pool stops it when its minimum allows
            ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=self._time)
            actor.steps.move(Trigger.DRAIN, ending, now)


# ---- The waits for one actor's connection, apart from its calls, in one list ----------------------------------------
#
# Each wait knows when it began, whether the connection was requested by name, and for which incarnation it waits:
# the present one, or the next one when the present one is already ending. So one list tells which waits get the
# error of a failed attempt (those for that attempt) and which go on (those begun after the failure).

Told = Callable[[CallError | None], None]


class Wait(msgspec.Struct, eq=False):
    told: Told  # called once: with None when it is connected, with the error when that fails
    since: float
    incarnation: int  # the first incarnation that it waits for
    by_name: bool = False  # bypasses the circuit breaker, and even if the server was taken down


class Waits:
    """All waits of one actor, in order of arrival."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, told: Told, now: float, life: Life, *, by_name: bool) -> Callable[[], None]:
        """Returns the function that stops the wait. Harmless once the wait is over."""
        is_over = life.state in (State.DRAINING, State.CLOSED)
        wait = Wait(told, now, life.incarnation + is_over, by_name)
        self._waits.append(wait)

        def stop_waiting() -> None:
            self._forget(wait)

        return stop_waiting

    def open(self, life: Life) -> Iterator[Wait]:
        """The waits that still count: not those whose attempt has failed and is being cleaned up."""
        is_failed = life.ending is not None and life.ending.cause.has(Means.NO_START)
        return (wait for wait in self._waits if not is_failed or wait.incarnation > life.incarnation)

    def forget_names(self) -> None:
        """The server was taken down: earlier requests by name count as ordinary requests from now on."""
        for wait in self._waits:
            wait.by_name = False

    def since(self, life: Life) -> float:
        """When the oldest wait began; `inf` when there is none."""
        return min((wait.since for wait in self.open(life)), default=math.inf)

    def tell(self, error: CallError | None, *, up_to: float = math.inf) -> None:
        """End the waits for incarnations up to this number, and tell them."""
        self._tell([wait for wait in self._waits if wait.incarnation <= up_to], error)

    def tell_early(self, error: CallError, since: float, life: Life) -> None:
        """Tell the waits that began at `since` or earlier."""
        self._tell([wait for wait in self.open(life) if wait.since <= since], error)

    def _tell(self, waits: list[Wait], error: CallError | None) -> None:
        for wait in waits:
            if self._forget(wait):  # unless an earlier callback ended this wait
                wait.told(error)

    def _forget(self, wait: Wait) -> bool:
        if wait not in self._waits:
            return False
        self._waits.remove(wait)
        return True


# ---- The start: an actor's way to its connection --------------------------------------------------------------------
#
# Each actor has one `Start`, which is in exactly one `Place`. The place tells what the actor waits for, and whether
# it holds a slot or a start permit; nothing else stores that. So leaving every queue is one move, and no two lists
# can disagree about their members. The actor reads its start; the supervisor moves it, in one function
# (`Starts.move`).


class Start(msgspec.Struct, eq=False):
    """Where one actor is on its way to its connection. Times are of the room's clock, in seconds."""

    place: Place = Place.OUT
    since: float = -math.inf  # when it came to this place
    began: float = -math.inf  # when it last left `OUT`
    by_policy: bool = False  # its lifecycle or a discovery wants it: no caller that leaves can undo it
    after_failure: bool = False  # it follows a loss or a failure: restart intensity counts it
    deadline: Timer | None = None  # until when it may wait for a slot

    @property
    def waiting_for(self) -> str | None:
        return self.place.value if self.place in WAITING else None

    @property
    def waits_since(self) -> float:
        """When the present wait began: for its turn to connect, or for its connection."""
        return self.since if self.place in (Place.STARTING, Place.OPENING) else self.began


# ---------------------------------------------------------------------------------------------------------------------
#
#
# What can be seen of a server from outside while it has an incarnation: for people, and for code that must know what
# it was told.


def pid_of(actor: ServerActor) -> int | None:
    """The pid of its process, while it has one."""
    return actor.incarnation.pid if actor.incarnation is not None else None


def last_line(actor: ServerActor) -> str:
    """The last lines of its stderr."""
    return actor.incarnation.last_line if actor.incarnation is not None else ""


def declared_to(actor: ServerActor) -> Mapping[str, Any] | None:
    """The client capabilities the server was told; None before the handshake."""
    declaration = actor.incarnation.declaration if actor.incarnation is not None else None
    return declaration.capabilities if declaration is not None else None


def is_unused(actor: ServerActor) -> bool:
    """Whether this incarnation can end without loss: nobody has called it or subscribed to it, and nobody is about
    to."""
    is_listed_only = actor.idling.since <= actor.connected_at and not actor.subscriptions.uris
    return not actor.is_connected or (actor.has_nothing_to_do and is_listed_only)


def is_outdated(actor: ServerActor, declaration: Declaration) -> bool:
    """Whether the server had better be connected again, because of this `declaration` of what a client can answer. True
    if it was told other capabilities (a shared server: fewer), or was initialized so that it cannot ask a client that
    expects to be asked. False for a server that was offered a handshake and took none, and for one that was used: no
    call is given up for this, and nothing that a server remembers."""
    told = actor.incarnation.declaration if actor.incarnation is not None else None
    if told is None or told == declaration or actor.address.is_call or not is_unused(actor):
        return False
    if actor.definition.is_api:
        return False  # it asks nobody
    if actor.address.is_shared:  # more than these does no harm: a client that cannot answer is not asked
        if not covers(told.capabilities, declaration.capabilities):
            return True
    elif told.capabilities != declaration.capabilities:
        return True
    is_older = actor.peer is not None and actor.peer.protocol_version not in MODERN_VERSIONS
    may_change = declaration.by_handshake and not told.by_handshake and actor.definition.era is Era.AUTO
    return may_change and not is_older
