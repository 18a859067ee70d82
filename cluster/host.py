"""A host: one room and its HTTP door, for as long as a lease allows, again and again.

A *life* of a host is a room under one epoch. It joins the directory, renews its lease every two seconds, and ends when
the directory says so, when the lease cannot be renewed, or when the host is asked to stop. Then everything is closed,
and the next life begins with another epoch and another room. So nothing of a former life can be mistaken for the
present one.

* Nothing that waits for the directory holds up calls. One request to it is under way at a time; its answer counts only
  if it was not given up.
* The guard is told after each renewal until when children may live. It keeps that deadline where this process cannot,
  because it is stopped.
* A room whose lease runs out is closed before the deadline: `refuse_before` seconds are left for that.
* What a former process of this host left behind is ended before anything is claimed, and the directory is told.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import attrs

from ..actors.peer import Connector, LostReason, connect_failed
from ..actors.workers import apart
from ..config.model import Config, ServerDefinition
from ..config.references import isolation_of
from ..gateway.doors.http_auth import Token
from ..gateway.serve import HttpOptions, Options, Served, served_http
from ..gateway.views import room_status_view
from ..protocol.address import Address
from ..protocol.errors import GreenroomError
from ..protocol.lifecycle import Cause, Ending, State
from ..protocol.version import VERSION
from ..supervisor.room import Greenroom, port_of
from .directory import Directory, DirectorySilent
from .host_config import for_host, packed, unpacked
from .host_door import Fence
from .leases import (
    Fenced,
    Granted,
    HeldBy,
    HostLease,
    Joined,
    Joining,
    LeaseTimes,
    Predecessor,
    Renewed,
    Unknown,
    Wait,
)
from .placement import needs_claim, share

_AGAIN: Final = 0.5  # seconds until the directory is asked again after it was silent
_MARK: Final = "GREENROOM_ROOM="  # what each process of a room carries in its environment
_LOOKS: Final = 100  # for what is left of a former life
_LOOK_EVERY: Final = 0.02  # seconds
_RESTING: Final = (State.IDLE, State.CLOSED)


@attrs.frozen
class HostAbout:
    """What a host says of itself. `name`: the same for all its lives. `bind`: the address where the others reach it."""

    name: str
    bind: str = "127.0.0.1"
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
    resources: Mapping[str, float] = attrs.field(factory=dict[str, float])


class ClusterHost:
    """A host of the cluster of `directory`. `token`: the cluster's, of 16 characters or more. `say` takes a line for
    the log. `cache_path`: of the catalogue, as for `Greenroom.open`."""

    def __init__(
        self,
        about: HostAbout,
        directory: Directory,
        *,
        token: str,
        times: LeaseTimes | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        say: Callable[[str], object] = lambda _text: None,
    ) -> None:
        self.about = about
        self.directory = directory
        self.token = token
        self.times: LeaseTimes = times or LeaseTimes()
        self.cache_path = cache_path
        self.say = say
        self.life: HostLife | None = None
        self._stop = anyio.Event()

    def stop(self) -> None:
        """End politely: calls in flight may finish. From another thread: through its loop."""
        self._stop.set()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Be a host until `stop`, until it has been drained and nothing runs here any more, or until cancelled. Started
        once it has joined."""
        is_told = False

        def joined() -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                task_status.started()

        while not self._stop.is_set():
            try:
                version, config = await self._configuration()
                await self._live(version, config, joined)
            except (GreenroomError, OSError) as error:
                self.say(f"the host has to begin anew: {error}")
                await self._sleep(_AGAIN)

    @property
    def rests(self) -> bool:
        """Whether nothing runs here, and no front has a link. May be asked from another thread."""
        life = self.life
        return life is None or life.rests

    async def _configuration(self) -> tuple[int, Config]:
        """What the fronts have posted, or nothing yet. Waits for the directory."""
        while not self._stop.is_set():
            with suppress(DirectorySilent):
                version, raw = await self.directory.config()
                return version, await apart(partial(unpacked, raw)) if version else Config()
            await self._sleep(_AGAIN)
        return 0, Config()

    async def _sleep(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stop.wait()

    async def _live(self, version: int, config: Config, joined: Callable[[], None]) -> None:
        """One life, from its room to its end."""
        if self._stop.is_set():
            return
        life = HostLife(self, version, config)
        options = Options(expose="direct", version=VERSION)
        http = HttpOptions(self.about.bind, 0, (Token.of("cluster", self.token),))
        try:
            async with served_http(
                for_host(config, 1, self.about.bind), life.open_room, options, http, wrap=life.fenced
            ) as served:
                life.served = served
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._until_stopped, life)
                    await life.run(joined)
                    tasks.cancel_scope.cancel()
        finally:
            self.life = None
        await life.left()

    async def _until_stopped(self, life: HostLife) -> None:
        await self._stop.wait()
        life.end(None)


