"""`greenroom cost`: what the configured tools cost a model's context, shown directly and behind the `mcp` tool. It
starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...protocol.plain_text import one_line
from ._common import config_option, read_config, say, show

if TYPE_CHECKING:
    from .._cost import Cost
    from . import _shapes as shapes


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
    from .._cost import cost_of, counter, search_cost
    from .._mcp_tool import FOR_PEOPLE, CatalogueReader, parse_request
    from .._offline import open_catalogue
    from ._common import text_of

    counted_by, count = counter(encoding)
    catalogue = open_catalogue(read_config(config_path))
    if catalogue.warning is not None:
        say(catalogue.warning)
    cost = cost_of(catalogue.index, counted_by, count)
    unknown = sorted(set(catalogue.config.servers) - {one.server for one in cost.servers})
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
