"""`python -m benchmarks.token_costs`: what real tools cost a model's context, by how many servers there are.

Four characters count as a token, as in `greenroom cost`. `direct` shows all tools in every turn; `proxy` shows one tool
in every turn, `meta` a few, and for each task the answer to a search is added (`b25_tasks` has whole tasks). The
numbers of 1 and 10 servers are medians of draws by lot. `--picture` draws the cost of `direct` into `docs/`.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from greenroom.catalogue.entries import ServerEntry
from greenroom.cli.cost_command import cost_of, counter
from greenroom.config.model import Config, ServerDefinition, Settings
from greenroom.gateway.exposures.query_modes import CatalogueReader
from greenroom.gateway.exposures.tool_definition import FOR_MODELS, parse_request
from greenroom.gateway.offline_catalogue import OfflineCatalogue

from ._pictures import curve
from ._real_tools import queries, real_servers

_DRAWS = 101
_PICTURE = Path(__file__).resolve().parent.parent / "docs" / "token-costs.svg"


def main() -> None:
    print(
        "| servers | tools | all shown, every turn | the `mcp` tool, every turn | the four tools of `meta`, every turn "
        "| an answer to a search |\n|---|---|---|---|---|---|"
    )
    servers = {name: tuple(record["tools"]) for name, record in real_servers().items()}
    catalogue = _catalogue(list(servers))
    counted_by, count = counter()
    cost = cost_of(catalogue.index, counted_by, count)
    tokens = {one.server: one.tokens for one in cost.servers}
    words = random.Random(1)
    drawn_costs: dict[int, float] = {}
    for size in (1, 10, len(servers)):
        draws = [words.sample(sorted(servers), size) for _ in range(_DRAWS if size < len(servers) else 1)]
        tools = statistics.median(sum(len(servers[name]) for name in drawn) for drawn in draws)
        direct = statistics.median(sum(tokens[name] for name in drawn) for drawn in draws)
        searches = statistics.median(_search_costs(draws[0]))
        drawn_costs[size] = direct
        columns = (direct, cost.proxy, cost.meta, searches)
        print(f"| {size} | {tools:,.0f} | {' | '.join(f'{tokens:,.0f}' for tokens in columns)} |")
    if "--picture" in sys.argv:
        _PICTURE.write_text(
            curve("tokens in every turn, all tools shown, by servers", drawn_costs), encoding="utf-8"
        )


def _search_costs(names: Sequence[str]) -> list[int]:
    """The answer to each query."""
    reader = CatalogueReader(_catalogue(names), hints=FOR_MODELS)
    _, count = counter()
    found: list[int] = []
    for query, _ in queries("open"):
        answer = str(reader.answer(parse_request({"search": query})).as_result()["content"][0]["text"])
        found.append(count(answer))
    return found


def _catalogue(names: Sequence[str]) -> OfflineCatalogue:
    records = real_servers()
    entries = {name: ServerEntry(name, "h", tools=tuple(records[name]["tools"])) for name in names}
    definitions = {name: ServerDefinition(name, command="x") for name in names}
    return OfflineCatalogue(Config(definitions, Settings()), entries)


if __name__ == "__main__":
    main()
