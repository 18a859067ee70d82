"""The root: a directory of the servers and sessions of one room, and the operations on them by name.

Each configured server has a record (`records`), which outlives all its addresses. Actors are made when they
are first needed. So a configured server that nobody has called is only a definition and a record. The record
of a removed server is dropped with its last actor. An actor asks the `Supervision` for decisions that it may
not make itself, and the `Supervision` finds servers and actors here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import anyio

from ..actors.room_context import RoomContext
from ..actors.server import ServerActor
from ..config.arguments import name_of
from ..config.model import Config, Isolation, Lifecycle, ServerDefinition
from ..config.references import isolation_of
from ..protocol.address import SHARED, Address
from ..protocol.errors import CallError, Problem, RoomClosed, SessionNeeded, UnknownServer
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ..safety.approval_desk import Approvals
from .admission import Admission
from .circuit_breaker import ServerBreaker
from .records import USABLE, ServerRecord, Use, defined, drained, quarantine, record_of, removed
from .server_messages import LogLevels
from .sessions import Sessions
from .supervision import Failing, Learner, Supervision

_PERSISTENT: Final = Isolation.PERSISTENT  # named for every call, see `actors.peer`


class Root:
    def __init__(
        self,
        context: RoomContext,
        learn: Learner,
        discovered: Callable[[str], None],
        failing: Failing,
        sessions: Sessions,
    ) -> None:
        self.context = context
        self.sessions = sessions
        self.records: dict[str, ServerRecord] = {}
        self.closing: CallError | None = None
        self.supervision: Supervision = Supervision(context, self, learn, discovered, failing)
        self.admission: Admission = self.supervision.starter.admission
        self.log_levels: LogLevels = LogLevels(self)
        self.approvals: Approvals = Approvals(context, self)
        self._kept: dict[str, None] = {}  # the servers that are kept alive, in order
        self._calls_apart = 0  # how many calls had a child of their own; numbers their addresses

    # ---- servers and actors -----------------------------------------------------------------------------------------

    def define(self, definition: ServerDefinition, problem: Problem | None = None) -> ServerRecord:
        """Define a server, or define it anew. `problem`: why the definition cannot be used."""
        record = self.records.get(definition.name)
        if record is None:
            record = self.records[definition.name] = ServerRecord(definition)
            record.log_level = self.log_levels.shared(definition.name)
            record.breaker = ServerBreaker(record, record.address, self.supervision.starter.breakers)
        record.definition = definition
        record.available = defined(definition, problem)
        for actor in self.actors_of(definition.name):
            if actor.record is not record:  # a session's
                record_of(actor).definition = definition
                record_of(actor).available = USABLE
        if record.is_kept:
            self._kept[definition.name] = None
        else:
            self._kept.pop(definition.name, None)
        self.admission.look()
        return record

    def redefine(self, definition: ServerDefinition, *, same_process: bool) -> None:
        """Give an existing server another definition. `same_process`: only its
        policy has changed, and applies at once. Otherwise its incarnations drain, and the next ones use the
        new definition."""
        record = self.define(definition)
        for actor in self.actors_of(definition.name):
            if definition.disabled:
                actor.stop(Ending(Cause.DISABLED))
            elif not same_process:
                actor.stop(Ending(Cause.RELOAD, reason=Reason.NEW_DEFINITION))
            else:
                actor.rearm()
        if stands(self, record) and record.available.is_usable:
            self.supervision.starter.request_by_policy(self.actor(definition.name))

    def remove(self, server: str) -> None:
        """Remove a server that is no longer configured, if it still exists: calls in flight finish, then its actors
        and its record go."""
        record = self.records.get(server)
        if record is None:
            return
        record.available = removed(server)
        for actor in self.actors_of(server):
            actor.stop(Ending(Cause.REMOVED))
        self._forget_removed(server)

    def _forget_removed(self, server: str) -> None:
        record = self.records.get(server)
        if record is not None and record.available.use is Use.REMOVED and not self.actors_of(server):
            del self.records[server]
            if server in self._kept:
                del self._kept[server]
                self.admission.look()  # the slot that was set aside for it is free for others now

    def kept(self) -> Collection[str]:
        """The keep-alive servers. Each has a slot of its own, as long as anything of it is left. At least one
        slot stays for the others. Reading a configuration ensures that too, but during a reload old servers
        still count."""
        most = self.context.settings.max_connections - 1
        return self._kept.keys() if len(self._kept) <= most else tuple(self._kept)[:most]

    def shared_actor(self, server: str) -> ServerActor | None:
        return self.records[server].actors.get(SHARED)

    def record(self, server: str) -> ServerRecord:
        """The record of this server. Raises `UnknownServer`."""
        found = self.records.get(server if type(server) is str else name_of(server, "a server"))
        if found is None:
            raise UnknownServer(server, tuple(self.records))
        return found

    def actor(self, server: str, scope: str = SHARED) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        return self.actor_at(Address(server, scope))

    def actor_at(self, address: Address) -> ServerActor:
        """The actor of this address, made on first use. Raises `UnknownServer`."""
        record = server = self.record(address.server)
        found = server.actors.get(address.scope)
        if found is None:
            if address == record.address:
                address = record.address  # the same object, so that looking it up compares nothing
            if address.is_session:
                record = ServerRecord(
                    record.definition,
                    load=record.load,
                    era_hint=record.era_hint,
                    log_level=self.log_levels.of(address.scope, record),
                    parent=record,
                )
                record.address = address
                breakers = self.supervision.starter.breakers
                record.breaker = ServerBreaker(record, address, breakers, server.breaker)
                quarantine(record, server.quarantined)
            found = ServerActor(address, record, self.context, self.supervision)
            server.actors[address.scope] = found
        return found

    def forget(self, actor: ServerActor) -> None:
        """Remove an actor whose address is gone."""
        address = actor.address
        record = self.records.get(address.server)
        if record is not None:
            record.actors.pop(address.scope, None)
        self._forget_removed(address.server)

    def forget_unused(self, actor: ServerActor) -> None:
        """The actor's call was refused: if the actor was made for that call, remove it. It has never run."""
        if actor.address.is_call:
            self.forget(actor)

    def actor_for(self, server: str, session: str | None) -> ServerActor:
        """The actor for a call to `server` in this session (None: in no session). Raises as `address` does."""
        record = self.records.get(server) or self.record(server)
        definition, settings = record.definition, self.context.settings
        # None nearly always, and this is asked for every call.
        said = definition.isolation or settings.isolation
        shared = said is None or isolation_of(definition, settings) is _PERSISTENT
        address = record.address if shared else self.address(server, session)
        return record.actors.get(address.scope) or self.actor_at(address)

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
        record.available = USABLE
        for actor in self.actors_of(server):
            record_of(actor).available = USABLE

    def end_session(self, session: str) -> list[ServerActor]:
        """End all children of a session, in whatever state they are. Returns the actors that are not closed yet."""
        self.log_levels.forget(session)
        self.approvals.end_session(session)
        for actor in self.in_reach(session):
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.SESSION_OVER), 0)
        return self.in_reach(session)

    def settings_changed(self, config: Config, others: Collection[str]) -> None:
        """Apply changed settings to the policies. `others`: the names that mean another server than before."""
        self.approvals.heed(config, others)
        self.admission.look()
        for actor in self.all_actors():
            actor.rearm()

    def take_down(self, server: str, ending: Ending) -> None:
        """End a server in all scopes, on purpose. Calls do not start it again. Raises `UnknownServer`."""
        record = self.record(server)
        record.available = record.available.unless_defined(drained(server))
        for actor in self.actors_of(server):
            actor.waits.forget_names()
            actor.stop(ending)

    def all_actors(self) -> list[ServerActor]:
        """The existing actors of all servers."""
        return [actor for record in self.records.values() for actor in record.actors.values()]

    def actors_of(self, server: str) -> list[ServerActor]:
        """The existing actors of a server, in all scopes. Raises `UnknownServer`."""
        return list(self.record(server).actors.values())

    def close_all(self, patience: float) -> list[ServerActor]:
        """End every actor, in parallel, and refuse calls from now on. Returns the actors that are not closed
        yet."""
        self.closing = RoomClosed("The room is closing; the call was not sent.", server="")
        self.approvals.close(self.closing)
        ending = Ending(Cause.SHUTDOWN)
        for actor in self.all_actors():
            actor.stop(ending, patience)
        return [actor for actor in self.all_actors() if actor.life.state is not State.CLOSED]


