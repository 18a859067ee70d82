"""mcp-use: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio
import os

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp_use import MCPAgent, MCPClient
from record import Run
from scene import play
from scripted_langchain import ScriptedModel


async def scene(command, arguments, tools):
    client = MCPClient.from_dict({"mcpServers": {"all": {"command": command, "args": arguments}}})
    record = Run()
    try:
        session = await client.create_session("all")
        listed = [tool.name for tool in await session.list_tools()]
        agent = MCPAgent(llm=ScriptedModel(tools, record), client=client, max_steps=2 * len(tools) + 2)
        await agent.run("play the scene")
        return listed, [(False, one.text) for one in record.shown]
    finally:
        await client.close_all_sessions()


play(lambda *given: asyncio.run(scene(*given)))
