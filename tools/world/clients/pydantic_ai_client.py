"""Pydantic AI: the value a tool gives back is what the model is shown."""

import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.mcp import MCPToolset
from scene import play, text_of


async def scene(command, arguments, tools):
    async with MCPToolset(StdioTransport(command, arguments, keep_alive=False)) as server:
        listed = [tool.name for tool in await server.list_tools()]
        shown = []
        for name, args in tools:
            try:
                shown.append((False, text_of(await server.direct_call_tool(name, args))))
            except (ModelRetry, ToolFailed) as error:
                shown.append((True, str(error)))
        return listed, shown


play(lambda *given: asyncio.run(scene(*given)))
