"""OpenAI Agents: an agent whose model makes the calls of the scene, one a turn."""

import json

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from mcp.server import MCPServer
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from stage import EXAMPLE_CALL, Framework, Run, Shown, play, smudge

from greenroom import Greenroom
from greenroom.adapters.openai_agents import RoomServer


class ScriptedModel(Model):
    """Makes these calls, whatever it is told, and notes what it is offered."""

    def __init__(self, calls, run):
        self._calls = iter(enumerate(calls))
        self._run = run

    async def get_response(self, *, input, tools, **_given):
        self.told = json.dumps(input[-1], default=str)
        self._run.offered.append({tool.name for tool in tools})
        self._run.defined = [(tool.name, tool.description, tool.params_json_schema) for tool in tools]
        number, (name, arguments) = next(self._calls, (0, (None, None)))
        if name is None:
            text = ResponseOutputText(text=f"done, and told {self.told}", type="output_text", annotations=[])
            said = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            said = ResponseFunctionToolCall(
                name=name, arguments=json.dumps(arguments), call_id=f"call-{number}", type="function_call"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, **_given):
        raise NotImplementedError


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()
    server = RoomServer(room, tool_meta_resolver=lambda _context: meta, on_progress=on_progress)
    agent = Agent("player", model=ScriptedModel(calls, record), mcp_servers=[server])
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(agent, "play", max_turns=len(calls) + 2, run_config=config)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            record.asked.append(item.name)
            (state.approve if answer else state.reject)(item)
        result = await Runner.run(agent, state, max_turns=len(calls) + 2, run_config=config)
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            record.shown.append(shown(item.output))
    record.said = result.final_output
    return record


def shown(output):
    """The framework tells results and errors alike: as text."""
    parts = output if isinstance(output, list) else [output]
    said = [part if isinstance(part, str) else part.get("text", "") for part in parts]
    images = sum(isinstance(part, dict) and part["type"] == "image" for part in parts)
    return Shown("output", "\n".join(filter(None, said)), images)


async def first(stage, _room):
    """Prompts and resources of a server of which nothing is known yet, and no tool was asked for."""
    server = MCPServer("desk")
    server.prompt(name="greet")(lambda: "Good evening.")
    server.resource("memo://a", name="a")(lambda: "ink")
    server.resource("memo://{name}/ink", name="b")(lambda name: name)

    async def listed(ask):
        async with Greenroom.open({}, cache_path=":memory:", in_process={"desk": server}) as room:
            return await ask(RoomServer(room))

    prompts = (await listed(RoomServer.list_prompts)).prompts
    resources = (await listed(RoomServer.list_resources)).resources
    templates = (await listed(RoomServer.list_resource_templates)).resource_templates
    counts = [len(prompts), len(resources), len(templates)]
    stage.expect(counts == [1, 1, 1], f"lists {counts}")


async def example(module):
    model = ScriptedModel([EXAMPLE_CALL], Run())
    await module.answer("What time is it?", model)
    return model.told


play(
    Framework(
        run,
        example=example,
        ok="output",
        error="output",
        unknown="the run ends with `ModelBehaviorError`",
        more=(smudge, first),
    )
)
