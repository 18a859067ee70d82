from agno.agent import Agent
from agno.models.base import Model
from agno.tools.mcp import MCPTools
from fastmcp import Client

from greenroom import Greenroom
from greenroom.adapters.fastmcp import RoomTransport


async def answer(question: str, model: Model | str = "openai:gpt-5") -> str:
    async with (
        Greenroom.open("mcp.json") as room,
        Client(RoomTransport(room), mode="legacy") as client,
        MCPTools(session=client.session) as tools,
    ):
        return str((await Agent(model=model, tools=[tools]).arun(question)).content)
