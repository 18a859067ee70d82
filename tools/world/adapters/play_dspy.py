"""DSPy: its tools make the calls of the scene."""

import json
from types import SimpleNamespace

import dspy
from stage import EXAMPLE_CALL, Framework, Run, Shown, play

from greenroom import Greenroom, Verdict
from greenroom.adapters.mcp_sdk import RoomSession


async def tools_of(session, record):
    listed = (await session.list_tools()).tools
    record.offered.append({tool.name for tool in listed})
    return {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in listed}


async def run(room, calls, *, answer=None, meta=None, on_progress=None):
    record = Run()

    async def asked(request):
        record.asked.append(request.tool)
        return Verdict.ONCE if answer else Verdict.DENY

    if isinstance(room, Greenroom):  # its callbacks belong to a session
        async with room.session(f"run of {id(record)}", on_approval=asked) as session:
            return await play_all(RoomSession(session, cycles=False), calls, record)
    return await play_all(RoomSession(room, cycles=False), calls, record)


async def play_all(session, calls, record):
    for name, arguments in calls:
        tools = await tools_of(session, record)
        if name not in tools:
            record.shown.append(Shown("never called"))
            continue
        try:
            said = await tools[name].acall(**arguments)
        except RuntimeError as error:
            record.shown.append(Shown("a `RuntimeError`", str(error)))
        else:
            images = sum(getattr(one, "type", "") == "image" for one in said) if isinstance(said, list) else 0
            record.shown.append(Shown("a result", str(said), images))
    await tools_of(session, record)
    return record


class ScriptedModel(dspy.BaseLM):
    """Makes the call of the example, and then is done."""

    def __init__(self, call):
        super().__init__(model="scripted")
        self.call = call
        self.told = ""

    async def aforward(self, prompt=None, messages=None, **_options):
        said = str(messages[-1]["content"])
        self.told = said if "observation_0" in said else self.told
        name, arguments = self.call if "observation_0" not in said else ("finish", {})
        text = (
            f"[[ ## next_thought ## ]]\nx\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
            f"[[ ## next_tool_args ## ]]\n{json.dumps(arguments)}\n\n"
            "[[ ## reasoning ## ]]\nx\n\n[[ ## answer ## ]]\ndone\n\n[[ ## completed ## ]]"
        )
        message = SimpleNamespace(content=text, role="assistant", tool_calls=None)
        choice = SimpleNamespace(message=message, finish_reason="stop")
        return SimpleNamespace(choices=[choice], usage={}, model="scripted")


async def example(module):
    model = ScriptedModel(EXAMPLE_CALL)
    await module.answer("What time is it?", model)
    return model.told


play(
    Framework(
        "DSPy",
        run,
        example,
        ok="a result",
        error="a `RuntimeError`",
        not_sent="a `RuntimeError`",
        refused="a `RuntimeError`",
        denied="a `RuntimeError`",
        unknown="never called",
        extras=False,
        bounded=False,
        flood_words="",
    )
)
