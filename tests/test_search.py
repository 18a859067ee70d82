"""Search: the formula to the point, and how well it finds things."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.protocol._ranking import WEIGHTS, Document, Ranking
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


# ---- the formula ----


@pytest.mark.parametrize(
    ("query", "tool", "score"),
    [
        ("create issue", "github_create_issue", 481),
        ("issues", "github_list_issues", 303),
        ("create issue", "github_list_issues", 59),  # half of the words: listed, and far below
        ("simulator", "xcodebuild_list_sims", 65),
    ],
)
def test_worked_values(index: Index, query: str, tool: str, score: int) -> None:
    assert scores(index, query)[tool] == score


def naive_normalise(text: str) -> str:
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return re.sub(r"[_./:-]+", " ", text).lower()


def naive_score(query: str, texts: tuple[str, ...]) -> int | None:
    """The formula, word for word; None when nothing matched."""
    phrase = naive_normalise(query).strip()
    words = list(dict.fromkeys(word for word in re.split(r"[^a-z0-9]+", phrase) if word))
    score = 0
    matched: set[str] = set()
    whole = found = False
    for weight, text in zip(WEIGHTS, texts, strict=True):
        value = naive_normalise(text)
        tokens = {token for token in re.split(r"[^a-z0-9]+", value) if token}
        if value == phrase:
            score, whole, found = score + 14 * weight, True, True
        elif value.startswith(phrase):
            score, found = score + 9 * weight, True
        elif phrase in value:
            score, found = score + 6 * weight, True
        for word in words:
            if word in tokens:
                score += 4 * weight
            elif any(t.startswith(word) or (len(t) >= 4 and word.startswith(t)) for t in tokens):
                score += 2 * weight
            elif word in value:
                score += weight
            else:
                continue
            matched.add(word)
    if not phrase or not (found or matched):
        return None
    coverage = len(matched) / len(words) if words else 0
    score += 25 if coverage == 1 else math.floor(10 * coverage + 0.5)
    first = set(re.split(r"[^a-z0-9]+", naive_normalise(texts[0])))
    score += 8 if words and words[0] in first else 0
    return score + (20 if whole else 0)


TEXTS = st.text(alphabet="abAB_ -.é1İΣ\0", max_size=9)
FIELDS = st.tuples(TEXTS, TEXTS, TEXTS, TEXTS)


@given(st.lists(FIELDS, max_size=8), TEXTS)
def test_the_quick_ranking_gives_exactly_the_formula(texts: list[tuple[str, ...]], query: str) -> None:
    ranking = Ranking([Document.of(*fields) for fields in texts])
    naive = [(number, naive_score(query, fields)) for number, fields in enumerate(texts)]
    listed = [(number, score) for number, score in naive if score is not None]

    everything = sorted(listed, key=lambda hit: (-hit[1], hit[0]))
    odd = [hit for hit in everything if hit[0] % 2]

    assert ranking.rank(query, len(texts)) == (everything, len(listed))
    for most in range(len(texts)):
        assert ranking.rank(query, most) == (everything[:most], len(listed))
        assert ranking.rank(query, most, range(1, len(texts), 2)) == (odd[:most], len(odd))


@given(
    st.lists(st.sampled_from(["create", "created", "creat", "issue", "issues", "is", "sue"]), max_size=6).map(
        " ".join
    )
)
def test_the_quick_ranking_gives_exactly_the_formula_on_words(query: str) -> None:
    texts = [
        ("s_create_issue", "create_issue", "s", "create an issue, is created"),
        ("s_issues", "issues", "is", "creates"),
        ("s_tissue", "tissue", "sue", query),
    ]
    quick = dict(Ranking([Document.of(*fields) for fields in texts]).rank(query, len(texts))[0])
    naive = {number: naive_score(query, fields) for number, fields in enumerate(texts)}

    assert quick == {number: score for number, score in naive.items() if score is not None}


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
