from claude_agent_sdk import ResultMessage, query

from greenroom import Greenroom
from greenroom.adapters.claude_agent_sdk import RoomServer


async def answer(question: str) -> str | None:
    async with Greenroom.open("mcp.json") as room:
        messages = query(prompt=question, options=RoomServer(room).options())
        results = [message async for message in messages if isinstance(message, ResultMessage)]
        return results[-1].result
