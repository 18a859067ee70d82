"""LangChain: an agent of its own, on LangGraph, whose model makes the calls of the scene, one a turn."""

import uuid

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from stage import DIES, EXAMPLE_CALL, Framework, Run, Shown, play

from greenroom.adapters.langchain import room_tools


class Scripted(BaseChatModel):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""

    calls: list
    record: Run

    def __init__(self, calls, record):
        super().__init__(calls=list(calls), record=record)
        self.record = record  # the same object

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_options):
        self.record.offered.append({tool.name for tool in tools})
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_options):
        told = [message for message in messages if isinstance(message, ToolMessage)]
        self.record.shown = [shown(message) for message in told]
        self.record.structured = [(message.artifact or {}).get("structuredContent") for message in told]
        if self.calls:
            name, arguments = self.calls.pop(0)
            calls = [{"name": name, "args": arguments, "id": uuid.uuid4().hex}]
            said = AIMessage("", tool_calls=calls)
        else:
            said = AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=said)])


def shown(message):
    images = sum(block["type"] == "image" for block in message.content_blocks)
    return Shown(f'`status="{message.status}"`', message.text, images)


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()
    tools = await room_tools(room, meta=lambda _config: meta, on_progress=on_progress)
    agent = create_agent(Scripted(calls, record), tools, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "one"}, "recursion_limit": 100}
    state = await agent.ainvoke({"messages": [{"role": "user", "content": "play"}]}, config)
    while interrupts := state.get("__interrupt__"):
        [request] = interrupts[0].value["action_requests"]
        record.asked.append(request["name"])
        decision = {"type": "approve"} if answer else {"type": "reject", "message": "Not this one."}
        state = await agent.ainvoke(Command(resume={"decisions": [decision]}), config)
    return record


async def example(module):
    record = Run()
    await module.answer("What time is it?", Scripted([EXAMPLE_CALL], record))
    return record.shown[0].text


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


async def beside(stage, room):
    """A run that is interrupted calls once what it calls beside."""

    class Both(Scripted):
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
        "LangChain",
        run,
        example,
        ok='`status="success"`',
        error='`status="error"`',
        not_sent='`status="error"`',
        refused='`status="error"`',
        denied='`status="error"`',
        unknown='`status="error"`',
        list_follows=False,
        more=(alone, beside),
    )
)
