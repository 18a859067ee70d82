"""A room is a server among the options of a query."""

import anyio
from room_of_clock import room

from greenroom.adapters.claude_agent_sdk import RoomServer


async def main():
    async with room() as one:
        options = RoomServer(one).options()
        assert options.mcp_servers["greenroom"]["type"] == "sdk"


anyio.run(main)
