"""Inspect AI: real evaluations with a scripted model, two hundred samples at once, and servers that die in some."""

import asyncio
import json
import os

from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import mcp_connection
from stage import DIES, example_module, play

from greenroom.adapters.inspect_ai import RoomTools

SAMPLES = 200


class ScriptedModel:
    """Makes the calls that stand in a sample's input as JSON, one a turn, and then says what it was told last."""

    def __init__(self):
        self.offered = set()

    def __call__(self, messages, tools, _choice, _config):
        self.offered |= {tool.name for tool in tools}
        calls = json.loads(next(each.text for each in messages if each.role == "user"))
        told = [each for each in messages if isinstance(each, ChatMessageTool)]
        if len(told) < len(calls):
            name, arguments = calls[len(told)]
            output = ModelOutput.for_tool_call("mockllm/model", name, arguments)
        else:
            words = [each.error.message if each.error else each.text for each in told]
            output = ModelOutput.from_content("mockllm/model", " ".join(words))
        output.usage = ModelUsage()  # or it would count tokens, with a table from the network
        return output


@solver
def connected(tools):
    """An agent that opens what its tools need and closes it, as `react` does."""

    async def solve(state, generate):
        async with mcp_connection([tools]):
            state.tools.extend(await tools.tools())
            return await generate(state)

    return solve


async def evaluate(room, samples, *, agent=False, **options):
    scripted = ScriptedModel()
    tools = RoomTools(room, **options)
    model = get_model("mockllm/model", custom_outputs=scripted, memoize=False)
    steps = connected(tools) if agent else [use_tools(tools), generate()]
    task = Task(samples, solver=steps, scorer=includes(), cleanup=None if agent else tools.end_sample)
    [log] = await eval_async(
        task, model, max_samples=SAMPLES, max_connections=SAMPLES, fail_on_error=False, log_level="error"
    )
    return log, scripted


def sample(*calls, target=""):
    return Sample(input=json.dumps(calls), target=target)


async def kept_apart(stage, room):
    """Each sample has a process of its own for its session, and all of them have ended."""
    calls = [("own_pid", {}), ("own_pid", {})]
    for agent in (False, True):
        log, scripted = await evaluate(room, [sample(*calls) for _ in range(SAMPLES)], agent=agent)
        stage.expect({"own_pid", "w_echo"} <= scripted.offered, f"offers {scripted.offered}")
        stage.expect(log.status == "success", f"{log.status}: {log.error}")
        pids = []
        for each in log.samples:
            told = [message.text for message in each.messages if isinstance(message, ChatMessageTool)][:2]
            stage.expect(
                len(set(told)) == 1, f"one sample, two processes: {told}; {each.error and each.error.message}"
            )
            pids += told[:1]
        stage.expect(len(set(pids)) == SAMPLES, f"{len(set(pids))} processes for {SAMPLES} samples")
        left = [row for row in room.status() if row.scope != "shared"]
        stage.expect(not left, f"left of the sessions: {left}")


async def invalid(stage, room):
    """What a lost server means for a sample: an error and no score. The others go on; what a tool reports is told."""
    died, said, fine = ("own_crash", {}), ("w_refuse", {}), ("own_pid", {})
    samples = [
        sample(died, fine),
        sample(fine),
        sample(said, fine),
        sample(("own_pid", {}), ("own_nothing", {}), fine),
    ]
    log, _ = await evaluate(room, samples)
    lost, good, refused, unknown = log.samples
    stage.expect(lost.error is not None and DIES.split('"')[2] in lost.error.message, f"lost: {lost.error}")
    stage.expect(not lost.scores, f"a lost sample has a score: {lost.scores}")
    for each in (good, refused, unknown):
        stage.expect(each.error is None and each.scores, f"{each.error}")
    stage.expect("I would rather not" in refused.output.completion, f"refused: {refused.output.completion}")


async def begun_anew(stage, room):
    """A server that has died between two calls is back at the second one, without what it knew."""

    class KillingTools(RoomTools):
        async def _call(self, tools, tool, arguments):
            answer = await super()._call(tools, tool, arguments)
            if tool == "own_pid":
                os.kill(int(answer[0].text), 9)
                while any(row.scope != "shared" and row.state == "connected" for row in room.status()):
                    await asyncio.sleep(0.01)
            return answer

    tools = KillingTools(room)
    model = get_model("mockllm/model", custom_outputs=ScriptedModel(), memoize=False)
    task = Task(
        [sample(("own_pid", {}), ("own_pid", {}))],
        solver=[use_tools(tools), generate()],
        cleanup=tools.end_sample,
    )
    [log] = await eval_async(task, model, fail_on_error=False, log_level="error")
    stage.expect(
        log.samples[0].error is not None, f"went on with another process: {log.samples[0].output.completion}"
    )


async def example(stage):
    model = get_model("mockllm/model", custom_outputs=ScriptedModel(), memoize=False)
    log = await example_module().evaluate([sample(("clock_now", {"utc_offset": 1}), target="+01:00")], model)
    stage.expect(log.samples[0].scores["includes"].value == "C", f"{log.samples[0].output.completion}")


async def scenes(stage):
    folder = str(stage.folder)
    os.environ |= {"INSPECT_LOG_DIR": folder, "XDG_DATA_HOME": folder, "INSPECT_DISPLAY": "none"}
    async with stage.room() as room:
        for scene in (kept_apart, invalid, begun_anew):
            await stage.part(scene(stage, room))
    await stage.part(example(stage))


play(None, scenes)