class HostLife:
    """One life of a host: the lease of one epoch, and the room under it."""

    served: Served

    def __init__(self, host: ClusterHost, version: int, config: Config) -> None:
        self.epoch: str = ""
        self.is_draining: bool = False
        self._host = host
        self._version = version
        self._config = config  # as it was posted
        self._hosts = 1
        self._lease = HostLease(host.times)
        self._claims: set[str] = set()
        self._number = 0
        self._asking = anyio.Lock()
        self._ended = anyio.Event()
        self._due = anyio.Event()  # a renewal is due at once
        self._patience: float | None = None
        self._fence: Fence

    @property
    def rests(self) -> bool:
        return not self._claims and not any(list(self._fence.links.values()))

    # ---- the room ---------------------------------------------------------------------------------------------------

    def open_room(self, config: Config) -> Greenroom:
        connectors = _Claimed(self)
        room = Greenroom.open(config, connectors=connectors, cache_path=self._host.cache_path)
        connectors.room = room
        return room

    def fenced(self, app: Any, room: Greenroom) -> Any:
        self._fence = Fence(app, room, self, self._host.token)
        return self._fence

    @property
    def may_serve(self) -> bool:
        return bool(self.epoch) and not self._ended.is_set() and self._lease.may_serve(time.monotonic())

    def holds(self, server: str) -> bool:
        """Whether this host may run the server now."""
        return server in self._claims or not self._is_single(server)

    def _is_single(self, server: str) -> bool:
        definition = self._config.servers.get(server)
        return definition is not None and needs_claim(
            definition, isolation_of(definition, self._config.settings)
        )

    # ---- from the first to the last renewal --------------------------------------------------------------------------

    async def run(self, joined: Callable[[], None]) -> None:
        """Join, and renew until this life ends. Then close the room."""
        try:
            await self._join(None)
            self._host.life = self
            joined()
            while not self._ended.is_set():
                await self._wait(self._host.times.renew_every)
                await self._renew()
        finally:
            patience = self._patience if self._lease.may_serve(time.monotonic()) else 0.0
            with anyio.CancelScope(shield=True):
                await self.served.end(patience)

    def end(self, patience: float | None) -> None:
        """This life is over. `patience`: seconds for calls in flight; None: as configured."""
        if not self._ended.is_set():
            self._patience = patience
            self._ended.set()
            self._due.set()

    async def left(self) -> None:
        """Tell the directory that nothing of this life is left."""
        if self.epoch:
            with suppress(DirectorySilent), anyio.move_on_after(self._host.times.renew_every):
                await self._host.directory.leave(self.epoch)

    def hurry(self) -> None:
        """Renew now: the directory may have news."""
        self._due.set()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._due.wait()
        if not self._ended.is_set():
            self._due = anyio.Event()

    async def _join(self, epoch: str | None) -> None:
        """Join until the directory answers, or come back to one that has forgotten us."""
        about, url = self._host.about, self.served.url.removesuffix("/mcp")
        while not self._ended.is_set():
            sent = time.monotonic()
            joining = Joining(
                name=about.name,
                url=url,
                pid=os.getpid(),
                began=_began(os.getpid()),
                run_id=self.served.room.run_id,
                labels=about.labels,
                resources=about.resources,
                epoch=epoch,
                claims=frozenset(self._claims),
            )
            try:
                said = await self._host.directory.join(joining)
            except DirectorySilent:
                if epoch is not None:
                    return  # the next renewal tries again
                await self._wait(_AGAIN)
                continue
            if isinstance(said, Fenced):
                self.end(0.0)
                return
            await self._take_over(said)
            self.epoch = said.epoch
            self._renewed(sent)
            return

    async def _take_over(self, said: Joined) -> None:
        """End what is left of former lives, and say so."""
        for former in said.predecessors:
            if await apart(partial(end_predecessor, former)):
                await self._host.directory.predecessor_gone(said.epoch, former.epoch)

    def _renewed(self, sent: float) -> None:
        self._lease.renewed(sent)
        port_of(self.served.room).end_children_at(self._lease.children_until)

    async def _renew(self) -> None:
        async with self._asking:
            if self._ended.is_set():
                return
            self._give_back()
            sent, self._number = time.monotonic(), self._number + 1
            try:
                said = await self._host.directory.renew(
                    self.epoch,
                    self._number,
                    frozenset(self._claims),
                    port_of(self.served.room).shut(),
                )
            except DirectorySilent:
                if not self._lease.may_serve(time.monotonic()):
                    self.end(0.0)
                return
            if isinstance(said, Renewed):
                self._renewed(sent)
                await self._heed(said)
            elif isinstance(said, Unknown) and self._lease.may_serve(time.monotonic()):
                await self._join(self.epoch)
            else:
                self.end(0.0)

    async def _heed(self, said: Renewed) -> None:
        """Do what follows from a renewal."""
        self.is_draining = said.is_draining
        port_of(self.served.room).heed_shut(said.breakers)
        if self.is_draining and self.rests:
            self._host.stop()
        if said.config_version < self._version:
            await self._host.directory.offer_config(self._version, packed(self._config))
            return
        if said.config_version > self._version:
            version, raw = await self._host.directory.config()
            self._version, self._config = version, await apart(partial(unpacked, raw))
        elif share(self._config.settings.max_connections, said.hosts) == share(
            self._config.settings.max_connections, self._hosts
        ):
            return
        self._hosts = said.hosts
        await self.served.room.reload(for_host(self._config, said.hosts, self._host.about.bind))

    # ---- claims -----------------------------------------------------------------------------------------------------

    async def take(self, server: str) -> Granted | HeldBy | Wait:
        """Claim a server. While the directory is silent, that has to wait."""
        async with self._asking:
            if self.holds(server):
                return Granted()
            if not self.may_serve:
                return Wait(_AGAIN)
            self._number += 1
            try:
                said = await self._host.directory.claim(self.epoch, self._number, server)
            except DirectorySilent:
                return Wait(_AGAIN)
            if isinstance(said, Fenced | Unknown):
                return Wait(_AGAIN)  # the next renewal finds out what to do
            if isinstance(said, Granted):
                self._fence.used[server] = time.monotonic()
                self._claims.add(server)
            return said

    def _give_back(self) -> None:
        """Claim no longer what rests: no child, and no link or, where this host drains, no call."""
        root = port_of(self.served.room).live.root
        for server in list(self._claims):
            actors = root.actors_of(server) if server in root.records else []
            if self.is_draining and not any(actor.in_flight or actor.queued for actor in actors):
                for actor in actors:
                    actor.stop(Ending(Cause.EVICTED))
            elif self._fence.is_wanted(server) and server in root.records:
                continue
            if all(actor.life.state in _RESTING for actor in actors):
                self._claims.discard(server)
                self._fence.unlink(server)

    async def account(self) -> Mapping[str, Any]:
        """What an operator is told of this host."""
        room = self.served.room
        report = room.drain_report
        return {
            **await room_status_view(port_of(room)),
            "name": self._host.about.name,
            "epoch": self.epoch,
            "draining": self.is_draining,
            "leaseSeconds": round(self._lease.children_until - time.monotonic(), 3),
            "holds": sorted(self._claims),
            "links": {server: count for server, count in self._fence.links.items() if count},
            "calls": None if report is None else attrs.asdict(report),
        }


