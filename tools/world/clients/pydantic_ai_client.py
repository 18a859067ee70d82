"""Pydantic AI: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from scene import play, text_of


async def scene(command, arguments, tools):
    left = iter(tools)
    shown = []

    async def say(messages, _info):
        """Makes these calls, whatever it is told. The agent checks each against the definition of its tool."""
        for part in messages[-1].parts:
            if isinstance(part, RetryPromptPart):
                shown.append((True, part.model_response()))
            elif isinstance(part, ToolReturnPart):
                shown.append((getattr(part, "outcome", "success") != "success", text_of(part.content)))
        name, args = next(left, (None, None))
        return ModelResponse([TextPart("done") if name is None else ToolCallPart(name, args)])

    async with MCPToolset(StdioTransport(command, arguments, keep_alive=False)) as server:
        listed = [tool.name for tool in await server.list_tools()]
        agent = Agent(FunctionModel(say), toolsets=[server], retries=len(tools))
        await agent.run("play the scene")
        return listed, shown


play(lambda *given: asyncio.run(scene(*given)))
