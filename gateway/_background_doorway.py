"""Takes the clients that attach to the background room, and serves each until it ends.

A client comes as a hello with three descriptors: its standard input, its standard output, and the memory of its ledger.
From then on it is a client like any other, with a session of its own (`Conversations`). Its connection to us stays open
and tells that the process that attached still lives. When that process is gone, whatever ended it, the client is gone
too. Whatever fails for one client ends that client only.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import attrs

from .._own_files import NotOurs, check_peer
from ..actors import current_backend
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.secrets import in_words
from ._answers import REFUSALS
from ._background_door import AttachedDoor, RecordedJobs
from ._background_ledger import Ledger
from ._background_listener import Listener
from ._background_wire import (
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

if TYPE_CHECKING:
    from ..supervisor import Greenroom
    from ._conversations import Conversations
    from ._endpoint import ClientSession

_HELLO_WITHIN: Final = 10.0  # seconds
_LAST_ANSWERS: Final = 1.0  # seconds a client has to read the answers written while the room closed
_LAST_WORDS: Final = 0.2  # the same for a client that is probably gone
_PAUSE: Final = 0.2  # seconds until more clients are taken, when no descriptor is left for them
_MOST_OPEN: Final = 1024  # requests of one client in flight, as at the other doors
_DESCRIPTORS: Final = 3


@attrs.define(eq=False)
class Attached:
    """A client that is here."""

    name: str
    hello: Hello
    line: socket.socket
    since: float
    in_flight: Callable[[], int] = lambda: 0


@attrs.define(eq=False)
class Doorway:
    """`leave()` ends the room, politely. From then on `is_leaving()`, and whoever still comes is not taken."""

    room: Greenroom
    conversations: Conversations
    version: str
    profile: str | None  # of clients that name none
    max_line: int
    note: Callable[[str], None]
    leave: Callable[[], None]
    is_leaving: Callable[[], bool]
    clients: dict[str, Attached] = attrs.field(factory=dict[str, Attached], init=False)
    why: str = attrs.field(default=STOPPED, init=False)  # why the room ends
    _changed: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    _closed: anyio.Event = attrs.field(factory=anyio.Event, init=False)  # the room has closed
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1), init=False)
    _coming: int = attrs.field(default=0, init=False)  # connections that have not said their hello

    # ---- who is here -----------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """The clients, for people."""
        now = anyio.current_time()
        return {
            "pid": os.getpid(),
            "version": self.version,
            "clients": [
                {
                    "pid": client.hello.pid,
                    "expose": client.hello.expose,
                    "profile": self._profile_of(client.hello),
                    "inFlight": client.in_flight(),
                    "seconds": round(now - client.since, 1),
                }
                for client in self.clients.values()
            ],
        }

    async def leave_when_idle(self, idle: float) -> None:
        """Leave once nobody has been attached for `idle` seconds. 0: never."""
        while idle:
            with anyio.move_on_after(None if self.clients or self._coming else idle) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                self.note(f"nobody has been attached for {idle / 60:g} min: the background room ends")
                self._leave(STOPPED)
                return

    async def closed(self) -> None:
        """The room has closed: let each client read its last answers, and tell it why we end."""
        self._closed.set()
        while self.clients:
            await self._changed.wait()

    def _profile_of(self, hello: Hello) -> str | None:
        return hello.profile if hello.profile is not None else self.profile

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _leave(self, why: str) -> None:
        self.why = why
        self.leave()

    def _hold(self, line: socket.socket) -> None:
        """Keep a connection open until this process ends: its other end waits for that."""
        line.dup().detach()

    # ---- coming in -------------------------------------------------------------------------------------------

    async def take(self, listener: Listener, visitors: anyio.abc.TaskGroup) -> None:
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
            visitors.start_soon(self._visit, line)

    async def _visit(self, line: socket.socket) -> None:
        descriptors: list[int] = []
        with line:
            try:
                try:
                    line.setblocking(False)
                    check_peer(line)
                    hello = await _hello(line, descriptors)
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
            return  # it finds no room now, and starts another
        if is_newer(hello.version, self.version) and not self.clients:
            say(line, leaving=True)
            self._hold(line)
            self._leave(REPLACED)
            return
        if hello.room is not None and hello.room == self.room.run_id:
            text = (
                "This background room would be its own client: one of its servers starts greenroom attach for the same "
                "configuration. Take that entry out of the file that Greenroom reads."
            )
            raise UsageError(text)
        if len(descriptors) != _DESCRIPTORS:
            raise BadHello("This hello of greenroom attach came without its descriptors.")
        with self._ledger(descriptors.pop()) as ledger:
            await self._serve(hello, line, descriptors[0], descriptors[1], ledger)

    @contextmanager
    def _ledger(self, descriptor: int) -> Generator[Ledger]:
        try:
            ledger = Ledger(descriptor)
        except (OSError, ValueError):
            text = "This hello of greenroom attach came without sealed memory for its ledger. Start its client again."
            raise BadHello(text) from None
        try:
            yield ledger
        finally:
            ledger.close()

    # ---- being here ------------------------------------------------------------------------------------------

    async def _serve(
        self, hello: Hello, line: socket.socket, stdin: int, stdout: int, ledger: Ledger
    ) -> None:
        name = f"attached-{next(self._numbers)}"
        client = self.clients[name] = Attached(name, hello, line, anyio.current_time())
        self._tell()

        def introduced(initialize: bytes, greeted: bool) -> None:
            say(line, initialize=initialize.decode("utf-8", "surrogateescape"), greeted=greeted)

        door = AttachedDoor(
            current_backend(),
            stdin,
            stdout,
            ledger,
            introduced,
            max_line=self.max_line,
            initialize=(hello.initialize or "").encode("utf-8", "surrogateescape"),
        )
        with ExitStack() as stack:
            stack.enter_context(door.opened())

            def end(why: str) -> None:
                """The client's descriptors are given back, before whoever waits for it is told."""
                door.shut()
                stack.close()
                say(line, end=why)

            try:
                await self._converse(client, door, ledger, end)
            finally:
                del self.clients[name]
                self._tell()

    async def _converse(
        self, client: Attached, door: AttachedDoor, ledger: Ledger, end: Callable[[str], None]
    ) -> None:
        """Serve the client until it ends or the room does."""
        hello, over = client.hello, anyio.Event()

        async def read(talk: ClientSession) -> None:
            await door.read(talk.receive, talk.refuse_line, talk.receiving)
            over.set()

        async def watch() -> None:
            await _ended(client.line)
            over.set()

        async def await_room() -> None:
            await self._closed.wait()
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
                client.in_flight = lambda: talk.in_flight
                jobs = RecordedJobs(_MOST_OPEN, REFUSALS)
                jobs.ledger = ledger
                talk.keep_in(jobs)
                talk.greet_again(door.initialize, greeted=hello.greeted, gateways=hello.rooms)
                say(client.line, pid=os.getpid(), version=self.version)
                door.answer_what_was_lost()
                tasks.start_soon(door.write)
                async with anyio.create_task_group() as parts:
                    parts.start_soon(read, talk)
                    parts.start_soon(watch)
                    parts.start_soon(await_room)
                    await over.wait()
                    parts.cancel_scope.cancel()
                if self._closed.is_set():
                    await door.flush(_LAST_ANSWERS)
                    end(self.why)
                else:
                    talk.close()
                    await door.flush(_LAST_WORDS)
                    end(OF_CLIENT)  # before its session ends: a child may take its time to stop
            tasks.cancel_scope.cancel()


async def _hello(line: socket.socket, descriptors: list[int]) -> Hello | None:
    """What comes on a new connection; `descriptors` gets those that came with it. None: nothing came. Raises
    `BadHello`, `OSError`."""
    data = b""
    with anyio.move_on_after(_HELLO_WITHIN):
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
