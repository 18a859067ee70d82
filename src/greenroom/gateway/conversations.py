"""All clients of one room, at whatever door.

A conversation is a session: from its opening to its end, a client has a session of the room. Its children, its
server requests, its log level and its subscriptions belong to that session, and end with it. `open` gives a door the
`ClientSession` that reads the client's lines, and the door gives an `Outlet` for the answers.

What differs between clients is made for each client and is small. What is the same for all of them is here: the
lists of the direct door, and one watcher that announces their changes. To whom a server's request or log belongs is
decided by the room (`supervisor.server_messages`), because an embedder's sessions need the same.

The first search in a large catalogue would wait for the ranked index. A model searches a few seconds after its client
has come, so the index is made before that, when nobody waits for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from ..actors.router import is_quick, make_searchable
from ..actors.timers import at_most
from ..actors.workers import apart
from ..config.model import EXPOSURES
from ..protocol import jsonrpc as rpc
from ..protocol.errors import CallError, UsageError
from ..protocol.events import CatalogueChanged, Kind
from ..protocol.safe_text import in_words
from ..protocol.tasks import has_tasks
from ..supervisor.attachments import TRACES
from ..supervisor.room import port_of
from .client_tasks import TaskHandler, TaskStore, owner_of
from .endpoint import ClientSession, Endpoint, Outlet
from .exposures.exposure import Exposure
from .inbound_budget import InboundBudget
from .jobs import Spawn, Work, turn_away_unbegun
from .next_steps import PLAIN, Commands

if TYPE_CHECKING:
    from ..catalogue.index import Index
    from ..catalogue.namespace import Target
    from ..observe.tracing import Tracing
    from ..supervisor.port import RoomPort
    from ..supervisor.profiles import ProfileView
    from ..supervisor.room import Greenroom
    from .exposures.code_execution import Runs
    from .exposures.direct import DirectState
    from .exposures.proxy import ChosenTools
    from .frequent_tools import FrequentTools
    from .task_folder import TaskFolder


_Frequently = tuple[Sequence[str], Callable[[str], None] | None]
_NOTHING: Final[Mapping[str, str]] = {}
_LAST_RESULTS: Final = 1.0  # seconds to write and tell them; there may be much to write
_INITIALIZED_BY_THEN: Final = 0.2  # seconds from a client's coming until it has its first lists


def _as_it_is(exposure: Exposure, _room: RoomPort) -> Exposure:
    return exposure


class Conversations:
    """The clients of one room, which is open. `expose`: what they are shown, unless their profile says otherwise.
    `version` is our own, which they are told. `note` is given the texts that belong in the log. `commands` are those
    that clients are told of."""

    def __init__(
        self,
        room: Greenroom,
        *,
        expose: str,
        version: str,
        note: Callable[[str], None],
        commands: Commands = PLAIN,
    ) -> None:
        self._room = room
        self._port = port_of(room)
        self._expose = _checked(expose)
        self._note = note
        self._commands = commands
        self.inbound_budget: InboundBudget = InboundBudget(lambda: room.config.settings.max_queued_bytes)
        self._endpoint = Endpoint(version, note, self.inbound_budget, commands)
        self.task_store: TaskStore = TaskStore(_folder(room, note))
        self._clients: dict[ClientSession, Exposure] = {}
        # Of the direct door's clients, by their profiles.
        self._common: dict[str | None, tuple[ProfileView | None, DirectState]] = {}
        self._beside: dict[
            str | None, tuple[ProfileView | None, ChosenTools]
        ] = {}  # of the others, by theirs
        self._frequent: FrequentTools | None = None  # made when the configuration first asks for any
        self._runs: Runs | None = None  # of the code that clients of `meta` let run
        self._searchable: set[str | None] = set()  # the profiles whose search is prepared, or will be
        self._wanted: tuple[object, bool] = None, False
        self._refuses = False
        self._outliving: anyio.abc.TaskGroup | None = None  # what outlives clients, during `keep_tasks`

    def __len__(self) -> int:
        """The number of clients that are connected."""
        return len(self._clients)

    @asynccontextmanager
    async def open(
        self,
        outlet: Outlet,
        spawn: Spawn,
        *,
        name: str,
        variables: Mapping[str, str] = _NOTHING,
        profile: str | None = None,
        expose: str | None = None,
        door: str = "gateway",
        subject: str | None = None,
        around: Callable[[Exposure, RoomPort], Exposure] = _as_it_is,
    ) -> AsyncGenerator[ClientSession]:
        """The conversation of one client, as long as the context is open. At its end the client's requests are
        cancelled, and then its session ends, with all that belonged to it.

        `name` is the name of its session; no two open sessions have the same. `variables` are the values that the
        client brings for `${session.NAME}`. `profile`: the name of the profile that it sees; None: everything.
        `expose`: what it is shown, instead of what its profile or this gateway says. For an audit, `door` says how it
        came, and `subject` who is known to be behind it. `spawn` runs a coroutine function in a task group that
        outlives the conversation. `around` is given the exposure, and returns what this client is shown. Raises
        `UsageError` for a name that is taken, a value that cannot be used, an unknown profile or exposure.
        """
        session = self._room.session(name, variables=variables, profile=profile)
        port = port_of(session)
        view = port.view
        said = view.profile.expose if view is not None else None
        expose = _checked(expose or said or self._expose)
        port.came_by(door, subject)
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(session)
            shown = await self._frequently(expose, spawn)
            exposure = around(self._exposure(expose, port, view, shown), port)
            client = _opened(self._endpoint, exposure, outlet, spawn, port)
            client.on_introduced = partial(_introduced, port, spawn)
            client.identify = port.identify
            is_known = door != "http" or subject is not None
            client.tasks = TaskHandler(
                self.task_store,
                owner_of(subject, profile, is_known=is_known),
                client,
                self._task_after,
                _TaskMakers(port),
                port.services.after,
                lists=is_known,
            )
            client.spawn_beside = partial(self._spawn_beside, spawn)
            client.on_refused = partial(turn_away_unbegun, port, expose == "direct")
            self._clients[client] = exposure
            if expose != "direct":
                self._prepare_search(spawn, view)
            if self._refuses:
                client.refuse_new()
            try:
                yield client
            finally:
                del self._clients[client]
                outlives = client.tasks.running > 0 and self._outliving is not None
                if not outlives:
                    _close(client)
                else:
                    client.leave()
                    self._spawn_beside(spawn, partial(_outlive, client, ends.pop_all()))

    def _spawn_beside(self, spawn: Spawn, work: Work) -> None:
        """Start work that may outlive its client. Where nobody keeps tasks, it cannot."""
        if self._outliving is None:
            spawn(work)
        else:
            self._outliving.start_soon(work)

    @property
    def wants_callers(self) -> bool:
        """Whether a server is called as its caller, so that somebody has to know who that is."""
        servers = self._room.config.servers
        if self._wanted[0] is not servers:
            self._wanted = servers, any(each.is_as_caller for each in servers.values())
        return self._wanted[1]

    def _task_after(self) -> float | None:
        return self._room.config.settings.task_after

    def listed(self, name: object, profile: str | None) -> Target | None:
        """The tool of this name as clients with this profile are shown it. None: there is none, or they are shown the
        `mcp` tool."""
        found = self._common.get(profile)
        if found is None or not isinstance(name, str):
            return None
        return (found[0] or self._port.catalogue).index.get(name)

    def refuse_new(self) -> None:
        """Refuse new requests of all clients from now on, also of clients that come later. Requests in flight are still
        answered, and so are those about tasks."""
        self._refuses = True
        self.task_store.drain(self._room.config.settings.drain_timeout)
        for client in self._clients:
            client.refuse_new()

    async def keep_tasks(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Let tasks outlive their clients, and the gateway if the configuration says so. Runs until cancelled; must
        outlive the room, so that its last calls end as they would."""
        try:
            await self.task_store.open()
        except OSError as error:
            self._note(f"tasks.keep: {in_words(error)}. Tasks end with this gateway.")
        try:
            async with anyio.create_task_group() as self._outliving:
                task_status.started()
                if self.task_store.keeps:
                    await self.task_store.tidy()
                await anyio.sleep_forever()
        finally:
            self._outliving = None

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tell every client of each real change of the lists, once, as soon as it is in the index. Runs until
        cancelled."""
        async with anyio.create_task_group() as group:
            if self._outliving is None:
                await group.start(self.keep_tasks)
            async with self._room.events([Kind.CATALOGUE]) as events:
                task_status.started()
                async for event in events:
                    if isinstance(event, CatalogueChanged) and event.address and not event.address.is_shared:
                        await self._announce_own()
                        continue
                    besides = [(view, each) for view, each in self._beside.values() if each.may_change]
                    if self._common or besides:
                        await self._port.settled()
                        for view, shown in (*self._common.values(), *besides):
                            if view is not None:
                                await view.prepare()
                            await shown.announce()
            group.cancel_scope.cancel()

    async def settled(self) -> None:
        """The room has closed: wait until the last results of tasks are written, and told to whoever awaits them."""
        async with at_most(_LAST_RESULTS):
            for client in tuple(self._clients):
                if client.tasks is not None:
                    await client.tasks.settled()
            await self.task_store.kept()

    async def _announce_own(self) -> None:
        """A client's own servers have listed something else than before: tell it, and nobody else."""
        for client, exposure in tuple(self._clients.items()):
            await exposure.announce(client)

    def _prepare_search(self, spawn: Spawn, view: ProfileView | None) -> None:
        """Make what the first search needs, once for each profile (None: for clients that see everything)."""
        profile = None if view is None else view.name
        if profile not in self._searchable:
            self._searchable.add(profile)
            spawn(partial(self._preparing_search, profile, view))

    async def _preparing_search(self, profile: str | None, view: ProfileView | None) -> None:
        try:
            await anyio.sleep(_INITIALIZED_BY_THEN)
            from .exposures.proxy import tool_class

            await apart(tool_class)
            if view is not None:
                await view.prepare()
            seen = self._port.catalogue if view is None else view
            if not is_quick(seen.index):
                await make_searchable(seen.index)
        except Exception:  # also a profile that a reload has removed: a search meets the same, and says so
            self._searchable.discard(profile)
        except BaseException:  # this client has left: the next one's tasks go on with it
            self._searchable.discard(profile)
            raise

    async def _frequently(self, expose: str, spawn: Spawn) -> _Frequently:
        """What a new client is shown because others called it often, and how its own calls are counted."""
        most = self._room.config.settings.frequent_tools
        if not most or expose != "proxy":
            return (), None
        if self._frequent is None:
            from .frequent_tools import FrequentTools

            self._frequent = FrequentTools(self._port.services.own_folder, self._note)
        tools, called = self._frequent, set[str]()

        def answered(name: str) -> None:
            if name not in called:
                called.add(name)
                self._spawn_beside(spawn, partial(tools.count, name))

        return await tools.most_called(most), answered

    def _exposure(
        self, expose: str, room: RoomPort, view: ProfileView | None, frequently: _Frequently
    ) -> Exposure:
        if expose == "direct":
            from .exposures.direct import Direct, DirectState

            profile = None if view is None else view.name
            if profile not in self._common:
                self._common[profile] = view, DirectState(view or self._port.catalogue, self._commands)
            return Direct(room, self._common[profile][1])
        if expose == "meta":
            from .exposures.code_execution import Runs
            from .exposures.meta import Meta

            self._runs = self._runs or Runs()
            return Meta(room, self._runs, self._commands)
        profile = None if view is None else view.name
        from .exposures.proxy import ChosenTools, Proxy

        if profile not in self._beside:
            self._beside[profile] = view, ChosenTools(view or self._port.catalogue, self._commands)
        frequent, on_answer = frequently
        return Proxy(room, self._beside[profile][1], frequent=frequent, on_answer=on_answer)


