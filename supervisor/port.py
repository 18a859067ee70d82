"""The port: a room, or one of its sessions, as its callers see it. Doors and exposures hold it, and so do `Greenroom`
and `Session`, which have the methods for programs. A door never reaches further in.

A port sees a room in one scope: that of the whole room, or that of one session. Each client of a door has a session. A
server that is isolated per session has a child of its own for each session, and a profile shows a session a part of the
room. So what a client asks for goes through the port of its session.

* *Calls* are the port's own methods. A call begins here (`begin`), before its name is looked up. From then on it ends
  exactly once: the port finds its actor and hands it over, or ends it with what refuses it (`refuse`,
  `until_accepted`).
* *Looks* start no server and are no calls: what is known here (`catalogue`).
* What it is made of besides: `connections` waits for servers to be connected, `resources` counts who subscribes to
  what, `skill_reader` reads skills. `services` and `fleet` are the whole room's, whoever looks: its clock, files,
  servers.

It decides nothing: gates, breakers and the pool do.

Rejected: one class that inherits from another what it does for programs, and adds what doors need. A door needs both,
and whoever reads one has to read the other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypedDict, Unpack, cast

import anyio
import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from ..actors.call import NOBODY, Call, Origin
from ..actors.current_trace import current_trace
from ..actors.handshake import RpcFailure, shake_hands
from ..actors.last_minutes import LastMinutes, in_order
from ..actors.login.caller_identity import CallerIdentity
from ..actors.peer import LostReason, connect_failed
from ..actors.router import IndexRequest, make_countable, make_resolvable, make_searchable
from ..actors.watchers import Order
from ..actors.workers import LONG_WORK, aside, in_turns
from ..catalogue.names import owner_among
from ..catalogue.namespace import AmbiguousName, MissingName, ResourceEntry, Target
from ..catalogue.store import own_folder
from ..config.argument_checks import function, name_of, named_values, text, time_limit
from ..config.installers import is_installer
from ..config.model import Config, Isolation, Scrub
from ..config.scrubbing import Secrets
from ..protocol.address import Address
from ..protocol.bounds import LARGE_MESSAGE, RECENT_MINUTES
from ..protocol.errors import (
    AmbiguousTool,
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    ProtocolFault,
    Reach,
    RoomClosed,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UsageError,
    some_of,
)
from ..protocol.events import Note, NoteCode
from ..protocol.jsonrpc.encoding import weigh
from ..protocol.jsonrpc.incoming import decode_result, read_parts, read_value
from ..protocol.jsonrpc.terms import MODERN_VERSIONS, RpcFault, WireFault
from ..protocol.lifecycle import Cause, Ending, State
from ..protocol.result import ToolResult, decoded
from ..protocol.safe_text import one_line
from ..protocol.status import OpenBreaker, ServerStatus
from ..protocol.trace_context import trace_in, without_trace
from ..safety.gates import Gate, GateCase, Passage, is_held
from .discovery import let_go
from .server_messages import LOG_LEVELS
from .skill_reader import SkillRead as SkillRead
from .skill_reader import SkillReader
from .starts import Holdup
from .status_rows import addresses, status_row, still_there

if TYPE_CHECKING:
    from pathlib import Path

    from ..actors.event_stream import Subscription
    from ..actors.host import Host
    from ..actors.peer import Connector, Handshake, Peer
    from ..actors.room_context import Body
    from ..actors.server import ServerActor
    from ..actors.timers import Timer
    from ..catalogue.entries import ServerEntry
    from ..catalogue.fingerprints import PinKey
    from ..catalogue.index import Index
    from ..config.model import ServerDefinition
    from ..protocol.events import Event, Kind
    from ..protocol.tree import TreeNode
    from ..safety.approval_desk import ApprovalDesk
    from .attachments import Attachment
    from .profiles import ProfileView
    from .runtime import Runtime

_OFF, _MCP, _ALL = Scrub.OFF, Scrub.MCP, Scrub.ALL  # as in `actors.peer`: each call names these

# Nearly always; whether it is another `Mapping` takes longer to find out.
_PLAIN: Final = (dict, type(None), msgspec.Raw)
SET_LEVEL: Final = "logging/setLevel"
CHANGES: Final = frozenset({SET_LEVEL, "resources/unsubscribe", "initialize"})  # the server, for everybody
ONLY_LOOK: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "resources/subscribe", "resources/unsubscribe"}
)
_RESTING: Final = (State.IDLE, State.CLOSED)
_ROWS: Final = 200  # rows of the status that are made in one go: a millisecond or two
Progress = Callable[[Mapping[str, Any]], None]


class CallOptions(TypedDict, total=False):
    """How a tool is called, beside its arguments: see `start_call`."""

    timeout: float | None
    on_progress: Progress | None
    meta: Mapping[str, Any] | None
    allowed: bool


class Catalogue(Protocol):
    """What status, list, search, describe and instructions need, without any server. A port has one, and so has a
    command that reads it from the cache."""

    @property
    def config(self) -> Config: ...
    @property
    def index(self) -> Index: ...

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """A row for each server and for each further live address of a server. `server`: only its rows."""
        ...

    def entry(self, server: str) -> ServerEntry | None: ...


class RoomAccess:
    """To which room a port leads, and for whom. `session`: None for the room itself; `view`: the part of the room that
    is seen, None for everything."""

    def __init__(self, runtime: Runtime, session: str | None, view: ProfileView | None) -> None:
        self.runtime = runtime
        self.session = session
        self.view = view
        self.is_over = False  # a session's end

    @property
    def live(self) -> Runtime:
        """The machinery. Raises `UsageError` before the room is opened, and after the end of the session."""
        if self.is_over:
            raise UsageError(f"The session {self.session!r} is over; open another with `room.session(...)`.")
        if not self.runtime.is_built:
            raise UsageError(
                "The room is not open yet: use `async with Greenroom.open(...) as room`, or `await room.start()`."
            )
        return self.runtime

    @property
    def in_loop(self) -> Runtime:
        """The machinery, for what waits or changes something. Raises as `live` and `check_loop` do."""
        self.live.check_loop()
        return self.runtime


class RoomCatalogue:
    """What is known in one scope of a room. Nothing here starts a server, or waits for one."""

    def __init__(self, access: RoomAccess) -> None:
        self._access = access
        self._runtime = access.runtime
        self._session = access.session
        self._view = access.view

    @property
    def index(self) -> Index:
        """The published index of all names. It can still be read when a session is over."""
        return self.index_now()

    def index_now(self) -> Index:
        """`index`, for each call: on Python 3.11 a property takes three times as long as a method."""
        runtime = self._runtime
        if not runtime.is_built:
            return self._access.live.router.index
        shown = runtime.router.index if self._view is None else self._view.index
        if self._session is None or runtime.own_lists.is_empty:
            return shown
        return runtime.own_lists.index(self._session, shown)

    @property
    def config(self) -> Config:
        return self._runtime.config if self._view is None else self._view.config

    def check_server(self, server: str | None) -> None:
        """Raises `UnknownServer`. None stands for any server."""
        if server is not None:
            if self._view is not None:
                self._view.check(server)
            self._access.live.servers.record(server)

    def entry(self, server: str) -> ServerEntry | None:
        """The lists of a server and what it says about itself; None: unknown. Raises `UnknownServer`."""
        live, view = self._access.live, self._view
        if view is not None:
            view.check(server)
        live.servers.record(server)
        entry = self.own_entry(server) or live.router.entry(server)
        return entry if view is None else view.entry(entry)

    def own_entry(self, server: str) -> ServerEntry | None:
        """What this session's own child has listed; None: it has listed nothing, or there is none."""
        return None if self._session is None else self._runtime.own_lists.entry(self._session, server)

    def listed(self, server: str) -> ServerEntry | None:
        """What the server has listed for this scope, whether it is shown here or not."""
        return self.own_entry(server) or self._access.live.router.entry(server)

    @property
    def is_learning(self) -> bool:
        """Whether servers of which nothing is known are still to be started for the first time, or to be discovered by
        this session."""
        return self._access.live.is_learning or bool(self.unlisted())

    def unlisted(self) -> list[str]:
        """The servers whose lists belong to this session, because they are started with values that it gives, and whose
        lists it does not know yet."""
        if self._access.is_over or self._session is None:
            return []
        live = self._access.live
        return [
            name
            for name in live.of_sessions()
            if self.own_entry(name) is None
            and (self._view is None or self._view.shows(name))
            and live.servers.records[name].available.is_usable
            and live.servers.records[name].definition.bootstrap
            and not live.sessions.missing(live.servers.records[name].definition, self._session)
        ]

    def is_per_session(self, server: str) -> bool:
        """Whether each session has a process of this server of its own."""
        servers = (
            self._access.live.servers
        )  # the index follows it: a reload may have removed the server just now
        return server in servers.records and servers.isolation(server) is Isolation.PER_SESSION

    @property
    def finds_by_meaning(self) -> bool:
        """Whether the configuration asks for it."""
        return self._access.live.finds_by_meaning

    async def near(self, query: str) -> tuple[bytes, ...]:
        """The keys of what is near to `query` in meaning, the nearest first, if they are known."""
        from ..catalogue.search import MAX_QUERY

        return tuple(await self._access.live.near(self.index, query[:MAX_QUERY]))

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """A row for each server, and one for each further live address. `server`: only its rows. The row of this
        session's own child replaces that of the server."""
        return self._seen(map(self._row, addresses(self._access.live.servers, server)))

    async def surveyed(self) -> list[ServerStatus]:
        """`status`, with turns for others meanwhile, because there may be thousands of rows, or of tools to count."""
        await make_countable(self._access.live.router.index)
        await make_countable(self.index)
        return self._seen(await in_turns(addresses(self._access.live.servers), self._row, _ROWS))

    def _seen(self, all_rows: Iterable[ServerStatus | None]) -> list[ServerStatus]:
        """Those of the room's rows that this scope may see, as it sees them."""
        rows = [row for row in all_rows if row is not None]
        if self._session is None:
            return rows
        view, scope = self._view, f"session:{self._session}"
        if view is not None:
            rows = [view.row(row) for row in rows if view.shows(row.server)]
        own = {row.server for row in rows if row.scope == scope}
        return [self._as_seen(row) for row in rows if row.scope == scope or row.server not in own]

    def _row(self, address: Address) -> ServerStatus | None:
        """The row of an address in the whole room, with what the catalogue has of its server. None: it is gone."""
        live = self._access.live
        if address.server not in live.servers.records:
            return None
        index, entry = live.router.index, live.router.entry(address.server)
        row = status_row(live.servers, address, live.context.backend.now(), index.counts(address.server))
        if entry is None:
            return row
        faults, problems = index.faults(row.server), entry.problems
        return msgspec.structs.replace(row, faults=faults, problems=problems) if faults or problems else row

    def _as_seen(self, row: ServerStatus) -> ServerStatus:
        """The row with what this session's own child has listed."""
        if self.own_entry(row.server) is None:
            return row
        counts, faults = self.index.counts(row.server), self.index.faults(row.server)
        if counts is None:
            return msgspec.structs.replace(
                row, tool_count=None, resource_count=0, changed=(), hidden=(), faults=faults
            )
        return msgspec.structs.replace(
            row,
            tool_count=counts.tools,
            resource_count=counts.resources,
            changed=counts.changed,
            hidden=counts.hidden,
            faults=faults,
        )

    def tool_names(self) -> list[str] | None:
        """The names of all tools; None: of some server nobody knows yet what it has."""
        servers = self.config.servers.values()
        are_known = all(self.entry(each.name) is not None for each in servers if not each.disabled)
        return [target.name for target in self.index.tools()] if are_known else None

    # ---- from names to servers --------------------------------------------------------------------------------------
    #
    # A URI that the index does not know goes to the only server that may have it. If there are several, the request is
    # refused with these candidates, so that no server gets a request that was not meant for it.

    def resolve(self, name: str, server: str | None) -> Target | MissingName:
        """Look a tool's name up in the index. Raises `AmbiguousTool`, `UnknownServer`."""
        self.check_server(server)
        found = self.index.resolve(name_of(name, "a tool"), server)
        if isinstance(found, AmbiguousName):
            raise AmbiguousTool(name, found.candidates)
        return found

    def refusal_by_prefix(self, name: str, server: str | None) -> CallError | None:
        """What refuses a name that nobody has, if it is spelled like one of a broken or disabled server (or `server` is
        one). The index has nothing of these, and somebody else's similar names would only lead away from the reason."""
        unusable = self.config.unusable
        owner = owner_among(unusable, name) if server is None else server if server in unusable else None
        record = None if owner is None else self._access.live.servers.records.get(owner)
        return None if record is None else record.refusal

    def unknown_tool(
        self,
        name: str,
        server: str | None = None,
        servers: Sequence[str] = (),
        connected: Sequence[str] = (),
    ) -> CallError:
        """The error for a name that no server has: why the server that it names cannot be used, else similar names.
        `connected`: the servers that were connected to search their lists."""
        refusal = self.refusal_by_prefix(name, server)
        if refusal is not None:
            return refusal
        index = self.index
        names = [target.name for server in servers[:1] for target in index.tools(server)]
        message = f'Tool "{name}" not found.'
        message += f' Server "{servers[0]}" has: {some_of(names)}.' if names else ""
        return UnknownTool(name, message=message, suggestions=index.suggest(name), connected=connected)

    def resolve_prompt(self, name: str, server: str | None) -> Target | MissingName:
        found = self.index.resolve_prompt(name_of(name, "a prompt"), server)
        if isinstance(found, AmbiguousName):
            raise AmbiguousTool(name, found.candidates, what="Prompt")
        return found

    def locate(self, uri: str, server: str | None = None) -> ResourceEntry:
        """The server and URI at which a resource is read. Raises `UnknownResource`, `AmbiguousTool`,
        `UnknownServer`."""
        self.check_server(server)
        return _placed(uri, server, self.index.resolve_uri(text(uri, "A URI")))


