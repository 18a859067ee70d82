"""`ClusterRoom`: a room whose servers live on the hosts of a cluster.

It is an ordinary `Greenroom`. Only the way to a server differs: a server's actor here connects to the host where its
address lives (`HostConnector`), over a link (`protocol.links`). So a connected
server here is a link, and what idles, is evicted or restarted here are links. The process is the host's, and ends soon
after its last link.

What stands between a caller and a server (names, profiles, approval, pins, credentials in results, audit) is done
here, once. The host does what belongs to a process: start, limits, restarts, its circuit breaker.

What happens when a host is lost is what happens when any server is lost: a call that was not sent is queued again and
goes to the next link, which is made to wherever the address lives then; one that was sent ends with `sent`.

A server in the process, or behind a unix socket, is reached from here as in any room.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import anyio

from ..actors.backend import Backend, current_backend, pump_group
from ..actors.peer import Connector, LostReason, PeerHooks, connect_failed
from ..actors.transports.link import LAST_ANSWERS, LinkPeer, linked
from ..actors.transports.unix_socket import SocketConnection
from ..actors.workers import apart
from ..config.files import open_config
from ..config.model import Config, ServerDefinition, Settings
from ..config.references import session_names
from ..protocol.address import Address
from ..protocol.errors import CredentialNeeded, UsageError
from ..protocol.events import NoteCode
from ..protocol.links import NoLink
from ..supervisor.room import ConfigSource, Greenroom, ReloadPlan, port_of
from .directory import Directory, DirectorySilent
from .host_config import for_front, is_of_hosts, packed, unpacked
from .leases import SpentLimits
from .membership import HostSilent, Membership
from .placement import HostInfo, owner

__all__ = ["ClusterRoom", "HostInfo"]

_TRIES: Final = 10  # to reach a directory when a front begins
_LIMITS_EVERY: Final = 1.0  # seconds between two reports of what limits have let pass
_GREETED_WITHIN: Final = 5.0  # seconds; a host that is asked has just said that it is ready


class ClusterRoom(Greenroom):
    """A room whose servers run on the hosts of a cluster. Make it with `ClusterRoom.open`, and use it like a
    `Greenroom`."""

    _membership: Membership
    _given: Config  # as it was posted
    _version: int = 0  # of the configuration in use
    _cluster: tuple[Directory | str, str]  # its directory, or the address of the Ray cluster; and its token

    @classmethod
    def open(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        config: ConfigSource,
        *,
        ray: str | None = None,
        directory: Directory | None = None,
        token: str = "",
        **options: Any,
    ) -> ClusterRoom:
        """A room with the servers of `config`, which run on the hosts of a cluster. `ray`: the address of the Ray
        cluster ("auto": that of this machine). `directory` and `token`: for a cluster without Ray. `options`: the
        arguments of `Greenroom.open`, except `connectors`. Raises the same errors.

        When you enter the room, its configuration applies to the whole cluster, with all hosts and fronts. This may
        take some seconds. Raises `UsageError` if Ray is not installed, or if there is no cluster."""
        if directory is None and ray is None:
            raise UsageError('ClusterRoom.open needs the address of a Ray cluster, as in ray="auto".')
        given, connectors = open_config(config), _FrontConnectors()
        room = super().open(for_front(given), connectors=connectors, **options)
        assert isinstance(room, ClusterRoom)
        room._given, room._cluster = given, (directory or str(ray), token)
        connectors.room = room
        # A link is told at once all that any client could answer: what is behind it is not started again for a link.
        port_of(room).services.expect_clients()
        return room

    @property
    def membership(self) -> Membership:
        """What this front knows of the cluster."""
        return self._membership

    def hosts(self) -> tuple[HostInfo, ...]:
        """The hosts of the cluster, as they last reported."""
        return self._membership.view.hosts

    def host_of(self, server: str) -> HostInfo | None:
        """The host that runs this `persistent` server, or would run it now. Raises `UnknownServer`."""
        definition = port_of(self).fleet.definition(server)
        return owner(Address(server), definition.placement, self._membership.view)

    # ---- open and close ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> ClusterRoom:
        await self._begin(super().__aenter__)
        return self

    async def start(self, task_group: Any = None) -> None:
        """As `Greenroom.start`. Raises also `UsageError`: there is no such cluster, or Ray is not installed."""
        await self._begin(partial(super().start, task_group))

    async def _begin(self, open_room: Callable[[], Awaitable[object]]) -> None:
        where, token = self._cluster
        if isinstance(where, str):
            from .ray_directory import connect

            found, _ = await apart(partial(connect, where))
            membership = Membership(found, found.token, found.close)
        else:
            membership = Membership(where, lambda: token)
        self._membership = membership
        try:
            try:
                await self._share_config(membership.directory)
            except DirectorySilent as error:
                if not isinstance(where, str):
                    raise
                from .ray_directory import what_next

                text = f"The Ray cluster at {where} cannot be used: {error}. {what_next(where)}"
                raise UsageError(text) from None
            await membership.refresh()
            membership.followed = self._follow
            await open_room()
            port_of(self).services.spawn(membership.run)
            port_of(self).services.spawn(self._share_limits)
        except BaseException:
            await membership.close()
            raise

    async def _share_config(self, directory: Directory) -> None:
        """Make our configuration the cluster's. A directory that is being started again is waited for."""
        for left in reversed(range(_TRIES)):
            try:
                version, raw = await directory.config()
                if version == 0 or unpacked(raw) != self._given:
                    version = await directory.post_config(packed(self._given))
                self._version = version
                return
            except DirectorySilent:
                if not left:
                    raise
                await anyio.sleep(directory.look_every)

    async def _share_limits(self) -> None:
        """Tell the other fronts what limits have let pass here, and hear it of them. Runs until cancelled."""
        fleet, name, number = port_of(self).fleet, uuid4().hex, 0
        untold: SpentLimits | None = None  # a report whose answer did not come, which is made again
        while True:
            if fleet.has_limits:
                if untold is None:
                    untold, number = fleet.spent_limits(), number + 1
                with suppress(DirectorySilent):
                    fleet.heed_limits(await self._membership.directory.spend(name, number, untold))
                    untold = None
            await anyio.sleep(_LIMITS_EVERY)

    async def _follow(self, version: int) -> None:
        """Take over a configuration that another front has posted, or give ours to a directory that has none as new:
        it was started again."""
        if version == self._version:
            return
        directory = self._membership.directory
        try:
            posted, raw = await directory.config()
            if posted > self._version:
                self._version, self._given = posted, unpacked(raw)
                await super().reload(for_front(self._given))
            elif posted < self._version:
                await directory.offer_config(self._version, packed(self._given))
        except (DirectorySilent, UsageError) as error:
            port_of(self).services.note(str(error), code=NoteCode.CONFIGURATION)

    # ---- servers ----------------------------------------------------------------------------------------------------

    async def drain(self, server: str) -> None:
        """Take a server down on all hosts, like `Greenroom.drain`."""
        port_of(self).fleet.definition(server)  # or it is unknown
        await self._tell_hosts("/cluster/drain", server)
        await super().drain(server)

    async def restart(self, server: str) -> None:
        """End the processes of a server on its hosts (calls in flight finish), and connect it again, like
        `Greenroom.restart`."""
        name = port_of(self).fleet.definition(server).name
        await self._tell_hosts("/cluster/restart", name)
        await super().restart(name)

    async def reload(self, config: ConfigSource, *, dry_run: bool = False) -> ReloadPlan:
        """Apply another configuration to the whole cluster, with all hosts and fronts, like `Greenroom.reload`."""
        given = open_config(config)
        if not dry_run:
            posted = await self._membership.directory.post_config(packed(given))
            self._version, self._given = posted, given
        return await super().reload(for_front(given), dry_run=dry_run)

    async def _tell_hosts(self, path: str, server: str) -> None:
        """Tell every host that may run it. One that does not answer is on its way out."""
        await self._membership.refresh()

        async def tell(host: HostInfo) -> None:
            with suppress(HostSilent):
                await self._membership.ask(host, path, {"server": server}, within=None)

        async with anyio.create_task_group() as tasks:
            for host in self._membership.view.hosts:
                if not host.is_late:
                    tasks.start_soon(tell, host)


