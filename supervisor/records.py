"""What is kept of one configured server, independent of its addresses.

Each configured server has a `ServerRecord`. It holds what outlives every actor of the server: its circuit
breaker, and whether the server can be used. A session's actor has a record of its own below it, which shares the
server's load. What the session's child does counts in its own circuit breaker; what keeps any child from
starting counts in the server's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Protocol

import attrs
import msgspec

from ..actors.peer import login_needed
from ..actors.recent import Recent, RecentCall
from ..actors.server import ServerActor, last_line, pid_of
from ..catalogue.index import Counts
from ..catalogue.quarantine import Quarantine
from ..config.model import Lifecycle, ServerDefinition
from ..config.references import session_variables
from ..protocol.address import Address
from ..protocol.errors import DISABLED, UNTRUSTED, CallError, Problem, ServerDown
from ..protocol.events import Event, Transition
from ..protocol.lifecycle import Ending, State
from ..protocol.safe_text import typed
from ..protocol.status import ServerStatus
from .circuit_breaker import GuardedRecord
from .sessions import Sessions


def quarantine(record: ServerRecord, kept_out: Quarantine) -> None:
    """Let no request pass from now on that would use one of these."""
    record.quarantined = kept_out
    record.guarded = record.breaker.state.is_troubled or bool(kept_out)


# ---- Whether a server can be used, and if not, why: one value -------------------------------------------------------
#
# There are five reasons why a server cannot be used. Each has the error that refuses a call, and the text of
# that error is made only here. The definition comes before what was done to the server: a server that is
# disabled, broken or removed is not also drained, and a connect by name does not bring it back.


class Use(enum.Enum):
    USABLE = "usable"
    # Taken down on purpose, or lost and not to be restarted. A connect by name brings it back.
    DOWN = "down"
    NEEDS_LOGIN = "needs login"
    DISABLED = "disabled"
    BROKEN = "broken"  # its definition cannot be used
    REMOVED = "removed"  # no longer configured; the record stays until nothing of the server is left


_BY_DEFINITION = (Use.DISABLED, Use.BROKEN, Use.REMOVED)


class Availability(msgspec.Struct, frozen=True):
    use: Use
    refusal: CallError | None = None  # the error that refuses a call; None when it can be used

    @property
    def is_usable(self) -> bool:
        return self.use is Use.USABLE

    @property
    def is_by_definition(self) -> bool:
        """Whether the definition is the reason, so that a connect by name does not help."""
        return self.use in _BY_DEFINITION

    def unless_defined(self, other: Availability) -> Availability:
        """`other`, unless this availability follows from the definition, which counts more."""
        return self if self.is_by_definition else other


USABLE = Availability(Use.USABLE)


def defined(definition: ServerDefinition, problem: Problem | None = None) -> Availability:
    """The availability that follows from the definition. `problem`: why it cannot be used."""
    name = definition.name
    if problem is not None:
        error = ServerDown(f'Server "{name}" cannot be used: {problem}', server=name)
        error.code = problem.code
        return Availability(Use.BROKEN, error)
    if definition.disabled:
        text = f'Server "{name}" is disabled. To use it again: greenroom enable {typed(name)}'
        error = ServerDown(text, server=name)
        error.code = DISABLED
        return Availability(Use.DISABLED, error)
    return USABLE


def removed(server: str) -> Availability:
    text = f'Server "{server}" was removed from the configuration. Add it again to use it.'
    return Availability(Use.REMOVED, ServerDown(text, server=server))


def drained(server: str) -> Availability:
    text = f'Server "{server}" was drained. Connect or restart it to use it again.'
    return Availability(Use.DOWN, ServerDown(text, server=server))


def down_with(error: CallError) -> Availability:
    """The server is down with this error: a bug of ours that ends it for good, or the failure of its last attempt to
    connect."""
    return Availability(Use.DOWN, error)


def down_after(server: str, ending: Ending) -> Availability:
    text = f'Server "{server}" is down ({ending}). Connect or restart it to use it again.'
    return Availability(Use.DOWN, ServerDown(text, server=server))


def needs_login(server: str, detail: str) -> Availability:
    return Availability(Use.NEEDS_LOGIN, login_needed(server, detail))


def on_its_way_out(server: str, state: State, ending: Ending) -> CallError:
    """The refusal for a server that can be used but is ending, for a reason that does not let calls wait."""
    return ServerDown(f'Server "{server}" is {state.value} ({ending}).', server=server)


def call_is_over(server: str) -> CallError:
    """The refusal for further calls to a child that was made for one call, when that call has ended."""
    return ServerDown("its call is over", server=server)


_KEEP_ALIVE: Final = Lifecycle.KEEP_ALIVE


@attrs.define(eq=False)
class ServerRecord(GuardedRecord):
    parent: ServerRecord | None = None  # for a session's record: the server's own
    address: Address = attrs.field(init=False)  # made once, because every call needs it
    available: Availability = USABLE  # a session's own says more: its child may need a login, or be down
    actors: dict[str, ServerActor] = attrs.field(
        factory=dict[str, "ServerActor"]
    )  # a server's, by their scopes
    discovery: ServerActor | None = None  # the actor that starts for discovery; None once the lists are known
    failure: str | None = None  # why it last failed (for a server: in any scope); cleared when it connects
    failed_at: float = -math.inf
    failed_starts: int = 0  # in a row; 0: it was lost while it ran
    start_took: float | None = None  # seconds; for a server: of the last start in any scope

    @property
    def server(self) -> ServerRecord:
        """The record of the server itself, also when this is a session's record."""
        return self.parent or self

    @property
    def is_kept(self) -> bool:
        """Whether the server is kept alive, and may run."""
        may_live = self.available.use not in (Use.DISABLED, Use.BROKEN)
        return self.definition.lifecycle is _KEEP_ALIVE and may_live and not self.definition.is_api

    @property
    def refusal(self) -> CallError | None:
        """The error that refuses every call, because of the definition or because the server was taken down."""
        return self.available.refusal or (self.parent.available.refusal if self.parent is not None else None)

    def note_failure(self, why: str, at: float, failed_starts: int) -> None:
        """Keep why the server failed, until it works again. A session's failure is also its server's."""
        self.failure, self.failed_at, self.failed_starts = why, at, failed_starts
        if self.parent is not None:
            self.parent.note_failure(why, at, failed_starts)

    def note_success(self) -> None:
        self.failure, self.failed_starts = None, 0
        if self.parent is not None:
            self.parent.note_success()

    def remark(self, words: str | None) -> None:
        super().remark(words)
        if self.parent is not None:
            self.parent.remark(words)

    def __attrs_post_init__(self) -> None:
        self.address = Address(self.definition.name)