def abort(root: Root, error: CallError) -> None:
    """Fail everything that is still open, in whatever state it is. Does not wait."""
    root.closing = root.closing or error
    root.approvals.close(error)
    for actor in root.all_actors():
        actor.steps.abort(error)


def forget_credentials(root: Root, session: str) -> None:
    """Forget the credentials of a session that has ended, once nothing runs that was started with them: a call's own
    child runs until its call ends. Until then they are scrubbed from texts."""
    if root.sessions.is_open(session):
        return  # another session has this name now
    for actor in root.all_actors():
        if actor.address.session == session:
            root.supervision.on_closed(actor, partial(forget_credentials, root, session))
            return
    context = root.context
    context.recent.forget(context.backend.now(), session, context.secrets.forget(session))


# ---- The standing servers, which should be live without a call: the eager and the keep-alive ones -------------------
#
# When a room opens, all of them connect at once, and `Standing.wait` waits until each was tried. A server that is
# isolated per session or per call does not stand: nobody could call a child of it that all share.

_LIVE: Final = (State.CONNECTING, State.CONNECTED, State.DRAINING)


def standing(root: Root) -> list[ServerActor]:
    """The actors of those eager and keep-alive servers that can be used."""
    return [
        root.actor(name)
        for name, record in root.records.items()
        if stands(root, record) and record.available.is_usable
    ]


