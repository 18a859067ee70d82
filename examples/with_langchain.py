from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel

from greenroom import Greenroom
from greenroom.adapters.langchain import room_tools


async def answer(question: str, model: BaseChatModel | str = "openai:gpt-5") -> str:
    async with Greenroom.open("mcp.json") as room:
        agent = create_agent(model, await room_tools(room))
        result = await agent.ainvoke({"messages": [{"role": "user", "content": question}]})
        return result["messages"][-1].text
