"""LangChain with its own adapter of MCP: an agent whose model makes the calls of the scene, one a turn."""

import warnings

warnings.simplefilter("ignore")  # `langchain.mcp` is beta, and says so

from langchain.agents import create_agent  # noqa: E402
from langchain.mcp import MCPAdapter  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.types import Command  # noqa: E402
from scripted_langchain import Scripted  # noqa: E402
from stage import EXAMPLE_CALL, Framework, Run, play  # noqa: E402

from greenroom.adapters.fastmcp import RoomTransport  # noqa: E402


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()
    async with MCPAdapter(RoomTransport(room)) as adapter:
        agent = create_agent(
            Scripted(calls, record), await adapter.list_tools(), checkpointer=InMemorySaver()
        )
        config = {"configurable": {"thread_id": "one"}, "recursion_limit": 100}
        state = await agent.ainvoke({"messages": [{"role": "user", "content": "play"}]}, config)
        while interrupts := state.get("__interrupt__"):
            [interrupt] = interrupts
            record.asked += [name for name in ("desk_wipe",) if name in str(interrupt.value)]
            said = {"action": "accept", "content": {"allow": "once"}} if answer else {"action": "decline"}
            responses = dict.fromkeys(keys(interrupt.value), said)
            state = await agent.ainvoke(Command(resume={"responses": responses}), config)
        record.said = state["messages"][-1].text
    record.structured = []
    return record


def keys(value):
    return [request["key"] for request in value["requests"]]


async def example(module):
    record = Run()
    await module.answer("What time is it?", Scripted([EXAMPLE_CALL], record))
    return record.shown[0].text


play(
    Framework(
        "LangChain by FastMCP",
        run,
        example,
        ok='`status="success"`',
        error='`status="error"`',
        not_sent='`status="error"`',
        refused='`status="error"`',
        denied='`status="error"`',
        unknown='`status="error"`',
        list_follows=False,
        session_per_run=run,
        extras=False,
        bounded=False,
        flood_words="",
    )
)