class ServerConnections:
    """Waits until servers are connected, for one scope of a room."""

    def __init__(self, access: RoomAccess, catalogue: RoomCatalogue) -> None:
        self._access = access
        self._session = access.session
        self._catalogue = catalogue

    def actor(self, server: str) -> ServerActor:
        """The actor that a request from here goes to. Raises `UnknownServer`, `SessionNeeded`."""
        self._catalogue.check_server(server)
        return self._access.live.servers.actor_for(server, self._session)

    def wait_by(self) -> float:
        """The time until which a request that begins to wait for a server now may wait."""
        context = self._access.live.context
        return context.backend.now() + context.settings.queue_timeout

    async def connect_by_name(self, server: str) -> None:
        """Connect the server now, whatever its circuit breaker says, and wait until its lists are in the index."""
        await self.connect(server, by_name=True)
        await self._access.in_loop.router.ref.ask(IndexRequest)

    async def connect(self, server: str, *, by_name: bool = False, wait_by: float = math.inf) -> bool:
        """Wait until the server is connected. Returns False if it was connected already.

        `by_name`: bypass the circuit breaker, and have a connected server list what it has again. Otherwise wait as a
        call would wait, and no longer than a call or than until `wait_by`. When the wait ends, a running attempt goes
        on. A server without a standing address in this scope (it has a child per call, or a child per session and this
        is no session) is started for discovery instead.
        """
        self._catalogue.check_server(server)
        live = self._access.in_loop
        servers, settings, backend = live.servers, live.context.settings, live.context.backend
        limit = min(settings.queue_timeout, wait_by - backend.now())
        if by_name:
            definition = servers.record(server).definition
            limit += definition.connect_timeout or settings.connect_timeout
        if not servers.has_standing_address(server, self._session):
            if by_name:
                servers.bring_back(server)
            await self._discover(server, limit)
            return True
        actor = self.actor(server)
        if actor.is_connected and (not by_name or await self._list_again(actor)):
            return False
        waiter, box = backend.waiter(), list[CallError | None]()

        def connected(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        starts, record = servers.starts, servers.record_at(actor.address)
        stop_waiting = actor.on_connected(connected, by_name=by_name)
        try:
            (starts.request_by_name if by_name else starts.request_as_called)(record, actor)
            with live.context.timers.limited(backend.now() + limit):
                await waiter.wait()
            if not box:
                raise _not_ready(actor, limit)
        finally:
            stop_waiting()
            starts.withdraw(record, actor)
        if box[0] is not None:
            raise box[0].copy()
        return True

    async def _list_again(self, actor: ServerActor) -> bool:
        """Have a connected server list what it has again. Returns False if its connection has ended. If it does not
        list, it is stopped when it has nothing else to do; otherwise this raises `ConnectFailed`."""
        incarnation, waiter = actor.life.incarnation, self._access.live.context.backend.waiter()
        box = list[CallError | None]()

        def listed(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        release = actor.lease()
        try:
            actor.list_again(listed)
            await waiter.wait()
        finally:
            release()
        error = box[0]
        if error is None:
            return True
        if actor.is_connected and actor.life.incarnation == incarnation:
            if open_calls := actor.in_flight + actor.queued:
                calls = "1 call is" if open_calls == 1 else f"{open_calls} calls are"
                reason = error.reason if isinstance(error, ConnectFailed) else error.message
                text = f"{reason} ({calls} in flight there, so it was not started anew)"
                raise ConnectFailed(text, server=actor.address.server)
            actor.stop(Ending(Cause.RESTART))
        return False

    async def _discover(self, server: str, limit: float) -> None:
        """Start the server once to learn what it has. Raises the error that kept it from starting."""
        over = anyio.Event()
        box: list[CallError | None] = []

        def discovered(actor: ServerActor) -> None:
            ending = actor.life.ending
            box.append(ending.error if ending is not None else None)
            over.set()

        actor = self._access.live.servers.discover_apart(server, self._session, discovered)
        context = self._access.live.context
        with context.timers.limited(context.backend.now() + limit):
            await over.wait()
        if not box:
            raise _not_ready(actor, limit)
        if box[0] is not None:
            raise box[0].copy()

    def lease(self, server: str) -> Callable[[], None]:
        """Keep the server's connection from being evicted. Returns the function that ends this."""
        if not self._access.live.servers.has_standing_address(server, self._session):
            return _nothing
        return self.actor(server).lease()

    async def list_own(self) -> None:
        """Connect the servers whose lists belong to this session and are not known yet, so that they list what they
        have. Those that cannot be connected are left out."""

        async def connect(server: str) -> None:
            with suppress(CallError, UsageError):  # the latter: the session is over by now
                await self.connect(server)
                let_go(self.actor(server))

        if self._access.is_over:
            return
        async with anyio.create_task_group() as tasks:
            for server in self._catalogue.unlisted():
                tasks.start_soon(connect, server)


class RoomPort:
    """A room in one scope, for doors and exposures. `session`: None for the room itself; `view`: the part of the room
    that it sees, None for everything."""

    def __init__(self, runtime: Runtime, session: str | None = None, view: ProfileView | None = None) -> None:
        self.runtime = runtime
        self.session = session
        self.view = view
        self.origin: Origin = Origin(session=session)  # who asks for the calls that begin here
        self.access: RoomAccess = RoomAccess(runtime, session, view)
        self.catalogue: RoomCatalogue = RoomCatalogue(self.access)
        self.connections: ServerConnections = ServerConnections(self.access, self.catalogue)
        self.resources: ResourceSubscriptions = ResourceSubscriptions(self)
        self.skills: SkillReader = SkillReader(self)
        self.services: RoomServices = RoomServices(self.access)
        self.fleet: ServerFleet = ServerFleet(self.access)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def begin(self, call: Call, server: str | None) -> None:
        """Somebody asks for this call. `server`: where it goes, as far as that is known. From now on it has exactly one
        end. Raises `UsageError` before the room is opened, after the end of the session, and in another loop, where no
        watcher may be told of it; `RoomClosed` in another loop when the room is closed."""
        runtime = self.runtime
        if self.access.is_over or not runtime.is_built or not runtime.context.backend.is_here():
            self._refuse_outside(server)
        call.origin = self.origin
        call.server = server
        if call.trace is None:
            call.trace = current_trace()
        if runtime.watchers.began:
            call.began_at = runtime.context.backend.now()
            runtime.watchers.tell(runtime.watchers.began, call)

    def refuse(self, call: Call, error: CallError, *, is_raised: bool = True) -> CallError:
        """The call ends here, before anybody has accepted it. Its caller is to be raised this error, which is
        returned."""
        if not call.number:
            context = self.runtime.context
            call.end(context, context.backend.now(), error=error, is_raised=is_raised)
        return error

    @contextmanager
    def until_accepted(self, call: Call) -> Generator[None]:
        """While this is open, the search for the call's server goes on. What is raised inside ends the call, and so
        does leaving without having handed it over."""
        context = self.runtime.context
        try:
            yield
        except CallError as error:
            self.refuse(call, error)
            raise
        finally:
            if call.owner is None:
                call.end(context, context.backend.now(), is_raised=True)

    def submit(self, server: str, call: Call, allowed: bool = False) -> None:
        """Hand the call to its actor in this scope; it begins, if it has not. Raises the `CallError` with which it is
        refused.

        A call that somebody has to allow is held first, unless it is `allowed` (`safety.approval_gate`)."""
        if call.origin is NOBODY:
            self.begin(call, server)
        call.server, call.has_target = server, True
        try:
            live = self.runtime
            if self.access.is_over or not live.is_running:
                self._refuse_outside(server)
            servers = live.servers
            if self.view is not None:
                self.view.check(server)
            if servers.gates and not allowed and self._is_held(servers.gates, server, call):
                return
            actor = servers.actor_for(server, self.session)
            try:
                actor.calls.submit(call)
            except CallError:
                servers.forget_unused(actor)
                raise
        except CallError as error:
            raise self.refuse(call, error, is_raised=not allowed) from None

    def _is_held(self, gates: Collection[Gate], server: str, call: Call) -> bool:
        """Whether a gate holds the call. Raises the `CallError` with which one refuses it."""
        passage = Passage(
            partial(self.connections.lease, server), partial(self.submit, server, call, allowed=True)
        )
        profile = None if self.view is None else self.view.name
        return is_held(gates, GateCase(self.session, server, call, self.catalogue.index, profile), passage)

    def _refuse_outside(self, server: str | None) -> NoReturn:
        """Raises the error that refuses a call when the room is closed, or in another loop."""
        live = self.access.in_loop
        text = "The room is not open; the call was not sent. Call inside `async with Greenroom.open(…)`."
        if live.is_copy and live.servers.closing is not None:
            text = live.servers.closing.message
        raise RoomClosed(text, server=server or "")

    async def ask_raw(self, server: str, call: Call) -> bytes:
        """Hand the call over and wait for its result, as the server sent it. Raises the call's `CallError`."""
        try:
            self.submit(server, call)
        except CallError:
            await anyio.lowlevel.checkpoint()  # a loop around a refusal must not starve others
            raise
        return await call.wait()

    async def ask(
        self, server: str, call: Call, *, most: float = math.inf, is_definition: bool = False
    ) -> dict[str, Any]:
        """Hand the call over and wait for its result, decoded. It may have at most so many bytes. A definition is not
        scrubbed as results are (`catalogue.definition_secrets`). Raises the call's `CallError`."""
        answer = await self.ask_raw(server, call)
        if len(answer) > most:
            text = f'Server "{server}" answered {call.method} with more than {most:,} bytes.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
        try:
            return decode_result(answer if is_definition else await self.scrubbed(server, _ALL, answer))
        except WireFault as error:
            text = f'Server "{server}" answered {call.method} with what cannot be read: {error}.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED) from None

    @contextmanager
    def holding(self, arguments: object, server: str | None) -> Generator[None]:
        """Count the arguments among those of waiting calls. For the search for a call's server. Raises `Busy`, and
        `UsageError` if `arguments` are no arguments, before a server is started for them."""
        if not isinstance(arguments, msgspec.Raw):
            named_values(arguments, "The arguments", server or "")
        context = self.access.live.context
        size, most = weigh(arguments), context.settings.max_queued_bytes
        if context.queued_bytes + size > most:
            why = f"the parameters of waiting calls would be over {most:,} bytes"
            raise Busy(server or "", in_flight=0, queued=0, oldest_age=0.0, retry_in=1.0, why=why)
        context.queued_bytes += size
        try:
            yield
        finally:
            context.queued_bytes -= size

    def start_call(
        self,
        target: Target,
        arguments: Mapping[str, Any] | msgspec.Raw | None,
        on_end: Callable[[Call], None] | None,
        # By their names, please, but where every call comes: as in `Call`, there a name costs too much.
        timeout: float | None = None,
        on_progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        allowed: bool = False,
        begun: Call | None = None,
    ) -> Call:
        """Start a call without waiting for it. It ends with `on_end(call)`, exactly once, possibly before this returns.

        A door may give `arguments` as `Raw`, the JSON of an object on one line, so that they are decoded only where
        that is needed. `meta`: the request's `_meta`. `allowed`: a person has allowed the call. `begun`: the call,
        if it began when its name was looked up. Raises the `CallError` that refuses the call. For doors, which have no
        task per call.
        """
        params: dict[str, Any] = {"name": target.original, "arguments": arguments or {}}
        call = begun or Call("tools/call", params, target.name, timeout, False, on_end, on_progress)
        if target.kind == "resource":
            call.params = params = {"uri": target.original}
            call.method, call.replayable = "resources/read", True
        elif target.is_harmless:
            call.replayable = True
        if allowed:
            call.is_allowed = True
        if meta is not None and isinstance(meta, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            call.trace = trace_in(meta)
        if begun is None:
            self.begin(call, target.server)
        else:
            call.params, call.tool, call.server, call.timeout = params, target.name, target.server, timeout
            call.on_end, call.on_progress = on_end, on_progress
        try:
            if type(arguments) not in _PLAIN:
                named_values(arguments, f"The arguments of {target.name}", target.server)
            if target.changed is not None:
                raise target.refusal()
            if timeout is not None or on_progress is not None:
                check_options(timeout, on_progress)
            if target.override is not None and target.kind != "resource":
                given = _values(arguments) if isinstance(arguments, msgspec.Raw) else arguments
                params["arguments"] = target.override.own(given, target.server) or {}
            if meta is not None and named_values(meta, "meta", target.server) is not None:
                params["_meta"] = without_trace(meta)
        except CallError as error:
            raise self.refuse(call, error) from None
        self.submit(target.server, call)
        return call

    def start_request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None,
        on_end: Callable[[Call], None] | None,
        *,
        tool: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        replayable: bool = False,
        takes_inputs: bool = False,
        begun: Call | None = None,
    ) -> Call:
        """Start a request without waiting for it. It ends with `on_end(call)`, exactly once, possibly before
        this returns.

        `takes_inputs`: `on_end` handles a result that asks for more input. `begun`: the call of this request, if it
        began when its server was looked for. Raises the `CallError` with which it is refused, `UnknownServer`, and in a
        session `UsageError` for a request that would change a shared server for others. For doors, which have no task
        per request.
        """
        call = begun or Call(method, params)
        call.params, call.tool, call.timeout = params, tool, timeout
        call.replayable = replayable or method in ONLY_LOOK
        call.on_end, call.on_progress = on_end, on_progress
        if takes_inputs:
            call.takes_inputs = True
        if begun is None:
            self.begin(call, server)
        if type(params) not in _PLAIN or method in CHANGES:
            try:
                named_values(params, f"The params of {method}", server)
                self.check_own(server, method)
            except CallError as error:
                raise self.refuse(call, error) from None
        self.submit(server, call)
        return call

    def check_own(self, server: str, method: str) -> None:
        """Raises `UsageError` for a request that would change a server which this session shares with others."""
        if method not in CHANGES:
            return
        self.catalogue.check_server(server)
        if self.session is not None and self.access.live.servers.isolation(server) is Isolation.PERSISTENT:
            use = {SET_LEVEL: "set_log_level(...)"}.get(method, "subscribe(...)")
            text = f'Server "{server}" is shared with others, and {method} would change it for them. Use `{use}`.'
            raise UsageError(text, server=server)

    def turn_away(self, call: Call, error: CallError, server: str | None = None) -> CallError:
        """A door answers this request itself, with this error, which is returned: nobody can carry it out. The call
        begins and ends here."""
        if call.origin is NOBODY:
            self.begin(call, server)
        return self.refuse(call, error)

    async def start_by_name(
        self,
        tool: str,
        arguments: Mapping[str, Any] | msgspec.Raw | None,
        on_end: Callable[[Call], None] | None,
        *,
        server: str | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[Target, Call]:
        """Find a tool by its name, connecting its server when needed, and start its call."""
        params = {"name": tool, "arguments": arguments or {}}
        timeout, on_progress = options.get("timeout"), options.get("on_progress")
        call = Call("tools/call", params, tool=tool, timeout=timeout, on_progress=on_progress)
        async with self.found(call, arguments, server) as target:
            return target, self.start_call(target, arguments, on_end, begun=call, **options)

    @asynccontextmanager
    async def found(
        self,
        call: Call,
        arguments: Mapping[str, Any] | msgspec.Raw | None,
        server: str | None = None,
    ) -> AsyncGenerator[Target]:
        """Begin this call of a tool by its name, and give the tool. Its server is connected when needed, and stays so
        until the context is left. What is raised meanwhile ends the call, unless it was accepted."""
        self.begin(call, server)
        with self.until_accepted(call), ExitStack() as leases:
            check_options(call.timeout, call.on_progress)  # before a server is started for it
            call.wait_by = self.connections.wait_by()
            with self.holding(arguments, server):
                target = await self.find_leased(call.tool or "", server, leases, call.wait_by)
            yield target

    def leaves_approval(self, target: Target) -> bool:
        """Whether a call of this tool from here has to be allowed, and only whoever makes it can ask a person."""
        approvals = self.access.live.servers.approvals
        return approvals.asks and approvals.leaves_it_to(self.session, target)

    async def scrubbed(self, server: str, door: Scrub, answer: bytes) -> bytes:
        """An answer of a server as this door may show it."""
        scrubber = self.scrubber(server, door)
        if scrubber is None or len(answer) < LONG_WORK:
            return answer if scrubber is None else scrubber.scrub(answer)
        return await aside(partial(scrubber.scrub, answer))

    def scrubber(self, server: str, door: Scrub) -> Secrets | None:
        """What scrubs the results of a server at this door; None: nothing does. `door`: `MCP`, where a tool of ours
        gives them to a model, or `ALL` for any other. The configuration says it, for all servers and for each. It is
        asked at each result, so a reload counts at once."""
        config = self.runtime.config
        definition = config.servers.get(server)
        rule = (definition.scrub if definition is not None else None) or config.settings.scrub
        if rule is _OFF or (door is not _MCP and (rule is _MCP or not rule.is_everywhere)):
            return None
        known = self.runtime.servers.context.secrets.of_server(server, self.session)
        if rule is _MCP:
            return known  # as nearly always
        return Secrets(others=known, by_name=True) if rule.is_by_name else known

    async def read_result(self, target: Target, answer: bytes, door: Scrub) -> ToolResult:
        """The result of a call of this tool, as this door shows it."""
        return tool_result(await self.scrubbed(target.server, door, answer), target)

    # ---- from names to servers --------------------------------------------------------------------------------------
    #
    # A name is looked up in the router's published index. If an unknown name has a server's prefix, that server is
    # connected (if its circuit breaker lets it) and the name is looked up again. The server is leased until the call is
    # made, so that it is not evicted in between.

    async def find_leased(self, name: str, server: str | None, leases: ExitStack, wait_by: float) -> Target:
        """The tool of this name. A server that was connected for it is kept connected until `leases` is closed.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and what kept the server from connecting, or from being
        used at all.
        """
        name_of(name, "a tool")
        await make_resolvable(self.catalogue.index)
        found = self.catalogue.resolve(name, server)
        if not isinstance(found, MissingName):
            return found
        refused: CallError | None = None
        connected = list[str]()
        # A server that is given by name is asked even if the index has nothing of it: a disabled one says so.
        for candidate in found.servers or ((server,) if server is not None else ()):
            # One at a time: do not hold the slot of one server while waiting for the slot of the next.
            with ExitStack() as lease:
                lease.callback(self.connections.lease(candidate))
                try:
                    if await self.connections.connect(candidate, wait_by=wait_by):
                        connected.append(candidate)
                except CallError as error:
                    refused = refused or error
                    continue
                index = await self.access.live.router.ref.ask(IndexRequest)
                if index.get(name) is None:
                    await make_resolvable(index)
                again = self.catalogue.resolve(name, server)
                if not isinstance(again, MissingName):
                    leases.push(lease.pop_all())
                    return again
        if refused is not None:
            raise refused
        await make_searchable(self.catalogue.index)
        raise self.catalogue.unknown_tool(name, server, found.servers, connected)

    async def find(self, name: str, server: str | None = None) -> Target:
        """The tool of this name. If it is unknown, connect the server it may belong to and look again.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and the error that kept the server from connecting.
        """
        with ExitStack() as leases:
            return await self.find_leased(name, server, leases, self.connections.wait_by())

    async def find_prompt(self, name: str, server: str | None = None) -> Target:
        """The prompt of this name. Raises `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`, and what kept the server
        from connecting."""
        self.catalogue.check_server(server)
        found = self.catalogue.resolve_prompt(name, server)
        wait_by = self.connections.wait_by()
        for candidate in found.servers if isinstance(found, MissingName) else ():
            await self.connections.connect(candidate, wait_by=wait_by)
            await self.access.live.router.ref.ask(IndexRequest)
            again = self.catalogue.resolve_prompt(name, server)
            if isinstance(again, Target):
                return again
        if isinstance(found, MissingName):
            refusal = self.catalogue.refusal_by_prefix(name, server)
            raise refusal or UnknownPrompt(
                name, [target.name for target in self.catalogue.index.prompts(server)]
            )
        return found

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """The server of a completion's reference, and the reference in that server's own names. Raises as
        `RoomCalls.complete` does."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                target = await self.find_prompt(name, server)
                return target.server, {**ref, "name": target.original}
            case {"type": "ref/resource", "uri": str(uri)}:
                self.catalogue.check_server(server)
                place = _placed(uri, server, self.catalogue.index.resolve_template(uri))
                return place.server, {**ref, "uri": place.original}
            case _:
                raise UsageError(
                    'A completion is for {"type": "ref/prompt", "name": …} or {"type": "ref/resource", "uri": …}.'
                )

    async def catalogued(self) -> None:
        """Wait until each server of which nothing is known was tried once, and the results are in the index."""
        live = self.access.in_loop
        await self.connections.list_own()
        await live.catalogued()

    async def settled(self) -> Index:
        """Wait until everything that servers have listed so far is in the index. Returns the room's index."""
        return await self.access.in_loop.router.ref.ask(IndexRequest)

    # ---- who answers servers ----------------------------------------------------------------------------------------

    def is_stateless(self, server: str) -> bool:
        """Whether the server speaks 2026-07-28, as far as is known. Raises `UnknownServer`, `SessionNeeded`."""
        actor = self.connections.actor(server)
        return _is_modern(actor) if actor.peer is not None else actor.record.era_hint in MODERN_VERSIONS

    def answer_with(self, host: Host | None) -> None:
        """Let `host` answer the requests of servers and receive their notifications, instead of the callbacks. In a
        session: for what belongs to this session. Servers that live were told what could be answered before, and are
        told of this at their next start."""
        self.access.live.sessions.answer_with(host, self.session)
        self._meet()

    def client_came(self) -> None:
        """The client has said what it can answer. Servers that have waited for a client are started."""
        self.access.live.begin()
        self._meet()

    def _meet(self) -> None:
        live, session = self.access.live, self.session
        if session is not None:
            declaration = live.sessions.declaration(session, Address.of_session("", session))
            live.own_lists.meet(session, declaration.capabilities)

    def set_log_level(self, level: str, server: str | None = None) -> None:
        """See `Greenroom.set_log_level`."""
        if level not in LOG_LEVELS:
            raise UsageError(f'"{level}" is not a log level. Use one of: {", ".join(LOG_LEVELS)}.')
        self.catalogue.check_server(server)
        live, session = self.access.in_loop, self.session
        servers, is_heard = live.servers, session is None or session in live.sessions.with_hosts
        if not is_heard and server is not None and servers.isolation(server) is not Isolation.PER_SESSION:
            text = f'Server "{server}" is shared with others: set its level with `room.set_log_level(...)`.'
            raise UsageError(text)
        servers.set_log_level(level, server, session)

    def roots_changed(self) -> None:
        """See `Greenroom.roots_changed`."""
        self.access.in_loop.tell_roots_changed(self.session)

    # ---- the client of a door ---------------------------------------------------------------------------------------

    def came_by(self, door: str, subject: str | None = None) -> None:
        """Tell which door this session came by, and who is behind it, if the door knows."""
        self.origin: Origin = replace(self.origin, door=door, subject=subject)

    def identify(self, caller: CallerIdentity) -> None:
        """Tell who the caller of this session is, as its door has just found."""
        if self.session is not None:
            self.access.live.sessions.identify(self.session, caller)

    def introduced(self, client: object) -> None:
        """Tell what the client of this session says about itself."""
        self.origin = replace(self.origin, client=client)


# ---- What is given, and what servers answered ------------------------------------------------------------------------


def tool_result(answer: bytes, target: Target) -> ToolResult:
    """Raises `ProtocolFault` for an answer that is no result. A large one is decoded when it is asked for."""
    return ToolResult(answer if len(answer) >= LARGE_MESSAGE else decoded(answer, target), target)


def check_options(timeout: object, on_progress: object) -> None:
    time_limit(timeout, "timeout")
    function(cast("Callable[..., Any] | None", on_progress), "on_progress")


def _values(arguments: msgspec.Raw) -> dict[str, Any]:
    """The arguments, decoded. Raises `UsageError` (code `invalid_args`), which names an argument that cannot be
    decoded."""
    found: dict[str, Any] = {}
    for name, part in read_parts(arguments).items():
        try:
            found[name] = read_value(part)
        except RpcFault as fault:
            why = fault.message.removeprefix("Invalid params: ").partition(" - at ")[0]
            text = f'Invalid args: the value of "{one_line(name)}" cannot be read: {why}.'
            raise UsageError(text, code="invalid_args") from None
    return found


# ---- Subscriptions to resources -------------------------------------------------------------------------------------

_MOST_UPDATES: Final = 1024  # kept for a slow reader; an update only says "look again"


class Updates:
    """The updates of one resource, as an async iterator: each is the `params` of one notification, in order.

    A slow reader loses the oldest updates, since one update says as much as many. The iteration ends when the
    room does.
    """

    def __init__(self) -> None:
        self._found: deque[Mapping[str, Any]] = deque(maxlen=_MOST_UPDATES)
        self._messages = anyio.Event()
        self._is_over = False

    def put(self, params: Mapping[str, Any]) -> None:
        """The room hands on an update; the oldest that nobody has read goes."""
        self._found.append(params)
        self._messages.set()

    def end(self) -> None:
        """There will be no more updates. Those that have come are still read."""
        self._is_over = True
        self._messages.set()

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._found:
            if self._is_over:
                raise StopAsyncIteration
            self._messages = anyio.Event()
            await self._messages.wait()
        return self._found.popleft()


class ResourceSubscriptions:
    """Asks servers to report changes of resources, and reads what they report, for one scope of a room.

    Subscribers of a resource are counted per actor (`actors.server_reports`). The first one subscribes at the server,
    and the last one unsubscribes. With a server of the 2026-07-28 era this is done through its open stream.
    """

    def __init__(self, port: RoomPort) -> None:
        self._port = port

    @asynccontextmanager
    async def updates(self, place: ResourceEntry) -> AsyncGenerator[Updates]:
        """The updates of this resource, as long as the context is open."""
        updates, live = Updates(), self._port.access.in_loop

        def heard(params: Mapping[str, Any]) -> None:
            if _is_about(params.get("uri"), place.original):
                updates.put(params)

        address = self._port.connections.actor(place.server).address
        stop_hearing = live.room_host.subscribe(address, heard, updates.end)
        try:
            await self.watch(place)
            try:
                yield updates
            finally:
                self.unwatch(place)
        finally:
            stop_hearing()

    async def watch(self, place: ResourceEntry) -> None:
        """Connect the server and ask it to report changes of this resource. Counted: it ends after as many calls of
        `unwatch`. A door gets the updates through its host."""
        port = self._port
        actor = port.connections.actor(place.server)
        await port.connections.connect(place.server)
        if place.original not in actor.subscriptions.uris and not _is_modern(actor):
            call = Call("resources/subscribe", {"uri": place.original}, replayable=True)
            await port.ask_raw(place.server, call)
        if actor.subscriptions.add(place.original):
            actor.subscriptions_changed()

    def unwatch(self, place: ResourceEntry) -> None:
        """One subscriber has gone. After the last one the server is told so, without waiting for its answer."""
        port = self._port
        try:
            live = port.access.live
            actor = live.servers.actor_for(place.server, port.session)
        except CallError:
            return  # the server is no longer configured
        if not actor.subscriptions.drop(place.original) or not live.is_running:
            return
        if actor.is_connected and not _is_modern(actor):
            call = Call(
                "resources/unsubscribe", {"uri": place.original}, replayable=True, on_end=lambda _call: None
            )
            try:
                port.submit(place.server, call)
            except CallError:
                return  # it cannot be told now, and its next incarnation will not be asked to report changes
        actor.subscriptions_changed()


def _is_modern(actor: ServerActor) -> bool:
    """Whether the server it is connected to speaks 2026-07-28."""
    return actor.peer is not None and actor.peer.protocol_version in MODERN_VERSIONS


def _is_about(told: object, uri: str) -> bool:
    """Whether an update is about this resource, or about a part of it (the protocol allows both)."""
    return isinstance(told, str) and (told == uri or told.startswith(uri.rstrip("/") + "/"))


class ServerFleet:
    """The servers of the whole room, for a host of a cluster and its front."""

    def __init__(self, access: RoomAccess) -> None:
        self._access = access

    def has(self, server: str) -> bool:
        """Whether the server is configured now. A reload may add and remove some."""
        return server in self._access.live.servers.records

    def definition(self, server: str) -> ServerDefinition:
        """How the server is configured. Raises `UnknownServer`, and as `RoomServices.check_open` does."""
        return self._access.in_loop.servers.record(server).definition

    def is_busy(self, server: str) -> bool:
        """Whether a call waits for the server, at any of its addresses, or is under way."""
        return any(actor.in_flight or actor.queued for actor in self._actors_of(server))

    def is_resting(self, server: str) -> bool:
        """Whether nothing of the server runs, at any of its addresses."""
        return all(actor.life.state in _RESTING for actor in self._actors_of(server))

    def evict(self, server: str) -> None:
        """End what runs of the server, as the pool does when somebody else needs its slot."""
        for actor in self._actors_of(server):
            actor.stop(Ending(Cause.EVICTED))

    def _actors_of(self, server: str) -> list[ServerActor]:
        return self._access.live.servers.actors_of(server) if self.has(server) else []

    def connector(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        """What the room itself would reach this incarnation with: for a `ConnectorFactory` that only decides which
        servers it reaches. Raises `ConnectFailed`."""
        return self._access.live.connectors(definition, address, incarnation)

    def seconds_to_connect(self, definition: ServerDefinition) -> float:
        """How long one attempt to connect may take, with the time to install the server where that may be needed."""
        settings = self._access.live.context.settings
        most = definition.connect_timeout or settings.connect_timeout
        if not is_installer(definition.command, definition.args):
            return most
        return max(most, definition.install_timeout or settings.install_timeout)

    async def shake_hands(self, peer: Peer, definition: ServerDefinition, address: Address) -> Handshake:
        """Agree on a version with a server that a `ConnectorFactory` reaches behind its own connection, which has
        answered as of the older era. No longer than somebody lets it. Raises `ConnectFailed`."""
        context = self._access.live.context
        declaration = msgspec.structs.replace(context.host.declaration(address), by_handshake=True)
        try:
            return await shake_hands(
                peer,
                context.backend,
                context.timers,
                settings=context.settings,
                client_info=context.client_info,
                declaration=declaration,
                era=definition.era,
                deadline=math.inf,
            )
        except RpcFailure as error:
            raise connect_failed(address.server, LostReason(str(error))) from None

    def session_values(self, definition: ServerDefinition, address: Address) -> Mapping[str, str]:
        """Learn what is secret of a server that a `ConnectorFactory` is about to reach by a way of its own. Returns the
        values that the session of this address has given. Raises `CredentialNeeded` when some are missing."""
        self._access.live.connectors.heed(definition, address)
        return self._access.live.sessions.variables(address.session)

    def open_breakers(self) -> dict[str, OpenBreaker]:
        """The servers whose circuit breakers refuse because of what happened here, for other hosts."""
        found = (
            (name, record.breaker.open_here()) for name, record in self._access.live.servers.records.items()
        )
        return {name: each for name, each in found if each is not None}

    def heed_open_breakers(self, others: Mapping[str, OpenBreaker]) -> None:
        """What the circuit breakers of other hosts say, by server. Servers that are not configured here do not count.
        See `CircuitBreaker.told`."""
        records = self._access.live.servers.records
        for name, theirs in others.items():
            if name in records:
                records[name].breaker.told(theirs)

    @property
    def has_limits(self) -> bool:
        """Whether the configuration limits how often tools are called."""
        return self._access.live.servers.rates.is_needed

    def spent_limits(self) -> Mapping[tuple[str, ...], float]:
        """What limits have let pass here, for other rooms. See `RateGate.spent`."""
        return self._access.live.servers.rates.spent()

    def heed_limits(self, spent: Mapping[tuple[str, ...], float]) -> None:
        """What limits have let pass in other rooms with the same configuration."""
        self._access.live.servers.rates.heed_others(spent)

    def end_children_at(self, at: float | None) -> None:
        """End the processes of all servers at this time of `time.monotonic()`, even if this process is stopped by then,
        unless another time was said before. See `Guard.end_children_at`."""
        self._access.live.guard.end_children_at(at)


class RoomServices:
    """What the whole room has for doors, whoever asks: its clock and tasks, its files, its books."""

    def __init__(self, access: RoomAccess) -> None:
        self._access = access
        self._runtime = access.runtime

    def helper(self, name: str, command: Sequence[str], *, max_line: int) -> Connector:
        """A connector that starts a child of ours which is no server, for a door. See `Connectors.helper`."""
        return self._access.live.connectors.helper(name, command, max_line)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function that does not wait, by the timer of the room."""
        context = self._access.live.context
        return context.timers.at(context.backend.now() + seconds, callback)

    def check_open(self) -> None:
        """Raises `UsageError` unless the room is open, and in this loop."""
        self._access.live.check_loop()

    def spawn(self, body: Body) -> None:
        """Run this in a task of the room, which is cancelled when the room ends. It may not raise."""
        self._access.live.context.spawn(body)

    @property
    def own_folder(self) -> Path | None:
        """The folder where a door may keep files for this room; None: the room is to leave none behind."""
        return own_folder(self._runtime.store)

    def attachment(self, name: str) -> Any:
        """What is attached to the room by this name (`attachments`); None: nothing is."""
        return self._runtime.attachments.get(name)

    def attach(self, name: str, attachment: Attachment) -> None:
        """Attach this to the room, in place of what was to be attached by this name. Before the room is opened."""
        self._runtime.attachments[name] = attachment

    def replays(self, replay: object, watcher: object) -> None:
        """The servers of this room, whose connectors are the replay's (`tape.replay_servers.Replay`), answer from its
        tape, and its watcher is told what is called. Before the room is opened."""
        self._runtime.replay = replay
        self._runtime.watchers.add(watcher, Order.TAPE)

    def expect_clients(self) -> None:
        """Clients that can answer different things will come and go, in sessions. So shared servers are told from the
        start that they may ask for everything, and the room answers for a client that cannot. For a door, before the
        room is opened."""
        self._runtime.sessions.for_many = True

    def await_client(self, seconds: float) -> None:
        """One client will come soon and say what it can answer. Servers that start without a call start then, or after
        `seconds`, and are told from then on what `expect_clients` says. For a door, before the room is opened."""
        self._runtime.client_within = seconds

    def now(self) -> float:
        """The time of the room's clock, which is that of its events."""
        return self._access.live.context.backend.now()

    def listen(self, callback: Callable[[Event], None], kinds: Iterable[Kind]) -> Subscription:
        """Call `callback(event)` in the step that makes an event, until the subscription is closed."""
        return self._runtime.events.listen(callback, kinds)

    def keep_recent(self) -> None:
        """Keep more of the last events and calls for `recent`. For a door, before the room opens."""
        self._runtime.recent.keep_more()

    def recent(self, seconds: float) -> Callable[[], list[Event]]:
        """What has happened in the last so many seconds. The function that is returned needs no loop, and may take a
        while."""
        kept, since = self._runtime.recent, self._runtime.events.backend.now() - seconds
        return partial(in_order, *still_there(self._access.live.servers, kept), since)

    def last_minutes(self, seconds: float = 60.0 * RECENT_MINUTES) -> LastMinutes:
        """What there is for a tape of the last so many seconds (`tape.last_minutes_tape`)."""

        live, recent = self._access.live, self._runtime.recent
        events, calls = still_there(live.servers, recent)
        secrets = live.context.secrets.copy()
        for _, server, session, found in recent.forgotten:
            secrets.remember(server, session, found)
        known = (live.router.entry(name) or live.own_lists.of_any(name) for name in live.servers.records)
        return LastMinutes(
            live.config,
            secrets,
            [entry for entry in known if entry is not None and entry.known],
            events,
            calls,
            list(recent.refusals),
            list(recent.notices),
            self.now(),
            seconds,
        )

    @property
    def calls(self) -> tuple[int, int]:
        """How many calls were accepted so far, and how many of them have not ended."""
        tally = self._access.live.context.tally
        return tally.accepted, tally.open

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many calls were not accepted so far, by error code."""
        return dict(self._access.live.context.tally.refusals)

    @property
    def limited(self) -> Mapping[str, int]:
        """How many calls each limit has refused so far, by where it stands and what it says."""
        return self._access.live.servers.rates.refused

    async def accept_shown(self, server: str, shown: Mapping[str, str]) -> list[str]:
        """Accept these changed definitions, by the names of their pins, as long as their fingerprints are those that
        were `shown`. Returns the names that were accepted. Raises `UnknownServer`, `OSError`."""
        return await self._access.live.accept(server, None, shown)

    def note(self, words: str, server: str | None = None, *, code: NoteCode = NoteCode.OWNER) -> None:
        """Tell something in an event: what an owner has done, if `code` does not say otherwise, and to which
        server."""
        address = None if server is None else Address(server)
        self._runtime.events.emit(Note, address, code=code, words=words)

    def stderr_log_of(self, server: str) -> Path | None:
        """The file with what this server writes to stderr. None: there is none."""
        return self._access.live.stderr_log_of(server)

    @property
    def slots_held(self) -> int:
        """How many slots of the pool are held, of `maxConnections`."""
        return self._access.live.servers.starts.places.held(of_sessions=False)

    def held(self) -> list[Holdup]:
        """What holds calls now, the most calls first."""
        return self._access.live.servers.starts.held()

    @property
    def session_slots_held(self) -> int:
        """How many slots children of sessions hold, of `maxSessionConnections`."""
        return self._access.live.servers.starts.places.held(of_sessions=True)

    def tree(self) -> TreeNode:
        """The room's servers and sessions as they are now, below what supervises them."""
        from .room_tree import tree_of

        return tree_of(self._access.live.servers, self._runtime.run_id, self._unknown())

    async def surveyed_tree(self) -> TreeNode:
        """`tree`, with turns for others meanwhile, because there may be thousands of nodes."""
        from .room_tree import surveyed_tree_of

        return await surveyed_tree_of(self._access.live.servers, self._runtime.run_id, self._unknown())

    def _unknown(self) -> frozenset[str]:
        """The servers whose tools are not known yet."""
        return frozenset(self._access.live.router.index.unknown_servers)

    @property
    def approvals(self) -> ApprovalDesk:
        """The calls that wait for a person's yes. They are shown and decided at a terminal."""
        return self._access.live.servers.approvals.desk

    @property
    def pin_keys(self) -> Mapping[str, PinKey]:
        """The keys of the configured servers in the catalogue and in the pins."""
        return self._access.live.pins.keys


def _not_ready(actor: ServerActor, waited: float) -> CallTimeout:
    server = actor.address.server
    text = f'Server "{server}" was not ready within {waited:.3g} s ({actor.doing}); nothing was sent.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def _nothing() -> None:
    pass


def _placed(
    uri: str, server: str | None, found: ResourceEntry | AmbiguousName | MissingName
) -> ResourceEntry:
    if server is not None:
        own = isinstance(found, ResourceEntry) and found.server == server
        return (
            found if own and isinstance(found, ResourceEntry) else ResourceEntry(uri, server, uri, record={})
        )
    if isinstance(found, ResourceEntry):
        return found
    if isinstance(found, AmbiguousName):
        raise AmbiguousTool(uri, found.candidates, what="Resource")
    if len(found.servers) == 1:
        return ResourceEntry(uri, found.servers[0], uri, record={})
    raise UnknownResource(uri, found.servers)
