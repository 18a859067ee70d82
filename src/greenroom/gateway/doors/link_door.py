"""The door for links (`protocol.links`): another Greenroom has us carry out the calls of a server.

Each connection says hello and is then one client, as on stdio, which sees that server alone. Who may come, and whether
a request may still be carried out here, is decided outside (`LinkAdmission`) and asked for each request: what may not
is answered with `moved`, unsent. So is one that was taken, if it ends unsent when it may not be carried out any more.
A link counts from its welcome until nothing of its session is left.

A front that vanished without a word is noticed by the system (keep-alive), and its session ends.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from ...actors.backend import current_backend
from ...actors.timers import at_most
from ...actors.transports.first_line import first_line
from ...protocol import jsonrpc as rpc
from ...protocol.errors import GreenroomError, Reach
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.links import ENDING_LINE, OPEN, LinkHello, NoLink, moved_line, read_hello, refusal
from ...protocol.safe_text import in_words
from ...protocol.upstream_error import ERROR, upstream_in_error
from .stdio_door import StdioDoor

if TYPE_CHECKING:
    from ..conversations import Conversations
    from ..endpoint import ClientSession

_HELLO_WITHIN: Final = 10.0  # seconds
_WAITING: Final = 256  # connections that have not said hello; of more, the oldest is cut
_LAST_ANSWERS: Final = 1.0  # seconds a front has to read the last answers, and to close its end
_PAUSE: Final = 0.2  # seconds until more links are taken, when no descriptor is left for them
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # gone after 30 seconds


Cover = Callable[[socket.socket], AbstractAsyncContextManager[socket.socket]]


class LinkAdmission(Protocol):
    """Who may have a link, and to what: the `Fence` of a cluster's host, a room above this one."""

    def admit(self, hello: LinkHello) -> str:
        """The profile that it sees. Raises `NoLink`."""
        ...

    def may_call(self, hello: LinkHello) -> bool:
        """Whether a request over its link may be carried out here now. Must be quick."""
        ...


