"""The root supervisor: makes actors, and answers what they may not decide.

It is the `Supervisor` of every server actor. All of it is plain functions called from inside an actor's step, so a
decision is never out of date when it is acted on. The policies are pure objects next door (`_gate`, `_restart`,
`_pool`); here is only the wiring: which policy is asked when, and what follows.

From a reason to connect to the grant, an idle actor passes three doors in this order: its server's gate (waits for it
to open; an explicit connect goes around it, once a second), then admission (`_admission`): a slot of the pool, and a
start permit. Which of them it is at, its `Start` says, and nothing else does; leaving every queue is one move. The gate
may shut while it waits: when the permit comes, it is asked once more.

A half-open gate's one probe is a call, or an attempt to connect that no call asked for; the record holds which. Only
its own end is the probe's end, and one that ends without an answer hands its turn to the next call that waits.

A server that nobody knows anything of is visited: started once, to say what it has. A visit is a connect like any
other, of the actor that calls go to, so a call that comes meanwhile joins it, and there is one process. Afterwards the
server stays a little while, because whoever waited for its list is about to call it. (A server without a shared address
is visited at an address of the visit's own, which goes at once.) A visit that fails is tried again whenever the gate
lets it, until the server has said what it has, or is taken down.

One `ServerRecord` per configured server holds what outlives every address of it: the gate, the restart intensity,
whether it was taken down on purpose. A session's actor has a record of its own below it, with the server's load: what
its child does is its own gate's, what keeps any child from starting is the server's. Actors are made when first needed:
a configured server that nobody has called is a definition and a record. A removed server's record goes with the last of
its actors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import attrs

from ..actors import (
    Call,
    CallTable,
    Decision,
    Handshake,
    Listing,
    Next,
    Record,
    RoomContext,
    ServerActor,
    Timer,
)
from ..protocol.address import SHARED, Address
from ..protocol.config import Isolation, Lifecycle, ServerDefinition
from ..protocol.errors import (
    CallError,
    RoomClosed,
    SessionNeeded,
    Unavailable,
    UnknownServer,
)
from ..protocol.events import EndDecision, GateDecision, GateMove
from ..protocol.lifecycle import Cause, Ending, Means, Reason, State
from ..protocol.start import TURNS, Place
from ..protocol.status import ServerStatus
from ._admission import Admission
from ._availability import (
    USABLE,
    Availability,
    Use,
    call_is_over,
    defined,
    down_after,
    down_with,
    drained,
    needs_login,
    on_its_way_out,
    removed,
)
from ._gate import Gate, GatePolicy, Pass
from ._restart import Intensity, after

# Where the next thing is an attempt to connect, which the gate has a say in.
_BETWEEN = (State.IDLE, State.DRAINING)
_VISIT_SCOPE = Address.of_call("", "catalogue").scope
VISIT_IDLE = 10.0  # seconds that a server nobody has called stays after it was visited
BYPASS_EVERY = 1.0  # seconds between two starts that go around a shut gate


class Learner(Protocol):
    """Where the root puts what a server said of itself."""

    def __call__(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None: ...


# Named for every call, see `actors._peer`.
_KEEP_ALIVE: Final = Lifecycle.KEEP_ALIVE
_PERSISTENT: Final = Isolation.PERSISTENT


@attrs.define(eq=False)
class ServerRecord(Record):
    parent: ServerRecord | None = None  # of a session's record: the server's own
    address: Address = attrs.field(init=False)  # made once, because every call asks for it
    gate: Gate = attrs.field(factory=Gate)
    intensity: Intensity = attrs.field(factory=Intensity)
    available: Availability = USABLE  # a session's own besides: its child may need a login, or stay down
    probe: Call | ServerActor | None = None  # whose turn it is, while the gate is half-open
    visit: ServerActor | None = None  # who is to find out what it has; None once that is known
    gate_timer: Timer | None = None  # when those at the gate apply again
    last_start: float = -math.inf
    failure: str | None = None  # why it last failed, a server's own in any scope; forgotten when it connects
    failed_at: float = -math.inf

    @property
    def is_kept(self) -> bool:
        """It is kept alive, and may live."""
        may_live = self.available.use not in (Use.DISABLED, Use.BROKEN)
        return self.definition.lifecycle is _KEEP_ALIVE and may_live

    @property
    def refusal(self) -> CallError | None:
        """Why it is not served at all: its definition, or somebody's wish."""
        return self.available.refusal or (self.parent.available.refusal if self.parent is not None else None)

    def __attrs_post_init__(self) -> None:
        self.address = Address(self.definition.name)


