"""The door for clients in the program's own process: a framework's MCP client, the SDK's, or code of one's own.

Such a client meets the same endpoint as any other, and has what any other has: a session of its own with its children,
its callbacks, its log level and its subscriptions, both eras of the protocol, cancellation, and what its profile shows
it. So the lines are the same, too. (A server object of the SDK over `room.call` was slower, had tools alone, and would
have been a second place that knows the protocol.)

`streams` is for clients that are written with the SDK. They cost one queue: what the client sends is handed over in its
own task, and what it is sent is decoded when it reads. `dispatcher` is for sessions of the SDK's 2.x, and costs less
(`in_process_dispatcher`). `client` is the same without the SDK and without a queue: it takes and gives lines.

A framework may end a whole run when the call of a tool ends with a JSON-RPC error. `errors_as_results` makes it a
result with `isError`, which a model can read and answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from ...actors.backend import sole
from ...actors.transports.in_process import from_message, to_message
from ...actors.workers import aside
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LARGE_MESSAGE, MIB
from ...protocol.errors import UsageError
from ...protocol.events import NoteCode
from ...protocol.jsonrpc import HEAD
from ...protocol.version import VERSION
from ...supervisor.room import port_of
from ..conversations import Conversations
from ..endpoint import ClientSession, Outlet

if TYPE_CHECKING:
    from mcp.shared.dispatcher import Dispatcher
    from mcp.shared.message import SessionMessage

    from ...supervisor.room import Greenroom

_NOTHING: Final[Mapping[str, str]] = {}
_NUMBERS: Final = itertools.count(1)
_BUSY: Final = MIB  # bytes that wait for a client, from which on it is told nothing but answers
_MOST: Final = 128 * MIB  # bytes that wait for a client that does not read
_SHORT: Final = 4096  # a line that is never dropped


class InProcessDoor:
    """Lets MCP clients in your own process use a room. They share the lists that they are shown.

    `async with InProcessDoor.open(room) as door, door.streams() as (read, write): …`
    """

    def __init__(self, conversations: Conversations, tasks: anyio.abc.TaskGroup) -> None:
        self._conversations = conversations
        self._tasks = tasks

    @classmethod
    @asynccontextmanager
    async def open(cls, room: Greenroom, *, expose: str = "direct") -> AsyncGenerator[InProcessDoor]:
        """A door of this room, which is open, for as long as the block runs. Its clients are gone by then.

        `expose`: "direct" (all tools by their names), "proxy" (the `mcp` tool) or "meta", unless a client's profile
        says otherwise. Raises `UsageError` for an unknown exposure, and if the room is not open.
        """
        port = port_of(room)
        port.services.check_open()
        note = partial(port.services.note, code=NoteCode.BUG)
        conversations = Conversations(room, expose=expose, version=VERSION, note=note)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(conversations.watch)
                try:
                    yield cls(conversations, tasks)
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise sole(group) from None

    @asynccontextmanager
    async def client(
        self,
        outlet: Outlet,
        *,
        session: str | None = None,
        profile: str | None = None,
        variables: Mapping[str, str] = _NOTHING,
        subject: str | None = None,
        errors_as_results: bool = False,
    ) -> AsyncGenerator[Callable[[bytes], Awaitable[None]]]:
        """Connect a client. Yields the function that takes its messages, each a line of JSON-RPC in bytes; `await` it,
        one message at a time. The answers, notifications and requests for the client go to `outlet`.

        `session`: the name of its session, which no other open session may have; None: one of its own. `profile`: what
        it sees. `variables`: what `${session.NAME}` stands for in the entries of its servers. `subject`: who is known
        to be behind it, for the audit and as the owner of its tasks. `errors_as_results`: a call of a tool ends with a
        result that has `isError` where it would end with a JSON-RPC error. When the block ends, its calls are
        cancelled, its session ends, and the function raises `anyio.ClosedResourceError`. Raises `UsageError` for a name
        that is taken, and for an unknown profile.
        """
        conversation = self._conversations.open(
            outlet,
            self._tasks.start_soon,
            name=session if session is not None else f"in-process-{next(_NUMBERS)}",
            variables=variables,
            profile=profile,
            door="in-process",
            subject=subject,
        )
        async with conversation as client:
            if errors_as_results:
                client.tell_errors_as_results()
            receiver = _Receiver(client)
            try:
                yield receiver.receive
            finally:
                receiver.is_over = True

    @asynccontextmanager
    async def streams(
        self,
        *,
        session: str | None = None,
        profile: str | None = None,
        variables: Mapping[str, str] = _NOTHING,
        subject: str | None = None,
        errors_as_results: bool = False,
    ) -> AsyncGenerator[
        tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]
    ]:
        """Connect a client of the MCP SDK, with the arguments of `client`. Yields the two streams that `ClientSession`
        takes, and `mcp.Client` as its transport."""
        async with (
            _ReadStream() as incoming,
            self.client(
                incoming,
                session=session,
                profile=profile,
                variables=variables,
                subject=subject,
                errors_as_results=errors_as_results,
            ) as receive,
        ):
            yield incoming, _WriteStream(receive)

    @asynccontextmanager
    async def dispatcher(
        self,
        *,
        session: str | None = None,
        profile: str | None = None,
        variables: Mapping[str, str] = _NOTHING,
        subject: str | None = None,
        errors_as_results: bool = False,
    ) -> AsyncGenerator[Dispatcher[Any]]:
        """Connect a client of the SDK's 2.x, with the arguments of `client` and less between than `streams` has. Yields
        what `ClientSession` takes as its `dispatcher`. It is for one session. Raises `UsageError` with the SDK's 1.x,
        too."""
        try:
            from .in_process_dispatcher import FarEnd
        except ModuleNotFoundError:
            raise UsageError(
                "A dispatcher needs version 2 of the MCP SDK. Install mcp>=2, or use streams()."
            ) from None

        async with (
            FarEnd.open() as far,
            self.client(
                far,
                session=session,
                profile=profile,
                variables=variables,
                subject=subject,
                errors_as_results=errors_as_results,
            ) as far.receive,
        ):
            yield far.dispatcher


class _Receiver:
    """Takes the messages of one client, until its block ends."""

    def __init__(self, client: ClientSession) -> None:
        self._client = client
        self.is_over = False

    async def receive(self, line: bytes) -> None:
        if self.is_over:
            raise anyio.ClosedResourceError
        if len(line) < LARGE_MESSAGE:
            self._client.receive(line)
        else:
            await self._client.receive_large(line)


class _ReadStream(ObjectReceiveStream["SessionMessage | Exception"]):
    """What a client of the SDK reads. It is the outlet of its conversation: what is sent waits here as bytes."""

    def __init__(self) -> None:
        self._put, self._take = anyio.create_memory_object_stream[bytes](math.inf)
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """See `Outlet`."""
        return self._waiting > _BUSY

    def send(self, line: bytes) -> bool:
        """See `Outlet`."""
        size = len(line)
        if self._waiting and self._waiting + size > _MOST and size > _SHORT:
            return False
        try:
            self._put.send_nowait(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return True  # nobody reads any more
        self._waiting += size
        return True

    async def receive(self) -> SessionMessage | Exception:
        """The next message; an exception in place of one that the SDK cannot read, and of an answer, an error."""
        line = await self._take.receive()
        self._waiting -= len(line)
        try:
            return to_message(line) if len(line) < LARGE_MESSAGE else await aside(partial(to_message, line))
        except ValueError as error:
            is_answer = b'"method"' not in line[:HEAD] and rpc.read_head_id(line)
            return to_message(rpc.unreadable_line(line)) if is_answer else error

    async def aclose(self) -> None:
        """Read no more."""
        self._put.close()
        self._take.close()


class _WriteStream(ObjectSendStream["SessionMessage"]):
    """What a client of the SDK writes to."""

    def __init__(self, receive: Callable[[bytes], Awaitable[None]]) -> None:
        self._receive = receive

    async def send(self, item: SessionMessage) -> None:
        """Hand a message over. It has been read when this returns."""
        await self._receive(from_message(item))

    async def send_eof(self) -> None:
        """Nothing: the conversation ends with its block."""

    async def aclose(self) -> None:
        """Nothing, as well."""
