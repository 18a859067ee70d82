"""A server in our own process: a server object of the SDK, run in the room's loop over streams in memory.

It is an actor like any other: it is initialized, listed, stopped when idle, drained and started again. An object is
run again for the next incarnation; a factory is called again. An exception of its code outside a request ends the
connection, not the room. Supervision cannot help against harm to the loop, for example blocking it: that needs a
process of its own.

All that we need of the SDK's provisional API stands at the end of this file: `Server.run` over streams of
`SessionMessage`s, and the low-level server inside an `MCPServer` or `FastMCP`. They are the same in both majors of the
SDK, 1.x and 2.x. A contract test (`tests/whole/test_sdk_contract.py`) fails when either changes; `make older-sdk` runs
it with 1.x. Importing the SDK takes two thirds of a second, so nothing here imports it before a function is called. A
program with a server object has imported it already.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import anyio

from ...config.model import ServerDefinition
from ...protocol.errors import ConnectFailed
from ...protocol.jsonrpc.outgoing import encode_notification, encode_reply
from ...protocol.jsonrpc.terms import RpcError
from ...protocol.safe_text import in_words, mend_escapes
from ..backend import Backend, pump_group
from ..exchanges import ExchangeTable
from ..open_requests import mark_sent
from ..peer import Exchange, LostReason, NoProcess, PeerHooks
from ..server_notes import ServerNotes
from ..timers import at_most

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage


_ANSWERS_WAITING = 64


class Handover:
    """Gives lines to the server, until it is closed or the server has ended."""

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
        super().__init__(backend, hooks, ServerNotes(hooks.on_note), self._handover)

    def request(self, exchange: Exchange) -> None:
        """Give the request to the server. Raises `UsageError` when its params cannot be written as JSON; nothing was
        sent then."""
        line = self._opened(exchange)
        if not self.is_silent and self._handover.hand_over(line):
            mark_sent(exchange)

    def hear(self, message: SessionMessage) -> None:
        self.last_heard: float = self._backend.now()
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
        async with at_most(grace):
            await self._ended.wait()

    def kill_now(self) -> None:
        self.peer.silence()
        self._to_server.close()


def as_server(value: Any) -> Any | None:
    """`value`, if it is a server of the SDK (either major version) or of FastMCP; otherwise None."""
    return value if _low_level(value) is not None else None


def _low_level(value: Any) -> Any | None:
    """The low-level server that `value` is or holds. Its holders offer no public way to it: `MCPServer` of the
    SDK's 2.x, `FastMCP` of its 1.x, and FastMCP's own."""
    from mcp.server import Server

    found = getattr(value, "_lowlevel_server", None) or getattr(value, "_mcp_server", None) or value
    return found if isinstance(found, Server) else None  # pyright: ignore[reportUnknownVariableType]


async def serve(
    server: Any,
    incoming: MemoryObjectReceiveStream[SessionMessage | Exception],
    outgoing: MemoryObjectSendStream[SessionMessage],
) -> None:
    """Run the server until `incoming` is closed. Raises what its own code raises outside of a request."""
    low_level = _low_level(server)
    assert low_level is not None
    lifespan = getattr(
        server, "_lifespan_manager", nullcontext
    )  # FastMCP's own, which it puts around every way to run the server
    async with lifespan():
        await low_level.run(incoming, outgoing, low_level.create_initialization_options())


def to_message(line: bytes) -> SessionMessage:
    """One JSON-RPC message, in the form the server takes; it takes no half characters (`protocol.safe_text`)."""
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

    try:
        return SessionMessage(_read(line))
    except ValidationError:
        mended = mend_escapes(line)
        if mended is None:
            raise
    return SessionMessage(_read(mended))


def _read(line: bytes) -> Any:
    """One JSON-RPC message. Raises `pydantic.ValidationError`."""
    try:
        from mcp_types.jsonrpc import jsonrpc_message_adapter
    except ModuleNotFoundError:  # the SDK is of the 1.x line
        from mcp.types import JSONRPCMessage as Older

        return cast("Any", Older).model_validate_json(line)
    return jsonrpc_message_adapter.validate_json(line)


def from_message(message: SessionMessage) -> bytes:
    """One JSON-RPC message of the server, as bytes: exactly the fields it set."""
    from pydantic_core import PydanticSerializationError

    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:  # half a character
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True)).encode()
