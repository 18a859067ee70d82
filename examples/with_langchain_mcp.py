from langchain.agents import create_agent
from langchain.mcp import MCPAdapter
from langchain_core.language_models import BaseChatModel

from greenroom import Greenroom
from greenroom.adapters.fastmcp import RoomTransport


async def answer(question: str, model: BaseChatModel | str = "openai:gpt-5") -> str:
    async with Greenroom.open("mcp.json") as room, MCPAdapter(RoomTransport(room)) as tools:
        agent = create_agent(model, await tools.list_tools())
        result = await agent.ainvoke({"messages": [{"role": "user", "content": question}]})
        return result["messages"][-1].text
