"""B10: ten thousand tools: a ranked search, and resolving one name.

Beside the search a plain scan that asks every tool whether it has any of the words in it (and ranks nothing); beside
the name a look-up in a plain dict. Each query is new, so no cache of words answers it.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator

from greenroom.protocol.catalogue import ServerEntry
from greenroom.protocol.config import ServerDefinition, Settings
from greenroom.protocol.index import Index
from greenroom.protocol.search import search

from ._figures import Figure, at_most, quantity
from ._rounds import Size
from ._run import run_alone

TOOLS = 10_000
PER_SERVER = 50
VERBS = ("create", "list", "get", "delete", "update", "search", "merge", "archive", "assign", "export")
NOUNS = ("issue", "branch", "commit", "release", "comment", "label", "page", "table", "invoice", "contact", "event",
         "message", "channel", "bucket", "policy", "alert", "dashboard", "query", "secret", "deployment")  # fmt: skip
PLACES = ("a repository", "the workspace", "an organisation", "a project", "the account", "a team")
NAMES_A_TURN = 10_000


def measure(size: Size) -> Iterator[Figure]:
    index = index_of(TOOLS)
    begun = time.perf_counter()
    search(index, "anything")
    first = (time.perf_counter() - begun) * 1000
    queries = Queries()
    searches = [search_ms(index, queries, size) for _ in range(size.rounds)]
    scans = [scan_ms(index, queries, size) for _ in range(size.rounds)]
    note = f"the first search, which prepares the index: {first:.0f} ms"
    yield quantity(
        "B10", f"ranked search of {TOOLS:,} tools, p50", searches, "ms", at_most(5, 1),
        {"a plain scan": statistics.median(scans)}, note,
    )  # fmt: skip
    yield quantity("B10", "the first search", [first], "ms")
    names = [target.name for target in index.tools()]
    plain = dict.fromkeys(names, 0)
    yield quantity(
        "B10", "name resolution, p50", [look_up_us(index.get, names) for _ in range(size.rounds)], "µs",
        at_most(2), {"a dict": look_up_us(plain.get, names)},
    )  # fmt: skip


def index_of(tools: int) -> Index:
    """An index of `tools` tools, fifty a server, with names and descriptions like real ones."""
    words = random.Random(7)
    servers = [f"server{number}" for number in range(max(1, tools // PER_SERVER))]
    each = tools // len(servers)
    entries = {name: ServerEntry(name, "h", tools=tuple(_tools(words, each))) for name in servers}
    return Index.build({name: ServerDefinition(name, command="x") for name in servers}, entries, Settings())


def _tools(words: random.Random, count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        verb, noun, place = words.choice(VERBS), words.choice(NOUNS), words.choice(PLACES)
        yield {
            "name": f"{verb}_{noun}_{number}",
            "description": f"{verb.title()} one {noun} of {place}, by its number or its name. Returns the {noun}.",
            "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
        }


class Queries:
    """Queries of two to five words, no two alike."""

    def __init__(self) -> None:
        self._words = random.Random(11)
        self._number = itertools.count()

    def next(self) -> str:
        draw = self._words
        extra = draw.choice(("", "in a repository", "by name", "of the team"))
        return f"{draw.choice(VERBS)} {draw.choice(NOUNS)} {extra} x{next(self._number)}"


def search_ms(index: Index, queries: Queries, size: Size) -> float:
    return statistics.median(_timed_ms(lambda: search(index, queries.next())) for _ in range(size.of(50, 2)))


def scan_ms(index: Index, queries: Queries, size: Size) -> float:
    def scan() -> None:
        words = queries.next().split()
        for target in index.tools():
            text = f"{target.name} {target.description}".lower()
            any(word in text for word in words)

    return statistics.median(_timed_ms(scan) for _ in range(size.of(5, 1)))


def _timed_ms(body: object) -> float:
    assert callable(body)
    start = time.perf_counter()
    body()
    return (time.perf_counter() - start) * 1000


def look_up_us(get: object, names: list[str]) -> float:
    assert callable(get)
    start = time.perf_counter()
    for name in names:
        get(name)
    return (time.perf_counter() - start) / len(names) * 1e6


if __name__ == "__main__":
    run_alone(measure)
