"""OpenAI Agents: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio
import json

from agents import Agent, Model, ModelResponse, ModelSettings, RunConfig, Runner, Usage
from agents.mcp import MCPServerStdio
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from scene import play, text_of


class ScriptedModel(Model):
    """Makes these calls, whatever it is told. The runner checks each against the definition of its tool."""

    def __init__(self, calls):
        self._calls = iter(enumerate(calls))

    async def get_response(self, *_given, **_options):
        number, (name, arguments) = next(self._calls, (0, (None, None)))
        if name is None:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            said = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            said = ResponseFunctionToolCall(
                name=name, arguments=json.dumps(arguments), call_id=f"call-{number}", type="function_call"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_given, **_options):
        raise NotImplementedError


async def scene(command, arguments, tools):
    parameters = {"command": command, "args": arguments}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=30) as server:
        listed = [tool.name for tool in await server.list_tools()]
        agent = Agent(
            "player", model=ScriptedModel(tools), mcp_servers=[server], model_settings=ModelSettings()
        )
        told = await Runner.run(
            agent, "play the scene", max_turns=len(tools) + 2, run_config=RunConfig(tracing_disabled=True)
        )
        outputs = [item.output for item in told.new_items if item.type == "tool_call_output_item"]
        return listed, [(False, text_of(output)) for output in outputs]


play(lambda *given: asyncio.run(scene(*given)))
