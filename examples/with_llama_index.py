from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import LLM
from llama_index.tools.mcp import McpToolSpec

from greenroom import Greenroom
from greenroom.adapters.mcp_sdk import RoomSession


async def answer(question: str, llm: LLM) -> str:
    async with Greenroom.open("mcp.json") as room:
        spec = McpToolSpec(RoomSession(room, cycles=False))
        agent = FunctionAgent(tools=await spec.to_tool_list_async(), llm=llm)
        return str(await agent.run(question))
