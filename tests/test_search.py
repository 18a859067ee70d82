"""Search: the formula to the point, and how well it finds things."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.protocol._ranking import (
    EXACT,
    MAX_WORDS,
    PHRASE,
    PRESENT,
    RAREST,
    SCALE,
    Document,
    Ranking,
    asked,
)
from greenroom.protocol._search_words import normalise
from greenroom.protocol.catalogue import ServerEntry
from greenroom.protocol.config import ServerDefinition, Settings
from greenroom.protocol.index import Index
from greenroom.protocol.search import SearchPage, search, search_matching

QUERIES: Any = json.loads((Path(__file__).parent / "data" / "search_queries.json").read_text())


def build(servers: dict[str, list[list[str]]]) -> Index:
    definitions = {name: ServerDefinition(name, command="x") for name in servers}
    entries = {
        name: ServerEntry(name, "h", tools=tuple({"name": tool, "description": text} for tool, text in tools))
        for name, tools in servers.items()
    }
    return Index.build(definitions, entries, Settings())


@pytest.fixture(scope="module")
def index() -> Index:
    return build(QUERIES["servers"])


def names(page: SearchPage) -> list[str]:
    return [match.target.name for match in page.matches]


def scores(index: Index, query: str) -> dict[str, int]:
    return {match.target.name: match.score for match in search(index, query, limit=1000).matches}


# ---- the ranking ----


def naive_total(documents: Sequence[Document], query: str, number: int) -> int:
    """The sum for one document, read off its own stems; the ranking keeps the same in postings and lanes."""
    words, meant = asked(normalise(query))
    return sum(naive_points(documents, word, number) for word in words) + sum(
        naive_points(documents, word, number, PHRASE) for word in meant
    )


def naive_points(documents: Sequence[Document], word: str, number: int, factor: float = 1.0) -> int:
    ranking = Ranking(documents)
    best = 0
    for term, weight in ranking.standing_for(word).items():
        if term in documents[number].stems:
            rarity = min(naive_rarity(documents, term), naive_rarity(documents, word))
            value = documents[number].points[documents[number].stems.index(term)]
            each = factor * weight * rarity / SCALE
            best = max(best, int(value * each + each * PRESENT) + 1)
    return best


def naive_rarity(documents: Sequence[Document], term: str) -> float:
    having = sum(term in document.stems for document in documents)
    return min(RAREST, math.log(1 + (len(documents) - having + 0.5) / (having + 0.5)))


WORDS = st.lists(
    st.sampled_from(
        ["create", "creating", "issue", "issues", "tissue", "the", "pull", "request", "pr", "ïssue", "k8s"]
    ),
    max_size=6,
).map(" ".join)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5), WORDS)
def test_the_lanes_hold_the_sum_of_the_points(texts: list[tuple[str, str]], query: str) -> None:
    documents = [Document.of(f"s_{name}", name, "s", said) for name, said in texts]
    ranking = Ranking(documents)
    sums = [naive_total(documents, query, number) for number in range(len(documents))]
    named = [
        n for n, document in enumerate(documents) if normalise(query) in document.names and query.strip()
    ]
    listed = sorted((n for n, total in enumerate(sums) if total and n not in named), key=lambda n: -sums[n])
    everything = [*((n, EXACT) for n in named), *((n, sums[n]) for n in listed)]

    assert ranking.rank(query, 10) == (everything, len(everything))
    for most in range(1, len(texts)):
        assert ranking.rank(query, most) == (everything[:most], len(everything))
    odd = [hit for hit in everything if hit[0] % 2]
    assert ranking.rank(query, 10, range(1, len(texts), 2)) == (odd, len(odd))


NAMES = st.text(alphabet="abAB_ -.é1İΣ\0検", min_size=1, max_size=9)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_the_name_of_a_tool_finds_that_tool_first(originals: list[str], data: st.DataObject) -> None:
    documents = [Document.of(f"s_{name}", name, "s", "ab " * 5) for name in originals]
    number = data.draw(st.integers(0, len(originals) - 1))
    for query in (originals[number], f"s_{originals[number]}"):
        hits, _ = Ranking(documents).rank(query, 1)
        same = {n for n, document in enumerate(documents) if normalise(query) in document.names}
        assert not normalise(query) or hits[0][0] in same


def test_no_sum_leaves_its_lane() -> None:
    texts = " ".join(f"w{number}" for number in range(MAX_WORDS))
    rare = Document.of("s_t", "t", "s", texts, title=texts)
    ranking = Ranking([*(Document.of("s_x", "x", "s", "") for _ in range(20_000)), rare])

    (number, score), *_ = ranking.rank(texts + " pr pg tf es ci", 5)[0]

    assert number == 20_000
    assert score < EXACT


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("creating issues", "github_create_issue"),
        ("creat issue", "github_create_issue"),
        ("craete isssue", "github_create_issue"),  # slips of the finger
        ("createIssue", "github_create_issue"),
        ("pr", "github_create_pull_request"),
        ("make a new PR", "github_create_pull_request"),
        ("erase a meeting", "google-calendar-mcp_delete-event"),
    ],
)
def test_other_forms_of_a_word_find_it_too(index: Index, query: str, first: str) -> None:
    assert first in names(search(index, query))[:2]


def test_a_part_of_a_word_finds_every_tool_that_has_it() -> None:
    texts = [("s_t", "t", "s", f"{'abc'[n % 3]}qwrtk{n:02}") for n in range(9)]
    found, _ = Ranking([Document.of(*text) for text in texts]).rank("qwrtk", 9)

    assert sorted(number for number, _ in found) == list(range(9))
    assert Ranking([Document.of(*text) for text in texts]).rank("plugh", 9) == ([], 0)


def test_what_the_parameters_are_called_counts() -> None:
    schema = {
        "type": "object",
        "properties": {"cronExpression": {"description": "How often, for example hourly"}},
    }
    tools: tuple[dict[str, Any], ...] = ({"name": "a"}, {"name": "b", "inputSchema": schema})
    index = Index.build(
        {"s": ServerDefinition("s", command="x")}, {"s": ServerEntry("s", "h", tools=tools)}, Settings()
    )

    assert names(search(index, "cron")) == ["s_b"]
    assert names(search(index, "hourly job")) == ["s_b"]


def test_more_words_of_the_query_rank_higher(index: Index) -> None:
    found = scores(index, "create issue")

    assert found["github_create_issue"] > 1.5 * found["github_list_issues"] > 0


def test_a_query_of_a_thousand_words_is_answered(index: Index) -> None:
    assert search(index, " ".join(f"w{n}" for n in range(1000)) + " issue").total == 0
    assert search(index, "issue " + "x" * 100_000).total > 0


def test_asking_twice_gives_the_same(index: Index) -> None:
    assert names(search(index, "read a file")) == names(search(index, "read a file"))


# ---- the door ----


def test_any_word_lists_a_tool(index: Index) -> None:
    found = names(search(index, "emoji timezone", limit=100))

    assert {"slack_add_reaction", "time_convert_time", "time_get_current_time"} <= set(found)


def test_pages_follow_each_other(index: Index) -> None:
    everything = names(search(index, "a", limit=1000))
    first = search(index, "a")
    second = search(index, "a", offset=12)

    assert names(first) + names(second) == everything[:24]
    assert (first.total, first.has_more, first.next_offset) == (len(everything), True, 12)
    last = search(index, "a", limit=5, offset=len(everything) - 5)
    assert (len(last.matches), last.has_more, last.next_offset) == (5, False, None)
    assert search(index, "a", offset=10_000).matches == ()


def test_odd_pages_are_mended(index: Index) -> None:
    assert len(search(index, "a", limit=0).matches) == 1
    assert names(search(index, "a", offset=-3)) == names(search(index, "a"))


def test_a_server_narrows_the_search(index: Index) -> None:
    page = search(index, "list", server="slack", limit=100)

    assert page.total == len(page.matches) > 0
    assert all(match.target.server == "slack" for match in page.matches)


def test_a_blank_query_lists_a_server_and_nothing_else(index: Index) -> None:
    assert search(index, "  ").total == 0
    assert names(search(index, "", server="time")) == ["time_convert_time", "time_get_current_time"]
    assert search(index, "--").total == 0


def test_equal_scores_are_sorted_by_name() -> None:
    index = build({"b": [["same", "x"]], "a": [["same", "x"]]})

    assert names(search(index, "same")) == ["a_same", "b_same"]


def test_matching_by_pattern_is_unranked(index: Index) -> None:
    page = search_matching(index, lambda text: re.search("(?i)screenshot|emoji", text) is not None)

    assert names(page) == ["playwright_browser_take_screenshot", "slack_add_reaction"]
    assert {match.score for match in page.matches} == {0}
    assert search_matching(index, lambda text: "emoji" in text, server="time").total == 0


def test_nothing_is_found_where_nothing_is() -> None:
    assert search(build({}), "anything").matches == ()


# ---- how good it is ----


def test_what_people_ask_for_is_found(index: Index) -> None:
    ranks = {
        query: names(search(index, query, limit=1000)).index(expected)
        for query, expected in QUERIES["queries"]
    }
    misses = {query: rank for query, rank in ranks.items() if rank > 0}

    assert sum(rank == 0 for rank in ranks.values()) >= 0.9 * len(ranks), misses
    assert sum(rank < 5 for rank in ranks.values()) == len(ranks), misses


@pytest.mark.parametrize(("length", "is_found"), [(3, False), (4, True), (5, True), (24, True), (25, False)])
def test_a_slip_is_looked_for_in_words_of_four_to_twenty_four_letters(length: int, is_found: bool) -> None:
    word = "qwertzuiopasdfghjklyxcvbnm"[:length]
    ranking = Ranking([Document.of("a", "a", "s", word[1:])])
    assert (ranking._one_slip_from(word) == [word[1:]]) is is_found
    assert ranking._one_slip_from(f"{word[:-1]}7") == []
