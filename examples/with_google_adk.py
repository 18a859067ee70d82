from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models import BaseLlm
from google.adk.runners import InMemoryRunner

from greenroom import Greenroom
from greenroom.adapters.google_adk import RoomToolset


async def answer(question: str, model: BaseLlm | str = "gemini-2.5-flash") -> list[Event]:
    async with Greenroom.open("mcp.json") as room:
        agent = LlmAgent(name="helper", model=model, tools=[RoomToolset(room)])
        return await InMemoryRunner(agent=agent).run_debug(question, quiet=True)