class LinkDoor:
    """Links to the servers of a room. Run `run` in a task that outlives the room's calls."""

    def __init__(
        self,
        conversations: Conversations,
        admission: LinkAdmission,
        max_line: int,
        note: Callable[[str], object],
        cover: Cover = nullcontext,
    ) -> None:
        """`cover`: around each connection, when it is to be encrypted."""
        self.open: Counter[str] = Counter()  # links, by server
        self.used: dict[str, float] = {}  # when the last one ended, by server
        self._conversations = conversations
        self._admission = admission
        self._max_line = max_line
        self._note = note
        self._cover = cover
        self._numbers = itertools.count(1)
        self._waiting: dict[anyio.CancelScope, None] = {}  # for a hello
        self._unlinked: dict[str, anyio.Event] = {}
        self._closed = anyio.Event()
        self._empty = anyio.Event()

    def unlink(self, server: str) -> None:
        """End the links to a server that is no longer here."""
        told = self._unlinked.pop(server, None)
        if told is not None:
            told.set()

    async def close(self) -> None:
        """The room has closed: let each link read its last answers, and end it."""
        self._closed.set()
        while self.open.total():
            self._empty = anyio.Event()
            await self._empty.wait()

    async def run(self, listener: socket.socket) -> None:
        """Take links until cancelled. The listener does not block."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(listener)
                try:
                    line, _ = listener.accept()
                except (BlockingIOError, ConnectionError, InterruptedError):
                    continue
                except OSError as error:
                    self._note(f"no link can be taken now: {error.strerror}. It is tried again.")
                    await anyio.sleep(_PAUSE)
                    continue
                tasks.start_soon(self._serve, line)

    async def _serve(self, line: socket.socket) -> None:
        with line:
            try:
                line.setblocking(False)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEP_ALIVE:
                    if hasattr(socket, option):
                        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            except OSError:
                return  # it is gone
            async with self._cover(line) as covered:
                await self._talk(covered)

    async def _talk(self, line: socket.socket) -> None:
        try:
            hello = await self._hello(line)
            if hello is not None:
                await self._welcome(hello, line)
        except OSError:
            return  # it is gone
        except Exception as error:
            self._failed(line, error)

    async def _hello(self, line: socket.socket) -> LinkHello | None:
        """What comes on a new connection. None: nothing came. Raises `NoLink`, `OSError`."""
        waiting = self._waiting
        async with at_most(_HELLO_WITHIN) as scope:
            waiting[scope] = None
            if len(waiting) > _WAITING:
                next(iter(waiting)).cancel()
            try:
                said = await first_line(line)
                return None if said is None else read_hello(said)
            finally:
                del waiting[scope]
        return None

    def _failed(self, line: socket.socket, error: Exception) -> None:
        while inner := getattr(error, "exceptions", ()):  # of a task group
            error = inner[0]
        reason = error.reason if isinstance(error, NoLink) else "error"
        if not isinstance(error, GreenroomError):
            self._note(f"a link was closed: {in_words(error)}")
        with suppress(OSError):
            line.send(refusal(reason))

    async def _welcome(self, hello: LinkHello, line: socket.socket) -> None:
        profile = self._admission.admit(hello)
        server = hello.server
        unlinked = self._unlinked.setdefault(server, anyio.Event())
        self.open[server] += 1
        try:
            await self._converse(hello, profile, line, unlinked)
        finally:
            self.open[server] -= 1
            self.used[server] = time.monotonic()
            self._empty.set()

    async def _converse(
        self, hello: LinkHello, profile: str, line: socket.socket, unlinked: anyio.Event
    ) -> None:
        """Serve the link until its front ends it, or the server or the room is gone."""
        over, left = anyio.Event(), anyio.Event()
        door = StdioDoor(current_backend(), line.fileno(), line.fileno(), max_line=self._max_line)
        door.send = partial(self._send, door.send, hello)

        async def read(talk: ClientSession) -> None:
            may_call = self._admission.may_call

            def receive(message: bytes | bytearray) -> None:
                key = b"" if may_call(hello) else _request_in(message)
                if key:
                    door.send(moved_line(key))
                else:
                    talk.receive(message)

            async def receive_large(message: bytearray) -> None:
                if may_call(hello):
                    await talk.receive_large(message)
                else:
                    receive(message)

            await door.read(receive, talk.refuse_line, receive_large)
            left.set()
            over.set()

        async def end_with(event: anyio.Event) -> None:
            await event.wait()
            over.set()

        async with anyio.create_task_group() as tasks:
            opening = self._conversations.open(
                door,
                tasks.start_soon,
                name=f"link-{next(self._numbers)}",
                variables=hello.variables,
                profile=profile,
                expose="direct",
                door="link",
            )
            async with opening as talk:
                tasks.start_soon(door.write)
                line.send(OPEN)  # an empty socket takes it
                async with anyio.create_task_group() as parts:
                    parts.start_soon(read, talk)
                    parts.start_soon(end_with, unlinked)
                    parts.start_soon(end_with, self._closed)
                    await over.wait()
                    door.send(ENDING_LINE)
                    async with at_most(_LAST_ANSWERS):
                        await left.wait()
                    parts.cancel_scope.cancel()
                with suppress(OSError):
                    # Before its session ends: a child may take its time to stop.
                    line.shutdown(socket.SHUT_RDWR)
            tasks.cancel_scope.cancel()

    def _send(self, write: Callable[[bytes], bool], hello: LinkHello, line: bytes) -> bool:
        """Write this line of the door, or in its place the answer that the call has to be made elsewhere."""
        key = b"" if self._admission.may_call(hello) else _unsent_in(line)
        return write(moved_line(key) if key else line)


def _unsent_in(line: bytes) -> bytes:
    """The id of the request of which this answer says that it was not sent; empty if it says something else."""
    said: Any = json.loads(line)
    error = (
        said["error"].get("data") if "error" in said else said.get("result", {}).get("_meta", {}).get(ERROR)
    )
    upstream = upstream_in_error(error)
    is_unsent = upstream is not None and upstream.reach is Reach.NOT_SENT
    return json.dumps(said["id"]).encode() if is_unsent else b""


def _request_in(message: bytes | bytearray) -> bytes:
    """The id of the request, as written; empty if it is something else."""
    try:
        envelope = rpc.read_client_line(message)
        return rpc.read_id(envelope) if envelope.method is not None else b""
    except (*rpc.NO_MESSAGE, RpcFault):
        return b""