class Root:
    """The `Supervisor` of all server actors of one room."""

    def __init__(self, context: RoomContext, learn: Learner, visited: Callable[[str], None]) -> None:
        self.context = context
        self.records: dict[str, ServerRecord] = {}
        self.actors: dict[Address, ServerActor] = {}
        self.closing: CallError | None = None
        self._levels: dict[
            str, dict[str | None, str]
        ] = {}  # by scope: what sessions set, for a server or all
        self._learn = learn
        self._on_visited = visited  # told of the end of each try to visit a server, good or bad
        self._policy = GatePolicy.of(context.settings)
        self.admission = Admission(context, self)
        self._kept: frozenset[str] | None = (
            None  # as read off the definitions; None when one of them has changed
        )
        # Jitter, not secrets: out of the module's own source, so whoever seeds that has the same run again.
        self._random = random.Random(random.getrandbits(64))  # noqa: S311
        self._calls_apart = 0
        self._closed_watchers: dict[ServerActor, list[Callable[[], None]]] = {}

    # ---- servers and actors -----------------------------------------------------------------------------------------

    def define(self, definition: ServerDefinition, problem: str | None = None) -> ServerRecord:
        """It is configured so. `problem`: why that cannot be used."""
        record = self.records.get(definition.name)
        if record is None:
            record = self.records[definition.name] = ServerRecord(definition)
        record.definition = definition
        record.available = defined(definition, problem)
        for actor in self.actors_of(definition.name):
            if actor.record is not record:  # a session's
                self._record(actor).definition = definition
                self._record(actor).available = USABLE
        self._kept = None
        self.admission.look()
        return record

    def redefine(self, definition: ServerDefinition, *, same_process: bool) -> None:
        """Another definition for a server that is there (DESIGN, Policies: reload). `same_process`: only its policy is
        another, and applies at once; else its incarnations drain, and the next ones are made of this."""
        record = self.define(definition)
        for actor in self.actors_of(definition.name):
            if definition.disabled:
                actor.leave(Ending(Cause.DISABLED))
            elif not same_process:
                actor.leave(Ending(Cause.RELOAD, reason=Reason.NEW_DEFINITION))
            else:
                actor.rearm()
        if definition.lifecycle is not Lifecycle.LAZY and record.available.is_usable:
            self.start_by_policy(self.actor(definition.name))

    def remove(self, server: str) -> None:
        """It is no longer configured: calls in flight finish, then nothing of it is left, its record neither."""
        record = self.record(server)
        record.available = removed(server)
        for actor in self.actors_of(server):
            actor.leave(Ending(Cause.REMOVED))
        self._forget_removed(server)

    def _forget_removed(self, server: str) -> None:
        record = self.records.get(server)
        if record is not None and record.available.use is Use.REMOVED and not self.actors_of(server):
            del self.records[server]
            self._kept = None

    def kept(self) -> frozenset[str]:
        """The keep-alive servers: each has a slot of its own, for as long as anything of it is left. One slot is left
        for the others; that it is comes from reading configurations, but for the moment of a reload."""
        if self._kept is None:
            names = [name for name, record in self.records.items() if record.is_kept]
            self._kept = frozenset(names[: self.context.settings.max_connections - 1])
        return self._kept

    def shared_actor(self, server: str) -> ServerActor | None:
        return self.actors.get(self.records[server].address)

    def record(self, server: str) -> ServerRecord:
        """Raises `UnknownServer`."""
        found = self.records.get(server)
        if found is None:
            raise UnknownServer(server, tuple(self.records))
        return found

    def actor(self, server: str, scope: str = SHARED) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        return self.actor_at(Address(server, scope))

    def actor_at(self, address: Address) -> ServerActor:
        """The same by its address."""
        found = self.actors.get(address)
        if found is None:
            record = self.record(address.server)
            if address == record.address:
                address = record.address  # the very same: then no call's look-up has to compare two
            if address.is_session:
                record = ServerRecord(
                    record.definition,
                    load=record.load,
                    era_hint=record.era_hint,
                    log_level=self._level_in(address.scope, record),
                    parent=record,
                )
                record.address = address
            found = ServerActor(address, record, self.context, self)
            self.actors[address] = found
        return found

    def forget_unused(self, actor: ServerActor) -> None:
        """Its call was refused: an address of the call's own is gone with it, and has never lived."""
        if actor.address.is_call:
            self.actors.pop(actor.address, None)
            self._forget_removed(actor.address.server)

    def actor_for(self, server: str, session: str | None) -> ServerActor:
        """The actor of a call to `server`, out of this session or out of none. Raises as `address` does."""
        record = self.records.get(server) or self.record(server)
        isolation = record.definition.isolation or self.context.settings.isolation
        shared = isolation is None or isolation is _PERSISTENT  # nearly always
        address = record.address if shared else self.address(server, session)
        return self.actors.get(address) or self.actor_at(address)

    def address(self, server: str, session: str | None) -> Address:
        """Where a call to `server` goes, out of this session or out of none (DESIGN, Policies: isolation).

        Raises `UnknownServer`, and `SessionNeeded` for a server that is isolated per session.
        """
        record = self.record(server)
        match self._isolation_of(record):
            case None | Isolation.PERSISTENT:
                return record.address
            case Isolation.PER_CALL:
                self._calls_apart += 1
                return Address.of_call(server, str(self._calls_apart))
            case Isolation.PER_SESSION:
                if session is None:
                    text = (
                        f'Server "{server}" has a child per session, and this call is in none. Call it through '
                        '`room.session(name)`, or set "isolation": "persistent" or "per_call" in its entry.'
                    )
                    raise SessionNeeded(text, server=server)
                return Address.of_session(server, session)

    def set_log_level(self, level: str, server: str | None, session: str | None) -> None:
        """From which level on they log: all, one server, or what of it is a session's own."""
        if session is not None:
            scope = Address.of_session("", session).scope
            levels = self._levels.setdefault(scope, {}) if server is not None else {}
            levels[server] = level
            self._levels[scope] = levels
        else:
            for name, record in self.records.items():
                if server in (None, name):
                    record.log_level = level
        for actor in self.in_reach(session):
            if server in (None, actor.address.server):
                record = self._record(actor)
                if record.parent is not None:
                    record.log_level = self._level_in(actor.address.scope, record.parent)
                actor.wishes_changed()

    def _level_in(self, scope: str, server: ServerRecord) -> str | None:
        """The level of a session's child: its session's, for this server or for all, or else its server's."""
        own = self._levels.get(scope, {})
        return own.get(server.definition.name, own.get(None, server.log_level))

    def in_reach(self, session: str | None) -> list[ServerActor]:
        """The actors that a session may change: its own; out of none: all."""
        scope = Address.of_session("", session).scope if session is not None else None
        return [actor for actor in self.actors.values() if scope in (None, actor.address.scope)]

    def is_of_sessions(self, server: str) -> bool:
        """Whether each session has a child of its own of it. Raises `UnknownServer`."""
        return self.isolation(server) is Isolation.PER_SESSION

    def isolation(self, server: str) -> Isolation:
        """Who shares a child of this server. Raises `UnknownServer`."""
        return self._isolation_of(self.record(server)) or Isolation.PERSISTENT

    def _isolation_of(self, record: ServerRecord) -> Isolation | None:
        return record.definition.isolation or self.context.settings.isolation

    def has_standing_address(self, server: str, session: str | None) -> bool:
        """Whether there is an actor that outlives one call, seen from this session or from none."""
        match self.isolation(server):
            case Isolation.PERSISTENT:
                return True
            case Isolation.PER_SESSION:
                return session is not None
            case Isolation.PER_CALL:
                return False

    def bring_back(self, server: str) -> None:
        """It was taken down, and is asked for by name. Raises what cannot be helped by that, `UnknownServer`."""
        record = self.record(server)
        refusal = self.closing or (record.refusal if record.available.is_by_definition else None)
        if refusal is not None:
            raise refusal.copy()
        record.available = USABLE
        for actor in self.actors_of(server):
            self._record(actor).available = USABLE

    def look_in(self, server: str, over: Callable[[ServerActor], None]) -> ServerActor:
        """Start a server without a shared address once, for a caller who wants to know what it has; then call
        `over(actor)`. Raises what a call would be refused with."""
        record, now = self.record(server), self.context.backend.now()
        refusal = self.closing or record.refusal
        if refusal is None and record.gate.admit(now)[1] is Pass.SHUT:
            refusal = self._unavailable(record, now)
        if refusal is not None:
            raise refusal.copy()
        actor = self.actor(server, _VISIT_SCOPE)
        self.on_closed(actor, lambda: over(actor))
        self.start_by_policy(actor)
        return actor

    def end_session(self, session: str) -> list[ServerActor]:
        """Everything of a session goes, in whatever state it is; the actors that are not gone yet."""
        scope = Address.of_session("", session).scope
        self._levels.pop(scope, None)
        for actor in [actor for actor in self.actors.values() if actor.address.scope == scope]:
            actor.leave(Ending(Cause.SCOPE_ENDED, reason=Reason.SESSION_OVER), 0)
        return [actor for actor in self.actors.values() if actor.address.scope == scope]

    def era_hint(self, actor: ServerActor) -> str | None:
        """What its server spoke when it could choose."""
        return _server_of(self._record(actor)).era_hint

    def limits_changed(self) -> None:
        """The settings are others now: the policies' numbers with them."""
        self._policy = GatePolicy.of(self.context.settings)
        self._kept = None
        self.admission.look()
        for actor in tuple(self.actors.values()):
            actor.rearm()

    # ---- what the room asks -----------------------------------------------------------------------------------------

    def start_by_name(self, actor: ServerActor) -> None:
        """Connect it, whatever the gate says and although it was taken down. End it with `withdraw_start`."""
        self.bring_back(actor.address.server)
        record = self._record(actor)
        if record.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            actor.start.by_policy = True  # it is kept alive again, also when whoever brought it back has left
        if actor.start.place is Place.GATE:  # go around it
            self._apply(actor)
        else:
            actor.request_start()

    def start_as_called(self, actor: ServerActor) -> None:
        """Connect it as a call would: raises what a call would be refused with. End it with `withdraw_start`."""
        record, now = self._record(actor), self.context.backend.now()
        self._check(actor, self.closing or record.refusal)
        if actor.life.state in _BETWEEN:
            for one in (record.parent or record, record):
                if one.gate.admit(now)[1] is Pass.SHUT:
                    raise self._unavailable(one, now)
        actor.request_start()

    def start_by_policy(self, actor: ServerActor) -> None:
        """Connect it by policy: no caller that leaves can undo it."""
        actor.start.by_policy = True
        actor.request_start()

    def _check(self, actor: CallTable, refusal: CallError | None) -> None:
        if refusal is not None:
            raise _for(actor, refusal)

    def to_reconnect(self) -> list[str]:
        """What reconnecting everything means: the live ones, and those that should be live."""
        return [
            name
            for name, record in self.records.items()
            if not record.available.is_by_definition
            and (record.definition.lifecycle is not Lifecycle.LAZY or self._is_live(name))
        ]

    def _is_live(self, server: str) -> bool:
        actor = self.actors.get(Address(server))
        return actor is not None and actor.life.state in (State.CONNECTING, State.CONNECTED, State.DRAINING)

    def take_down(self, server: str, ending: Ending) -> None:
        """End it in all its scopes, on purpose; calls do not bring it back. Raises `UnknownServer`."""
        record = self.record(server)
        record.available = record.available.unless_defined(drained(server))
        for actor in self.actors_of(server):
            actor.waits.forget_names()
            actor.leave(ending)

    def actors_of(self, server: str) -> list[ServerActor]:
        """The actors there are of a server, in every scope. Raises `UnknownServer`."""
        self.record(server)
        return [actor for actor in self.actors.values() if actor.address.server == server]

    def standing(self) -> list[ServerActor]:
        """The actors of the eager and keep-alive servers that can be used."""
        return [
            self.actor(name)
            for name, record in self.records.items()
            if record.definition.lifecycle is not Lifecycle.LAZY and record.available.is_usable
        ]

    def visit(self, server: str) -> ServerActor:
        """Start a server for what it has to say, as often as it takes; returns who does. Raises `UnknownServer`."""
        record = self.record(server)
        visitor = record.visit or self._visitor(server)
        if visitor.is_connected:
            self._on_visited(server)  # what it has is known
        elif record.visit is None:
            record.visit = visitor
            self.start_by_policy(visitor)
        return visitor

    def is_first_start(self, actor: ServerActor) -> bool:
        """It is being installed, or visited: what it is and has is still to come, and nothing is to stop it."""
        return actor.is_installing or (
            actor.life.state is State.CONNECTING and self._record(actor).visit is actor
        )

    def _visitor(self, server: str) -> ServerActor:
        return self.actor(server, SHARED if self.has_standing_address(server, None) else _VISIT_SCOPE)

    def close_all(self, patience: float) -> list[ServerActor]:
        """Every actor ends, in parallel; calls are refused from now on. The actors that are not closed yet."""
        self.closing = RoomClosed("The room is closing; the call was not sent.", server="")
        ending = Ending(Cause.SHUTDOWN)
        for actor in tuple(self.actors.values()):
            actor.leave(ending, patience)
        return [actor for actor in self.actors.values() if actor.life.state is not State.CLOSED]

    def on_closed(self, actor: ServerActor, callback: Callable[[], None]) -> None:
        """Call it once, when the actor's incarnation has closed."""
        self._closed_watchers.setdefault(actor, []).append(callback)

    def release_watchers(self) -> None:
        """The room is over: whoever still waits for an actor to close waits in vain."""
        watchers, self._closed_watchers = self._closed_watchers, {}
        for callbacks in watchers.values():
            for callback in callbacks:
                callback()

    # ---- Supervisor: before a call ----------------------------------------------------------------------------------

    def refusal(self, actor: CallTable, call: Call) -> CallError | None:
        record, now = self._record(actor), self.context.backend.now()
        standing = self.closing or record.refusal or self._leaving(actor)
        if standing is not None:
            return _for(actor, standing)
        state = actor.life.state
        if state in _BETWEEN and _is_shut_for_all(record, now):
            assert record.parent is not None
            return self._unavailable(record.parent, now)
        if not record.gate.tripped and state in (State.CONNECTED, State.CONNECTING):
            return None
        gate, passed = record.gate.admit(now)
        if passed is Pass.SHUT:
            return self._unavailable(record, now)
        if passed is Pass.PROBE:
            self._let_probe(record, gate, call)
        return None

    def may_send(self, actor: CallTable, call: Call) -> bool:
        record = self._record(actor)
        if not record.gate.tripped or record.probe is call:
            return True
        gate, passed = record.gate.admit(self.context.backend.now())
        if passed is Pass.PROBE:
            self._let_probe(record, gate, call)
        return passed is not Pass.SHUT

    def _let_probe(self, record: ServerRecord, gate: Gate, who: Call | ServerActor) -> None:
        record.probe = who
        if isinstance(who, Call):
            who.is_probe = True
        self._set_gate(record, gate, GateMove.HALF_OPEN)

    def _leaving(self, actor: CallTable) -> CallError | None:
        ending, record = actor.life.ending, self._record(actor)
        if ending is None or not _as_it_stands(record, ending.cause).has(Means.FINAL):
            return None
        assert isinstance(actor, ServerActor)
        if actor.is_asked_for_by_name:
            return None
        return on_its_way_out(actor.address.server, actor.life.state, ending)

    def _unavailable(self, record: ServerRecord, now: float) -> Unavailable:
        gate = record.gate
        return Unavailable(
            record.definition.name,
            failed_ago=now - gate.failed_at,
            retry_in=gate.retry_in(now),
            reason=gate.reason,
        )

    # ---- Supervisor: from a reason to the grant ---------------------------------------------------------------------

    def request_start(self, actor: ServerActor) -> None:
        place = actor.start.place
        if place is Place.OUT or (place in TURNS and not self.is_visit(actor)):
            self._apply(actor)

    def withdraw_start(self, actor: CallTable) -> None:
        assert isinstance(actor, ServerActor)
        has_another_reason = actor.start.by_policy or actor.is_awaited
        if actor.life.state is State.IDLE and not has_another_reason:
            self.admission.move(actor, Place.OUT)
            self._probe_over(self._record(actor), actor)

    def _apply(self, actor: ServerActor) -> None:
        """At the gate: pass, or wait for it."""
        record = self._record(actor)
        if self._passes(record, actor, self.context.backend.now()):
            self.admission.enter(actor)
        else:
            self._wait_at_gate(record, actor)

    def is_visit(self, actor: ServerActor) -> bool:
        return self._record(actor).visit is actor and not actor.is_awaited

    def _wait_at_gate(self, record: ServerRecord, actor: ServerActor) -> None:
        self.admission.move(actor, Place.GATE)
        self._watch_gate(record)

    def _at_gate(self, record: ServerRecord) -> list[ServerActor]:
        return [actor for actor in self.admission.starts.at(Place.GATE) if actor.record is record]

    def _passes(self, record: ServerRecord, actor: ServerActor, now: float) -> bool:
        if _is_shut_for_all(record, now):
            return False  # also for a session's probe: what keeps any child from starting has come up since
        if record.probe is actor or any(call is record.probe for call in actor.mailbox.user):
            return True  # it was let through before
        gate, passed = record.gate.admit(now)
        if actor.is_asked_for_by_name:
            return passed is not Pass.SHUT or now >= _server_of(record).last_start + BYPASS_EVERY
        if passed is Pass.PROBE:
            self._let_probe(record, gate, actor.mailbox.user[0] if actor.mailbox.user else actor)
        return passed is not Pass.SHUT

    def _watch_gate(self, record: ServerRecord) -> None:
        """See to it that those at the gate apply again: when it opens, or when going around it is allowed again."""
        if record.gate_timer is not None:
            record.gate_timer.cancel()
            record.gate_timer = None
        now, when = self.context.backend.now(), record.gate.shut_until
        if record.parent is not None:
            when = max(when, record.parent.gate.shut_until)
        waiting = self._at_gate(record)
        if any(actor.is_asked_for_by_name for actor in waiting):
            around = _server_of(record).last_start + BYPASS_EVERY
            when = min(when, around) if when > now else around
        if waiting and when > now:
            record.gate_timer = self.context.timers.at(when, lambda: self._reopen(record))

    def _reopen(self, record: ServerRecord) -> None:
        """The gate may have opened: whoever waits at it applies again."""
        for actor in self._at_gate(record):
            if actor.start.place is Place.GATE:  # those before it may have made it leave
                self._apply(actor)

    def begin(self, actor: ServerActor) -> None:
        """Its turn has come: start it, or send it back to its gate."""
        record, now = self._record(actor), self.context.backend.now()
        if not self._passes(record, actor, now):  # it has shut while this one waited
            self._wait_at_gate(record, actor)
            return
        if actor.start.after_failure:
            actor.start.after_failure = False
            if self._is_too_intense(record, now) and not actor.is_asked_for_by_name:
                self.admission.move(actor, Place.GATE)
                self._quarantine(record, now)
                self._apply(actor)
                return
        _server_of(record).last_start = now
        self.admission.starts.move(actor, Place.STARTING)
        actor.connect()

    def _is_too_intense(self, record: ServerRecord, now: float) -> bool:
        settings = self.context.settings
        record.intensity, too_intense = record.intensity.restarted(
            now, settings.restart_intensity, settings.restart_period
        )
        return too_intense

    def _quarantine(self, record: ServerRecord, now: float) -> None:
        reason = f"{len(record.intensity.times)} restarts in {self.context.settings.restart_period:g}s"
        gate = record.gate.quarantined(self._policy, now, reason)
        self._set_gate(record, gate, GateMove.QUARANTINED, words=reason)

    # ---- Supervisor: while it lives ---------------------------------------------------------------------------------

    def ready(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        record = self._record(actor)
        holds_none = handshake.is_stateless and record.definition.url is not None
        self.admission.move(actor, Place.OUT if holds_none else Place.LIVE)
        actor.start.by_policy = False
        server = record.parent or record
        if handshake.is_its_choice:
            server.era_hint = handshake.protocol_version
        record.failure = server.failure = None
        if record.parent is not None and record.parent.gate.is_troubled:
            # Its children connect again; what a session's own child does after that is its own gate's.
            self._set_gate(record.parent, Gate(), GateMove.SESSION_CONNECTED)
        # A handshake is no proof: if the attempt itself was the probe, the next call is.
        self._probe_over(record, actor)
        if actor.is_asked_for_by_name and record.gate.tripped and record.probe is None:
            self._set_gate(record, record.gate.half_open(), GateMove.BY_NAME)
        self._learn(actor, handshake, listing, revision)
        if server.visit is not None:
            self._visited(server, actor)
        if actor.address.scope == _VISIT_SCOPE:
            actor.leave(Ending(Cause.SCOPE_ENDED, reason=Reason.VISIT_OVER), 0)

    def _visited(self, record: ServerRecord, actor: ServerActor) -> None:
        """It is known now, whoever found it out: a visit that has not begun need not begin."""
        visitor, record.visit = record.visit, None
        if visitor is actor and not actor.is_awaited and record.definition.lifecycle is Lifecycle.LAZY:
            actor.shorten_idle(VISIT_IDLE)
        elif visitor is not None and visitor is not actor:
            visitor.start.by_policy = False
            if visitor.life.state is State.IDLE:
                visitor.leave(Ending(Cause.SCOPE_ENDED, reason=Reason.KNOWN), 0)
        self._on_visited(record.definition.name)

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        self._learn(actor, handshake, listing, revision)

    def answered(self, actor: CallTable, call: Call) -> None:
        record = self._record(actor)
        assert isinstance(actor, ServerActor)
        gate = record.gate.answered(self._policy, self.context.backend.now() - actor.connected_at)
        if gate != record.gate:
            self._set_gate(record, gate, GateMove.ANSWERED)

    def silent(self, actor: CallTable) -> bool:
        record, now = self._record(actor), self.context.backend.now()
        gate = record.gate.timed_out(self._policy, now, "did not answer")
        self._set_gate(record, gate, GateMove.SILENT)
        return gate.tripped

    def left(self, actor: CallTable, call: Call) -> None:
        record = self._record(actor)
        if record.probe is not call:
            return
        successor = next((waiting for waiting in actor.mailbox.user if waiting is not call), None)
        if successor is not None:
            self._let_probe(record, record.gate, successor)
        else:
            self._probe_over(record, call)

    def _probe_over(self, record: ServerRecord, who: Call | ServerActor) -> None:
        if record.probe is who:
            self._set_gate(record, record.gate.probe_left(), GateMove.PROBE_LEFT)

    def parked(self, actor: ServerActor, bug: CallError) -> None:
        record = self._record(actor)
        record.available = record.available.unless_defined(down_with(bug))
        if record.visit is actor:
            record.visit = None
            self._on_visited(actor.address.server)
        actor.start.by_policy = False
        if actor.life.state is State.IDLE:
            self.admission.move(actor, Place.OUT)
        elif actor.start.place is Place.STARTING:
            self.admission.move(actor, Place.LIVE)  # its permit is free; its slot is, when its tree is gone
        self._probe_over(record, actor)

    def rested(self, actor: ServerActor) -> None:
        self.admission.look()

    def may_expire(self, actor: ServerActor) -> bool:
        return self.admission.may_expire(actor)

    def health_interval(self, actor: ServerActor) -> float:
        keeps = actor.record.definition.lifecycle is Lifecycle.KEEP_ALIVE and actor.address.is_shared
        return (self.context.settings.health_interval or math.inf) if keeps else math.inf

    def idle_timeout(self, actor: ServerActor) -> float:
        definition = actor.record.definition
        if definition.lifecycle is _KEEP_ALIVE or actor.subscriptions.uris:
            return math.inf
        if not actor.address.is_shared:
            return math.inf  # a session's child has its session's idle limit, a call's has none
        seconds = definition.idle_timeout
        if seconds is None:
            seconds = 0.0 if definition.lifecycle is Lifecycle.EAGER else self.context.settings.idle_timeout
        return seconds or math.inf

    # ---- Supervisor: at the end -------------------------------------------------------------------------------------

    def closed(self, actor: ServerActor, ending: Ending) -> Decision:
        try:
            return self._after(actor, ending)
        finally:
            for callback in self._closed_watchers.pop(actor, ()):
                callback()

    def _after(self, actor: ServerActor, ending: Ending) -> Decision:
        record = self._record(actor)
        actor.start.by_policy = False
        if not ending.cause.has(Means.FAILED):
            # Before its place goes to the next, who may be of the same server.
            self._probe_over(record, actor)
        self.admission.move(actor, Place.OUT)
        decision = self._decision(record, actor, ending)
        if decision.then is Next.GONE and self.closing is None:
            self.actors.pop(actor.address, None)
            self._forget_removed(actor.address.server)
        if decision.then is Next.CONNECT:
            actor.start.by_policy = True
        if record.visit is actor:
            if decision.then is not Next.CONNECT:
                record.visit = None
            self._on_visited(actor.address.server)
        if decision.then in (Next.CONNECT, Next.DOWN):
            self.context.events.emit(
                EndDecision,
                actor.address,
                actor.life.incarnation,
                cause=ending.cause,
                then=decision.then.value,
            )
        return decision

    def failed(self, actor: ServerActor, ending: Ending) -> None:
        """The gate counts connect failures and deaths, at once: it is shut while the old tree is being stopped. A hang
        was counted when its calls timed out, and a server that forgot our session has not died."""
        record = self._record(actor)
        now, draw = self.context.backend.now(), self._random.random()
        if ending.cause is Cause.CONNECT_FAILED:
            gate = record.gate.connect_failed(self._policy, now, ending.detail, draw)
        elif ending.cause is Cause.LOST and actor.loss in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            gate = record.gate.probe_left()
        elif ending.cause is Cause.LOST:
            gate = record.gate.died(self._policy, now, ending.detail, draw)
        else:
            return  # it was being left already, for a stronger cause
        if not actor.address.is_call:
            actor.start.after_failure = True
        for one in (record, record.parent or record):
            one.failure, one.failed_at = ending.detail, now
        if record.parent is not None and ending.cause is Cause.CONNECT_FAILED:
            shared = record.parent.gate.connect_failed(self._policy, now, ending.detail, draw)
            self._set_gate(record.parent, shared, GateMove.FAILED, ending.cause, ending.detail)
        self._set_gate(record, gate, GateMove.FAILED, ending.cause, ending.detail)

    def _decision(self, record: ServerRecord, actor: ServerActor, ending: Ending) -> Decision:
        server = actor.address.server
        if self.closing is not None or ending.cause is Cause.SHUTDOWN:
            return Decision(
                Next.GONE, RoomClosed("The room has closed; the call was not sent.", server=server)
            )
        if record.visit is actor and record.available.is_usable and ending.cause.has(Means.KEEPS_VISITS):
            failed = ending.cause is Cause.CONNECT_FAILED
            return Decision(Next.CONNECT, self._queued_error(record, actor, ending) if failed else None)
        if actor.address.is_call:
            if ending.cause is Cause.NEEDS_AUTH:
                record.available = record.available.unless_defined(needs_login(server, ending.detail))
            return Decision(Next.GONE, actor.failure or call_is_over(server))
        if actor.is_asked_for_by_name and ending.cause.has(Means.KEEPS_NAMES):
            return Decision(Next.CONNECT)
        if actor.is_asked_for_by_name and ending.cause.has(Means.NO_START):  # since the attempt had failed
            return Decision(Next.CONNECT, self._queued_error(record, actor, ending))
        what = after(
            _as_it_stands(record, ending.cause), record.definition, self.context.settings.restart_policy
        )
        error = self._queued_error(record, actor, ending) if what.fails_queued else None
        if what.then is Next.DOWN:
            record.available = record.available.unless_defined(self._down(record, actor, ending))
        return Decision(what.then, error)

    def _queued_error(self, record: ServerRecord, actor: ServerActor, ending: Ending) -> CallError | None:
        return self._down(record, actor, ending).refusal

    def _down(self, record: ServerRecord, actor: ServerActor, ending: Ending) -> Availability:
        """Why it is down after this ending, if it is."""
        server = actor.address.server
        if ending.cause is Cause.NEEDS_AUTH:
            return needs_login(server, ending.detail)
        if ending.cause in (Cause.CONNECT_FAILED, Cause.BUG) and actor.failure is not None:
            return down_with(actor.failure)
        return down_after(server, ending) if record.available.is_usable else record.available

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _record(self, actor: CallTable) -> ServerRecord:
        assert isinstance(actor.record, ServerRecord)
        return actor.record

    def _set_gate(
        self, record: ServerRecord, gate: Gate, move: GateMove, cause: Cause | None = None, words: str = ""
    ) -> None:
        """`cause`: of the ending it follows from."""
        was_tripped, record.gate = record.gate.tripped, gate
        record.guarded = gate.is_troubled
        if not gate.probing:
            record.probe = None
        self.context.events.emit(
            GateDecision,
            record.address,
            move=move,
            failures=gate.failures,
            shut_for=max(gate.shut_until - self.context.backend.now(), 0.0),
            tripped=gate.tripped,
            cause=cause,
            words=words,
        )
        self._ring_at(record)
        for session in self._sessions_at_gate(record):  # theirs stands behind this one
            self._ring_at(session)
        if was_tripped and not gate.tripped:
            self._serve_held(record)

    def _ring_at(self, record: ServerRecord) -> None:
        gate = record.gate
        if self._at_gate(record) and not gate.probing and gate.shut_until <= self.context.backend.now():
            self._reopen(record)
        else:
            self._watch_gate(record)

    def _sessions_at_gate(self, record: ServerRecord) -> list[ServerRecord]:
        records = (self._record(actor) for actor in self.admission.starts.at(Place.GATE))
        return list({id(session): session for session in records if session.parent is record}.values())

    def _serve_held(self, record: ServerRecord) -> None:
        """The gate has opened: other scopes may have calls that were held back for the probe."""
        for actor in tuple(self.actors.values()):
            if actor.record is record and actor.is_connected and actor.queued:
                actor.serve()

    # ---- status -----------------------------------------------------------------------------------------------------

    def addresses(self, server: str | None = None) -> Iterator[Address]:
        """One per configured server, in order, then one per further live address; of `server` alone, if given. Servers
        may come and go meanwhile."""
        for name in [*self.records] if server is None else [server]:
            yield Address(name)
        yield from sorted(one for one in self.actors if not one.is_shared and server in (None, one.server))

    def status(self, address: Address, tool_count: int | None) -> ServerStatus:
        server, now = self.records[address.server], self.context.backend.now()
        actor = self.actors.get(address) or (server.visit if address.is_shared else None)
        record = server if actor is None else self._record(actor)
        # A session stands behind its own gate and its server's.
        gate = server.gate if record.gate.shut_until <= server.gate.shut_until else record.gate
        use = server.available if record.available.is_usable else record.available
        return ServerStatus(
            server=address.server,
            scope=address.scope,
            lifecycle=server.definition.lifecycle.value,
            state=actor.life.state if actor is not None else State.IDLE,
            incarnation=actor.life.incarnation if actor is not None else 1,
            in_flight=actor.in_flight if actor is not None else 0,
            queued=actor.queued if actor is not None else 0,
            waiting_for=_waiting_for(actor),
            waiting=_waiting(actor, now),
            last_line=actor.last_line or None if actor is not None and _is_connecting(actor) else None,
            tool_count=tool_count,
            pid=actor.pid if actor is not None else None,
            failure=record.failure,
            failed_ago=now - record.failed_at if record.failure is not None else None,
            retry_in=gate.retry_in(now) if gate.shut_until > now else None,
            needs_auth=use.use is Use.NEEDS_LOGIN,
            disabled=server.definition.disabled,
            broken=str(use.refusal) if use.use is Use.BROKEN else None,
            down=None if use.refusal is None or use.use is Use.BROKEN else str(use.refusal),
        )


def _for(actor: CallTable, refusal: CallError) -> CallError:
    """A standing refusal, made out to one more caller."""
    refused = refusal.copy()
    refused.server = actor.address.server
    return refused


def _as_it_stands(record: ServerRecord, cause: Cause) -> Cause:
    """Taken down, and brought back while it was still draining: then it only makes way for the next."""
    return Cause.RELOAD if cause.has(Means.TAKEN_DOWN) and record.refusal is None else cause


def _server_of(record: ServerRecord) -> ServerRecord:
    """The server's own record, for a session's."""
    return record.parent or record


def _is_shut_for_all(record: ServerRecord, now: float) -> bool:
    """A session's record: its server's own gate, which counts what no session can help, is shut."""
    return record.parent is not None and record.parent.gate.admit(now)[1] is Pass.SHUT


def _is_connecting(actor: ServerActor) -> bool:
    return actor.life.state is State.CONNECTING


def _waiting_for(actor: ServerActor | None) -> str | None:
    if actor is None:
        return None
    return "install" if actor.is_installing else actor.start.waiting_for


def _waiting(actor: ServerActor | None, now: float) -> float | None:
    """Seconds since it began to wait for what it waits for now: its cue, or its connection."""
    if actor is None or (actor.start.waiting_for is None and not _is_connecting(actor)):
        return None
    return now - actor.start.waits_since
