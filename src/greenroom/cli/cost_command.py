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

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
from msgspec import UNSET, UnsetType

from ..gateway.exposures.meta import definitions
from ..gateway.exposures.tool_definition import DEFINITION
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, one_line, tools_in_words
from .config_reading import read_config
from .json_shapes import Shape, says
from .printing import say, show
from .shared_options import config_option, json_option
from .task_costs import (
    CONTEXT,
    RESULT,
    Count,
    TaskCrossoverJson,
    TaskPlayer,
    compact,
    crossovers,
    definition_cost,
    shown,
)

if TYPE_CHECKING:
    from ..catalogue.index import Index


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
@json_option
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
    cost.not_counted = sorted(used - {one.server for one in cost.servers})
    if words is not None:
        reader = CatalogueReader(catalogue, hints=FOR_PEOPLE)
        answer = text_of(reader.answer(parse_request({"search": words})).as_result())
        cost.search = count(answer)
        cost.task = task_of(cost, search_cost(words, answer, count))
    if per_task and cost.tools:
        cost.per_task = _played(cost, TaskPlayer(catalogue, count, context), context)
    show("\n".join(_lines(cost)), cost, as_json)


def _played(cost: CostJson, tasks: TaskPlayer, context: int) -> PerTaskJson:
    done = tasks.play()
    return PerTaskJson(
        tools=len(tasks.tools),
        context=context,
        result=RESULT,
        tasks=[
            PlayedTaskJson(
                task=one.task,
                exposure=one.exposure,
                turns=round(one.cost.turns, 1),
                tokens=round(one.cost.tokens),
                cached=round(one.cost.cached),
            )
            for one in done
        ],
        crossover=crossovers(done, cost.tools, cost.direct),
    )


def _task_lines(played: PerTaskJson) -> Iterator[str]:
    width = max(len(one.exposure) for one in played.tasks)
    yield ""
    yield f"finished tasks (mean of {counted(played.tools, 'tool')}): tokens that a model is given over all turns,"
    yield f"with the client's own {played.context:,} in each (--context), {played.result} for a tool's answer."
    yield "cached prefix: the same, where a token that was given before costs a tenth."
    for crossover in played.crossover:
        yield ""
        yield f"{crossover.task:<{width}}      turns      tokens   cached prefix"
        for one in played.tasks:
            if one.task == crossover.task:
                yield f"  {one.exposure:<{width}}  {one.turns:>7} {one.tokens:>11,} {one.cached:>15,}"
        yield f"  cheaper than the mcp tool: all shown, up to {crossover.tools:,} tools like these"
        yield f"  (with a cached prefix, up to {crossover.cached:,})"
    yield ""


def _lines(cost: CostJson) -> Iterator[str]:
    width = max((len(one.server) for one in cost.servers), default=0)
    for one in cost.servers:
        yield f"{one.server:<{width}}  {counted(one.tools, 'tool'):>10}  {one.tokens:>9,} tokens"
    if cost.servers:
        yield ""
    yield f"all tools shown (--expose direct): {cost.direct:,} tokens in every turn"
    beside = f", of which {cost.beside:,} for the tools beside it (directTools)" if cost.beside else ""
    yield f"behind the mcp tool (--expose proxy): {cost.proxy:,} tokens in every turn{beside}"
    yield f"behind the tools of --expose meta: {cost.meta:,} tokens in every turn"
    if cost.search is not UNSET and cost.task is not UNSET:
        task = cost.task
        yield f"the answer to that search: {cost.search:,} tokens, in both turns that follow"
        yield (
            f"one tool found by it and called, in all: {task.proxy:,} tokens behind the mcp tool, {task.meta:,} "
            f"behind those of meta, {task.direct:,} with all tools shown"
        )
    if cost.per_task is not UNSET:
        yield from _task_lines(cost.per_task)
    yield f"counted: {cost.counted_by}"
    if cost.hidden:
        hidden = tools_in_words(cost.hidden - cost.resources, cost.resources).removeprefix("0 tools, ")
        yield f"not counted, because only the mcp tool calls them: {hidden}"
    if cost.not_counted:
        yield one_line(f"not counted, because their tools are unknown: {', '.join(cost.not_counted)}")


CHARACTERS: Final = 4  # of a token, when nothing counts them


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


def cost_of(index: Index, counted_by: str, count: Count) -> CostJson:
    """The tokens of the tools of an index: every definition of every known tool that is shown so."""
    entries = ((server, index.entry(server)) for server in index.servers)
    found: dict[str, list[int]] = {
        server: [] for server, entry in entries if entry is not None and entry.known
    }
    beside = hidden = resources = 0
    for target in index.tools():
        tokens = count(shown(target))
        if index.is_direct(target):
            found[target.server].append(tokens)
        else:
            hidden += 1
            resources += target.kind == "resource"
        beside += tokens if index.is_direct(target, beside=True) else 0
    servers = [
        ServerCostJson(server=server, tools=len(tokens), tokens=sum(tokens))
        for server, tokens in found.items()
    ]
    return CostJson(
        counted_by=counted_by,
        proxy=definition_cost(DEFINITION, count) + beside,
        beside=beside,
        meta=sum(definition_cost(definition, count) for definition in definitions()),
        direct=sum(one.tokens for one in servers),
        tools=sum(one.tools for one in servers),
        hidden=hidden,
        resources=resources,
        servers=sorted(servers, key=lambda one: (-one.tokens, one.server)),
        not_counted=[],
    )


def task_of(cost: CostJson, search: int) -> TaskJson:
    """The tokens of finding and calling one tool. `search`: those of the request and its answer."""
    return TaskJson(
        direct=2 * cost.direct, proxy=3 * cost.proxy + 2 * search, meta=3 * cost.meta + 2 * search
    )


def search_cost(words: str, answer: str, count: Count) -> int:
    """The tokens of a search: of its request, as the `mcp` tool is given it, and of the answer."""
    return count(compact({"search": words})) + count(answer)
