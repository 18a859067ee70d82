"""A room is a toolset of an agent, whose model calls all of its tools."""

import anyio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from room_of_clock import room

from greenroom.adapters.pydantic_ai import RoomToolset


async def main():
    async with room() as one:
        agent = Agent(TestModel(call_tools=["clock_now"]), toolsets=[RoomToolset(one)])
        assert "clock_now" in (await agent.run("What is the time?")).output


anyio.run(main)