def record_of(actor: ServerActor) -> ServerRecord:
    assert isinstance(actor.record, ServerRecord)
    return actor.record


def still_there(directory: Directory, kept: Recent) -> tuple[list[Event], list[RecentCall]]:
    """The last events and calls, with the connections and the calls that are there now. The beginning of a connection
    may be forgotten by now."""
    events, calls = list(kept.events), kept.ended_calls()
    known = {
        (event.address, event.incarnation)
        for event in events
        if isinstance(event, Transition) and event.after is State.CONNECTED
    }
    for actor in directory.all_actors():
        address, incarnation = actor.address, actor.life.incarnation
        if actor.is_connected and (address, incarnation) not in known:
            steps = State.CONNECTING, State.CONNECTED
            events.append(
                Transition(0, actor.connected_at, address, incarnation, before=steps[0], after=steps[1])
            )
        for call in (*actor.calls.open, *actor.calls.waiting.calls):
            calls.append(kept.open_call(call, address, incarnation))
    return events, calls


# ---- What the parts of the supervisor may ask the directory of servers and actors (`root`) -------------------------


class Levels(Protocol):
    """The log levels of the room (session None) and its sessions."""

    def wanted(self, session: str | None, server: str) -> str | None:
        """The level that this session itself has set for the server."""
        ...

    def least(self, session: str | None, server: str) -> str | None:
        """The level at which this session hears the server: its own, else the room's."""
        ...

    def shared(self, server: str) -> str | None:
        """The level that a shared server is told: the one with the most messages that anybody wants."""
        ...


