"""FastMCP: its client makes the calls of the scene, and lists the tools before each, as an agent would."""

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from record import Run, Shown
from stage import EXAMPLE_CALL, Framework, play

from greenroom import Greenroom
from greenroom.adapters.fastmcp import RoomTransport


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()

    async def asked(message, _type, _params, _context):
        record.asked += [name for name in ("desk_wipe",) if name in message]
        return (
            ElicitResult(action="accept", content={"allow": "once"})
            if answer
            else ElicitResult(action="decline")
        )

    async with Client(RoomTransport(room), elicitation_handler=asked) as client:
        for name, arguments in calls:
            record.offered.append({tool.name for tool in await client.list_tools()})

            async def progressed(progress, _total, _message, name=name):
                if on_progress is not None:
                    on_progress(name, {"progress": progress})

            result = await client.call_tool(
                name, arguments, meta=meta, progress_handler=progressed, raise_on_error=False
            )
            record.shown.append(shown(result))
            record.structured.append(result.structured_content)
        record.offered.append({tool.name for tool in await client.list_tools()})
    return record


def shown(result):
    text = "\n".join(block.text for block in result.content if block.type == "text")
    images = sum(block.type == "image" for block in result.content)
    return Shown("`is_error`" if result.is_error else "a result", text, images)


async def example(module):
    name, arguments = EXAMPLE_CALL
    return await module.answer(name, **arguments)


async def own_sessions(room, calls):
    assert isinstance(room, Greenroom)
    return await run(room, calls)


play(
    Framework(
        run,
        example=example,
        ok="a result",
        error="`is_error`",
        session_per_run=own_sessions,
        bounded=False,
    )
)
