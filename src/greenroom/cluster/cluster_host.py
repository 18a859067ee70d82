"""A host: one room and its doors, for as long as a lease allows, again and again.

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

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import attrs
import msgspec

from ..actors.backend import sole
from ..actors.peer import Connector, LostReason, connect_failed
from ..actors.timers import at_most
from ..actors.workers import apart
from ..config.model import Config, ServerDefinition
from ..config.references import isolation_of
from ..gateway.doors.http_auth import BearerToken
from ..gateway.doors.http_server import bound
from ..gateway.doors.link_door import Cover, LinkDoor
from ..gateway.json_views import room_status_view
from ..gateway.serve import HttpOptions, Options, ServedRoom, served_http
from ..protocol.address import Address
from ..protocol.errors import GreenroomError
from ..protocol.version import VERSION
from ..supervisor.room import Greenroom, port_of
from .directory import Directory, DirectorySilent
from .encryption import Encryption, encryption
from .host_config import for_host, packed, unpacked
from .host_door import Fence
from .leases import (
    FencedReply,
    GrantReply,
    HolderReply,
    HostLease,
    JoinReply,
    JoinRequest,
    LeaseTimes,
    Predecessor,
    RenewalReply,
    UnknownHostReply,
    WaitReply,
)
from .placement import needs_claim

_AGAIN: Final = 0.5  # seconds until the directory is asked again after it was silent
_MARK: Final = "GREENROOM_ROOM="  # what each process of a room carries in its environment
_LOOK_AGAIN: Final = 0.5  # seconds until it is seen whether the last calls have ended
_LAST: Final = 0.5  # seconds, for a call that came just then
_LOOKS: Final = 100  # for what is left of a former life
_LOOK_EVERY: Final = 0.02  # seconds


@attrs.frozen
class HostAbout:
    """What a host says of itself. `name`: the same for all its lives. `bind`: the address where the others reach it."""

    name: str
    bind: str = "127.0.0.1"
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
    resources: Mapping[str, float] = attrs.field(factory=dict[str, float])


class ClusterHost:
    """A host of the cluster of `directory`. `token`: the cluster's, of 16 characters or more. `say` takes a line for
    the log. `cache_path`: of the catalogue, as for `Greenroom.open`. Raises `UsageError`: the files to encrypt with
    (`encryption`) cannot be used."""

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
        self.encryption: Encryption | None = encryption()
        self.life: HostLife | None = None
        self.newest: tuple[int, Config] = (0, Config())  # that any life has heard of; a directory may forget
        self._stop = anyio.Event()

    def stop(self) -> None:
        """End politely: calls in flight may finish. From another thread: through its loop."""
        self._stop.set()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Be a host until `stop`, or until cancelled. Started once it has joined. One that is drained stays, and takes
        nothing: whoever runs it sees in `rests` when to stop it."""
        is_told = False

        def joined() -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                task_status.started()

        while not self._stop.is_set():
            try:
                await self._learn()
                await self._live(joined)
            except* (GreenroomError, OSError) as errors:
                self.say(f"the host has to begin anew: {sole(errors)}")
                await self._sleep(_AGAIN)

    @property
    def cover(self) -> Cover:
        """What links are encrypted with, if they are."""
        return nullcontext if self.encryption is None else partial(self.encryption.over, is_server=True)

    @property
    def rests(self) -> bool:
        """Whether nothing runs here, and no front has a link. May be asked from another thread."""
        life = self.life
        return life is None or life.rests

    async def _learn(self) -> None:
        """Take what the fronts have posted. Waits for the directory. Raises `UsageError`."""
        while not self._stop.is_set():
            with suppress(DirectorySilent):
                await self.read()
                return
            await self._sleep(_AGAIN)

    async def read(self) -> None:
        """Read the directory's configuration, if it is newer than ours. Raises `DirectorySilent`, `UsageError`."""
        version, raw = await self.directory.config()
        if version > self.newest[0]:
            self.newest = version, await apart(partial(unpacked, raw))

    async def _sleep(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stop.wait()

    async def _live(self, joined: Callable[[], None]) -> None:
        """One life, from its room to its end."""
        if self._stop.is_set():
            return
        life = HostLife(self)
        options = Options(expose="direct", version=VERSION)
        tokens = (BearerToken.of("cluster", self.token),)
        cert, key = (self.encryption.cert, self.encryption.key) if self.encryption else (None, None)
        http = HttpOptions(self.about.bind, 0, tokens, cert=cert, key=key)
        try:
            async with served_http(
                for_host(self.newest[1], 1, self.about.bind), life.open_room, options, http, wrap=life.fenced
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
        await life.finish()


class HostLife:
    """One life of a host: the lease of one epoch, and the room under it."""

    served: ServedRoom

    def __init__(self, host: ClusterHost) -> None:
        self.epoch: str = ""
        self._is_drained = False  # by somebody who told the directory
        self._host = host
        self._hosts: int = 1
        self._lease = HostLease(host.times)
        self._claims: set[str] = set()
        self._leaving: set[str] = (
            set()
        )  # of these: what ends here, to start elsewhere, and takes nothing meanwhile
        self._drains_since = math.inf
        self._number = 0
        self._asking = anyio.Lock()
        self._is_due = False  # a renewal waits to be sent
        self._said: RenewalReply | None = None  # by the last renewal
        self._news = anyio.Event()
        self._applied = host.newest[0]  # the version of the configuration of the room
        self._unusable = 0  # the version of a configuration that could not be used
        self._ended = anyio.Event()
        self._due = anyio.Event()  # a renewal is due at once
        self._is_leaving = False
        self._patience = 0.0
        self._fence: Fence
        self._links: LinkDoor
        self._link_port = 0

    @property
    def is_draining(self) -> bool:
        return self._is_drained or self._is_leaving

    @property
    def rests(self) -> bool:
        return not self._claims and not self._links.open.total()

    # ---- the room ---------------------------------------------------------------------------------------------------

    def open_room(self, config: Config) -> Greenroom:
        connectors = _ClaimedConnectors(self)
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
        if server in self._claims:
            return server not in self._leaving
        return not self._is_single(server)

    def _is_single(self, server: str) -> bool:
        config = self._host.newest[1]
        definition = config.servers.get(server)
        return definition is not None and needs_claim(definition, isolation_of(definition, config.settings))

    # ---- from the first to the last renewal --------------------------------------------------------------------------

    async def run(self, joined: Callable[[], None]) -> None:
        """Join, and renew until this life ends. Then close the room. While its last calls run, the lease is renewed."""
        settings = self.served.room.config.settings
        self._links = self._fence.links = LinkDoor(
            self.served.conversations, self._fence, settings.max_line, self._host.say, self._host.cover
        )
        try:
            with bound(self._host.about.bind, 0) as listener:
                await self._live(listener, joined)
        finally:
            with anyio.CancelScope(shield=True):
                await self.served.end(0.0)

    async def _live(self, listener: socket.socket, joined: Callable[[], None]) -> None:
        self._link_port = listener.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._links.run, listener)
            await self._join(None)
            if self.epoch:
                self._host.life = self
                joined()
                tasks.start_soon(self._keep)
                tasks.start_soon(self._follow)
                tasks.start_soon(self._watch_lease)
                await self._ended.wait()
                await self.served.end(self._patience)
                await self._links.close()
            tasks.cancel_scope.cancel()

    def end(self, patience: float = 0.0) -> None:
        """This life is over. `patience`: seconds for calls in flight."""
        self._patience = patience
        self._ended.set()
        self._due.set()

    async def finish(self) -> None:
        """End this life politely: take nothing new, let what runs finish for as long as a room that closes does, and
        give back each server when it rests. The lease is renewed meanwhile, and so everybody is told."""
        self._is_leaving = True
        if self.epoch:
            async with at_most(self._host.newest[1].settings.drain_timeout):
                port = port_of(self.served.room)
                while any(map(port.fleet.is_busy, port.catalogue.config.servers)):
                    self.hurry()
                    await anyio.sleep(_LOOK_AGAIN)
        self.end(_LAST)

    async def _keep(self) -> None:
        while not self._ended.is_set():
            await self._wait(_LOOK_AGAIN if self._leaving else self._host.times.renew_every)
            await self._renew()

    async def _watch_lease(self) -> None:
        """Close the room of a lease that cannot be renewed, while there is time and whatever is waited for."""
        while self._lease.may_serve(time.monotonic()):
            with anyio.move_on_after(self._lease.serves_until - time.monotonic()):
                await self._ended.wait()
                return
        self.end()

    async def left(self) -> None:
        """Tell the directory that nothing of this life is left."""
        if self.epoch:
            async with at_most(self._host.times.renew_every):
                with suppress(DirectorySilent):
                    await self._host.directory.leave(self.epoch)

    def hurry(self) -> None:
        """Renew now: the directory may have news."""
        self._due.set()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._due.wait()
        self._due = anyio.Event()

    async def _join(self, epoch: str | None) -> None:
        """Join until the directory answers, or come back to one that has forgotten us."""
        about, url = self._host.about, self.served.url.removesuffix("/mcp")
        while not self._ended.is_set():
            sent = time.monotonic()
            joining = JoinRequest(
                name=about.name,
                url=url,
                pid=os.getpid(),
                began=_began(os.getpid()),
                run_id=self.served.room.run_id,
                labels=about.labels,
                resources=about.resources,
                epoch=epoch,
                claims=frozenset(self._claims),
                link_port=self._link_port,
            )
            try:
                said = await self._host.directory.join(joining)
            except DirectorySilent:
                if epoch is not None:
                    return  # the next renewal tries again
                await self._wait(_AGAIN)
                continue
            if isinstance(said, FencedReply):
                self.end()
                return
            await self._take_over(said)
            self.epoch = said.epoch
            self._renewed(sent)
            return

    async def _take_over(self, said: JoinReply) -> None:
        """End what is left of former lives, and say so. If that is not heard, their leases run out."""
        for former in said.predecessors:
            if await apart(partial(end_predecessor, former)):
                with suppress(DirectorySilent):
                    await self._host.directory.predecessor_gone(said.epoch, former.epoch)

    def _renewed(self, sent: float) -> None:
        self._lease.renewed(sent)
        port_of(self.served.room).fleet.end_children_at(self._lease.children_until)

    async def _renew(self) -> None:
        self._is_due = True
        async with self._asking:
            self._is_due = False
            if self._ended.is_set():
                return
            self._give_back()
            sent, self._number = time.monotonic(), self._number + 1
            try:
                said = await self._host.directory.renew(
                    self.epoch,
                    self._number,
                    frozenset(self._claims),
                    port_of(self.served.room).fleet.open_breakers(),
                    self._is_leaving,
                )
            except DirectorySilent:
                return
            if isinstance(said, RenewalReply):
                self._renewed(sent)
                self._heed(said)
            elif isinstance(said, UnknownHostReply) and self._lease.may_serve(time.monotonic()):
                await self._join(self.epoch)
            else:
                self.end()

    def _heed(self, said: RenewalReply) -> None:
        """Do what follows from a renewal at once, and leave the rest to `_follow`."""
        self._is_drained = said.is_draining
        port_of(self.served.room).fleet.heed_open_breakers(said.breakers)
        self._said = said
        self._news.set()

    async def _follow(self) -> None:
        """Take over what renewals say of the configuration and the number of hosts. In a task of its own, for it may
        wait until calls of a changed server have ended, and the lease may not."""
        while True:
            await self._news.wait()
            self._news, said = anyio.Event(), self._said
            assert said is not None
            try:
                await self._adapt(said)
            except DirectorySilent:
                pass  # the next renewal says it again
            except (GreenroomError, OSError) as error:
                self._unusable = said.config_version
                self._host.say(f"this configuration of the cluster cannot be used: {error}")

    async def _adapt(self, said: RenewalReply) -> None:
        host = self._host
        version, config = host.newest
        if said.config_version < version:
            await host.directory.offer_config(version, packed(config))
            return
        if said.config_version == self._unusable:
            return
        if said.config_version > version:
            await host.read()
            version, config = host.newest
        if version != self._applied or said.hosts != self._hosts:
            wanted = await apart(partial(for_host, config, said.hosts, host.about.bind))
            if version != self._applied or wanted != self.served.room.config:
                await self.served.room.reload(wanted)
            self._applied, self._hosts = version, said.hosts

    # ---- claims -----------------------------------------------------------------------------------------------------

    async def take(self, server: str) -> GrantReply | HolderReply | WaitReply:
        """Claim a server. While the directory is silent, that has to wait."""
        async with self._asking:
            if self.holds(server):
                return GrantReply()
            if not self.may_serve or self._is_due or server in self._leaving:
                return WaitReply(_AGAIN)
            self._number += 1
            try:
                said = await self._host.directory.claim(self.epoch, self._number, server)
            except DirectorySilent:
                return WaitReply(_AGAIN)
            if isinstance(said, FencedReply | UnknownHostReply):
                return WaitReply(_AGAIN)  # the next renewal finds out what to do
            if isinstance(said, GrantReply):
                self._links.used[server] = time.monotonic()
                self._claims.add(server)
            return said

    def _give_back(self) -> None:
        """Claim no longer what rests: no child, and no link or, where this host drains, no call."""
        port = port_of(self.served.room)
        self._drains_since = min(self._drains_since, time.monotonic()) if self.is_draining else math.inf
        for server in list(self._claims):
            is_busy = port.fleet.is_busy(server)
            if self.is_draining and (not is_busy or self._has_drained_for(server)):
                self._leaving.add(server)  # or the next call would start it here again
            elif is_busy and not self.is_draining:  # the drain was taken back
                self._leaving.discard(server)
            if server in self._leaving:
                if not is_busy:
                    port.fleet.evict(server)
            elif self._fence.is_wanted(server) and port.fleet.has(server):
                continue
            if port.fleet.is_resting(server):
                self._claims.discard(server)
                self._leaving.discard(server)
                self._links.unlink(server)

    def _has_drained_for(self, server: str) -> bool:
        """Whether this host has waited long enough for a moment without calls: then new ones wait for another host, and
        the server moves when the last has ended."""
        config = self.served.room.config
        definition = config.servers.get(server)
        own = None if definition is None else definition.drain_timeout
        patience = config.settings.drain_timeout if own is None else own
        return time.monotonic() - self._drains_since > patience

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
            "links": {server: count for server, count in self._links.open.items() if count},
            "calls": None if report is None else msgspec.structs.asdict(report),
        }


class _ClaimedConnectors:
    """The `ConnectorFactory` of a host: nothing starts that this host may not run."""

    room: Greenroom  # set before it is called

    def __init__(self, life: HostLife) -> None:
        self._life = life

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        if not (self._life.may_serve and self._life.holds(address.server)):
            raise connect_failed(address.server, LostReason("this host of the cluster may not run it now"))
        return port_of(self.room).fleet.connector(definition, address, incarnation)


def end_predecessor(former: Predecessor) -> bool:
    """End a former process of this host, and the processes of its room. Returns whether nothing of them is left. Only
    where processes can be looked into (Linux), and if it was where we see it (on this machine, since its last start,
    in this container); otherwise the former lease has to run out."""
    here = _began(os.getpid())
    if former.pid == os.getpid() and former.began == here:
        return True  # an earlier room of this process, which has been closed
    if not here or former.began.partition(" ")[2] != here.partition(" ")[2]:
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
    """When and where a process was started; empty if it is gone, or only waits to be reaped, or cannot be looked
    into."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(") ")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="latin-1").strip()
        container = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{fields[18]} {boot} {container}" if state != "Z" and len(fields) > 18 else ""
