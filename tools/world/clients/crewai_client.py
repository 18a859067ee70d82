"""CrewAI: an agent whose model says what the scene wants, one call a turn, and is shown what came of it. What the agent
says of itself is switched off before it is imported."""

import json
import os

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}

from crewai import Agent, BaseLLM
from crewai_tools import MCPServerAdapter
from mcp import StdioServerParameters
from pydantic import Field
from scene import play, text_of


class ScriptedModel(BaseLLM):
    """Makes these calls, whatever it is told."""

    wanted: list = Field(default_factory=list)
    listed: list = Field(default_factory=list)
    told: list = Field(default_factory=list)

    def supports_function_calling(self):
        return True

    def call(self, messages, tools=None, **_given):
        if tools:
            self.listed = [tool["function"]["name"] for tool in tools]
        self.told = list(messages)
        if not self.wanted:
            return "done"
        name, arguments = self.wanted.pop(0)
        function = {"name": name, "arguments": json.dumps(arguments)}
        return [{"id": f"call-{len(self.wanted)}", "type": "function", "function": function}]


def scene(command, arguments, tools):
    model = ScriptedModel(model="scripted", wanted=list(tools))
    with MCPServerAdapter(StdioServerParameters(command=command, args=arguments)) as found:
        agent = Agent(
            role="player", goal="play", backstory="none", llm=model, tools=[*found], max_iter=len(tools) + 2
        )
        agent.kickoff("play the scene")
    shown = [text_of(each["content"]) for each in model.told if each["role"] == "tool"]
    return model.listed, [(False, text) for text in shown]


play(scene)