class Directory(Protocol):
    @property
    def records(self) -> Mapping[str, ServerRecord]: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def log_levels(self) -> Levels: ...

    @property
    def closing(self) -> CallError | None:
        """Why nothing is accepted or started any more. None: the room is not closing."""
        ...

    def record(self, server: str) -> ServerRecord:
        """Raises `UnknownServer`."""
        ...

    def actor(self, server: str, scope: str = ...) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        ...

    def actor_at(self, address: Address) -> ServerActor:
        """The same, by address."""
        ...

    def all_actors(self) -> list[ServerActor]:
        """The existing actors of all servers."""
        ...

    def actors_of(self, server: str) -> list[ServerActor]:
        """The existing actors of a server, in all scopes. Raises `UnknownServer`."""
        ...

    def shared_actor(self, server: str) -> ServerActor | None:
        """The actor of the server's shared address, if it exists already."""
        ...

    def kept(self) -> Collection[str]:
        """The servers that have a slot set aside."""
        ...

    def bring_back(self, server: str) -> None:
        """Let a server that was taken down be used again. Raises the refusal if its definition forbids that,
        or the room is closing."""
        ...

    def has_standing_address(self, server: str, session: str | None) -> bool:
        """Whether calls of this session (None: calls in no session) share an actor, which outlives each call."""
        ...

    def in_reach(self, session: str | None) -> list[ServerActor]:
        """The actors that a session may change: its own. None: all actors."""
        ...

    def forget(self, actor: ServerActor) -> None:
        """Remove an actor whose address is gone."""
        ...


def shared_actors(directory: Directory) -> list[ServerActor]:
    """The actors that all sessions share."""
    found = (directory.shared_actor(name) for name in directory.records)
    return [actor for actor in found if actor is not None]


# ---- The rows of a room's status, read off its servers and their actors ---------------------------------------------


def addresses(directory: Directory, server: str | None = None) -> Iterator[Address]:
    """The addresses that have a row: each configured server's, in order, then each further live one.
    `server`: only its own. Servers may be added and removed meanwhile."""
    for name in [*directory.records] if server is None else [server]:
        yield Address(name)
    actors = directory.all_actors() if server is None else directory.actors_of(server)
    yield from sorted(actor.address for actor in actors if not actor.address.is_shared)


def status_row(directory: Directory, address: Address, now: float, counts: Counts | None) -> ServerStatus:
    server = directory.records[address.server]
    actor = server.actors.get(address.scope) or (server.discovery if address.is_shared else None)
    record = server if actor is None else record_of(actor)
    # A session's child is behind two circuit breakers: its own and its server's. The row shows the one that refuses
    # longer.
    breaker, behind = record.breaker.state, server.breaker.state
    breaker = behind if breaker.refuses_until <= behind.refuses_until else breaker
    use = record.available
    if use.is_usable:
        use = _lacks_login(server) if address.is_shared else None
        use = use or server.available
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
        last_line=last_line(actor) or None if actor is not None and _is_connecting(actor) else None,
        tool_count=counts.callable if counts is not None else None,
        changed=counts.changed if counts is not None else (),
        flapping=counts.flapping if counts is not None else (),
        hidden=counts.hidden if counts is not None else (),
        pid=pid_of(actor) if actor is not None else None,
        failure=record.failure,
        failed_ago=now - record.failed_at if record.failure is not None else None,
        failed_starts=record.failed_starts,
        start_took=record.start_took,
        odd=record.odd,
        quarantined=record.breaker.state.too_often or behind.too_often or None,
        retry_in=breaker.retry_in(now) if breaker.refuses_until > now else None,
        needs_auth=use.use is Use.NEEDS_LOGIN,
        disabled=server.definition.disabled,
        session_variables=tuple(sorted(session_variables(server.definition))),
        broken=str(use.refusal) if use.use is Use.BROKEN else None,
        untrusted=use.refusal is not None and use.refusal.code == UNTRUSTED,
        down=None if use.refusal is None or use.use is Use.BROKEN else str(use.refusal),
    )


def _lacks_login(server: ServerRecord) -> Availability | None:
    """Why no session can use this server: its sessions share one login, so what one of them lacks, they all lack."""
    definition = server.definition
    if definition.url is None or not server.available.is_usable or session_variables(definition):
        return None
    found = map(record_of, server.actors.values())
    return next((one.available for one in found if one.available.use is Use.NEEDS_LOGIN), None)


def _is_connecting(actor: ServerActor) -> bool:
    return actor.life.state is State.CONNECTING


def _waiting_for(actor: ServerActor | None) -> str | None:
    if actor is None:
        return None
    return "install" if actor.is_installing else actor.start.waiting_for


def _waiting(actor: ServerActor | None, now: float) -> float | None:
    """Seconds since the actor began its present wait: for its turn to start, or for its connection."""
    if actor is None or (actor.start.waiting_for is None and not _is_connecting(actor)):
        return None
    return now - actor.start.waits_since
