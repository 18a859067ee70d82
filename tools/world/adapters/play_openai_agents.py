"""OpenAI Agents: an agent whose model makes the calls of the scene, one a turn."""

from agents import Agent, RunConfig, Runner
from mcp.server import MCPServer
from record import Run, Shown
from scripted_openai_agents import ScriptedModel
from stage import EXAMPLE_CALL, Framework, play, smudge

from greenroom import Greenroom
from greenroom.adapters.openai_agents import RoomServer


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
