"""Strands: an agent whose model says what the scene wants, one call a turn, and is shown what came of it. Its
MCP client runs a thread of its own."""

import json

from mcp import StdioServerParameters, stdio_client
from scene import play, text_of
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.tools.mcp import MCPClient


class ScriptedModel(Model):
    """Makes these calls, whatever it is told."""

    def __init__(self, calls):
        self._calls = iter(enumerate(calls))

    def update_config(self, **_config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *_given, **_options):
        raise NotImplementedError
        yield

    async def stream(self, *_given, **_options):
        yield {"messageStart": {"role": "assistant"}}
        number, (name, arguments) = next(self._calls, (0, (None, None)))
        if name is None:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": str(number)}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if name is None else "tool_use"}}


def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    with MCPClient(lambda: stdio_client(parameters), startup_timeout=30) as client:
        found = client.list_tools_sync()
        agent = Agent(
            model=ScriptedModel(tools),
            tools=[*found],
            callback_handler=None,
            conversation_manager=NullConversationManager(),  # any other forgets the first calls of many
        )
        agent("play the scene")
        results = [
            block["toolResult"]
            for message in agent.messages
            for block in message["content"]
            if "toolResult" in block
        ]
        shown = [(result["status"] == "error", text_of(result["content"])) for result in results]
        return [tool.tool_name for tool in found], shown


play(scene)
