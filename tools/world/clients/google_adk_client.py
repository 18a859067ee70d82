"""Google ADK: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters
from record import Run
from scene import play, text_of
from scripted_google_adk import scripted


async def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=30))
    try:
        listed = [tool.name for tool in await toolset.get_tools()]
        agent = LlmAgent(name="player", model=scripted(tools, Run()), tools=[toolset])
        runner = InMemoryRunner(agent=agent, app_name="world")
        session = await runner.session_service.create_session(app_name="world", user_id="user")
        wish = types.Content(role="user", parts=[types.Part.from_text(text="play the scene")])
        shown = []
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=wish):
            for answer in event.get_function_responses():
                result = answer.response
                shown.append((bool(result.get("isError") or result.get("error")), text_of(result)))
        return listed, shown
    finally:
        await toolset.close()


play(lambda *given: asyncio.run(scene(*given)))