def stands(root: Root, record: ServerRecord) -> bool:
    is_shared = root.has_standing_address(record.definition.name, None)
    return is_shared and record.definition.lifecycle is not Lifecycle.LAZY


def to_reconnect(root: Root) -> list[str]:
    """The servers to reconnect when all are to be reconnected: the live ones, and the standing ones."""
    live = {actor.address for actor in root.all_actors() if actor.life.state in _LIVE}
    return [
        name
        for name, record in root.records.items()
        if not record.available.is_by_definition and (stands(root, record) or record.address in live)
    ]


class Standing:
    def __init__(self) -> None:
        self._connecting: set[ServerActor] = set()
        self._over = anyio.Event()

    def connect(self, root: Root) -> None:
        """Connect them in parallel, so that a bad server delays no other."""
        actors = standing(root)
        self._connecting = set(actors)
        for actor in actors:
            actor.on_connected(lambda _error, actor=actor: self._tried(actor))
            root.supervision.starter.request_by_policy(actor)
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


# ---- The end of a room's servers: in parallel, under one deadline ---------------------------------------------------
#
# Each request to end the room says how long calls in flight may still take: its patience. A later request
# counts only if it has less patience. Then the deadline comes earlier, even while the servers are being
# stopped.

# Seconds for all trees when the client is gone. The SDK's clients terminate us two seconds after that.
IMPATIENT = 0.8


class Closing:
    def __init__(self) -> None:
        self.patience: float | None = None  # seconds for calls in flight; None: the end is not asked for
        # Set while the servers are being stopped: the room, its servers, and the scope with the deadline.
        self._begun: tuple[RoomContext, Root, anyio.CancelScope] | None = None

    @property
    def is_asked_for(self) -> bool:
        return self.patience is not None

    def ask(self, patience: float | None, default: float) -> None:
        """Ask for the end. `patience`: seconds for calls in flight. None: `default`, unless an earlier
        request set it."""
        if self.patience is not None and (patience is None or patience >= self.patience):
            return
        self.patience = default if patience is None else patience
        if self._begun is not None:
            context, root, scope = self._begun
            scope.deadline = self._stop_by(context)
            root.close_all(self._patience_left(context))

    async def close_servers(self, context: RoomContext, root: Root) -> None:
        """Stop all servers. Returns when they have closed, or when the time is up."""
        with anyio.CancelScope(deadline=self._stop_by(context)) as scope:
            self._begun = context, root, scope
            remaining = set(root.close_all(self._patience_left(context)))
            done = anyio.Event()

            def closed(actor: ServerActor) -> None:
                remaining.discard(actor)
                if not remaining:
                    done.set()

            for actor in tuple(remaining):
                root.supervision.on_closed(actor, lambda actor=actor: closed(actor))
            if remaining:
                await done.wait()

    def _stop_by(self, context: RoomContext) -> float:
        """The deadline for all, counted from now. A later request with less patience only makes it earlier."""
        limit = context.settings.shutdown_timeout
        if not self.patience:
            limit = min(limit, IMPATIENT)
        context.stop_by = min(context.stop_by, context.backend.now() + limit)
        return context.stop_by

    def _patience_left(self, context: RoomContext) -> float:
        """The seconds left for calls in flight. The trees need their time to stop before the same deadline."""
        left = context.stop_by - context.backend.now() - context.settings.stop_timeout
        return max(0.0, min(self.patience or 0.0, left))
