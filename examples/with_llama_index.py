from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import LLM
from llama_index.tools.mcp import McpToolSpec

from greenroom import Greenroom
from greenroom.adapters.mcp_sdk import RoomSession


async def answer(question: str, llm: LLM) -> str:
    async with Greenroom.open("mcp.json") as room:
        session: Any = RoomSession(room, cycles=False)
        agent = FunctionAgent(tools=await McpToolSpec(session).to_tool_list_async(), llm=llm)
        return str(await agent.run(user_msg=question))
