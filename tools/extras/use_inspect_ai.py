"""A room is a source of tools of an evaluation, whose model calls one."""

import os
import tempfile

import anyio
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from room_of_clock import room

from greenroom.adapters.inspect_ai import RoomTools


def scripted(messages, *_):
    told = messages[-1].role == "tool"
    output = (
        ModelOutput.from_content("mockllm/model", messages[-1].text)
        if told
        else ModelOutput.for_tool_call("mockllm/model", "clock_now", {})
    )
    output.usage = ModelUsage()  # or it would count tokens, with a table from the network
    return output


async def main():
    async with room() as one:
        tools = RoomTools(one)
        model = get_model("mockllm/model", custom_outputs=scripted)
        task = Task(
            [Sample("What is the time?")], solver=[use_tools(tools), generate()], cleanup=tools.end_sample
        )
        [log] = await eval_async(task, model)
        assert "weekday" in log.samples[0].output.completion, log.samples[0].error


with tempfile.TemporaryDirectory() as folder:
    os.environ |= {"INSPECT_LOG_DIR": folder, "INSPECT_DISPLAY": "none"}
    anyio.run(main)
