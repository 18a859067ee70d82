"""What tools cost a model's context.

A client gives a model each tool's name, description and parameters, and these are there in every turn. `direct` shows
all tools, `proxy` the one `mcp` tool, `meta` its few, and what a search finds is paid for when it is found. So the cost
of an exposure is the tokens of what it shows from the beginning. The cost of a task is what a model is given over all
its turns. With all tools shown these are two: it calls, and it reads the answer. Behind one tool it searches first, and
that request and its answer stand in both turns that follow. The call and its answer are the same everywhere, and are
not counted.

How many tokens a text has depends on the model. Without a tokenizer one token counts as four characters, which is near
enough to compare exposures. The text of a definition is the compact JSON of what a model is given of it. How a client
words it for its model is the client's; nobody outside sees that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from ..gateway.exposures.meta import definitions
from ..gateway.exposures.tool_definition import DEFINITION
from ..protocol.errors import UsageError
from ..protocol.safe_text import one_line
from .common import config_option, read_config, say, show

if TYPE_CHECKING:
    from ..catalogue.index import Index
    from ..catalogue.namespace import Target
    from . import json_shapes as shapes


# --------------------------------------------------------------------------------------------------------------
#
#
# `greenroom cost`: what the configured tools cost a model's context, shown directly and behind the `mcp` tool. It
# starts nothing.


@click.command("cost")
@click.option(
    "--search",
    "words",
    metavar="WORDS",
    help="Add what a search for WORDS answers, and a task with it.",
)
@click.option(
    "--encoding", help="Count with tiktoken's encoding of this name; else four characters are a token."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def cost_command(words: str | None, encoding: str | None, as_json: bool, config_path: Path | None) -> None:
    """Show how many tokens the tools take in a model's context.

    With all tools shown (--expose direct), behind the one `mcp` tool with the chosen tools beside it, and behind the
    tools of --expose meta. Only tools that are known count: run `greenroom refresh` first.
    """
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.exposures.tool_definition import FOR_PEOPLE, parse_request
    from ..gateway.offline import open_catalogue
    from .common import text_of

    counted_by, count = counter(encoding)
    catalogue = open_catalogue(read_config(config_path))
    if catalogue.warning is not None:
        say(catalogue.warning)
    cost = cost_of(catalogue.index, counted_by, count)
    used = {name for name, server in catalogue.config.servers.items() if not server.disabled}
    unknown = sorted(used - {one.server for one in cost.servers})
    details: shapes.Cost = {
        "countedBy": cost.counted_by,
        "proxy": cost.proxy,
        "beside": cost.beside,
        "meta": cost.meta,
        "direct": cost.direct,
        "tools": cost.tools,
        "servers": [{"server": one.server, "tools": one.tools, "tokens": one.tokens} for one in cost.servers],
        "notCounted": unknown,
    }
    if words is not None:
        reader = CatalogueReader(catalogue, hints=FOR_PEOPLE)
        answer = text_of(reader.answer(parse_request({"search": words})).as_result())
        details["search"] = count(answer)
        task = cost.task(search_cost(words, answer, count))
        details["task"] = {"proxy": task["proxy"], "meta": task["meta"], "direct": task["direct"]}
    show("\n".join(_lines(cost, details)), details, as_json)


def _lines(cost: Cost, details: shapes.Cost) -> Iterator[str]:
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
    yield f"counted: {cost.counted_by}"
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
    """The tokens of each exposure. `servers`, `direct`: every definition of every known tool. `proxy`: the `mcp`
    tool's, and those of the tools that are chosen to be shown `beside` it. `meta`: those of its tools."""

    counted_by: str
    servers: tuple[ServerCost, ...]
    proxy: int
    beside: int
    meta: int

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
    found: dict[str, list[int]] = {server: [] for server in index.servers}
    beside = 0
    for target in index.tools():
        tokens = count(_shown(target))
        found[target.server].append(tokens)
        beside += tokens if index.is_direct(target, beside=True) else 0
    servers = [ServerCost(server, len(tokens), sum(tokens)) for server, tokens in found.items() if tokens]
    servers.sort(key=lambda one: (-one.tokens, one.server))
    meta = sum(definition_cost(definition, count) for definition in definitions())
    return Cost(counted_by, tuple(servers), definition_cost(DEFINITION, count) + beside, beside, meta)


def search_cost(words: str, answer: str, count: Count) -> int:
    """The tokens of a search: of its request, as the `mcp` tool is given it, and of the answer."""
    return count(_compact({"search": words})) + count(answer)


def definition_cost(definition: Mapping[str, Any], count: Count) -> int:
    """The tokens of one definition, as `tools/list` has it."""
    said = {
        "name": definition["name"],
        "description": definition.get("description", ""),
        "input_schema": definition.get("inputSchema", {}),
    }
    return count(_compact(said))


def _shown(target: Target) -> str:
    said = {
        "name": target.name,
        "description": target.description,
        "input_schema": dict(target.input_schema or {}),
    }
    return _compact(said)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
