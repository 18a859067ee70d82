"""LangChain: an agent of its own, on LangGraph, whose model makes the calls of the scene, one a turn."""

import asyncio
import uuid

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from record import Run
from scripted_langchain import ScriptedModel
from stage import DIES, Framework, play, smudge

from greenroom.adapters.langchain import room_tools


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()
    tools = await room_tools(room, meta=lambda _config: meta, on_progress=on_progress)
    agent = create_agent(ScriptedModel(calls, record), tools, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}, "recursion_limit": 100}
    state = await agent.ainvoke({"messages": [{"role": "user", "content": "play"}]}, config)
    while interrupts := state.get("__interrupt__"):
        [request] = interrupts[0].value["action_requests"]
        record.asked.append(request["name"])
        decision = {"type": "approve"} if answer else {"type": "reject", "message": "Not this one."}
        state = await agent.ainvoke(Command(resume={"decisions": [decision]}), config)
    record.said = state["messages"][-1].text
    return record


async def alone(stage, room):
    """Without an agent, and where nobody can be asked."""
    tools = {tool.name: tool for tool in await room_tools(room)}
    echo = await tools["w_echo"].ainvoke({"config": 1, "run_manager": 2, "self": 3})
    stage.expect('"config"' in echo and '"self"' in echo, f"names that the framework has, too: {echo}")
    call = {"type": "tool_call", "name": "desk_wipe", "args": {"path": "/alone"}, "id": "1"}
    for config in ({}, {"configurable": {"thread_id": "one"}}):
        refused = await tools["desk_wipe"].ainvoke(call, config)
        stage.expect(refused.status == "error", f"it is called, and nobody was asked: {refused}")
    died = await tools["f_crash"].ainvoke({})
    stage.expect(DIES in died, f"{died}")


async def reach(stage, room):
    """A program gets the error as the artifact, which says how far the call got."""
    tools = {tool.name: tool for tool in await room_tools(room)}
    calls = [("desk_wipe", "not_sent"), ("w_refuse", "answered")]
    ask = [{"type": "tool_call", "name": name, "args": {}, "id": name} for name, _ in calls]
    told = await asyncio.gather(*(tools[call["name"]].ainvoke(call) for call in ask))
    said = [(message.tool_call_id, message.artifact["_meta"]["greenroom/error"]["reach"]) for message in told]
    stage.expect(said == calls, f"{said}")


async def beside(stage, room):
    """A run that is interrupted calls once what it calls beside."""

    class Both(ScriptedModel):
        def _generate(self, messages, stop=None, run_manager=None, **options):
            result = super()._generate(messages, stop, run_manager, **options)
            message = result.generations[0].message
            if message.tool_calls:
                call = {"name": "desk_count", "args": {}, "id": uuid.uuid4().hex}
                message.tool_calls.append({**call, "type": "tool_call"})
            return result

    record = Run()
    agent = create_agent(
        Both([("desk_wipe", {"path": "/beside"})], record),
        await room_tools(room),
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "two"}}
    await agent.ainvoke({"messages": [{"role": "user", "content": "play"}]}, config)
    await agent.ainvoke(Command(resume=True), config)
    texts = sorted(told.text for told in record.shown)
    stage.expect(texts == ["1", "wiped /beside"], f"{texts}")


play(
    Framework(
        run,
        ScriptedModel,
        ok='`status="success"`',
        error='`status="error"`',
        list_follows=False,
        more=(smudge, alone, reach, beside),
    )
)
