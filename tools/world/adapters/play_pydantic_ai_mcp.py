"""Pydantic AI with its own toolset of MCP: an agent whose model makes the calls of the scene, one a turn."""

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from stage import EXAMPLE_CALL, Framework, Run, Shown, play

from greenroom.adapters.fastmcp import RoomTransport


def scripted(calls, record):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""
    left = iter(calls)

    async def respond(messages, info):
        record.offered.append({tool.name for tool in info.function_tools})
        parts = [part for message in messages for part in message.parts]
        answers = [part for part in parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
        record.shown = [shown(part) for part in answers]
        name, arguments = next(left, (None, None))
        said = TextPart("done") if name is None else ToolCallPart(name, arguments)
        return ModelResponse([said])

    return FunctionModel(respond)


def shown(part):
    if isinstance(part, RetryPromptPart):
        return Shown("retried", part.model_response())
    items = part.content if isinstance(part.content, list) else [part.content]
    images = sum(getattr(item, "is_image", False) for item in items)
    text = part.content if isinstance(part.content, str) else part.model_response_str()
    return Shown(part.outcome, text, images)


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()

    async def asked(message, _type, _params, _context):
        record.asked += [name for name in ("desk_wipe",) if name in message]
        return (
            ElicitResult(action="accept", content={"allow": "once"})
            if answer
            else ElicitResult(action="decline")
        )

    client = Client(RoomTransport(room), elicitation_handler=asked)
    agent = Agent(scripted(calls, record), toolsets=[MCPToolset(client, max_retries=9)], retries=9)
    async with agent:
        await agent.run("play")
    return record


async def example(module):
    record = Run()
    await module.answer("What time is it?", scripted([EXAMPLE_CALL], record))
    return record.shown[0].text


play(
    Framework(
        "Pydantic AI by FastMCP",
        run,
        example,
        ok="success",
        error="retried",
        not_sent="retried",
        refused="retried",
        denied="retried",
        unknown="retried",
        list_follows=False,
        session_per_run=run,
        extras=False,
        bounded=False,
        flood_words="",
    )
)