class _Claimed:
    """The `ConnectorFactory` of a host: nothing starts that this host may not run."""

    room: Greenroom  # set before it is called

    def __init__(self, life: HostLife) -> None:
        self._life = life

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        if not (self._life.may_serve and self._life.holds(address.server)):
            raise connect_failed(address.server, LostReason("this host of the cluster may not run it now"))
        return port_of(self.room).live.connectors(definition, address, incarnation)


def end_predecessor(former: Predecessor) -> bool:
    """End a former process of this host, and the processes of its room. Returns whether nothing of them is left. Only
    where processes can be looked into (Linux); elsewhere the former lease has to run out."""
    if former.pid == os.getpid():
        return True  # an earlier room of this process, which has been closed
    if not _began(os.getpid()):
        return False
    mark = (_MARK + former.run_id).encode()
    for _ in range(_LOOKS):
        left = [pid for pid in _others() if mark in _words(pid, "environ")]
        if _began(former.pid) == former.began:
            left.append(former.pid)
        # Its guard has the mark among its arguments. It ends by itself, last of all.
        if not left and not any(mark in _words(pid, "cmdline") for pid in _others()):
            return True
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY)
    return False


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _words(pid: int, what: str) -> list[bytes]:
    """The environment or the command line of a process; nothing if it is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []


def _began(pid: int) -> str:
    """When a process was started; empty if it is gone, or only waits to be reaped, or cannot be looked into."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(") ")[2].split()
    except OSError:
        return ""
    return fields[18] if state != "Z" and len(fields) > 18 else ""
