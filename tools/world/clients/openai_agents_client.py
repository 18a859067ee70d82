"""OpenAI Agents: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio

from agents import Agent, RunConfig, Runner
from agents.mcp import MCPServerStdio
from record import Run
from scene import play, text_of
from scripted_openai_agents import ScriptedModel


async def scene(command, arguments, tools):
    parameters = {"command": command, "args": arguments}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=30) as server:
        listed = [tool.name for tool in await server.list_tools()]
        agent = Agent("player", model=ScriptedModel(tools, Run()), mcp_servers=[server])
        told = await Runner.run(
            agent, "play the scene", max_turns=len(tools) + 2, run_config=RunConfig(tracing_disabled=True)
        )
        outputs = [item.output for item in told.new_items if item.type == "tool_call_output_item"]
        return listed, [(False, text_of(output)) for output in outputs]


play(lambda *given: asyncio.run(scene(*given)))
