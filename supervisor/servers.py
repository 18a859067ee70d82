"""The servers of one room: a record each, and the one list of them.

Each configured server has a `ServerRecord`, which outlives all its actors: its definition, its circuit breaker, whether
it can be used, what its calls hold, and its actors by their scopes. The child of a session has a record of its own
below its server's, with its server's load: what the child does counts in its own circuit breaker, and what keeps any
child from starting counts in the server's. Actors are made when they are first needed. So a configured server that
nobody has called is only a definition and a record. The record of a removed server is dropped with its last actor.

An actor may not decide whether to connect, what follows an ending, or how long to idle. It asks its record (the
`Supervisor` of `actors.server`). These are plain functions called from inside an actor's step, so a decision is never
out of date when the actor acts on it. The policies are pure (`policy`); here is what is done with them.

Rejected: a supervisor beside the records, and a directory beside both (each question of an actor went through three
objects to reach the one that knew); a record class for the actors and two more that extend it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio
import msgspec

from ..actors.server import ClosingAction, ClosingDecision, Load, ServerActor
from ..catalogue.entries import NOT_PINNED, LastFailure, ServerEntry
from ..catalogue.fingerprints import changed_in_words, flapping_in_words, kind_of
from ..catalogue.quarantine import NOTHING, Quarantine
from ..config.argument_checks import name_of
from ..config.model import Config, Era, Isolation, Lifecycle, Pinning, ServerDefinition, Settings, idle_time
from ..config.references import isolation_of
from ..protocol.address import HANDSHAKE, SHARED, Address
from ..protocol.errors import (
    CallError,
    ConnectFailed,
    FailureKind,
    Problem,
    RoomClosed,
    ServerLost,
    SessionNeeded,
    UnknownServer,
)
from ..protocol.events import EndDecision, Note, NoteCode, Place
from ..protocol.jsonrpc.terms import MODERN_VERSIONS
from ..protocol.lifecycle import Cause, Ending, Means, Reason, State
from ..safety.approval_gate import ApprovalGate
from ..safety.gates import Gate
from ..safety.pinning import in_quarantine
from ..safety.rates import RateGate
from .breakers import ServerBreaker
from .discovery import DISCOVERY_IDLE, Discovery
from .policy.availability import (
    USABLE,
    Availability,
    AvailabilityState,
    call_is_over,
    defined,
    down_after,
    down_with,
    drained,
    needs_login,
    on_its_way_out,
    removed,
)
from .policy.endings import ClosedIncarnation, as_it_counts, what_follows
from .server_messages import LogLevels
from .starts import LoginWatch, Starts, made_out_to

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import Declaration
    from ..actors.peer import Handshake, Listing
    from ..actors.room_context import RoomContext
    from .sessions import Sessions

_NOBODY: Final[Mapping[str, Any]] = MappingProxyType({})
_PERSISTENT: Final = Isolation.PERSISTENT  # named for every call, see `actors.peer`
_KEEP_ALIVE: Final = Lifecycle.KEEP_ALIVE

# Takes the lists that a server has given, with their revision.
Learner = Callable[["ServerRecord", ServerActor, "Handshake", "Listing", int], None]
# Called when a server has failed, and when it works (None).
FailureTeller = Callable[[str, LastFailure | None], None]


class ServerRecord(msgspec.Struct, eq=False):
    """What is kept of one server, or of the child of one session."""

    servers: ServerList
    definition: ServerDefinition
    address: Address  # made once, because every call needs it
    parent: ServerRecord | None = None  # for a session's record: the server's own
    load: Load = msgspec.field(default_factory=Load)
    era_hint: str | None = None  # the protocol version the server chose last: saves the probe
    log_level: str | None = None  # the least level it shall log
    # The circuit breaker has something to decide, or something is quarantined: ask before each call.
    guarded: bool = False
    quarantined: Quarantine = NOTHING  # what has changed and must not be used
    listing: Listing | None = None  # what it listed last
    odd: str | None = None  # the first odd thing that the latest incarnation did, in words
    odd_code: NoteCode = NoteCode.ODD
    available: Availability = USABLE  # a session's own says more: its child may need a login, or be down
    # The actors of a server, and the records of its sessions, by scope. One table of all until there is one: most of
    # the servers of a large configuration are never called.
    actors: Mapping[str, ServerActor] = _NOBODY
    children: Mapping[str, ServerRecord] = _NOBODY
    discovery: ServerActor | None = None  # the actor that starts for discovery; None once the lists are known
    failed_discoveries: int = 0  # tries of this definition to discover what it has, in a row
    failure: str | None = None  # why it last failed (for a server: in any scope); cleared when it connects
    failure_kind: str = FailureKind.OTHER
    failed_at: float = -math.inf
    failed_starts: int = 0  # in a row; 0: it was lost while it ran
    start_took: float | None = None  # seconds; for a server: of the last start in any scope
    newer_only: bool = False  # of a server: it has refused the handshake
    breaker: ServerBreaker = cast("ServerBreaker", None)  # made of the record itself, below

    def __post_init__(self) -> None:
        self.breaker = ServerBreaker(self, self.servers.starts)

    def keep(self, actor: ServerActor) -> None:
        """An actor of the server was made."""
        self.actors = _with(self.actors, actor.address.scope, actor)

    def keep_child(self, child: ServerRecord) -> None:
        """The record for a session's child of the server was made."""
        self.children = _with(self.children, child.address.scope, child)

    def drop(self, scope: str) -> None:
        """The actor at this scope is gone, and the record that it had of its own."""
        self.actors = _without(self.actors, scope)
        self.children = _without(self.children, scope)

    # ---- what it is -------------------------------------------------------------------------------------------------

    @property
    def server(self) -> ServerRecord:
        """The record of the server itself, also when this is a session's record."""
        return self.parent or self

    @property
    def is_kept(self) -> bool:
        """Whether the server is kept alive, and may run."""
        may_live = self.available.state not in (AvailabilityState.DISABLED, AvailabilityState.BROKEN)
        return self.definition.lifecycle is _KEEP_ALIVE and may_live and not self.definition.is_api

    @property
    def refusal(self) -> CallError | None:
        """The error that refuses every call, because of the definition or because the server was taken down."""
        return self.available.refusal or (self.parent.available.refusal if self.parent is not None else None)

    def is_discovery(self, actor: ServerActor) -> bool:
        """Whether the actor starts only for discovery: nobody has called it."""
        return self.discovery is actor and not actor.is_awaited

    def at(self, scope: str) -> ServerRecord:
        """The record of this server's actor in a scope: its own for a session, else the server's."""
        return self.children.get(scope, self)

    def with_children(self) -> list[ServerRecord]:
        """This record, and those of its sessions."""
        return [self, *self.children.values()]

    def most_in_flight(self, settings: Settings) -> int:
        """How many calls this server may have in flight, over all its scopes."""
        return self.definition.max_in_flight or settings.max_in_flight

    def remark(self, words: str | None, code: NoteCode = NoteCode.ODD) -> None:
        """Note in words that the server did something odd; None when a new incarnation begins."""
        for record in (self,) if self.parent is None else (self, self.parent):
            if words is None or record.odd is None:
                record.odd, record.odd_code = words, code

    def keep_out(self, kept_out: Quarantine) -> None:
        """Let no request pass from now on that would use one of these."""
        self.quarantined = kept_out
        self.guarded = self.breaker.state.is_troubled or bool(kept_out)

    def serve_held(self) -> None:
        """Its circuit breaker admits calls again: send those that were held back for the probe."""
        for actor in self.holding():
            actor.calls.call_over()

    def holding(self) -> list[ServerActor]:
        """Its actors that are connected while calls wait there."""
        server = self.server
        return [
            actor
            for scope, actor in server.actors.items()
            if actor.queued and actor.is_connected and server.at(scope) is self
        ]

    def note_failure(
        self,
        why: str | None,
        failed_starts: int,
        at: float = -math.inf,
        kind: str = FailureKind.OTHER,
    ) -> None:
        """Keep why the server failed, until it works again (None). A session's failure is also its server's."""
        for record in (self,) if self.parent is None else (self, self.parent):
            record.failure, record.failed_starts, record.failure_kind = why, failed_starts, kind
            if why is not None:
                record.failed_at = at

    def listing_failed(self, why: str) -> None:
        """It did not list again what it has."""
        self.note_failure(why, 0, self.servers.context.backend.now())

    # ---- what its actors ask: calls ---------------------------------------------------------------------------------

    def refuses(self, actor: ServerActor, call: Call) -> CallError | None:
        standing = self.servers.closing or self.refusal or self._on_the_way_out(actor)
        if standing is not None:
            return made_out_to(actor.address.server, standing)
        return self.keeps_out(actor, call) or self.breaker.refuses(actor, call)

    def keeps_out(self, actor: ServerActor, call: Call) -> CallError | None:
        return in_quarantine(actor, call)

    def _on_the_way_out(self, actor: ServerActor) -> CallError | None:
        """Why a call may not wait for the next incarnation of an actor that is being stopped; None: it may."""
        ending = actor.life.ending
        if ending is None:
            return None
        cause = as_it_counts(ending.cause, is_down=self.refusal is not None)
        if not cause.has(Means.FINAL) or actor.is_asked_for_by_name:
            return None
        return on_its_way_out(actor.address.server, actor.life.state, ending)

    def may_send(self, actor: ServerActor, call: Call) -> bool:
        return self.breaker.may_send(call)

    def answered(self, actor: ServerActor, call: Call) -> None:
        self.breaker.answered(self.servers.context.backend.now() - actor.connected_at)

    def declaration(self, actor: ServerActor, call: Call) -> Declaration:
        return self.servers.sessions.declaration(call.client, actor.address)

    def level_for(self, actor: ServerActor, call: Call) -> str | None:
        wanted = self.servers.log_levels.least(call.client, actor.address.server)
        return wanted or self.declaration(actor, call).log_level

    def silent(self, actor: ServerActor) -> bool:
        return self.breaker.timed_out()

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        self.breaker.call_unanswered(actor, call)

    # ---- what its actors ask: the start of an incarnation -----------------------------------------------------------

    def request_start(self, actor: ServerActor) -> None:
        self.servers.starts.request(self, actor)

    def withdraw_start(self, actor: ServerActor) -> None:
        self.servers.starts.withdraw(self, actor)

    def connect_timeout(self, actor: ServerActor) -> float:
        usual = self.definition.connect_timeout or self.servers.context.settings.connect_timeout
        by_itself = self.discovery is actor or actor.start.by_policy
        if not by_itself or self.listing is not None:
            return usual
        return self.servers.discovery.patience(self, usual)

    def ready(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        servers, server = self.servers, self.server
        holds_none = handshake.is_stateless and self.definition.url is not None
        self.start_took = server.start_took = actor.connected_at - actor.start.since
        servers.starts.move(self, actor, Place.OUT if holds_none else Place.LIVE)
        actor.start.by_policy = False
        if self.definition.warm:
            servers.starts.connected(self, actor)
        if handshake.is_its_choice:
            server.era_hint = handshake.protocol_version
        if actor.address.is_for_handshakes and handshake.is_stateless:
            server.newer_only = True  # all share one connection again
            actor.shorten_idle_time(DISCOVERY_IDLE)
        if actor.address.is_common:
            actor.calls.hand_over(self._place)
        servers.failing(actor.address.server, None)
        self.note_failure(None, 0)
        self.breaker.connected(actor)
        servers.learn(self, actor, handshake, listing, revision)
        servers.discovery.learned(self, actor)

    def _place(self, call: Call) -> ServerActor:
        """Where a call waits that waits here, now that it is known which versions its server speaks."""
        return self.servers.actor_for(self.definition.name, call.client)

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        self.note_failure(None, 0)
        self.servers.learn(self, actor, handshake, listing, revision)

    # ---- what its actors ask: an idle connection --------------------------------------------------------------------

    def became_idle(self, actor: ServerActor) -> None:
        self.servers.starts.became_idle(actor)

    def leaving(self, actor: ServerActor) -> None:
        self.servers.starts.places.begins_to_leave(self, actor)

    def may_expire(self, actor: ServerActor) -> bool:
        return self.servers.starts.may_expire(actor)

    def health_interval(self, actor: ServerActor) -> float:
        keeps = self.definition.lifecycle is _KEEP_ALIVE and actor.address.is_shared
        return (self.servers.context.settings.health_interval or math.inf) if keeps else math.inf

    def idle_timeout(self, actor: ServerActor) -> float:
        if actor.subscriptions.uris or not actor.address.is_common:
            return math.inf  # a session's child ends with its session, a call's child with its call
        return idle_time(self._policy_of(actor), self.servers.context.settings)

    def _policy_of(self, actor: ServerActor) -> ServerDefinition:
        """The definition whose lifecycle the actor follows. What only clients of the handshake era share lives as long
        as they call it, for its server stands already."""
        definition = self.definition
        is_lazy = actor.address.is_for_handshakes
        return msgspec.structs.replace(definition, lifecycle=Lifecycle.LAZY) if is_lazy else definition

    # ---- what its actors ask: the end of an incarnation -------------------------------------------------------------

    def failed(self, actor: ServerActor, ending: Ending) -> None:
        """Count the failure at once, so that calls are refused while the old process tree is being stopped."""
        if not ending.cause.has(Means.FAILED):
            return  # it is being stopped already, for a stronger cause
        if not actor.address.is_call:
            actor.start.after_failure = True
        if ending.is_of_caller:
            self.breaker.failed(ending)
            return
        why, failed_starts = ending.detail, self.server.failed_starts + ending.cause.has(Means.NO_START)
        kind = _kind_of(ending)
        self.note_failure(why, failed_starts, self.servers.context.backend.now(), kind)
        failure = LastFailure(time.time(), why, failed_starts, kind=kind)
        self.servers.failing(actor.address.server, failure)
        self.breaker.failed(ending)

    def stopped_for_bug(self, actor: ServerActor) -> None:
        servers = self.servers
        servers.discovery.tried(self, actor, is_over=True)
        actor.start.by_policy = False
        if actor.life.state is State.IDLE:
            servers.starts.move(self, actor, Place.OUT)
        elif actor.start.place is Place.STARTING:
            # Its permit is free now; its slot is free when its tree is gone.
            servers.starts.move(self, actor, Place.LEAVING)
        self.breaker.probe_left(actor)

    def closed(self, actor: ServerActor, ending: Ending) -> ClosingDecision:
        try:
            return self._after(actor, ending)
        finally:
            self.servers.tell_closed(actor)

    def _after(self, actor: ServerActor, ending: Ending) -> ClosingDecision:
        servers = self.servers
        actor.start.by_policy = False
        if not ending.cause.has(Means.FAILED):
            # Before its place goes to the next actor, which may be of the same server.
            self.breaker.probe_left(actor)
        servers.starts.move(self, actor, Place.OUT)
        decision = self._decide(actor, ending)
        if self.available.state is AvailabilityState.NEEDS_LOGIN:
            servers.logins.parked(actor.address.server)
            failure = LastFailure(time.time(), ending.detail, needs_login=True)
            servers.failing(actor.address.server, failure)
        # What all share stays in the status of a closing room.
        if decision.then is ClosingAction.GONE and (servers.closing is None or not actor.address.is_common):
            servers.forget(actor)
        actor.start.by_policy = decision.then is ClosingAction.CONNECT
        self._tell_discovery(actor, ending, decision.then)
        if decision.then in (ClosingAction.CONNECT, ClosingAction.DOWN):
            servers.context.events.emit(
                EndDecision,
                actor.address,
                actor.life.incarnation,
                cause=ending.cause,
                then=decision.then.value,
            )
        return decision

    def _decide(self, actor: ServerActor, ending: Ending) -> ClosingDecision:
        """What happens after this ending of the actor's incarnation. If the server is down then, this record says
        why."""
        servers, name = self.servers, actor.address.server
        is_closing = servers.closing is not None
        what = what_follows(
            ClosedIncarnation(
                ending.cause,
                self._policy_of(actor),
                servers.context.settings.restart_policy,
                is_closing=is_closing,
                is_down=self.refusal is not None,
                is_discovery=self.discovery is actor and self.available.is_usable,
                is_shared=actor.address.is_shared,
                is_of_call=actor.address.is_call,
                is_awaited=actor.is_awaited,
                is_asked_by_name=actor.is_asked_for_by_name,
            )
        )
        if not what.fails_queued:
            return ClosingDecision(what.then)
        if is_closing or ending.cause is Cause.SHUTDOWN:
            return ClosingDecision(
                what.then, RoomClosed("The room has closed; the call was not sent.", server=name)
            )
        down, is_of_call = self._down(actor, ending), actor.address.is_call
        if what.then is ClosingAction.DOWN or (is_of_call and ending.cause is Cause.NEEDS_AUTH):
            self.available = self.available.unless_defined(down)
        if is_of_call and what.then is ClosingAction.GONE:
            return ClosingDecision(what.then, ending.error or call_is_over(name))
        return ClosingDecision(what.then, down.refusal)

    def _down(self, actor: ServerActor, ending: Ending) -> Availability:
        """Why the server is down after this ending, if it is."""
        name = actor.address.server
        if ending.cause is Cause.NEEDS_AUTH:
            return needs_login(name, ending.detail)
        if ending.cause in (Cause.CONNECT_FAILED, Cause.BUG) and ending.error is not None:
            return down_with(ending.error)
        return down_after(name, ending) if self.available.is_usable else self.available

    def _tell_discovery(self, actor: ServerActor, ending: Ending, then: ClosingAction) -> None:
        discovery, is_over = self.servers.discovery, then is not ClosingAction.CONNECT
        failed = is_over and self.discovery is actor and ending.cause is Cause.CONNECT_FAILED
        if self.discovery is actor and ending.cause.has(Means.NO_START):
            self.failed_discoveries += 1
        # An incarnation that only made way was not a try. Who asked after the failure waits for the next one.
        if is_over or (ending.cause.has(Means.NO_START) and not actor.is_asked_for_by_name):
            discovery.tried(self, actor, is_over=is_over)
        if failed and self.servers.closing is None:
            discovery.failed(self, actor, ending.error)


def _kind_of(ending: Ending) -> FailureKind:
    if isinstance(ending.error, ConnectFailed | ServerLost):
        return ending.error.kind
    return FailureKind.SILENCE if ending.reason is Reason.UNRESPONSIVE else FailureKind.OTHER


class ServerList:
    """The servers and actors of one room, and the operations on them by name. `learn` takes what a server has listed,
    `discovered` is told of the end of each try to discover one, `failing` how one failed last, or that it works.
    `is_discovered` says whether a server may be tried in the background."""

    def __init__(
        self,
        context: RoomContext,
        learn: Learner,
        discovered: Callable[[str], None],
        failing: FailureTeller,
        sessions: Sessions,
        log_levels: LogLevels,
        is_discovered: Callable[[ServerDefinition], bool],
    ) -> None:
        self.context = context
        self.learn = learn
        self.failing = failing
        self.sessions = sessions
        self.log_levels = log_levels
        self.records: dict[str, ServerRecord] = {}
        self.closing: CallError | None = None
        self.starts: Starts = Starts(context, self)
        self.discovery: Discovery = Discovery(self, discovered, is_discovered)
        self.logins: LoginWatch = LoginWatch(context, self, self._logged_in)
        self.rates: RateGate = RateGate(context.backend.now, context.watchers)
        self.approvals: ApprovalGate = ApprovalGate(context, self)
        # That a call passes before its actor, in their order (`safety.gates`).
        self.gates: tuple[Gate, ...] = ()
        self._kept: dict[str, None] = {}  # the servers that are kept alive, in order
        self._calls_apart = 0  # how many calls had a child of their own; numbers their addresses
        self._on_closed: dict[ServerActor, list[Callable[[], None]]] = {}
        self._is_over = False  # nothing runs any more

    # ---- servers and actors -----------------------------------------------------------------------------------------

    def define(self, definition: ServerDefinition, problem: Problem | None = None) -> ServerRecord:
        """Define a server, or define it anew. `problem`: why the definition cannot be used."""
        record = self._define(definition, problem)
        self._begin_anew(record)
        return record

    def _define(self, definition: ServerDefinition, problem: Problem | None = None) -> ServerRecord:
        name = definition.name
        record = self.records.get(name)
        if record is None:
            record = self.records[name] = ServerRecord(
                self, definition, Address(name), log_level=self.log_levels.shared(name)
            )
        record.definition = definition
        record.available = defined(definition, problem)
        self.starts.define(record)
        self.discovery.forget_retry(name)
        for child in record.children.values():
            child.definition, child.available = definition, USABLE
        if record.is_kept is not (name in self._kept):
            if record.is_kept:
                self._kept[name] = None
            else:
                del self._kept[name]
            self._set_aside()
        return record

    def redefine(self, definition: ServerDefinition, *, same_process: bool) -> None:
        """Give an existing server another definition. `same_process`: only its
        policy has changed, and applies at once. Otherwise its incarnations drain, and the next ones use the
        new definition."""
        record = self._define(definition)
        record.newer_only = False
        if not same_process:
            self.starts.end_warm(definition.name)
        for actor in self.actors_of(definition.name):
            if definition.disabled:
                actor.stop(Ending(Cause.DISABLED))
            elif not same_process:
                actor.stop(Ending(Cause.RELOAD, reason=Reason.NEW_DEFINITION))
            else:
                actor.rearm()
        if not same_process:
            self._begin_anew(record)  # now that nothing of the old definition can be started any more
        if self._stands(record) and record.available.is_usable:
            self.starts.request_by_policy(self.actor(definition.name))

    def _begin_anew(self, record: ServerRecord) -> None:
        """The server has another definition: nothing that went before is held against it."""
        record.failed_discoveries = 0
        for each in record.with_children():
            each.breaker.begin_anew()

    def remove(self, server: str) -> None:
        """Remove a server that is no longer configured, if it still exists: calls in flight finish, then its actors
        and its record go."""
        record = self.records.get(server)
        if record is None:
            return
        record.available = removed(server)
        self.starts.end_warm(server)
        for actor in self.actors_of(server):
            actor.stop(Ending(Cause.REMOVED))
        self._forget_removed(server)

    def _forget_removed(self, server: str) -> None:
        record = self.records.get(server)
        if (
            record is not None
            and record.available.state is AvailabilityState.REMOVED
            and not self.actors_of(server)
        ):
            del self.records[server]
            if server in self._kept:
                del self._kept[server]
                self._set_aside()  # the slot that was set aside for it is free for others now

    def _set_aside(self) -> None:
        """Set aside a slot for each keep-alive server, as long as anything of it is left. At least one slot stays for
        the others. Reading a configuration ensures that too, but during a reload old servers still count."""
        kept = islice(self._kept, self.context.settings.max_connections - 1)
        self.starts.places.set_aside({name: self.records[name] for name in kept})
        self.starts.look()

    def record(self, server: str) -> ServerRecord:
        """The record of this server. Raises `UnknownServer`."""
        found = self.records.get(server if type(server) is str else name_of(server, "a server"))
        if found is None:
            raise UnknownServer(server, tuple(self.records))
        return found

    def record_at(self, address: Address) -> ServerRecord:
        """The record of the actor at this address. Raises `UnknownServer`."""
        return self.record(address.server).at(address.scope)

    def actor(self, server: str, scope: str = SHARED) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        return self.actor_at(Address(server, scope))

    def actor_at(self, address: Address) -> ServerActor:
        """The actor of this address, made on first use. Raises `UnknownServer`."""
        server = self.record(address.server)
        found = server.actors.get(address.scope)
        if found is None:
            if address == server.address:
                address = server.address  # the same object, so that looking it up compares nothing
            record = self._child(server, address) if address.is_session else server
            found = ServerActor(address, record, self.context)
            server.keep(found)
        return found

    def _child(self, server: ServerRecord, address: Address) -> ServerRecord:
        """A record for a session's child of this server."""
        level = self.log_levels.least(address.session, address.server)
        child = ServerRecord(
            self,
            server.definition,
            address,
            server,
            server.load,
            server.era_hint,
            level,
        )
        child.keep_out(server.quarantined)
        server.keep_child(child)
        return child

    def forget(self, actor: ServerActor) -> None:
        """Remove an actor whose address is gone."""
        address = actor.address
        self.starts.places.forget(actor)
        record = self.records.get(address.server)
        if record is not None:
            record.drop(address.scope)
        self._forget_removed(address.server)

    def forget_unused(self, actor: ServerActor) -> None:
        """The actor's call was refused: if the actor was made for that call, remove it. It has never run."""
        if actor.address.is_call:
            self.forget(actor)

    def actor_for(self, server: str, session: str | None) -> ServerActor:
        """The actor for a call to `server` in this session (None: in no session). Raises as `address` does."""
        record = self.records.get(server) or self.record(server)
        # None nearly always, and this is asked for every call.
        said = record.definition.isolation or self.context.settings.isolation
        if said is not None and isolation_of(record.definition, self.context.settings) is not _PERSISTENT:
            address = self.address(server, session)
        elif session is not None and self.sessions.for_many and self._is_apart(record, session):
            address = Address(server, HANDSHAKE)
        else:
            address = record.address
        return record.actors.get(address.scope) or self.actor_at(address)

    def open_calls(self, address: Address) -> Sequence[Call]:
        """The calls in flight at this address."""
        record = self.records.get(address.server)
        actor = record.actors.get(address.scope) if record is not None else None
        return tuple(actor.calls.open) if actor is not None else ()

    def may_be_apart(self, server: str) -> bool:
        """Whether clients of the handshake era may have a connection of their own to this server, beside the one that
        it shares with all (`docs/decisions/isolation.md`). Over HTTP there is no need: one is spoken to in both."""
        definition = self.records[server].definition
        is_pinned = definition.url is None and definition.in_process is None
        return self.sessions.for_many and is_pinned and definition.era is Era.AUTO

    def _is_apart(self, record: ServerRecord, session: str) -> bool:
        """Whether this session has its calls at that connection of their own: its client is of the handshake era, and
        the server speaks both. A connection of a server on stdio speaks one version for its life."""
        if record.newer_only or record.era_hint not in MODERN_VERSIONS:
            return False
        server = record.definition.name
        return (
            self.may_be_apart(server) and self.sessions.declaration(session, record.address).modern is False
        )

    def address(self, server: str, session: str | None) -> Address:
        """The address for a call to `server` in this session, or in none (`docs/decisions/isolation.md`).

        Raises `UnknownServer`, `SessionNeeded` for a server that is isolated per session, and
        `CredentialNeeded` when the session does not give what the server is started with.
        """
        record = self.record(server)
        match self.isolation(server):
            case Isolation.PERSISTENT:
                return record.address
            case Isolation.PER_CALL:
                self.sessions.check(record.definition, session)
                self._calls_apart += 1
                return Address.of_call(server, str(self._calls_apart), session)
            case Isolation.PER_SESSION:
                if session is None:
                    text = (
                        f'Server "{server}" has a child per session, and this call is in no session. Call it through '
                        '`room.session(name)`, or set "isolation": "persistent" or "per_call" in its entry.'
                    )
                    raise SessionNeeded(text, server=server)
                self.sessions.check(record.definition, session)
                return Address.of_session(server, session)

    def in_reach(self, session: str | None) -> list[ServerActor]:
        """The actors that a session may change: its own. None: all actors."""
        scope = Address.of_session("", session).scope if session is not None else None
        return [actor for actor in self.all_actors() if scope in (None, actor.address.scope)]

    def isolation(self, server: str) -> Isolation:
        """Which calls share a child of this server. Raises `UnknownServer`."""
        return isolation_of(self.record(server).definition, self.context.settings)

    def has_standing_address(self, server: str, session: str | None) -> bool:
        """Whether calls of this session (None: calls in no session) share an actor, which outlives each call."""
        match self.isolation(server):
            case Isolation.PERSISTENT:
                return True
            case Isolation.PER_SESSION:
                return session is not None
            case Isolation.PER_CALL:
                return False

    def bring_back(self, server: str) -> None:
        """Let a server that was taken down be used again. Raises the refusal if its definition forbids that
        or the room is closing, and `UnknownServer`."""
        record = self.record(server)
        refusal = self.closing or (record.refusal if record.available.is_by_definition else None)
        if refusal is not None:
            raise refusal.copy()
        for each in record.with_children():
            each.available = USABLE

    def end_session(self, session: str) -> list[ServerActor]:
        """End all children of a session, in whatever state they are. Returns the actors that are not closed yet."""
        if self.log_levels.forget(session):
            self._tell_levels()
        self.approvals.end_session(session)
        for actor in self.in_reach(session):
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.SESSION_OVER), 0)
        return self.in_reach(session)

    def settings_changed(self, config: Config, others: Collection[str]) -> None:
        """Apply changed settings to the policies. `others`: the names that mean another server than before."""
        self.heed(config, others)
        self._set_aside()
        for actor in self.all_actors():
            actor.rearm()

    def set_log_level(self, level: str, server: str | None, session: str | None) -> None:
        """Set the level for all servers or for one, for a session or for the room (None). Live servers are told. A
        level for all servers replaces earlier levels for single ones."""
        self.log_levels.set(level, server, session)
        self._tell_levels()
        for actor in self.in_reach(session):
            name, scope = actor.address.server, actor.address.scope
            child = self.records[name].children.get(scope)
            if child is not None and server in (None, name):
                child.log_level = self.log_levels.least(actor.address.session, name)
                actor.subscriptions_changed()

    def _tell_levels(self) -> None:
        """Tell each shared server its level, if it has changed."""
        for name, level in self.log_levels.shared_by(self.records):
            record = self.records[name]
            if level is not None and level != record.log_level:
                record.log_level = level
                for actor in self.actors_of(name):
                    if actor.address.is_common:
                        actor.subscriptions_changed()

    def heed(self, config: Config, others: Collection[str] = ()) -> None:
        """Use the gates that this configuration needs. `others`: the names that mean another server than before."""
        self.rates.heed(config)
        self.approvals.heed(config, others)
        both = (self.rates, self.rates.is_needed), (self.approvals, self.approvals.asks)
        self.gates = tuple(gate for gate, is_needed in both if is_needed)

    def take_down(self, server: str, ending: Ending) -> None:
        """End a server in all scopes, on purpose. Calls do not start it again. Raises `UnknownServer`."""
        record = self.record(server)
        record.available = record.available.unless_defined(drained(server))
        self.starts.end_warm(server)
        for actor in self.actors_of(server):
            actor.forget_names()
            actor.stop(ending)

    def all_actors(self) -> list[ServerActor]:
        """The existing actors of all servers."""
        return [actor for record in self.records.values() for actor in record.actors.values()]

    def actors_of(self, server: str) -> list[ServerActor]:
        """The existing actors of a server, in all scopes. Raises `UnknownServer`."""
        return list(self.record(server).actors.values())

    def why_stopped(self, address: Address, incarnation: int) -> str:
        """Why we end this incarnation, in words."""
        record = self.records.get(address.server)
        actor = record.actors.get(address.scope) if record is not None else None
        if actor is None or actor.incarnation is None or actor.incarnation.number != incarnation:
            return "stopped"
        why = actor.incarnation.failed or actor.life.ending
        return f"stopped ({why})" if why else "stopped"

    def close_all(self, patience: float) -> list[ServerActor]:
        """End every actor, in parallel, and refuse calls from now on. Returns the actors that are not closed
        yet."""
        self.closing = RoomClosed("The room is closing; the call was not sent.", server="")
        self.approvals.close(self.closing)
        self.starts.close()
        ending = Ending(Cause.SHUTDOWN)
        for actor in self.all_actors():
            actor.stop(ending, patience)
        return [actor for actor in self.all_actors() if actor.life.state is not State.CLOSED]

    def abort(self, error: CallError) -> None:
        """Fail everything that is still open, in whatever state it is, and release everybody who still waits for an
        actor to close. Does not wait."""
        self.closing = self.closing or error
        self.approvals.close(error)
        for actor in self.all_actors():
            actor.abort(error)

    def on_closed(self, actor: ServerActor, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the actor's incarnation has closed; at once if the room has ended."""
        if self._is_over:
            callback()
            return
        self._on_closed.setdefault(actor, []).append(callback)

    def tell_closed(self, actor: ServerActor) -> None:
        for callback in self._on_closed.pop(actor, ()):
            callback()

    def release(self) -> None:
        """The room has ended: release everybody who still waits for an actor to close."""
        self._is_over = True
        waiting, self._on_closed = self._on_closed, {}
        for callbacks in waiting.values():
            for callback in callbacks:
                callback()

    def forget_credentials(self, session: str) -> None:
        """Forget the credentials of a session that has ended, once nothing runs that was started with them: a call's
        own child runs until its call ends. Until then they are scrubbed from texts."""
        if self.sessions.is_open(session):
            return  # another session has this name now
        for actor in self.all_actors():
            if actor.address.session == session and not self._is_over:
                self.on_closed(actor, partial(self.forget_credentials, session))
                return
        context = self.context
        context.watchers.tell(context.watchers.forgot, session, context.secrets.forget(session))

    # ---- the standing servers: the eager and the keep-alive ones, which should be live without a call ---------------

    def standing(self) -> list[ServerActor]:
        """The actors of those standing servers that can be used. A server that is isolated per session or per call does
        not stand: nobody could call a child of it that all share."""
        return [
            self.actor(name)
            for name, record in self.records.items()
            if self._stands(record) and record.available.is_usable
        ]

    def _stands(self, record: ServerRecord) -> bool:
        is_shared = self.has_standing_address(record.definition.name, None)
        return is_shared and record.definition.lifecycle is not Lifecycle.LAZY

    def to_reconnect(self) -> list[str]:
        """The servers to reconnect when all are to be reconnected: the live ones, and the standing ones."""
        live = {
            actor.address.server
            for actor in self.all_actors()
            if actor.address.is_common and actor.life.state in _LIVE
        }
        return [
            name
            for name, record in self.records.items()
            if not record.available.is_by_definition and (self._stands(record) or name in live)
        ]

    # ---- discovery and logins ---------------------------------------------------------------------------------------

    def discover_apart(
        self, server: str, session: str | None, over: Callable[[ServerActor], None]
    ) -> ServerActor:
        """Start a server without a shared address once, for a caller in this session (or in none) who wants to know
        what it has. Calls `over(actor)` at the end. Raises the error that would refuse a call."""
        actor = self.discovery.apart(server, session)
        self.on_closed(actor, lambda: over(actor))
        self.starts.request_by_policy(actor)
        return actor

    def _logged_in(self, server: str) -> None:
        """Somebody has logged in at a server that waited for a login: connect it, as by name."""
        self.bring_back(server)
        if self.has_standing_address(server, None):
            self.starts.request_by_policy(self.actor(server))

    # ---- what has changed and is kept out ---------------------------------------------------------------------------

    def heed_changes(self, config: Config, before: ServerEntry | None, entry: ServerEntry) -> None:
        """Refuse whatever would use what has changed, waiting calls too. Report what was not known `before` to have
        changed."""
        definition, changed = config.servers.get(entry.server), entry.pinned.changed
        pinning = (definition.pinning if definition is not None else None) or config.settings.pinning
        keep_out = Quarantine(changed, entry) if pinning is Pinning.QUARANTINE else NOTHING
        record = self.records.get(entry.server)
        if record is None or (not changed and not record.quarantined):
            return
        known = before.pinned if before is not None else NOT_PINNED
        new = [pin for pin in changed if pin not in known.changed]
        if new and pinning is not Pinning.OFF:
            use = "callable" if all(kind_of(pin) == "tool" for pin in new) else "usable"
            words = f"{changed_in_words(entry.server, new)}: {'not' if keep_out else 'still'} {use}"
            self._note_changed(record, words)
        flaps = sorted(entry.pinned.flapping - known.flapping)
        if flaps and pinning is Pinning.QUARANTINE:
            self._note_changed(record, flapping_in_words(entry.server, flaps))
        for each in record.with_children():
            each.keep_out(keep_out)
        for actor in self.actors_of(entry.server):
            actor.calls.refuse_each(partial(in_quarantine, actor))

    def _note_changed(self, record: ServerRecord, words: str) -> None:
        self.context.events.emit(Note, record.address, code=NoteCode.CHANGED, words=words)


_V = TypeVar("_V")


def _with(those: Mapping[str, _V], scope: str, one: _V) -> Mapping[str, _V]:
    """These and one more: the same table, if it is one."""
    table = those if isinstance(those, dict) else dict[str, _V]()
    table[scope] = one
    return table


def _without(those: Mapping[str, _V], scope: str) -> Mapping[str, _V]:
    if isinstance(those, dict):
        those.pop(scope, None)
    return those


_LIVE: Final = (State.CONNECTING, State.CONNECTED, State.DRAINING)


class StandingServers:
    """The servers that stand, when a room opens: all of them connect at once, and `wait` waits until each was tried."""

    def __init__(self) -> None:
        self._connecting: set[ServerActor] = set()
        self._over = anyio.Event()

    def connect(self, servers: ServerList) -> None:
        """Connect them in parallel, so that a bad server delays no other."""
        actors = servers.standing()
        self._connecting = set(actors)
        for actor in actors:
            actor.on_connected(lambda _error, actor=actor: self._tried(actor))
            servers.starts.request_by_policy(actor)
        if not actors:
            self.release()

    async def wait(self) -> None:
        """Wait until each has connected, or has failed once."""
        await self._over.wait()

    def release(self) -> None:
        """The room ends: release everybody who waits here."""
        self._over.set()

    def _tried(self, actor: ServerActor) -> None:
        self._connecting.discard(actor)
        if not self._connecting:
            self.release()
