"""`Greenroom`, the public door that an embedder, the gateway and the command line hold.

It adds no mechanism. Calls and requests are the public methods of `_calls`, which a session has too.
Everything that runs is in the `Runtime`, in the task of `_owner`. This module tells what is known of servers,
and has the operations on servers by name.

Only these start a server: a call (of a known tool, or of an unknown name with its prefix), its lifecycle, a
visit to learn what it has, and a request by name (`connect`, `restart`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ..actors import ConnectorFactory, ServerActor, Subscription, Sync, all_of, in_turns
from ..actors.apart import apart
from ..protocol.address import Address
from ..protocol.catalogue import ServerEntry
from ..protocol.config import Config
from ..protocol.errors import CallError, UsageError
from ..protocol.events import Kind
from ..protocol.index import Index, Missing, Target
from ..protocol.lifecycle import Cause, Ending, State
from ..protocol.pinning import PinKey
from ..protocol.search import SearchPage, search
from ..protocol.slices import Pace, Slices, finish
from ..protocol.status import ServerStatus
from ..protocol.version import VERSION
from ._accepting import accept
from ._approval_desk import Desk
from ._auditing import audit_file, caller_of
from ._callbacks import Answer, Callbacks, OnApproval, OnLog, OnNotification, Roots
from ._calls import Calls
from ._drain_report import DrainReport
from ._files import open_config, open_store, with_objects
from ._given import function, kinds_of, maker, name_of, named_values, seconds, text
from ._learned import Recalled
from ._owner import Owner
from ._reload import ReloadPlan, plan_reload
from ._runtime import Runtime
from ._session import Session
from ._standing import to_reconnect
from ._status_rows import addresses, status_row

if TYPE_CHECKING:
    from ..actors import AuthFor

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config


class Greenroom(Calls):
    """A room of supervised MCP servers. Make it with `Greenroom.open`, enter it with `async with`."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        super().__init__(caller_of(runtime))
        self.audit = runtime.audit  # the file that `audit` names; None: there is none
        self.config = config
        self._in_process: dict[str, Any] = {}
        self._runtime = runtime
        self._owner = Owner(runtime)

    @classmethod
    def open(
        cls,
        config: ConfigSource,
        *,
        bootstrap: bool | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        connectors: ConnectorFactory | None = None,
        auth: AuthFor | None = None,
        in_process: Mapping[str, Any] | None = None,
        on_sampling: Answer | None = None,
        on_elicitation: Answer | None = None,
        roots: Roots | None = None,
        on_log: OnLog | None = None,
        on_notification: OnNotification | None = None,
        on_approval: OnApproval | None = None,
        capabilities: Mapping[str, Any] | None = None,
        audit: str | os.PathLike[str] | None = None,
    ) -> Greenroom:
        """A room over `config`: a path, a dict of the same shape, or a `Config`. Nothing runs before it is
        entered.

        `bootstrap` False: do not start servers in the background just to learn their tools (default: as
        configured). `cache_path`: the catalogue's file; None: this user's; ":memory:": none. `connectors`
        replaces the way servers are reached, for tests. `auth(definition)` makes the `httpx2.Auth` that logs
        in at an HTTP server (such as the SDK's `OAuthClientProvider`), or returns None. It is called for each
        incarnation. `in_process`: further servers by name, each an `MCPServer` or `Server` of the SDK, a
        `FastMCP`, or a function that makes one. Raises `ConfigError` when the configuration cannot be used at
        all.

        The requests that servers send to their client are answered by `on_sampling` and `on_elicitation`
        (`async (ServerRequest) -> result`, which may raise `RpcRefusal`) and by `roots` (paths, URIs, root
        objects, or an async callable that returns them). Each is declared to servers only if it is given;
        `capabilities` adds to what is declared. `on_log(address, params)` gets log messages.
        `on_notification(address, method, params)` gets every notification except progress.

        `on_approval` (`async (ApprovalRequest) -> Verdict | None`) decides about the calls that somebody has to allow
        (`approve`), before anybody else is asked; None leaves it to them. If it raises, the answer is no. `audit`: a
        file that gets a line for each call; entering the room raises `UsageError` if it cannot be written.
        """
        for name, server in (named_values(in_process, "in_process") or {}).items():
            if server is None:
                raise UsageError(
                    f'in_process has None for "{name}": give a server, or a function that makes one.'
                )
        function(on_approval, "on_approval")
        loaded = with_objects(open_config(config), in_process or {})
        runtime = Runtime(
            loaded,
            open_store(cache_path, loaded.settings),
            bootstrap=loaded.settings.bootstrap if bootstrap is None else bootstrap,
            connectors=maker(connectors, "connectors", "a connector", "open", or_none=False),
            auth=maker(auth, "auth", "an httpx2.Auth", "async_auth_flow", or_none=True),
            client_info={"name": "greenroom", "version": VERSION},
            callbacks=Callbacks(
                on_sampling, on_elicitation, roots, on_log, on_notification, capabilities or {}
            ),
        )
        runtime.sessions.approve_with(on_approval)
        runtime.audit = audit_file(audit)
        room = cls(loaded, runtime)
        room._in_process = dict(in_process or {})
        return room

    # ---- open and close ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Greenroom:
        await self._owner.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._owner.leave()

    async def start(self, task_group: Any = None) -> None:
        """Open the room in `task_group` (a trio nursery or an anyio task group). On asyncio it may be left
        out: the room then has an owner task of its own. End it with `aclose`."""
        await self._owner.start(task_group)

    async def aclose(self, patience: float | None = None) -> None:
        """End the room: calls in flight may take `patience` seconds more (default: the configured drain
        time), every server is stopped, `drain_report` is set. Bounded; idempotent; finishes even when its
        caller is cancelled. In a forked copy it does nothing, because the room belongs to the parent."""
        await self._owner.aclose(seconds(patience, "patience"))

    def expect_clients(self) -> None:
        """Clients will come and go, in sessions, which can answer different things: servers that they share are told
        from the start that everything can be asked, and who cannot answer is answered for. For a door, before the room
        is opened."""
        self._runtime.sessions.for_many = True

    def await_client(self, seconds: float) -> None:
        """One client comes soon and says what it can answer. Servers that need no call to be started are started then,
        or after `seconds`, and not twice because they were told too little. For a door, before the room is opened."""
        self._runtime.client_within = seconds

    @property
    def _live(self) -> Runtime:
        """The machinery. Raises `UsageError` before the room is opened."""
        return self._caller.live

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The value of `GREENROOM_ROOM` in the environment of each process of this room."""
        return self._runtime.run_id

    @property
    def drain_report(self) -> DrainReport | None:
        """How the calls of this room ended. While it is open: those so far, and how many are `open`. None before it is
        opened."""
        return self._runtime.report_so_far

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many calls were not accepted so far, by error code."""
        return dict(self._live.context.tally.refusals)

    @property
    def slots_held(self) -> int:
        """How many slots of the pool are held, of `maxConnections`."""
        return self._live.root.admission.starts.slots_held

    @property
    def approvals(self) -> Desk:
        """The calls that wait for a person's yes, for whoever shows them at a terminal."""
        return self._live.root.approvals.desk

    async def settled(self) -> Index:
        """Wait until everything that servers have listed so far is in the index. Returns the index."""
        return await self._live.router.ref.ask(Sync)

    async def ready(self) -> None:
        """Wait until every eager and keep-alive server has connected, or has failed once."""
        await self._live.ready()

    async def catalogued(self) -> None:
        """Wait until each server of which nothing was known has been visited once, or has failed to be."""
        await self._live.catalogued()

    @property
    def is_learning(self) -> bool:
        """Whether there are servers of which nothing is known and which are still to be visited for the first
        time."""
        return self._live.is_learning

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server, or None. Raises `UnknownServer`."""
        self._live.root.record(server)
        return self._live.router.entry(server)

    def tools(self, server: str | None = None) -> tuple[Target, ...]:
        """Every callable name (of one server), sorted. Starts nothing."""
        if server is not None:
            self._live.root.record(server)
        return self.index.tools(server)

    def search(
        self, query: str, *, server: str | None = None, limit: int = 12, offset: int = 0
    ) -> SearchPage:
        """Ranked search over names and descriptions: any matching word lists a tool. Starts nothing."""
        return search(self.index, text(query, "A search"), server=server, limit=limit, offset=offset)

    def describe(self, name: str, *, server: str | None = None) -> Target:
        """One tool by name. Starts nothing. Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`."""
        found = self._names.resolve(name, server)
        if isinstance(found, Missing):
            raise self._names.unknown(name)
        return found

    def status(self) -> list[ServerStatus]:
        """A row for each configured server, and one for each further live address."""
        return finish(self.surveying())

    def surveying(self, server: str | None = None) -> Slices[list[ServerStatus]]:
        """The same in slices, because there may be thousands of rows. `server`: only its rows."""
        root, pace, rows = self._live.root, Pace(), list[ServerStatus]()
        now = self._live.context.backend.now
        for number, address in enumerate(addresses(root, server)):
            if number % _A_PIECE == 0 and pace.due():
                yield
            if address.server in root.records:  # it may be gone by now
                counts = self.index.counts(address.server)
                row = status_row(root, address, now(), counts)
                rows.append(self._with_catalogue(row, self.index))
        return rows

    def _with_catalogue(self, row: ServerStatus, index: Index) -> ServerStatus:
        """The row with the faults and problems that the catalogue has for the server, if any."""
        entry = self._live.router.entry(row.server)
        if entry is None:
            return row
        faults, problems = index.faults(row.server), entry.problems
        return attrs.evolve(row, faults=faults, problems=problems) if faults or problems else row

    def events(self, kinds: Iterable[Kind] | None = None) -> Subscription:
        """`async with room.events() as events: async for event in events: …`, from now on, in order. To get
        the very first event, call it before the room is opened, in the loop that will open it."""
        return self._runtime.events.subscribe(kinds_of(kinds))

    def session(
        self,
        name: str,
        *,
        variables: Mapping[str, str] | None = None,
        profile: str | None = None,
        on_sampling: Answer | None = None,
        on_elicitation: Answer | None = None,
        roots: Roots | None = None,
        on_log: OnLog | None = None,
        on_notification: OnNotification | None = None,
        on_approval: OnApproval | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Session:
        """A caller with state of its own: `async with room.session("alice") as s: await s.call(...)`.

        `variables` are what `${session.NAME}` stands for in the entries of servers that are isolated per
        session or per call, for the children of this session and as long as it is open: `{"GITHUB_TOKEN":
        token}`.

        `profile`: the name of a profile of the configuration. What is outside it does not exist for this session.
        Raises `UsageError` for an unknown one.

        `on_approval`: as in `open`, and asked before the room's.

        The other arguments are callbacks, as in `open`. With any of them the session answers for itself: they answer
        what its own children ask, and what a shared server asks while only this session has a call in flight there.
        When several have, the question is refused, because nobody can know which of them it is for. Without any, the
        room's callbacks answer for the session.
        """
        given = (on_sampling, on_elicitation, roots, on_log, on_notification, capabilities)
        host = None if all(one is None for one in given) else Callbacks(*given[:5], capabilities or {})
        function(on_approval, "on_approval")
        view = None if profile is None else self._live.profiles.view(name_of(profile, "a profile"))
        return Session(name, self._live, variables or {}, host, view, on_approval)

    # ---- servers ----------------------------------------------------------------------------------------------------

    async def connect(self, server: str, *, force: bool = False) -> None:
        """Connect a server now, whatever its gate says, and even if it was taken down. One that is connected lists
        again what it has; if it does not, it is started anew, unless calls are open there. `force`: connect it
        again if it is connected. Raises `ConnectFailed`, `UnknownServer`, `ServerDown` (disabled, broken
        definition)."""
        if force and any(actor.is_connected for actor in self._live.root.actors_of(server)):
            await self.restart(server)
        else:
            await self._caller.connect_by_name(server)

    async def drain(self, server: str) -> None:
        """Take a server down: calls in flight finish, new ones are refused, then its process is stopped. It
        stays down until it is connected or restarted by name. Raises `UnknownServer`."""
        root = self._live.root
        closed = [self._when_closed(actor) for actor in root.actors_of(server)]
        root.take_down(server, Ending(Cause.DRAINED))
        for event in closed:
            await event.wait()

    async def restart(self, server: str) -> None:
        """End the present incarnation (calls in flight finish) and connect the next.

        If the present incarnation is still being installed, it is not ended but waited for. It is as good as
        the next one, and killing it would leave a broken cache behind. With a child per session, the children
        of all sessions end, and start again when they are called. Raises as `connect` does.
        """
        root = self._live.root
        for actor in root.actors_of(server):
            live = actor.life.state in (State.CONNECTING, State.CONNECTED, State.DRAINING)
            if live and not root.supervision.visiting.is_first_start(actor):
                actor.stop(Ending(Cause.RESTART))
        await self._caller.connect_by_name(server)

    async def reload(self, config: ConfigSource, *, dry_run: bool = False) -> ReloadPlan:
        """Apply another configuration with the fewest changes. Unchanged servers notice nothing. A changed
        policy applies at once. With another definition the old incarnation drains first. `dry_run`: only
        return the plan. Raises `ConfigError`, and then nothing has changed."""

        def prepare() -> tuple[Config, ReloadPlan, Recalled]:
            loaded = with_objects(open_config(config), self._in_process)
            return loaded, plan_reload(self.config, loaded), live.recall(loaded)

        live = self._live
        async with live.reloading:
            loaded, plan, recalled = await apart(prepare) if live.store.blocks else prepare()
            if not dry_run:
                defined = await self._define_ahead(loaded, plan)
                self.config = loaded
                await all_of(live.applying(loaded, plan, recalled, defined))
                await self._live.router.ref.ask(Sync)
        return plan

    async def _define_ahead(self, config: Config, plan: ReloadPlan) -> frozenset[str]:
        """Define the new servers in slices, because with thousands of them one step would take too long. No
        name leads to them yet. If this is cancelled in between, they are removed again. Returns their names,
        without those servers that were removed before and of which something is still left."""
        root = self._live.root
        new = [name for name in plan.start if name not in root.records]
        try:
            await in_turns(root.defining(config.servers[name] for name in new))
        except BaseException:
            await all_of(root.removing(new))
            raise
        return frozenset(new)

    @property
    def pin_keys(self) -> Mapping[str, PinKey]:
        """Under which keys the catalogue and the pins have the configured servers."""
        return self._live.pins.keys

    async def accept(self, server: str | None = None, tool: str | None = None) -> list[str]:
        """Accept the changed definition of a tool, or of all changed tools of a server; returns their own names.
        Without a server: take over what was accepted elsewhere. Raises `UnknownServer`, `UnknownTool`, `OSError`."""
        return await accept(self._live, server, None if tool is None else name_of(tool, "a tool"))

    def refresh(self, server: str | None = None) -> list[str]:
        """Visit the servers of which nothing is known, or this one, and return their names. If this one is connected,
        it lists again what it has. `catalogued` waits for the visits. Raises `UnknownServer`, `ServerDown` for a
        server that is out of service, and `CredentialNeeded` for one that only a session can start."""
        live = self._live
        if server is not None:
            live.root.bring_back(server)
            live.sessions.check(live.root.record(server).definition, None)
            return live.visit([server])
        entries = {name: live.router.entry(name) for name in live.root.records}
        return live.visit([name for name, entry in entries.items() if entry is None or not entry.known])

    async def reconnect(self, server: str | None = None) -> list[tuple[str, CallError | None]]:
        """Restart one server; or restart all live ones and connect eager and keep-alive ones, in parallel.
        Idle lazy servers are left alone. Returns each server with its error, or None."""
        root = self._live.root
        names = [root.record(server).definition.name] if server is not None else to_reconnect(root)
        outcomes: dict[str, CallError | None] = {}

        async def one(name: str) -> None:
            try:
                await self.restart(name)
            except CallError as error:
                outcomes[name] = error
            else:
                outcomes[name] = None

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        return [(name, outcomes[name]) for name in names]

    def _when_closed(self, actor: ServerActor) -> anyio.Event:
        event = anyio.Event()
        if actor.life.state in (State.IDLE, State.CLOSED):
            event.set()
        else:
            self._live.root.supervision.on_closed(actor, event.set)
        return event


__all__ = ["Address", "ConfigSource", "Greenroom"]

_A_PIECE = 4  # rows of the status that are made in a tenth of a millisecond
