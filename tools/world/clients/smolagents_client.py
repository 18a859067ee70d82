"""smolagents: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import json

from mcp import StdioServerParameters
from scene import play
from smolagents import LogLevel, ToolCallingAgent, ToolCollection
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
)


class ScriptedModel(Model):
    """Makes these calls, whatever it is told. The agent checks each against the definition of its tool."""

    def __init__(self, calls):
        super().__init__(model_id="scripted")
        self._calls = iter([*calls, ("final_answer", {"answer": "done"})])

    def generate(self, messages, **options):
        name, arguments = next(self._calls)
        function = ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments))
        call = ChatMessageToolCall(function=function, id=f"call-{name}", type="function")
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    with ToolCollection.from_mcp(parameters, trust_remote_code=True, structured_output=True) as found:
        agent = ToolCallingAgent(
            [*found.tools], ScriptedModel(tools), max_steps=len(tools) + 1, verbosity_level=LogLevel.OFF
        )
        agent.run("play the scene")
        steps = [step for step in agent.memory.steps if hasattr(step, "observations")]
        shown = [
            (step.error is not None, str(step.error.message if step.error else step.observations))
            for step in steps[: len(tools)]
        ]
        return [tool.name for tool in found.tools], shown


play(scene)
