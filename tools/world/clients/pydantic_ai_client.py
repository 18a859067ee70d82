"""Pydantic AI: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import RetryPromptPart, ToolReturnPart
from record import Run
from scene import play, text_of
from scripted_pydantic_ai import scripted


async def scene(command, arguments, tools):
    async with MCPToolset(StdioTransport(command, arguments, keep_alive=False)) as server:
        listed = [tool.name for tool in await server.list_tools()]
        agent = Agent(scripted(tools, Run()), toolsets=[server], retries=len(tools))
        told = await agent.run("play the scene")
        parts = [part for message in told.all_messages() for part in message.parts]
        return listed, [shown(part) for part in parts if isinstance(part, RetryPromptPart | ToolReturnPart)]


def shown(part):
    if isinstance(part, RetryPromptPart):
        return True, part.model_response()
    return getattr(part, "outcome", "success") != "success", text_of(part.content)


play(lambda *given: asyncio.run(scene(*given)))
