"""A room is a toolset of an agent."""

import anyio
from room_of_clock import room

from greenroom.adapters.google_adk import RoomToolset


async def main():
    async with room() as one:
        assert "clock_now" in [tool.name for tool in await RoomToolset(one).get_tools()]


anyio.run(main)
