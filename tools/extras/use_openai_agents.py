"""A room is one of an agent's `mcp_servers`."""

import anyio
from room_of_clock import room

from greenroom.adapters.openai_agents import RoomServer


async def main():
    async with room() as one:
        server = RoomServer(one)
        await server.connect()
        result = await server.call_tool("clock_now", {"utc_offset": 1})
        assert not result.isError if hasattr(result, "isError") else not result.is_error
        await server.cleanup()


anyio.run(main)
