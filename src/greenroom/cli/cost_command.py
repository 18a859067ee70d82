"""What tools cost a model's context.

A client gives a model each tool's name, description and parameters, and these are there in every turn. `direct` shows
all tools, `proxy` the one `mcp` tool, `meta` its few, and what a search finds is paid for when it is found. So the cost
of an exposure is the tokens of what it shows from the beginning. The cost of a task is what a model is given over all
its turns. With all tools shown these are two: it calls, and it reads the answer. Behind one tool it searches first, and
that request and its answer stand in both turns that follow. For one search (`--search`) the call and its answer are not
counted, because they are the same everywhere; `--per-task` plays whole tasks (`task_costs`).

How many tokens a text has depends on the model. Without a tokenizer one token counts as four characters, which is near
enough to compare exposures. The text of a definition is the compact JSON of what a model is given of it. How a client
words it for its model is the client's; nobody outside sees that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import click
from msgspec import UNSET, UnsetType

from ..gateway.exposures.meta import definitions
from ..gateway.exposures.tool_definition import DEFINITION
from ..protocol.errors import UsageError
from ..protocol.safe_text import one_line, tools_in_words
from .config_reading import read_config
from .json_shapes import Shape, says
from .printing import say, show
from .shared_options import config_option
from .task_costs import CONTEXT, RESULT, TaskPlayer, crossovers

if TYPE_CHECKING:
    from ..catalogue.entries import ServerEntry
    from ..catalogue.index import Index
    from ..catalogue.namespace import Target
    from ..supervisor.port import Catalogue


class ServerCostJson(Shape, kw_only=True):
    """What the tools of a server cost."""

    server: Annotated[str, says("the server")]
    tools: Annotated[int, says("those that are shown with all tools", "tools")]
    tokens: Annotated[int, says("of all their definitions", "tokens")]


class TaskJson(Shape, kw_only=True):
    """One tool, found and called, over all turns."""

    proxy: Annotated[int, says("behind the `mcp` tool", "tokens")]
    meta: Annotated[int, says("behind the tools of `meta`", "tokens")]
    direct: Annotated[int, says("with all tools shown", "tokens")]


class PlayedTaskJson(Shape, kw_only=True):
    """What a model is given over all turns of a task, in the mean."""

    task: Annotated[str, says("what is done")]
    exposure: Annotated[str, says("how tools are shown, and whether the host finds tools itself")]
    turns: Annotated[float, says("until the last answer", "turns")]
    tokens: Annotated[int, says("given in all of them", "tokens")]
    cached: Annotated[int, says("the same, where what was given before costs a tenth", "tokens")]


class TaskCrossoverJson(Shape, kw_only=True):
    """Up to how many tools a host that is shown all of them needs less than one behind the `mcp` tool."""

    task: Annotated[str, says("what is done")]
    tools: Annotated[int, says("as large as those that are known", "tools")]
    cached: Annotated[int, says("the same, where what was given before costs a tenth", "tools")]


class PerTaskJson(Shape, kw_only=True):
    """Whole tasks, played with the known tools."""

    tools: Annotated[int, says("they were played with", "tools")]
    context: Annotated[int, says("what the client gives in each turn anyway", "tokens")]
    result: Annotated[int, says("what an answer of a tool counts as", "tokens")]
    tasks: Annotated[list[PlayedTaskJson], says("each with each exposure")]
    crossover: Annotated[list[TaskCrossoverJson], says("for each task")]


class CostJson(Shape, kw_only=True):
    """What each exposure costs in every turn."""

    counted_by: Annotated[str, says("how tokens were counted")]
    proxy: Annotated[int, says("behind the `mcp` tool", "tokens")]
    beside: Annotated[int, says("that part of `proxy` which is for the tools beside it", "tokens")]
    meta: Annotated[int, says("behind the tools of `meta`", "tokens")]
    direct: Annotated[int, says("with all tools shown", "tokens")]
    tools: Annotated[int, says("how many these are", "tools")]
    hidden: Annotated[
        int, says("what only the `mcp` tool calls: resources, and tools not in `directTools`", "tools")
    ]
    resources: Annotated[int, says("those of `hidden` that are resources", "resources")]
    servers: Annotated[list[ServerCostJson], says("by server, the dearest first")]
    not_counted: Annotated[list[str], says("servers whose tools are unknown")]
    search: Annotated[
        int | UnsetType, says("the answer to the search", "tokens", when="`--search` is given")
    ] = UNSET
    task: Annotated[
        TaskJson | UnsetType, says("one tool, found by it and called", when="`--search` is given")
    ] = UNSET
    per_task: Annotated[
        PerTaskJson | UnsetType, says("whole tasks", when="`--per-task` is given and tools are known")
    ] = UNSET


# ---- `greenroom cost` ------------------------------------------------------------------------------------------------
#
# What the configured tools cost a model's context, shown directly and behind the `mcp` tool. It starts nothing.


@click.command("cost")
@click.option(
    "--search",
    "words",
    metavar="WORDS",
    help="Also count a task: the search for WORDS, its answer, and a call.",
)
@click.option(
    "--encoding", help="Count with this encoding of tiktoken. Without it, four characters count as one token."
)
@click.option(
    "--per-task",
    is_flag=True,
    help="Simulate tasks with the known tools, and show what a model reads in all their turns.",
)
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=CONTEXT,
    show_default=True,
    metavar="TOKENS",
    help="What the client gives its model in each turn anyway, for --per-task.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def cost_command(
    words: str | None,
    encoding: str | None,
    per_task: bool,
    context: int,
    as_json: bool,
    config_path: Path | None,
) -> None:
    """Show how many tokens the tools take in a model's context.

    It compares three ways to show them: each by its name (--expose direct), behind the one `mcp` tool, and behind the
    tools of --expose meta. Only tools that are known count: run `greenroom refresh` first.
    """
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.exposures.tool_definition import FOR_PEOPLE, parse_request
    from ..gateway.offline_catalogue import open_catalogue
    from .tool_results import text_of

    counted_by, count = counter(encoding)
    catalogue = open_catalogue(read_config(config_path))
    if catalogue.warning is not None:
        say(catalogue.warning)
    cost = cost_of(catalogue.index, counted_by, count)
    used = {name for name, server in catalogue.config.servers.items() if not server.disabled}
    unknown = sorted(used - {one.server for one in cost.servers})
    details: dict[str, Any] = {
        "countedBy": cost.counted_by,
        "proxy": cost.proxy,
        "beside": cost.beside,
        "meta": cost.meta,
        "direct": cost.direct,
        "tools": cost.tools,
        "hidden": cost.hidden,
        "resources": cost.resources,
        "servers": [{"server": one.server, "tools": one.tools, "tokens": one.tokens} for one in cost.servers],
        "notCounted": unknown,
    }
    if words is not None:
        reader = CatalogueReader(catalogue, hints=FOR_PEOPLE)
        answer = text_of(reader.answer(parse_request({"search": words})).as_result())
        details["search"] = count(answer)
        task = cost.task(search_cost(words, answer, count))
        details["task"] = {"proxy": task["proxy"], "meta": task["meta"], "direct": task["direct"]}
    if per_task and cost.tools:
        details["perTask"] = _played(cost, player(catalogue, count, context), context)
    show("\n".join(_lines(cost, details)), details, as_json, CostJson)


def _played(cost: Cost, tasks: TaskPlayer, context: int) -> dict[str, Any]:
    done = tasks.play()
    return {
        "tools": len(tasks.tools),
        "context": context,
        "result": RESULT,
        "tasks": [
            {
                "task": one.task,
                "exposure": one.exposure,
                "turns": round(one.cost.turns, 1),
                "tokens": round(one.cost.tokens),
                "cached": round(one.cost.cached),
            }
            for one in done
        ],
        "crossover": [
            {"task": one.task, "tools": one.tools, "cached": one.cached}
            for one in crossovers(done, cost.tools, cost.direct)
        ],
    }


def _task_lines(played: dict[str, Any]) -> Iterator[str]:
    width = max(len(one["exposure"]) for one in played["tasks"])
    tools = "1 tool" if played["tools"] == 1 else f"{played['tools']} tools"
    yield ""
    yield f"finished tasks (mean of {tools}): tokens that a model is given over all turns,"
    yield f"with the client's own {played['context']:,} in each (--context), {played['result']} for a tool's answer."
    yield "cached prefix: the same, where a token that was given before costs a tenth."
    for crossover in played["crossover"]:
        task = crossover["task"]
        yield ""
        yield f"{task:<{width}}      turns      tokens   cached prefix"
        for one in played["tasks"]:
            if one["task"] == task:
                numbers = f"{one['turns']:>7} {one['tokens']:>11,} {one['cached']:>15,}"
                yield f"  {one['exposure']:<{width}}  {numbers}"
        yield f"  cheaper than the mcp tool: all shown, up to {crossover['tools']:,} tools like these"
        yield f"  (with a cached prefix, up to {crossover['cached']:,})"
    yield ""


def _lines(cost: Cost, details: dict[str, Any]) -> Iterator[str]:
    width = max((len(one.server) for one in cost.servers), default=0)
    for one in cost.servers:
        tools = "1 tool" if one.tools == 1 else f"{one.tools} tools"
        yield f"{one.server:<{width}}  {tools:>10}  {one.tokens:>9,} tokens"
    if cost.servers:
        yield ""
    yield f"all tools shown (--expose direct): {cost.direct:,} tokens in every turn"
    beside = f", of which {cost.beside:,} for the tools beside it (directTools)" if cost.beside else ""
    yield f"behind the mcp tool (--expose proxy): {cost.proxy:,} tokens in every turn{beside}"
    yield f"behind the tools of --expose meta: {cost.meta:,} tokens in every turn"
    if "search" in details and "task" in details:
        task = details["task"]
        yield f"the answer to that search: {details['search']:,} tokens, in both turns that follow"
        yield (
            f"one tool found by it and called, in all: {task['proxy']:,} tokens behind the mcp tool, {task['meta']:,} "
            f"behind those of meta, {task['direct']:,} with all tools shown"
        )
    if "perTask" in details:
        yield from _task_lines(details["perTask"])
    yield f"counted: {cost.counted_by}"
    if cost.hidden:
        hidden = tools_in_words(cost.hidden - cost.resources, cost.resources).removeprefix("0 tools, ")
        yield f"not counted, because only the mcp tool calls them: {hidden}"
    if details["notCounted"]:
        yield one_line(f"not counted, because their tools are unknown: {', '.join(details['notCounted'])}")


CHARACTERS: Final = 4  # of a token, when nothing counts them
Count = Callable[[str], int]


@attrs.frozen
class ServerCost:
    server: str
    tools: int
    tokens: int  # of all their definitions


@attrs.frozen
class Cost:
    """The tokens of each exposure. `servers`, `direct`: every definition of every known tool that is shown so. `proxy`:
    the `mcp` tool's, and those of the tools that are chosen to be shown `beside` it. `meta`: those of its tools.
    `hidden`: what only the `mcp` tool calls: tools that are not chosen to be shown, and `resources`, which clients read
    themselves where they see all tools."""

    counted_by: str
    servers: tuple[ServerCost, ...]
    proxy: int
    beside: int
    meta: int
    hidden: int = 0
    resources: int = 0

    def task(self, search: int) -> Mapping[str, int]:
        """The tokens of finding and calling one tool, by exposure. `search`: those of the request and its answer."""
        return {
            "direct": 2 * self.direct,
            "proxy": 3 * self.proxy + 2 * search,
            "meta": 3 * self.meta + 2 * search,
        }

    @property
    def tools(self) -> int:
        return sum(one.tools for one in self.servers)

    @property
    def direct(self) -> int:
        return sum(one.tokens for one in self.servers)


def counter(encoding: str | None = None) -> tuple[str, Count]:
    """The function that counts tokens, and its name. `encoding`: one of tiktoken's, for example "o200k_base"; tiktoken
    must be installed, and reads its vocabulary from the network once. Raises `UsageError`."""
    if encoding is None:
        return f"{CHARACTERS} characters a token", lambda text: -(-len(text) // CHARACTERS)
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]
    except ImportError:
        text = "Counting in a real encoding needs tiktoken, which is not installed. Install it: pip install tiktoken"
        raise UsageError(text) from None
    library: Any = tiktoken
    try:
        encode = library.get_encoding(encoding).encode
    except Exception as error:  # an unknown name, or its vocabulary cannot be had: many kinds
        raise UsageError(f"tiktoken cannot use the encoding {encoding!r}: {error}") from None
    return encoding, lambda text: len(encode(text, disallowed_special=()))


def cost_of(index: Index, counted_by: str, count: Count) -> Cost:
    """The tokens of the tools of an index, server by server, the most expensive first."""
    found: dict[str, list[int]] = {server: [] for server in index.servers if _is_known(index.entry(server))}
    beside = hidden = resources = 0
    for target in index.tools():
        tokens = count(shown(target))
        if index.is_direct(target):
            found[target.server].append(tokens)
        else:
            hidden += 1
            resources += target.kind == "resource"
        beside += tokens if index.is_direct(target, beside=True) else 0
    servers = [ServerCost(server, len(tokens), sum(tokens)) for server, tokens in found.items()]
    servers.sort(key=lambda one: (-one.tokens, one.server))
    meta = sum(definition_cost(definition, count) for definition in definitions())
    return Cost(
        counted_by,
        tuple(servers),
        definition_cost(DEFINITION, count) + beside,
        beside,
        meta,
        hidden,
        resources,
    )


def _is_known(entry: ServerEntry | None) -> bool:
    return entry is not None and entry.known


def player(catalogue: Catalogue, count: Count, context: int = CONTEXT) -> TaskPlayer:
    """Who plays tasks over the tools of this catalogue."""
    return TaskPlayer(
        catalogue,
        count,
        compact,
        definition=lambda target: count(shown(target)),
        mcp=definition_cost(DEFINITION, count),
        meta=sum(definition_cost(each, count) for each in definitions()),
        context=context,
    )


def search_cost(words: str, answer: str, count: Count) -> int:
    """The tokens of a search: of its request, as the `mcp` tool is given it, and of the answer."""
    return count(compact({"search": words})) + count(answer)


def definition_cost(definition: Mapping[str, Any], count: Count) -> int:
    """The tokens of one definition, as `tools/list` has it."""
    said = {
        "name": definition["name"],
        "description": definition.get("description", ""),
        "input_schema": definition.get("inputSchema", {}),
    }
    return count(compact(said))


def shown(target: Target) -> str:
    """What a model is given of a tool."""
    said = {
        "name": target.name,
        "description": target.description,
        "input_schema": dict(target.input_schema or {}),
    }
    return compact(said)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
