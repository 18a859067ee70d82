"""DSPy: its tools make the calls of the scene."""

import json
from types import SimpleNamespace

import dspy
from record import Shown
from stage import EXAMPLE_CALL, Framework, in_session, play

from greenroom.adapters.mcp_sdk import RoomSession


async def tools_of(session, record):
    listed = (await session.list_tools()).tools
    record.offered.append({tool.name for tool in listed})
    return {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in listed}


async def play_all(room, calls, record):
    session = RoomSession(room, cycles=False)
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
        in_session(play_all),
        example=example,
        ok="a result",
        error="a `RuntimeError`",
        unknown="never called",
        extras=False,
        bounded=False,
    )
)
