"""mcp-use: a client made of a configuration in the shape that every client uses."""

import asyncio

from mcp_use import MCPClient
from scene import blocks_text, play


async def scene(command, arguments, tools):
    client = MCPClient.from_dict({"mcpServers": {"all": {"command": command, "args": arguments}}})
    session = await client.create_session("all")
    try:
        listed = [tool.name for tool in await session.list_tools()]
        shown = []
        for name, args in tools:
            result = await session.call_tool(name, args)
            shown.append((bool(result.isError), blocks_text(result)))
        return listed, shown
    finally:
        await client.close_all_sessions()


play(lambda *given: asyncio.run(scene(*given)))
