"""The tools of a room are LangChain's."""

import anyio
from room_of_clock import room

from greenroom.adapters.langchain import room_tools


async def main():
    async with room() as one:
        (now,) = [tool for tool in await room_tools(one) if tool.name == "clock_now"]
        assert await now.ainvoke({"utc_offset": 1})


anyio.run(main)
