"""Takes the clients that attach to the background gateway, and serves each until it ends.

A client comes as a hello with two descriptors: the pipe with its requests, and the one for its answers. From then on it
is a client like any other on a pair of descriptors, with a session of its own (`Conversations`). Its connection to us
stays open and tells that the process that attached still lives. When that process is gone, whatever ended it, the
client is gone too. Whatever fails for one client ends that client only.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import attrs

from ...actors.backend import current_backend
from ...actors.timers import at_most
from ...config.private_files import NotOurs, bind_own, check_peer, make_own_folder
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.safe_text import in_words
from ...supervisor.room import port_of
from .attach_protocol import (
    LONGEST,
    OF_CLIENT,
    REPLACED,
    STOPPED,
    BadHello,
    Hello,
    is_newer,
    read_hello,
    receive_some,
    say,
)
from .stdio_door import StdioDoor

if TYPE_CHECKING:
    from ...supervisor.room import Greenroom
    from ..conversations import Conversations
    from ..endpoint import ClientSession


_LAST_ANSWERS: Final = 1.0  # seconds a client has to read the answers written while the gateway closed
_LAST_WORDS: Final = 0.2  # the same for a client that is probably gone
_PAUSE: Final = 0.2  # seconds until more clients are taken, when no descriptor is left for them
_DESCRIPTORS: Final = 2
_LOOKS: Final = 10  # so often it looks for calls of commands before it leaves


@attrs.define(eq=False)
class AttachedClient:
    """A client that is attached now."""

    name: str
    hello: Hello
    line: socket.socket
    since: float
    talk: ClientSession | None = None  # once its conversation is open


@attrs.define(eq=False)
class Doorway:
    """Where clients attach. `leave()` ends the gateway politely. From then on `is_leaving()` is true, and no client is
    taken any more."""

    room: Greenroom
    conversations: Conversations
    version: str
    profile: str | None  # of clients that name none
    max_line: int
    note: Callable[[str], None]
    leave: Callable[[], None]
    is_leaving: Callable[[], bool]
    hello_within: float = 10.0  # seconds, from when somebody connects
    clients: dict[str, AttachedClient] = attrs.field(factory=dict[str, AttachedClient], init=False)
    why: str = attrs.field(default=STOPPED, init=False)  # why the gateway ends
    _changed: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    _closed: anyio.Event = attrs.field(factory=anyio.Event, init=False)  # the gateway has closed
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1), init=False)
    _coming: int = attrs.field(default=0, init=False)  # connections that have not said their hello

    # ---- who is here -----------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """The attached clients, for people."""
        now = anyio.current_time()
        return {
            "pid": os.getpid(),
            "version": self.version,
            "clients": [
                {
                    "pid": client.hello.pid,
                    "name": client.talk and client.talk.client_name,
                    "expose": client.hello.expose,
                    "profile": self._profile_of(client.hello),
                    "inFlight": client.talk.in_flight if client.talk else 0,
                    "seconds": round(now - client.since, 1),
                }
                for client in self.clients.values()
            ],
        }

    async def leave_when_idle(self, idle: float) -> None:
        """Leave once nobody has been attached, and no command has called anything or waited for a call, for about
        `idle` seconds. 0: never."""
        services = port_of(self.room).services
        unused_since, calls = services.now(), services.calls
        while idle:
            changed, nobody = self._changed, not (self.clients or self._coming)
            async with at_most(idle / _LOOKS if nobody else math.inf):
                await changed.wait()
            _, unfinished = services.calls
            if changed.is_set() or unfinished or services.calls != calls:
                unused_since, calls = services.now(), services.calls
            elif services.now() - unused_since >= idle:
                self.note(f"nobody has used it for {idle / 60:g} min: the background gateway ends")
                self._leave(STOPPED)
                return

    async def closed(self) -> None:
        """The gateway has closed: let each client read its last answers, and tell it why we end."""
        self._closed.set()
        while self.clients:
            await self._changed.wait()

    def _profile_of(self, hello: Hello) -> str | None:
        return hello.profile if hello.profile is not None else self.profile

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def give_way(self) -> None:
        """Another gateway runs for this configuration. Ours ends, and its clients go on with the other."""
        self._leave(REPLACED)

    def _leave(self, why: str) -> None:
        self.why = why
        self.leave()

    def _hold(self, line: socket.socket) -> None:
        """Keep a connection open until this process ends: its other end waits for that."""
        line.dup().detach()

    # ---- coming in -------------------------------------------------------------------------------------------

    async def take(self, listener: Listener, connections: anyio.abc.TaskGroup) -> None:
        """Take connections until the listener is shut."""
        while listener.is_open:
            try:
                await anyio.wait_readable(listener.line)
                line, _ = listener.line.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                continue
            except (anyio.ClosedResourceError, ValueError):
                return  # shut meanwhile
            except OSError as error:
                if not listener.is_open:
                    return
                if error.errno not in (errno.EPROTO,):
                    self.note(f"no client can be taken now: {error.strerror}. It is tried again.")
                    await anyio.sleep(_PAUSE)
                continue
            self._coming += 1
            connections.start_soon(self._serve_line, line)

    async def _serve_line(self, line: socket.socket) -> None:
        descriptors: list[int] = []
        with line:
            try:
                try:
                    line.setblocking(False)
                    check_peer(line)
                    hello = await _hello(line, descriptors, self.hello_within)
                finally:
                    self._coming -= 1
                    self._tell()
                if hello is not None:
                    await self._welcome(hello, line, descriptors)
            except NotOurs:
                pass  # another user
            except Exception as error:
                self._failed(line, error)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _failed(self, line: socket.socket, error: Exception) -> None:
        while inner := getattr(error, "exceptions", ()):  # of a task group
            error = inner[0]
        if isinstance(error, GreenroomError):
            say(line, error={"code": error.code, "message": error.message})
        else:
            self.note(f"the connection of an attached client was closed: {in_words(error)}")

    async def _welcome(self, hello: Hello, line: socket.socket, descriptors: list[int]) -> None:
        if hello.stop:
            say(line, pid=os.getpid(), version=self.version)
            self._hold(line)
            self._leave(STOPPED)
            return
        if self.is_leaving():
            return  # it finds no gateway now, and starts another
        if is_newer(hello.version, self.version) and not self.clients:
            say(line, leaving=True)
            self._hold(line)
            self.give_way()
            return
        if hello.room is not None and hello.room == self.room.run_id:
            text = (
                "This background gateway would be its own client: one of its servers starts greenroom attach for the "
                "same configuration. Take that entry out of the file that Greenroom reads."
            )
            raise UsageError(text)
        if len(descriptors) != _DESCRIPTORS:
            text = "This hello of greenroom attach came without its two pipes: it is of another version."
            raise BadHello(f"{text} Start its client again.")
        await self._serve(hello, line, *descriptors)

    # ---- being here ------------------------------------------------------------------------------------------

    async def _serve(self, hello: Hello, line: socket.socket, requests: int, answers: int) -> None:
        name = f"attached-{next(self._numbers)}"
        client = self.clients[name] = AttachedClient(name, hello, line, anyio.current_time())
        self._tell()
        door = StdioDoor(current_backend(), requests, answers, max_line=self.max_line)
        try:
            with door.opened():
                await self._converse(client, door)
        finally:
            del self.clients[name]
            self._tell()

    async def _converse(self, client: AttachedClient, door: StdioDoor) -> None:
        """Serve the client until it ends or the gateway does."""
        hello, over = client.hello, anyio.Event()

        async def until(ended: Callable[[], Awaitable[object]]) -> None:
            await ended()
            over.set()

        async with anyio.create_task_group() as tasks:
            opening = self.conversations.open(
                door,
                tasks.start_soon,
                name=client.name,
                variables=hello.variables,
                profile=self._profile_of(hello),
                expose=hello.expose,
                door="attach",
            )
            async with opening as talk:
                client.talk = talk
                initialize = (hello.initialize or "").encode("utf-8", "surrogateescape")
                talk.initialize_again(initialize, initialized=hello.initialized, gateways=hello.rooms)
                say(client.line, pid=os.getpid(), version=self.version)
                tasks.start_soon(door.write)
                async with anyio.create_task_group() as parts:
                    parts.start_soon(
                        until, partial(door.read, talk.receive, talk.refuse_line, talk.receive_large)
                    )
                    parts.start_soon(until, partial(_ended, client.line))
                    parts.start_soon(until, self._closed.wait)
                    await over.wait()
                    parts.cancel_scope.cancel()
                if self._closed.is_set():
                    await door.flush(_LAST_ANSWERS)
                    say(client.line, end=self.why)
                else:
                    talk.close()
                    await door.flush(_LAST_WORDS)
                    # Before its session ends: a child may take its time to stop.
                    say(client.line, end=OF_CLIENT)
            tasks.cancel_scope.cancel()


async def _hello(line: socket.socket, descriptors: list[int], within: float) -> Hello | None:
    """What comes on a new connection; `descriptors` gets those that came with it. None: nothing came `within` these
    seconds. Raises `BadHello`, `OSError`."""
    data = b""
    async with at_most(within):
        while b"\n" not in data:
            await anyio.wait_readable(line)
            with suppress(BlockingIOError):
                some, found = receive_some(line, _DESCRIPTORS)
                descriptors += found
                if not some:
                    return None
                data += some
            if len(data) > LONGEST or len(descriptors) > _DESCRIPTORS:
                raise BadHello("This hello of greenroom attach is too long.")
        return read_hello(data)
    return None


async def _ended(line: socket.socket) -> None:
    """Wait until the process that attached is gone. It says nothing more."""
    while True:
        await anyio.wait_readable(line)
        try:
            if not line.recv(1 << 12):
                return
        except BlockingIOError:
            continue
        except OSError:
            return


# ---- The socket of the background gateway, while it takes clients ----------------------------------------------------

_BACKLOG: Final = 1024  # clients may all start at once; a full backlog would keep some waiting


class Listener:
    """The gateway's socket, while it takes clients."""

    def __init__(self, path: Path) -> None:
        """Listen on the socket at `path`. A socket that a killed gateway left is replaced, because only the holder of
        the lock gets here. Raises `OSError`."""
        make_own_folder(path.parent)
        self.path = path  # it may be moved
        self.line: socket.socket = bind_own(path, _BACKLOG)
        self._inode = os.stat(path, follow_symlinks=False).st_ino

    @property
    def is_open(self) -> bool:
        return self.line.fileno() >= 0

    def shut(self) -> None:
        """Take no more clients. First the socket is removed and then it is closed, so whoever was not taken finds no
        gateway and starts another. Idempotent; never waits, never raises."""
        if not self.is_open:
            return
        anyio.notify_closing(self.line)
        with suppress(OSError):
            if os.stat(self.path, follow_symlinks=False).st_ino == self._inode:
                self.path.unlink()
        self.line.close()
