"""A room is the transport of a client of FastMCP."""

import anyio
from fastmcp import Client
from room_of_clock import room

from greenroom.adapters.fastmcp import RoomTransport


async def main():
    async with room() as one, Client(RoomTransport(one, expose="direct")) as client:
        result = await client.call_tool("clock_now", {"utc_offset": 1})
        assert result.content[0].text


anyio.run(main)
