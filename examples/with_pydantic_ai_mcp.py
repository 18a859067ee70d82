from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models import Model

from greenroom import Greenroom
from greenroom.adapters.fastmcp import RoomTransport


async def answer(question: str, model: Model | str = "openai:gpt-5") -> str:
    async with Greenroom.open("mcp.json") as room:
        agent = Agent(model, toolsets=[MCPToolset(RoomTransport(room))])
        return (await agent.run(question)).output
