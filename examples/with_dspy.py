import dspy

from greenroom import Greenroom
from greenroom.adapters.mcp_sdk import RoomSession


class Answer(dspy.Signature):
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


async def answer(question: str, lm: dspy.BaseLM | None = None) -> str:
    async with Greenroom.open("mcp.json") as room:
        session = RoomSession(room, cycles=False)
        tools = [dspy.Tool.from_mcp_tool(session, tool) for tool in (await session.list_tools()).tools]
        with dspy.context(lm=lm):
            return (await dspy.ReAct(Answer, tools).acall(question=question)).answer