def _folder(room: Greenroom, note: Callable[[str], None]) -> TaskFolder | None:
    """Where tasks outlive the gateway, if the configuration says so."""
    named = room.config.settings.tasks_keep
    if named is None:
        return None
    from .task_folder import TaskFolder

    return TaskFolder(Path(named).expanduser(), note)


def _opened(
    endpoint: Endpoint, exposure: Exposure, outlet: Outlet, spawn: Spawn, port: RoomPort
) -> ClientSession:
    """The conversation of a new client."""
    tracing: Tracing | None = port.services.attachment(TRACES)
    if tracing is None:
        return ClientSession(endpoint, exposure, outlet, spawn)
    from .traced_session import TracedSession

    return TracedSession(endpoint, exposure, outlet, spawn, port, tracing)


class _TaskMakers:
    """Whether a server that a client sees makes tasks of calls itself (2026-07-28). Looked up once for each index."""

    def __init__(self, room: RoomPort) -> None:
        self._room = room
        self._index: Index | None = None
        self._found = False

    def __call__(self) -> bool:
        index = self._room.catalogue.index
        if index is not self._index:
            self._index, self._found = index, any(map(self._makes_tasks, index.servers))
        return self._found

    def _makes_tasks(self, server: str) -> bool:
        try:
            entry = self._room.catalogue.entry(server)
        except CallError:  # a reload has just removed it
            return False
        return entry is not None and has_tasks(rpc.MODERN_VERSIONS[-1], entry.capabilities)


async def _outlive(client: ClientSession, ends: AsyncExitStack) -> None:
    """The session of a client that is gone ends when none of its tasks runs any more."""
    try:
        if client.tasks is not None:
            await client.tasks.ended()
    finally:
        _close(client)
        await ends.aclose()


def _close(client: ClientSession) -> None:
    """Nothing of this client goes on."""
    if client.tasks is not None:
        client.tasks.cancel()
    client.close()


def _introduced(room: RoomPort, spawn: Spawn, client: object) -> None:
    """The client has said who it is and what it can answer, so its own servers list what they have."""
    room.introduced(client)
    if room.catalogue.unlisted():
        spawn(room.connections.list_own)


def _checked(expose: str) -> str:
    """The exposure of this name. Raises `UsageError` for an unknown name."""
    if expose not in EXPOSURES:
        raise UsageError(f'Nothing is exposed as "{expose}". Use --expose {", ".join(EXPOSURES)}.')
    return expose
