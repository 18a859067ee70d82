from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import Model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools

from greenroom import Greenroom
from greenroom.adapters.inspect_ai import RoomTools


async def evaluate(samples: list[Sample], model: Model | str = "openai/gpt-5") -> EvalLog:
    async with Greenroom.open("mcp.json") as room:
        tools = RoomTools(room)
        task = Task(
            samples,
            solver=[use_tools(tools), generate()],
            scorer=includes(),
            cleanup=tools.end_sample,
        )
        [log] = await eval_async(task, model, max_samples=200, fail_on_error=False)
        return log
