"""A room as the transport of a FastMCP client, in this process: `fastmcp.Client(RoomTransport(room))`.

So a room works in every framework that takes a client or a transport of FastMCP, such as Agno's `MCPTools`. Each
connection is a client of the room's own endpoint (`InProcessDoor`), with a session of its own. LangChain and Pydantic
AI take one, too. Their own adapters here need neither FastMCP nor an SDK, give each run a session, and know which
failure may be tried again, so the documentation shows those alone.

A JSON-RPC error of a server becomes a result with `isError`, because a framework may end the run at such an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastmcp.client.transports.base import ClientTransport, TransportOptions

from .. import Greenroom, InProcessDoor

if TYPE_CHECKING:
    from mcp import ClientSession


class RoomTransport(ClientTransport):
    """A connection of a FastMCP client to a room in the same process."""

    def __init__(
        self,
        room: Greenroom | InProcessDoor,
        *,
        expose: str | None = None,
        session: str | None = None,
        profile: str | None = None,
        variables: Mapping[str, str] | None = None,
        subject: str | None = None,
    ) -> None:
        """`room`: an open room, or a door of it, so that many connections share their lists. The other arguments are
        those of `InProcessDoor`. If you pass a door, `expose` is that of the door."""
        self._room = room
        self._expose = expose
        self._who: dict[str, Any] = {
            "session": session,
            "profile": profile,
            "variables": variables or {},
            "subject": subject,
        }

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncGenerator[ClientSession]:
        """See `ClientTransport`. Raises as `InProcessDoor.open` and `InProcessDoor.dispatcher` do."""
        make_session = (transport_options or TransportOptions()).session_class
        async with AsyncExitStack() as ends:
            door = self._room
            if isinstance(door, Greenroom):
                opened = InProcessDoor.open(door, expose=self._expose or "direct")
                door = await ends.enter_async_context(opened)
            dispatcher = await ends.enter_async_context(door.dispatcher(**self._who, errors_as_results=True))
            yield await ends.enter_async_context(make_session(dispatcher=dispatcher, **session_kwargs))

    def __repr__(self) -> str:
        return f"<RoomTransport {self._who['session'] or ''}>".replace(" >", ">")
