"""OpenAI Agents: a server of the SDK's, and the output that its runner would hand to the model."""

import asyncio

from agents.mcp import MCPServerStdio
from scene import blocks_text, play


async def scene(command, arguments, tools):
    parameters = {"command": command, "args": arguments}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=30) as server:
        listed = [tool.name for tool in await server.list_tools()]
        shown = []
        for name, args in tools:
            result = await server.call_tool(name, args)
            shown.append(
                (bool(getattr(result, "is_error", getattr(result, "isError", False))), blocks_text(result))
            )
        return listed, shown


play(lambda *given: asyncio.run(scene(*given)))
