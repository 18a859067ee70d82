"""A server behind a unix socket: the line protocol of stdio, on one descriptor, with no process to start or kill.

The line peer does nearly everything. What is left is to connect, to notice that the other side closed, and to
close (`SocketConnection`, which serves a link as well). The server is somebody else's process, so stopping only
closes the connection.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

import anyio
import anyio.abc

from ...config.model import ServerDefinition, Settings
from ...config.private_files import check_peer
from ...protocol.errors import ConnectFailed, FailureKind
from ...protocol.lifecycle import Reason
from ..backend import Backend, pump_group
from ..fork import inert_in_forks, let_go
from ..peer import LostReason, NoProcess, PeerHooks
from .line_peer import LinePeer

_LOOK_AGAIN = 0.02  # seconds, while the server's queue of connections is full
PeerT = TypeVar("PeerT", bound=LinePeer)


class SocketPeer(LinePeer):
    channel = "the socket"
    says_no_more = hears_no_more = "closed the connection"


class UnixConnector:
    """Reaches one incarnation of a server with a `socket`. Made by the room, called by the actor."""

    def __init__(self, definition: ServerDefinition, *, backend: Backend, settings: Settings) -> None:
        self._definition = definition
        self._backend = backend
        self._settings = settings

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[SocketConnection[SocketPeer]]:
        """Connect. Raises `ConnectFailed` when nobody listens there."""
        with socket.socket(socket.AF_UNIX) as line:
            line.setblocking(False)
            await self._connect(line)
            connection = SocketConnection(SocketPeer, line, hooks, self._backend, self._settings)
            async with connection.pumped():
                yield connection

    async def _connect(self, line: socket.socket) -> None:
        name, path = self._definition.name, self._definition.socket
        assert path is not None
        while True:
            try:
                line.connect(path)
            except BlockingIOError:
                await anyio.sleep(_LOOK_AGAIN)
            except OSError as error:
                text = f'no server answers at "{path}" ({error.strerror or error}). Start it, or correct "socket".'
                raise ConnectFailed(text, server=name, kind=FailureKind.CONNECTION) from None
            else:
                self._check_whose(line, path)
                return

    def _check_whose(self, line: socket.socket, path: str) -> None:
        """Where anybody may make a socket, as in /tmp, its owner must be us or root, because it receives arguments
        and its results are trusted. A folder that belongs to one user already says whose server it is."""
        try:
            if os.stat(os.path.dirname(path) or ".").st_mode & stat.S_IWOTH:
                check_peer(line, or_root=True)
        except OSError as error:
            text = f'Server "{self._definition.name}": "{path}" is not used: {error.strerror or error}. '
            more = 'Anybody may make a socket in its folder. Put it in a folder of your own, and correct "socket".'
            raise ConnectFailed(text + more, server=self._definition.name) from None


class SocketConnection(NoProcess, Generic[PeerT]):
    """A connected socket and its peer, which `make` makes as a `LinePeer` is made. `loss`: what the end means."""

    def __init__(
        self,
        make: Callable[..., PeerT],
        line: socket.socket,
        hooks: PeerHooks,
        backend: Backend,
        settings: Settings,
        *,
        loss: Reason = Reason.DIED,
        pause: float = 0.0,
    ) -> None:
        """`pause`: seconds until the end is told."""
        self._line = line
        self._hooks = hooks
        self._backend = backend
        self._loss = loss
        self._pause = pause
        self._over = backend.waiter()
        self._how = ""  # the first sign of the end, in words
        self.peer: PeerT = make(
            backend,
            hooks,
            read_fd=line.fileno(),
            write_fd=line.fileno(),
            max_line=settings.max_line,
            on_over=self.over,
        )
        inert_in_forks(self)

    @asynccontextmanager
    async def pumped(self) -> AsyncGenerator[anyio.abc.TaskGroup]:
        """Carry messages while this is open; nothing of it is left afterwards."""
        async with pump_group() as tasks:
            tasks.start_soon(self._backend.read_forever, self._line.fileno(), self.peer.read)
            tasks.start_soon(self.peer.write_forever)
            tasks.start_soon(self._watch_end)
            try:
                yield tasks
            finally:
                self.kill_now()

    def over(self, how: str) -> None:
        """The connection is over, as these words say. Only the first ones count."""
        self._how = self._how or how
        self._over.set()

    async def _watch_end(self) -> None:
        await self._over.wait()
        await self.peer.read_last()
        if self._pause:
            await anyio.sleep(self._pause)
        if not self.peer.is_silent:
            self.peer.silence()
            self._hooks.on_lost(LostReason(self._how, loss=self._loss))

    async def stop(self, grace: float) -> None:
        """Close the connection. Idempotent."""
        self.kill_now()

    def disown(self) -> None:
        """In a fork: closing would close the parent's connection."""
        let_go(self._line.fileno())

    def kill_now(self) -> None:
        self.peer.silence()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
