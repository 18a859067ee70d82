"""A pytest plugin for FastMCP's own tests: its in-memory transport goes through our `direct` door.

Client and server stay FastMCP's, in one process, as its tests need. Between them are a room with the server in it and
the door of `greenroom serve --expose direct`. Names have no prefix, because there is only one server.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import fastmcp.client.transports.memory as memory
from fastmcp.client.transports.base import TransportOptions
from mcp.shared.message import SessionMessage

from greenroom import Greenroom
from greenroom.actors.transports.in_process import from_message, to_message
from greenroom.gateway.conversations import Conversations
from greenroom.protocol.errors import CallError

ROOM = {"mcpServers": {}, "settings": {"toolPrefix": "none", "bootstrap": False}}


class Outlet:
    """Passes the door's lines to the client's stream."""

    busy = False

    def __init__(self, out: Any) -> None:
        self._out = out

    def send(self, line: bytes) -> bool:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._out.send_nowait(SessionMessage(to_message(line.rstrip(b"\n")).message))
        return True


@contextlib.asynccontextmanager
async def connect_session(
    self: Any, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
) -> AsyncGenerator[Any]:
    """Replaces `FastMCPTransport.connect_session`."""
    session_class = (transport_options or TransportOptions()).session_class
    failure: BaseException | None = None
    async with Greenroom.open(ROOM, cache_path=":memory:", in_process={"peer": self.server}) as room:
        conversations = Conversations(room, expose="direct", version="1", note=print)
        to_client, client_read = anyio.create_memory_object_stream[Any](float("inf"))
        client_write, from_client = anyio.create_memory_object_stream[Any](float("inf"))
        async with (
            anyio.create_task_group() as tasks,
            conversations.open(Outlet(to_client), tasks.start_soon, name="peer") as client_session,
        ):
            await tasks.start(conversations.watch)

            async def listen() -> None:
                is_known = False
                async for message in from_client:
                    line = from_message(message)
                    initializes = b'"method":"initialize"' in line
                    if not is_known and not initializes:  # its tests call what they have not listed
                        is_known = True
                        with contextlib.suppress(CallError):
                            await room.connect("peer")
                            await room.settled()
                    client_session.receive(line)
                    await anyio.lowlevel.checkpoint()

            tasks.start_soon(listen)
            try:
                async with session_class(
                    read_stream=client_read, write_stream=client_write, **session_kwargs
                ) as session:
                    yield session
            except BaseException as error:  # a task group would wrap it
                failure = error
            finally:
                client_session.close()
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


memory.FastMCPTransport.connect_session = connect_session
