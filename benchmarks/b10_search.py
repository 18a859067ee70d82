"""B10: ten thousand tools: a ranked search, and resolving one name.

Beside the search a plain scan that asks every tool whether it has any of the words in it (and ranks nothing); beside
the name a look-up in a plain dict. Each query is new, so no cache of words answers it.

A gateway makes the ranked index before anybody searches. So its first search is measured as a model meets it: a second
and a half after the start of a gateway that knows ten thousand tools from its cache. A program may search as soon as
its room is open: what search made of five thousand tools is then beside the cache (`catalogue.search`), or it is not.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.lister import lister

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.search import search
from greenroom.catalogue.store import CatalogueFile, catalogue_keys
from greenroom.config.model import ServerDefinition, Settings
from greenroom.config.parse import parse_config

from ._figures import Figure, at_most, quantity
from ._gateways import Gateway, ours
from ._real_tools import real_and_made_up
from ._rounds import Size
from ._run import run_alone
from ._wire_client import WireClient

TOOLS = 10_000
PER_SERVER = 50
VERBS = ("create", "list", "get", "delete", "update", "search", "merge", "archive", "assign", "export")
NOUNS = ("issue", "branch", "commit", "release", "comment", "label", "page", "table", "invoice", "contact", "event",
         "message", "channel", "bucket", "policy", "alert", "dashboard", "query", "secret", "deployment")  # fmt: skip
PLACES = ("a repository", "the workspace", "an organisation", "a project", "the account", "a team")
SERVERS = 20  # behind the gateway
UNTIL_SEARCHED = 1.5  # seconds from the start of the gateway
REAL = 5_000  # tools of a program; nearly a thousand of them are real
PROGRAM = """
import sys, time, anyio
from greenroom import Greenroom

async def main():
    async with Greenroom.open(sys.argv[1], cache_path=sys.argv[2], bootstrap=False) as room:
        begun = time.perf_counter()
        room.search("create an issue")
        print((time.perf_counter() - begun) * 1000, len(room.tools()))

anyio.run(main)
"""


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
    yield quantity("B10", "the first search, nothing prepared", [first], "ms")
    with tempfile.TemporaryDirectory() as folder:
        tools = size.of(TOOLS, 100)
        gateway = _gateway(Path(folder), tools)
        firsts, seconds = zip(*(_first_searches_ms(gateway) for _ in range(size.rounds)), strict=True)
    yield quantity(
        "B10", f"the first search through a gateway, {UNTIL_SEARCHED} s after its start", firsts, "ms",
        at_most(60, 20), {"the second search": statistics.median(seconds)},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), size.of(REAL, 100))
        kept, unkept = zip(*(program.first_searches_ms() for _ in range(size.rounds)), strict=True)
    yield quantity(
        "B10", f"the first search in a program, as soon as its room over {program.tools:,} real tools is open", kept,
        "ms", at_most(100, 60), {"nothing kept": statistics.median(unkept)},
    )  # fmt: skip
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


def _gateway(home: Path, tools: int) -> Gateway:
    """A gateway that knows so many tools from its cache."""
    gateway, words = ours(home), random.Random(7)
    servers = {
        f"server{number}": lister(home, f"server{number}", tools=list(_tools(words, tools // SERVERS)))
        for number in range(SERVERS)
    }
    (home / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    with WireClient(gateway.command, env=gateway.env) as client:
        client.initialize()
        while f"{tools} tools" not in _text(client, {}):
            time.sleep(0.2)
    return gateway


def _first_searches_ms(gateway: Gateway) -> tuple[float, float]:
    with WireClient(gateway.command, env=gateway.env) as client:
        client.initialize()
        time.sleep(UNTIL_SEARCHED)
        first = _timed_ms(lambda: _text(client, {"search": "issue"}))
        return first, _timed_ms(lambda: _text(client, {"search": "page"}))


class Program:
    """A program of its own that opens a room which knows so many tools from its cache, and searches at once."""

    def __init__(self, home: Path, tools: int) -> None:
        self._config, self._cache = home / "mcp.json", home / "catalogue.json"
        self.tools = 0
        listed = real_and_made_up(tools)
        said = {"mcpServers": {name: {"command": "x"} for name in listed}}
        self._config.write_text(json.dumps(said), encoding="utf-8")
        keys, now = catalogue_keys(parse_config(said)), time.time()
        entries = [ServerEntry(name, keys[name], tools=each, fetched_at=now) for name, each in listed.items()]
        CatalogueFile(self._cache).save(entries, now)

    def first_searches_ms(self) -> tuple[float, float]:
        """With what an earlier program has kept, and without."""
        self._cache.with_suffix(".search").unlink(missing_ok=True)
        unkept = self._run()
        return self._run(), unkept

    def _run(self) -> float:
        command = [sys.executable, "-c", PROGRAM, str(self._config), str(self._cache)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        took, tools = done.stdout.split()
        self.tools = int(tools)
        return float(took)


def _text(client: WireClient, arguments: dict[str, object]) -> str:
    result = client.ask("tools/call", {"name": "mcp", "arguments": arguments})
    return str(result["content"][0]["text"])


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
