"""The Python SDK, version 1 or 2: whichever is installed."""

import asyncio

from mcp import ClientSession, StdioServerParameters, stdio_client
from scene import blocks_text, play


async def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    async with stdio_client(parameters) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        listed = [tool.name for tool in (await session.list_tools()).tools]
        shown = []
        for name, args in tools:
            result = await session.call_tool(name, args)
            shown.append(
                (bool(getattr(result, "is_error", getattr(result, "isError", False))), blocks_text(result))
            )
        return listed, shown


play(lambda *given: asyncio.run(scene(*given)))
