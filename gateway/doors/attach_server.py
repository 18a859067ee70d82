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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import attrs

from ...actors.backend import Backend, More, current_backend
from ...config.private_files import NotOurs, bind_own, check_peer, make_own_folder
from ...config.secrets import in_words
from ...protocol import jsonrpc as rpc
from ...protocol.cooperative import Slices
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.jsonrpc.incoming import read_head_id
from ...protocol.jsonrpc.terms import RpcFault
from ..requests import REFUSALS, Job, OpenJobs
from .attach_ledger import Ledger, Left
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
from .stdio_door import CHUNK, Receiving, StdioDoor

if TYPE_CHECKING:
    from ...supervisor.room import Greenroom
    from ..clients import Conversations
    from ..endpoint import ClientSession


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


# --------------------------------------------------------------------------------------------------------------
#
#
# The door of one attached client: its own standard input and output, which it has passed to the room.
#
# The room reads and writes the client's pipes itself, so an attached call costs what a call costs at the stdio door,
# and the process that attached only waits. What must survive the room's death is noted in the client's ledger, and the
# door of the next room begins with it.

_LONGEST_KEPT: Final = (
    1 << 15
)  # bytes of an introduction that is said again to the next room: a socket takes it whole
_INITIALIZE: Final = b'"initialize"'
_INITIALIZED: Final = b'"notifications/initialized"'
_LOST: Final = "The background room ended before it answered. The request was sent to it and may have run."
_LOST_DATA: Final = {"error": "room_lost", "reach": "sent"}
_FEW: Final = 1 << 12  # an introduction is searched in lines up to this length, and in the heads of others


class RecordedJobs(OpenJobs):
    """A client's table of open requests that keeps a ledger."""

    ledger: Ledger

    def __setitem__(self, key: bytes, job: Job) -> None:
        self.ledger.began(key)
        super().__setitem__(key, job)

    def pop(self, key: bytes, default: Job | None = None) -> Job | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.ledger.ended(key)
        return super().pop(key, default)


class AttachedDoor(StdioDoor):
    """A stdio door that keeps a ledger. `on_introduction(initialize, greeted)` is called when the client introduces
    itself, and again when it says that it is ready. `initialize` is how it did that to the room before."""

    def __init__(
        self,
        backend: Backend,
        stdin: int,
        stdout: int,
        ledger: Ledger,
        on_introduction: Callable[[bytes, bool], None],
        *,
        max_line: int,
        initialize: bytes = b"",
    ) -> None:
        super().__init__(backend, stdin, stdout, max_line=max_line)
        self._ledger = ledger
        self._on_introduction = on_introduction
        self.initialize = initialize
        self._behind = anyio.Event()  # something waits to be written
        self._put = self._writer.send
        self.send = self._send_recorded
        self._take_over(ledger.left)

    def _take_over(self, left: Left) -> None:
        """Begin with what the room before had read and not handled."""
        if left.head is not None and not left.has_end:
            self._splitter.skip()
        again = b"".join(line + b"\n" for line in left.lines if _id_of(line) not in left.keys) + left.fragment
        if again:
            self._ledger.took(again, b"")
            self._rest.put(self._splitter.feed(again))

    def answer_what_was_lost(self) -> None:
        """Answer the requests that the room before had begun. Call it before anything is read."""
        left = self._ledger.left
        if left.cut_out:
            self.send(b"\n")
        for key in (*left.keys, read_head_id(left.head or b"")):
            if key:
                self._ledger.began(key)
                self._ledger.ended(key)
                self.send(rpc.error_line(key, RpcFault(rpc.INTERNAL_ERROR, _LOST, _LOST_DATA)))

    async def write(self) -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(self._note_written)
            await super().write()
            both.cancel_scope.cancel()

    async def read(
        self,
        receive: Callable[[bytes], None],
        refuse: Callable[[bytes, str], None] | None = None,
        receiving: Receiving | None = None,
    ) -> None:
        """As `StdioDoor.read`, but the ledger counts what is handled."""
        handled, say_refused = self._ledger.handled, refuse or self._refuse

        def take(line: bytes) -> None:
            receive(line)
            handled()

        def look_first(line: bytes) -> None:
            if self._introduces(line):
                self._receive = take
            take(line)

        def count_refused(head: bytes, text: str) -> None:
            say_refused(head, text)
            handled()

        def taking(line: bytearray) -> Slices[None]:
            assert receiving is not None
            yield from receiving(line)
            self._ledger.handled_large()

        await super().read(look_first, count_refused, taking if receiving is not None else None)

    def shut(self) -> None:
        """Send nothing more: what is not written yet is dropped."""
        self._writer.close()

    def _introduces(self, line: bytes) -> bool:
        """Whether the introduction of a client ends with this line."""
        head = line[:_FEW]
        if _INITIALIZE in head and len(line) <= _LONGEST_KEPT:
            self.initialize = line
            self._on_introduction(line, False)
        elif self.initialize and _INITIALIZED in head:
            self._on_introduction(self.initialize, True)
            return True
        return False

    def _send_recorded(self, line: bytes) -> bool:
        taken = self._put(line)
        if not self._writer.waiting:
            self._ledger.written()
        elif not self._behind.is_set():
            self._ledger.cut_out(True)
            self._behind.set()
        return taken

    async def _note_written(self) -> None:
        while True:
            await self._behind.wait()
            await self._writer.flushed()
            self._behind = anyio.Event()
            self._ledger.cut_out(False)
            self._ledger.written()

    def _read(self) -> bytes:
        return self._ledger.read(self._stdin, CHUNK, self._splitter.held)

    def _on_readable(self) -> More:
        more = super()._on_readable()
        if self._ledger.is_over:
            self._keep_rest()
        return more

    def _keep_rest(self) -> None:
        """What was read did not fit into the inbox: note what of it is still to be handled."""
        rest = self._rest
        if rest and type(rest[-1]) is bytearray:  # its end has come, and it is read in slices
            behind = b"".join(line + b"\n" for line in rest[-2::-1]) + (self._splitter.held or b"")
            self._ledger.took_large(rest[-1], behind)
        else:
            self._ledger.cut_in(self._splitter.unfinished)


def _id_of(line: bytes | bytearray) -> bytes:
    try:
        envelope = rpc.read_client_line(bytes(line))
        return rpc.read_id(envelope) if envelope.method is not None else b""
    except RpcFault:
        return b""


# ---- The socket of the background room, while the room takes clients ------------------------------------------------

_BACKLOG: Final = 1024  # clients may all start at once; a full backlog would keep some waiting


class Listener:
    """The room's socket, while it takes clients."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`. A socket that a killed room left is replaced: only the holder of the lock gets here."""
        make_own_folder(path.parent)
        self._path = path
        self.line = bind_own(path, _BACKLOG)
        self._inode = os.stat(path, follow_symlinks=False).st_ino

    @property
    def is_open(self) -> bool:
        return self.line.fileno() >= 0

    def shut(self) -> None:
        """Take no more clients. First the socket is removed and then it is closed, so whoever was not taken finds no
        room and starts another. Idempotent; never waits, never raises."""
        if not self.is_open:
            return
        anyio.notify_closing(self.line)
        with suppress(OSError):
            if os.stat(self._path, follow_symlinks=False).st_ino == self._inode:
                self._path.unlink()
        self.line.close()
