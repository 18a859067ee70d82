"""FastMCP: `.data` where a result has any, and its blocks."""

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from scene import blocks_text, play, text_of


async def scene(command, arguments, tools):
    async with Client(StdioTransport(command, arguments, keep_alive=False)) as client:
        listed = [tool.name for tool in await client.list_tools()]
        shown = []
        for name, args in tools:
            result = await client.call_tool(name, args, raise_on_error=False)
            data = getattr(result, "data", None)
            shown.append((bool(result.is_error), blocks_text(result) if data is None else text_of(data)))
        return listed, shown


play(lambda *given: asyncio.run(scene(*given)))
