from fastmcp import Client

from greenroom import Greenroom
from greenroom.adapters.fastmcp import RoomTransport


async def answer(tool: str, **arguments: object) -> str:
    async with Greenroom.open("mcp.json") as room, Client(RoomTransport(room)) as client:
        result = await client.call_tool(tool, arguments)
        return str(result.data)
