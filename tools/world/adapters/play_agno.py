"""Agno with its own tools of MCP: an agent whose model makes the calls of the scene, one a turn."""

import json
from dataclasses import dataclass, field
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.tools.mcp import MCPTools
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from record import Run, Shown
from stage import Framework, play

from greenroom.adapters.fastmcp import RoomTransport


@dataclass
class ScriptedModel(Model):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""

    id: str = "scripted"
    calls: list = field(default_factory=list)
    record: Any = None

    async def ainvoke(self, messages, assistant_message, tools=None, **_options):
        self.record.offered.append({tool["function"]["name"] for tool in tools or ()})
        self.record.shown = [shown(message) for message in messages if message.role == "tool"]
        if not self.calls:
            return ModelResponse(role="assistant", content="done")
        name, arguments = self.calls.pop(0)
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call-{len(self.calls)}", "type": "function", "function": function}
        return ModelResponse(role="assistant", tool_calls=[call])

    def invoke(self, *_given, **_options):
        raise AssertionError("it is asked in the loop")

    ainvoke_stream = invoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke


def shown(message):
    how = "told as an error" if message.tool_call_error else "told as a result"
    return Shown(how, str(message.content), len(message.images or ()))


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()

    async def asked(message, _type, _params, _context):
        record.asked += [name for name in ("desk_wipe",) if name in message]
        return (
            ElicitResult(action="accept", content={"allow": "once"})
            if answer
            else ElicitResult(action="decline")
        )

    async with (
        Client(RoomTransport(room), mode="legacy", elicitation_handler=asked) as client,
        MCPTools(session=client.session) as tools,
    ):
        agent = Agent(model=ScriptedModel(calls=list(calls), record=record), tools=[tools], telemetry=False)
        said = await agent.arun("play")
        pictures = len(said.images or ())
    for one in record.shown:
        one.images = max(one.images, pictures if "image" in one.text.lower() else 0)
    return record


play(
    Framework(
        run,
        lambda calls, record: ScriptedModel(calls=calls, record=record),
        ok="told as a result",
        error="told as a result",
        list_follows=False,
        session_per_run=run,
        extras=False,
        bounded=False,
    )
)
