"""A server in our own process: a server object of the SDK, run in the room's loop over streams in memory.

It is an actor like any other: it is greeted, listed, stopped when idle, drained and started again. An object is
run again for the next incarnation; a factory is called again. An exception of its code outside a request ends the
connection, not the room. Supervision cannot help against harm to the loop, for example blocking it: that needs a
process of its own.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from ..protocol.config import ServerDefinition
from ..protocol.errors import ConnectFailed
from ..protocol.jsonrpc import RpcError, encode_notification, encode_reply
from ..protocol.secrets import in_words
from ._backend import Backend
from ._connection import NoProcess
from ._exchange_table import ExchangeTable
from ._notes import Notes
from ._peer import Exchange, LostReason, PeerHooks
from ._pumps import pump_group
from ._request_table import mark_sent
from ._sdk import as_server, from_message, serve, to_message

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

_ANSWERS_WAITING = 64


class Handover:
    """Hands lines to the server, until it is closed or the server has ended."""

    def __init__(self, to_server: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        self._to_server = to_server

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.hand_over(encode_notification(method, params))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        self.hand_over(encode_reply(rpc_id, result, error))

    def withdraw(self, exchange: Exchange) -> None:
        pass  # nothing is on its way: a line is handed over whole, or not at all

    def hand_over(self, line: bytes) -> bool:
        try:
            self._to_server.send_nowait(to_message(line))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False  # the server has ended; `on_lost` tells those who wait
        return True


class InProcessPeer(ExchangeTable):
    """A `Peer` that hands messages over. Nothing is written, so a message counts as sent once it is handed over."""

    channel = "its stream"

    def __init__(
        self,
        backend: Backend,
        hooks: PeerHooks,
        to_server: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        self._handover = Handover(to_server)
        super().__init__(backend, hooks, Notes(hooks.on_note), self._handover)

    def request(self, exchange: Exchange) -> None:
        """Hand it over. Raises `UsageError` when its params cannot be written as JSON; nothing was sent then."""
        line = self._opened(exchange)
        if not self._silent and self._handover.hand_over(line):
            mark_sent(exchange)

    def hear(self, message: SessionMessage) -> None:
        self.last_heard = self._backend.now()
        self.take_line(from_message(message))


class InProcessConnector:
    """Runs one incarnation of a server that was given as an object, or as a factory of one."""

    def __init__(self, definition: ServerDefinition, *, backend: Backend) -> None:
        self._definition = definition
        self._backend = backend

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[InProcessConnection]:
        """Start the server. Raises `ConnectFailed` when the definition gives no server, or when the factory fails."""
        server = self._server()
        send, incoming = anyio.create_memory_object_stream["SessionMessage | Exception"](math.inf)
        outgoing, receive = anyio.create_memory_object_stream["SessionMessage"](_ANSWERS_WAITING)
        with send, incoming, outgoing, receive:
            connection = InProcessConnection(InProcessPeer(self._backend, hooks, send), hooks, send)
            async with pump_group() as tasks:
                tasks.start_soon(connection.hear, receive)
                tasks.start_soon(connection.run, server, incoming, outgoing)
                try:
                    yield connection
                finally:
                    connection.kill_now()

    def _server(self) -> Any:
        given, name = self._definition.in_process, self._definition.name
        server = as_server(given)
        if server is None and callable(given):
            try:
                server = as_server(given())
            except Exception as error:
                raise ConnectFailed(f"it could not be made: {in_words(error)}", server=name) from error
        if server is None:
            text = "it is not an MCP server of the SDK or FastMCP, nor a function that makes one. Pass one of these."
            raise ConnectFailed(text, server=name)
        return server


class InProcessConnection(NoProcess):
    """The running server and its peer."""

    def __init__(
        self,
        peer: InProcessPeer,
        hooks: PeerHooks,
        to_server: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        self.peer = peer
        self._hooks = hooks
        self._to_server = to_server
        self._ended = anyio.Event()

    async def run(
        self,
        server: Any,
        incoming: MemoryObjectReceiveStream[SessionMessage | Exception],
        outgoing: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        how = "ended by itself"
        try:
            await serve(server, incoming, outgoing)
        except Exception as error:
            how = f"its code raised {in_words(error)}"
        finally:
            self._ended.set()
        if not self.peer.is_silent:
            self.peer.silence()
            self._hooks.on_lost(LostReason(how))

    async def hear(self, receive: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for message in receive:
            self.peer.hear(message)

    async def stop(self, grace: float) -> None:
        """Close its stream and wait, at most `grace` seconds, until the server has ended. Idempotent."""
        self.kill_now()
        with anyio.move_on_after(grace):
            await self._ended.wait()

    def kill_now(self) -> None:
        self.peer.silence()
        self._to_server.close()
