"""B19: how often the tool that answers a query is the first one that search shows, or among the first five.

Measured with queries that nobody looked at who worked on the ranking (`_real_tools`), among the real tools alone and
among ten thousand. Beside it the formula of points that other gateways use, and BM25 from a library. Among the real
tools also by meaning, where the model is installed; all vectors are made first, and what a query then costs is measured
with the model's part of it.
"""

from __future__ import annotations

import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from greenroom.catalogue.index import Index
from greenroom.catalogue.meaning_model import Unusable, model_folder
from greenroom.catalogue.namespace import Target
from greenroom.catalogue.search import search
from greenroom.gateway.exposures import tool_texts as texts
from greenroom.gateway.exposures.tool_definition import FOR_MODELS

from ._figures import Bound, Figure, at_least, at_most, quantity
from ._other_rankings import Rank, by_bm25, by_points
from ._real_tools import answers_of, index_of_real_tools, queries, share_found
from ._rounds import Size
from ._run import run_alone

MANY = 10_000
_TIMED = 30  # queries
_BETTER = 5  # percentage points over the better of the others: what we call clearly


def measure(size: Size) -> Iterator[Figure]:
    asked = queries("held")[: size.of(1_000, 10)]
    for among in (0, MANY) if not size.quick else (0,):
        index = index_of_real_tools(among)
        sides = _sides(index)
        ranked = {name: [rank(query) for query, _ in asked] for name, rank in sides.items()}
        where = f"{len(index.tools()):,} tools"
        for first in (1, 5):
            shares = {
                name: share_found(found, [answers for _, answers in asked], first)
                for name, found in ranked.items()
            }
            ours = shares.pop("ours")
            yield quantity(
                "B19", f"of {len(asked)} queries, answered by the first {first} of {where}", [ours], "%",
                _clearly_above(shares, size), shares,
            )  # fmt: skip
        times = {
            name: _median_ms(rank, [query for query, _ in asked[:_TIMED]]) for name, rank in sides.items()
        }
        yield quantity("B19", f"a search of {where}", [times.pop("ours")], "ms", at_most(5, 1), times)
        if not among:
            yield from _tokens(index, asked)
            yield from _by_meaning(index, asked, size)


def _tokens(index: Index, asked: Sequence[tuple[str, frozenset[str]]]) -> Iterator[Figure]:
    """What a model reads of the `mcp` tool, four characters to a token: a search, and all that a task needs before its
    call. It describes the tool if that is not among the first three or if a required parameter is not shown there."""
    known = answers_of(index)
    searches, tasks = list[float](), list[float]()
    for query, answers in asked:
        page = search(index, query, limit=12)
        text = texts.search(query, page, server=None, full=None, offset=0, hints=FOR_MODELS).text
        searches.append(len(text) / 4)
        found = next((m.target for m in page.matches if known[m.target.name] in answers), None)
        if found is not None:
            shown = set(re.findall(r"^    (\S+) ", _entry(text, found.name), re.MULTILINE))
            is_shown = f"\n{found.name}\n" in text and _required(found) <= shown
            tasks.append((len(text) + (0 if is_shown else len(texts.describe(found).text))) / 4)
    yield quantity("B19", "the longest answer to a search", [max(searches)], "tokens", at_most(800))
    yield quantity(
        "B19", "what a task needs before its call", [statistics.mean(tasks)], "tokens", at_most(800)
    )


def _required(target: Target) -> set[str]:
    """The required parameters; one with parts of its own has to be described."""
    schema = target.schema()
    return {
        f"{name}*" if "properties" in schema["properties"].get(name, {}) else name
        for name in schema.get("required", ())
    }


def _entry(text: str, name: str) -> str:
    """The entry with parameters of a tool in an answer; empty if it has none there."""
    _, found, after = text.partition(f"\n{name}\n")
    return f"\n{after.partition(chr(10) * 2)[0]}" if found else ""


def _by_meaning(index: Index, asked: Sequence[tuple[str, frozenset[str]]], size: Size) -> Iterator[Figure]:
    try:
        model_folder(True)
    except Unusable as error:
        print(f"finding by meaning is not measured: {error}", file=sys.stderr)
        return
    from greenroom.catalogue.tool_vectors import opened

    tools = index.tools()[: size.of(10_000, 20)]
    meanings = opened(True, None, 0)
    meanings.learn(0, [target.meaning for target in tools])
    begun = time.process_time()
    making = threading.Thread(target=meanings.make_all)  # a thread that makes vectors gives way to all others
    making.start()
    making.join()
    each = (time.process_time() - begun) * 1000 / len(tools)

    def both(query: str) -> list[str]:
        near = [tools[number].meaning_key for number in meanings.nearest(query, len(tools))]
        return [match.target.name for match in search(index, query, near=near).matches]

    rank = _as_answers(both, answers_of(index))
    ranked = [rank(query) for query, _ in asked]
    for first, at_least_so_many in ((1, 50), (5, 85), (12, 92)):
        share = share_found(ranked, [answers for _, answers in asked], first)
        bound = None if size.quick else at_least(at_least_so_many)
        yield quantity("B19", f"by meaning too, answered by the first {first}", [share], "%", bound)
    took = _median_ms(both, [query for query, _ in asked[:_TIMED]])
    yield quantity("B19", "a search by meaning too", [took], "ms", at_most(20, 10))
    yield quantity("B19", "the vector of a tool, processor time", [each], "ms")


def _clearly_above(others: Mapping[str, float], size: Size) -> Bound | None:
    return None if size.quick else at_least(round(max(others.values()) + _BETTER, 1))


def _sides(index: Index) -> Mapping[str, Rank]:
    """Each ranking, from a query to `server/tool`."""
    known = answers_of(index)
    targets = index.tools()

    def ours(query: str) -> list[str]:
        return [match.target.name for match in search(index, query).matches]

    sides: dict[str, Rank] = {
        "ours": ours,
        "points": by_points(targets),
        "BM25": by_bm25(targets, with_parameters=False),
        "BM25 with parameters": by_bm25(targets, with_parameters=True),
    }
    return {name: _as_answers(rank, known) for name, rank in sides.items()}


def _as_answers(rank: Rank, known: Mapping[str, str]) -> Rank:
    return lambda query: [known[name] for name in rank(query)[:20]]


def _median_ms(rank: Rank, asked: list[str]) -> float:
    spent = list[float]()
    for query in asked:
        begun = time.perf_counter()
        rank(query)
        spent.append((time.perf_counter() - begun) * 1000)
    return statistics.median(spent)


if __name__ == "__main__":
    run_alone(measure)