# ---- The way to a server --------------------------------------------------------------------------------------------


class _FrontConnectors:
    """The `ConnectorFactory` of a front."""

    room: ClusterRoom  # set before it is called

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        port = port_of(self.room)
        if not is_of_hosts(definition):
            return port.fleet.connector(definition, address, incarnation)
        try:
            given = port.fleet.session_values(definition, address)
        except CredentialNeeded as error:
            raise connect_failed(address.server, LostReason(str(error))) from None
        names = session_names(definition)
        variables = {name: given[name] for name in names if name in given}
        settings = port.catalogue.config.settings
        return HostConnector(
            self.room.membership, definition, address, variables, current_backend(), settings
        )


class HostConnector:
    """Reaches one incarnation of a server through the host where it lives. `variables`: the values of its session."""

    def __init__(
        self,
        membership: Membership,
        definition: ServerDefinition,
        address: Address,
        variables: Mapping[str, str],
        backend: Backend,
        settings: Settings,
    ) -> None:
        self._membership = membership
        self._definition = definition
        self._address = address
        self._variables = variables
        self._backend = backend
        self._settings = settings

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[SocketConnection[LinkPeer]]:
        """Find the host, and connect to it: to the next one while they refuse. Raises `ConnectFailed`."""
        note = partial(hooks.on_note, NoteCode.ODD)
        async with AsyncExitStack() as stack:
            while True:
                host = await self._membership.place(self._definition, self._address, note)
                opening = linked(
                    urlsplit(host.url).hostname or "",
                    host.link_port,
                    self._membership.hello(host, self._address.server, self._variables),
                    hooks,
                    self._backend,
                    self._settings,
                    _GREETED_WITHIN,
                    self._membership.cover(note),
                )
                try:
                    connection = await stack.enter_async_context(opening)
                    break
                except (NoLink, OSError):  # it has just ended, or is not the one any more
                    await self._membership.look_again()
            tasks = await stack.enter_async_context(pump_group())
            tasks.start_soon(self._watch, host, connection)
            try:
                yield connection
            finally:
                tasks.cancel_scope.cancel()

    async def _watch(self, host: HostInfo, connection: SocketConnection[LinkPeer]) -> None:
        """Send nothing to a host that has not been heard of for a while, and look elsewhere when it is gone."""
        while (now := self._membership.life_of(host)) is not None:
            connection.peer.hold(now.is_late)
            await self._membership.next_view()
        connection.peer.move()
        await anyio.sleep(LAST_ANSWERS)
        connection.over(f'its host "{host.name}" is gone')
