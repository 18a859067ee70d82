"""Pydantic AI: an agent whose model makes the calls of the scene, one a turn."""

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from record import Run
from scripted_pydantic_ai import scripted
from stage import Framework, play, smudge

from greenroom.adapters.pydantic_ai import RoomToolset


async def run(room, calls, *, answer=None, meta=None, on_progress=None, **options):
    record = Run()
    tools = RoomToolset(room, meta=lambda _ctx: meta, on_progress=on_progress, **options)
    agent = Agent(scripted(calls, record), toolsets=[tools], output_type=[str, DeferredToolRequests])
    result = await agent.run("play")
    while isinstance(result.output, DeferredToolRequests):
        answers = DeferredToolResults()
        for call in result.output.approvals:
            record.asked.append(call.tool_name)
            answers.approvals[call.tool_call_id] = True if answer else ToolDenied("no")
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
    record.said = result.output
    return record


async def instructions(stage, room):
    """What servers say of themselves, for a model whose program asks for it."""
    for asked in (False, True):
        record = await run(room, [], include_instructions=asked)
        stage.expect(("Ask for trouble." in (record.instructions or "")) is asked, f"{record.instructions}")


async def deferred(stage, room):
    """Tools that the model has to look for first."""
    record = Run()
    model = scripted([("search_tools", {"queries": ["echo"]}), ("w_echo", {"n": 1})], record)
    await Agent(model, toolsets=[RoomToolset(room).defer_loading()]).run("play")
    stage.expect("w_echo" not in record.offered[0], f"at first it is offered {record.offered[0]}")
    stage.expect("w_echo" in record.offered[1], f"then it is offered {record.offered[1]}")
    stage.expect(record.shown[-1].how == "success", f"{record.shown[-1]}")


async def retries(stage, room):
    """The last retry would end the run."""
    record = await run(room, [("f_crash", {})] * 3 + [("f_pid", {})] * 3, max_retries=2)
    hows = [told.how for told in record.shown[-3:]]
    stage.expect(hows == ["retried", "retried", "failed"], f"told {hows}")
    await room.connect("f")


async def places(stage, room):
    """A toolset that stands in several places of an agent has one session in a run; another toolset has another."""
    record = Run()
    model = scripted([("a_own_pid", {}), ("b_own_pid", {}), ("c_own_pid", {})], record)
    tools = RoomToolset(room)
    others = RoomToolset(room, id="others").prefixed("c")
    await Agent(model, toolsets=[tools.prefixed("a"), tools.prefixed("b"), others]).run("play")
    first, second, other = (told.text for told in record.shown)
    stage.expect(first == second != other, f"{record.shown}")
    left = [row for row in room.status() if row.scope != "shared"]
    stage.expect(not left, f"left of the sessions: {left}")


play(
    Framework(
        run,
        scripted,
        ok="success",
        error="failed",
        refused="retried",
        denied="denied",
        unknown="retried",
        session_per_run=run,
        more=(smudge, instructions, deferred, places, retries),
    )
)
