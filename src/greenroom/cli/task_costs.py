"""What a definition costs, and what a finished task does: scripted tasks over the tools that are known.

A model is given everything again in each turn: the definitions, and all that was said so far. So a task's cost is the
sum over its turns. With all tools shown that is one turn for each call, and one for the last answer. Behind one tool it
searches before it calls, which adds turns; and definitions that are not shown are given in none. Which of both is
cheaper depends on how many tools there are, so the number at which they cost the same is told as well.

* *Tasks* (`TASKS`): one tool, once; one tool, five times; three tools, one after the other. They are played with up to
  `SAMPLED` of the known tools, evenly chosen, and what is told is the mean.
* *What is played is what would be said.* Searches and descriptions are really made, in the catalogue. A tool is looked
  for by the first words of its own description. It is described if the search does not show it with its parameters,
  and looked for by its name if the search did not find it. A call has a value for each required argument.
* *What cannot be known* is the same everywhere: the answer of a tool counts as `RESULT` tokens, and what a client gives
  in each turn anyway, its own instructions and tools and the conversation so far, as `context`. That decides much: each
  turn that a search adds is given all of it once more.
* *Hosts that find tools themselves* show a tool for searching in place of all definitions, and then the definitions of
  what was found. That costs here what one of `HOST_TOOL` tokens does which finds the `HOST_SHOWS` best, and nothing
  for the names of tools that some of them list. So it is rather less than it is.
* *With a cached prefix* what a model was given in the turn before counts a tenth, as most providers bill it.

Pure. The command is in `cost_command`.

Rejected: to ask a model. It would be one model's, on one day, for money; a script is the same everywhere.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import attrs

from ..catalogue.search import search
from ..gateway.exposures.meta import definitions
from ..gateway.exposures.query_modes import CatalogueReader
from ..gateway.exposures.tool_definition import DEFINITION, FOR_MODELS, parse_request
from .json_shapes import Shape, says
from .tool_results import text_of

if TYPE_CHECKING:
    from ..catalogue.namespace import Target
    from ..supervisor.port import Catalogue

CONTEXT: Final = 10_000  # tokens that a client gives in each turn anyway, if nobody says otherwise
RESULT: Final = 200  # tokens of a tool's answer
SAMPLED: Final = 30  # tools
HOST_TOOL: Final = 200  # tokens of a host's own tool for finding tools
HOST_SHOWS: Final = 5  # definitions of what it has found
BESIDE: Final = 5  # tools that are shown beside the `mcp` tool
_CACHED: Final = 0.1  # of its price, for what was given before
_WORDS: Final = 8  # of a description, that are searched for

Count = Callable[[str], int]  # the tokens of a text

ALL_SHOWN: Final = "direct, the host shows all"
HOST_FINDS: Final = "direct, the host finds tools itself"
PROXY: Final = "proxy"
PINNED: Final = f"proxy, with {BESIDE} tools beside it"
CODE: Final = "meta, by code"
EXPOSURES: Final = (ALL_SHOWN, HOST_FINDS, PROXY, PINNED, CODE)
# What is called, by the number of the tool.
TASKS: Final[Mapping[str, tuple[int, ...]]] = {
    "one tool, once": (0,),
    "one tool, five times": (0,) * 5,
    "three tools, one after the other": (0, 1, 2),
}


@attrs.frozen
class TurnTokens:
    """What a turn adds: what the model says, and what it is given for that. All in tokens."""

    said: float
    given: float


@attrs.frozen
class TaskCost:
    """What a model is given over all turns of a task, in tokens. `cached`: at the price of a cache that has what the
    turn before was given."""

    turns: float
    tokens: float
    cached: float


def played(shown: float, steps: Sequence[TurnTokens]) -> TaskCost:
    """A task in which `shown` tokens are there from the beginning; after its steps it is finished."""
    context, before, tokens, cached = shown, 0.0, 0.0, 0.0
    for step in (*steps, TurnTokens(0, 0)):
        tokens += context
        cached += context - before + _CACHED * before
        before, context = context, context + step.said + step.given
    return TaskCost(len(steps) + 1, tokens, cached)


@attrs.frozen
class PlayedTask:
    """One task with one exposure, in the mean over the tools it was played with."""

    task: str
    exposure: str
    cost: TaskCost


class TaskCrossoverJson(Shape, kw_only=True):
    """Up to how many tools a host that is shown all of them needs less than one behind the `mcp` tool."""

    task: Annotated[str, says("what is done")]
    tools: Annotated[int, says("as large as those that are known", "tools")]
    cached: Annotated[int, says("the same, where what was given before costs a tenth", "tools")]


# ---- the tokens of what a model is given -----------------------------------------------------------------------------
def definition_cost(definition: Mapping[str, Any], count: Count) -> int:
    """The tokens of one definition, as `tools/list` has it."""
    description, schema = definition.get("description", ""), definition.get("inputSchema", {})
    return count(_definition(definition["name"], description, schema))


def shown(target: Target) -> str:
    """What a model is given of a tool."""
    return _definition(target.name, target.description, dict(target.input_schema or {}))


def _definition(name: str, description: str, schema: Any) -> str:
    return compact({"name": name, "description": description, "input_schema": schema})


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- tasks -----------------------------------------------------------------------------------------------------------
class TaskPlayer:
    """Plays tasks over the tools of a catalogue. `context`: tokens of what a client gives in each turn anyway."""

    def __init__(self, catalogue: Catalogue, count: Count, context: int = CONTEXT) -> None:
        self._count = count
        self._index = catalogue.index
        self._reader = CatalogueReader(catalogue, hints=FOR_MODELS)
        self._mcp = definition_cost(DEFINITION, count)
        self._meta = sum(definition_cost(each, count) for each in definitions())
        self._context = context
        every = [target for target in self._index.tools() if target.may_be_called]
        self.all_shown: int = sum(map(self._shown, every))
        self.known: int = len(every)
        some = min(SAMPLED, len(every))
        self.tools: tuple[Target, ...] = tuple(every[at * len(every) // some] for at in range(some))
        self._looks: dict[str, tuple[TurnTokens, ...]] = {}

    def play(self) -> list[PlayedTask]:
        """Each task with each exposure."""
        found: list[PlayedTask] = []
        for task, calls in TASKS.items():
            costs: dict[str, list[TaskCost]] = {exposure: [] for exposure in EXPOSURES}
            for first in range(len(self.tools)):
                tools = [self.tools[(first + each) % len(self.tools)] for each in calls]
                for exposure in EXPOSURES:
                    shown, steps = self._script(exposure, first, tools)
                    costs[exposure].append(played(self._context + shown, steps))
            found += [PlayedTask(task, exposure, _mean(each)) for exposure, each in costs.items() if each]
        return found

    def _script(self, exposure: str, first: int, calls: Sequence[Target]) -> tuple[float, list[TurnTokens]]:
        if exposure == ALL_SHOWN:
            return self.all_shown, [self._called(target) for target in calls]
        if exposure == HOST_FINDS:
            return HOST_TOOL, _with_looks(calls, self._found_by_host, self._called)
        if exposure == PROXY:
            return self._mcp, _with_looks(calls, self._found, self._called_behind)
        if exposure == CODE:
            looks = [step for target in dict.fromkeys(calls) for step in self._found(target)]
            code = sum(self._count(f"await call(None, {compact(self._request(each))})\n") for each in calls)
            return self._meta, [*looks, TurnTokens(code, RESULT * len(calls))]
        others = (self.tools[(first + at) % len(self.tools)] for at in range(BESIDE))
        beside = list(dict.fromkeys((*calls, *others)))[:BESIDE]
        return self._mcp + sum(map(self._shown, beside)), [self._called(target) for target in calls]

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _shown(self, target: Target) -> int:
        return self._count(shown(target))

    def _request(self, target: Target) -> dict[str, Any]:
        return {"name": target.name, "arguments": dict.fromkeys(_required(target), "a value")}

    def _called(self, target: Target) -> TurnTokens:
        return TurnTokens(self._count(compact(self._request(target))), RESULT)

    def _called_behind(self, target: Target) -> TurnTokens:
        asked = self._request(target)
        said = {"tool": asked["name"], "args": asked["arguments"]}
        return TurnTokens(self._count(compact(said)), RESULT)

    def _found(self, target: Target) -> tuple[TurnTokens, ...]:
        """Search for it, until it is found and its parameters are seen."""
        steps = self._looks.get(target.name)
        if steps is None:
            steps = self._looks[target.name] = tuple(self._find(target))
        return steps

    def _find(self, target: Target) -> list[TurnTokens]:
        steps: list[TurnTokens] = []
        for words in (query_of(target), target.original.replace("_", " ")):
            answer = self._look(steps, {"search": words})
            _, is_shown, entry = f"\n{answer}\n".partition(f"\n{target.name}\n")
            if is_shown and all(f"    {name}" in entry.partition("\n\n")[0] for name in _required(target)):
                return steps
            if target.name in answer:
                break
        self._look(steps, {"describe": target.name})
        return steps

    def _look(self, steps: list[TurnTokens], asked: Mapping[str, Any]) -> str:
        answer = text_of(self._reader.answer(parse_request(asked)).as_result())
        steps.append(TurnTokens(self._count(compact(asked)), self._count(answer)))
        return answer

    def _found_by_host(self, target: Target) -> tuple[TurnTokens, ...]:
        matches = search(self._index, query_of(target), limit=HOST_SHOWS).matches
        found = dict.fromkeys([target, *(match.target for match in matches if match.target.kind != "skill")])
        given = sum(map(self._shown, list(found)[:HOST_SHOWS]))
        return (TurnTokens(self._count(compact({"query": query_of(target)})), given),)


def _with_looks(
    calls: Sequence[Target],
    look: Callable[[Target], Sequence[TurnTokens]],
    call: Callable[[Target], TurnTokens],
) -> list[TurnTokens]:
    """Each tool is looked for before its first call."""
    steps: list[TurnTokens] = []
    known: set[str] = set()
    for target in calls:
        if target.name not in known:
            steps += look(target)
            known.add(target.name)
        steps.append(call(target))
    return steps


def _required(target: Target) -> list[str]:
    """The names of the arguments that it needs."""
    said: object = (target.input_schema or {}).get("required")
    return [str(name) for name in cast("list[Any]", said)] if isinstance(said, list) else []


def query_of(target: Target) -> str:
    """What is searched for to find this tool: the first words of its description, or those of its name."""
    sentence = target.description.split("\n", 1)[0].split(". ", 1)[0]
    words = sentence.rstrip(".").split()[:_WORDS]
    return " ".join(words) or target.original.replace("_", " ")


def _mean(costs: Sequence[TaskCost]) -> TaskCost:
    return TaskCost(
        statistics.mean(each.turns for each in costs),
        statistics.mean(each.tokens for each in costs),
        statistics.mean(each.cached for each in costs),
    )


def crossovers(tasks: Sequence[PlayedTask], tools: int, all_shown: float) -> list[TaskCrossoverJson]:
    """Where `direct` in a host that shows all tools costs as much as `proxy`, with tools as large as these, of which
    there are so many, with `all_shown` tokens of definitions."""
    each = all_shown / tools
    found: list[TaskCrossoverJson] = []
    for task in TASKS:
        costs = {one.exposure: one.cost for one in tasks if one.task == task}
        direct, proxy = costs[ALL_SHOWN], costs[PROXY]
        again = 1 + _CACHED * (direct.turns - 1)  # how often a definition is paid for
        plain = (proxy.tokens - (direct.tokens - direct.turns * all_shown)) / (direct.turns * each)
        cached = (proxy.cached - (direct.cached - again * all_shown)) / (again * each)
        found.append(TaskCrossoverJson(task=task, tools=max(0, int(plain)), cached=max(0, int(cached))))
    return found
