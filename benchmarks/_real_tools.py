"""Tools that public servers really have, and what agents ask for when they look for one.

`data/tools.jsonl` has a server in each line: its package, version and licence, and its tools as it listed them.
`data/queries_open.json` and `data/queries_held.json` have queries with the tools that answer them, as `server/tool`.
The words, weights and synonyms of our ranking were chosen with the open ones in view; the held ones only measure.
Which query is in which file was drawn by lot. `data/README.md` says where all of it comes from.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.config.model import ServerDefinition, Settings

DATA = Path(__file__).parent / "data"
_VERBS = ("create", "list", "get", "delete", "update", "search", "start", "stop", "check", "export")
_NOUNS = ("turbine", "gasket", "herd", "orchard", "vessel", "kiln", "bobbin", "glacier", "lathe", "quarry", "beehive",
          "violin", "fresco", "warp yarn", "pallet", "silo", "runway", "bogie", "reactor", "aqueduct")  # fmt: skip
_PLACES = ("a plant", "the estate", "a workshop", "the harbour", "one region", "a depot")
_EACH = 50


def real_servers() -> Mapping[str, Mapping[str, Any]]:
    """Each server's line, by its name."""
    lines = (DATA / "tools.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["server"]: record for record in map(json.loads, lines)}


def queries(which: str) -> list[tuple[str, frozenset[str]]]:
    """The queries, `open` or `held`, each with the exposed names that answer it."""
    said = json.loads((DATA / f"queries_{which}.json").read_text(encoding="utf-8"))
    return [(query, frozenset(answers)) for query, answers in said]


def real_and_made_up(at_least: int = 0) -> dict[str, tuple[Any, ...]]:
    """By server, the real tools, and made-up ones of other trades until there are `at_least`."""
    tools = {name: tuple(record["tools"]) for name, record in real_servers().items()}
    lacking = at_least - sum(map(len, tools.values()))
    made = _made_up(random.Random(5))
    for number in range(max(0, -(-lacking // _EACH))):
        tools[f"works{number}"] = tuple(itertools.islice(made, _EACH))
    return tools


def index_of_real_tools(at_least: int = 0) -> Index:
    """An index of these."""
    tools = real_and_made_up(at_least)
    entries = {name: ServerEntry(name, "h", tools=listed) for name, listed in tools.items()}
    definitions = {name: ServerDefinition(name, command="x") for name in entries}
    return Index.build(definitions, entries, Settings())


def answers_of(index: Index) -> Mapping[str, str]:
    """From exposed name to `server/tool`."""
    return {target.name: f"{target.server}/{target.original}" for target in index.tools()}


def _made_up(words: random.Random) -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        verb, noun, place = words.choice(_VERBS), words.choice(_NOUNS), words.choice(_PLACES)
        properties = {"id": {"type": "string", "description": f"Which {noun}"}, "notes": {"type": "string"}}
        yield {
            "name": f"{verb}_{noun.replace(' ', '_')}_{number}",
            "description": f"{verb.title()} one {noun} of {place}, by its number or its name. Returns the {noun}.",
            "inputSchema": {"type": "object", "properties": properties},
        }


def share_found(ranked: Sequence[Sequence[str]], wanted: Sequence[frozenset[str]], among: int) -> float:
    """The percentage of queries that have an answer among the first so many."""
    found = sum(not answers.isdisjoint(names[:among]) for names, answers in zip(ranked, wanted, strict=True))
    return 100 * found / max(1, len(wanted))
