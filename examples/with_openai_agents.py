from agents import Agent, Model, Runner

from greenroom import Greenroom
from greenroom.adapters.openai_agents import RoomServer


async def answer(question: str, model: Model | str | None = None) -> str:
    async with Greenroom.open("mcp.json") as room:
        agent = Agent("helper", model=model, mcp_servers=[RoomServer(room)])
        return (await Runner.run(agent, question)).final_output
