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
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.ranking import (
    ASIDE,
    EXACT,
    PHRASE,
    PRESENT,
    RAREST,
    SCALE,
    Ranking,
    ToolDocument,
    aside,
    asked,
)
from greenroom.catalogue.search import SearchPage, search, search_matching
from greenroom.catalogue.search_words import normalise
from greenroom.config.model import ServerDefinition, Settings

QUERIES: Any = json.loads((Path(__file__).parents[1] / "data" / "search_queries.json").read_text())


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


def naive_total(documents: Sequence[ToolDocument], query: str, number: int) -> int:
    """The sum for one document, read off its own stems; the ranking keeps the same in postings and lanes."""
    words, meant = asked(normalise(query))
    return (
        sum(naive_points(documents, word, number) for word in words)
        + sum(naive_points(documents, word, number, PHRASE) for word in meant)
        + sum(naive_points(documents, word, number, ASIDE) for word in aside(normalise(query)))
    )


def naive_points(documents: Sequence[ToolDocument], word: str, number: int, factor: float = 1.0) -> int:
    ranking = Ranking(documents)
    best = 0
    standing = {word: 1.0} if factor == ASIDE else ranking.standing_for(word)
    for term, weight in standing.items():
        if term in documents[number].stems:
            rarity = min(naive_rarity(documents, term), naive_rarity(documents, word))
            value = documents[number].points[documents[number].stems.index(term)]
            each = factor * weight * rarity / SCALE
            best = max(best, int(value * each + each * PRESENT) + 1)
    return best


def naive_rarity(documents: Sequence[ToolDocument], term: str) -> float:
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
    documents = [ToolDocument.of(f"s_{name}", name, "s", said) for name, said in texts]
    ranking = Ranking(documents)
    sums = [naive_total(documents, query, number) for number in range(len(documents))]
    named = [
        n for n, document in enumerate(documents) if normalise(query) in document.names and query.strip()
    ]

    def listed(those: range) -> list[tuple[int, int]]:
        """What is found among these: the named ones, and what has at least a quarter of the best score."""
        best = max((sums[n] for n in those), default=0)
        found = [n for n in those if sums[n] and 4 * sums[n] >= best and n not in named]
        first = [(n, EXACT) for n in those if n in named]
        return first + [(n, sums[n]) for n in sorted(found, key=lambda n: -sums[n])]

    everything = listed(range(len(texts)))
    assert ranking.rank(query, 10) == (everything, len(everything))
    for most in range(1, len(texts)):
        assert ranking.rank(query, most) == (everything[:most], len(everything))
    among = range(1, len(texts), 2)
    assert ranking.rank(query, 10, among) == (listed(among), len(listed(among)))
    assert ranking.matching(query, among, among) == sum(sums[n] > 0 for n, _ in listed(among))


NAMES = st.text(alphabet="abAB_ -.é1İΣ\0検", min_size=1, max_size=9)


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_the_name_of_a_tool_finds_that_tool_first(originals: list[str], data: st.DataObject) -> None:
    documents = [ToolDocument.of(f"s_{name}", name, "s", "ab " * 5) for name in originals]
    number = data.draw(st.integers(0, len(originals) - 1))
    for query in (originals[number], f"s_{originals[number]}"):
        hits, _ = Ranking(documents).rank(query, 1)
        same = {n for n, document in enumerate(documents) if normalise(query) in document.names}
        assert not normalise(query) or hits[0][0] in same


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


def test_what_has_far_fewer_of_the_words_is_not_listed() -> None:
    said = {
        "get-sum": "Returns the sum of two numbers",
        "add_note": "Keep a note",
        "add": "Adds two numbers",
        "count": "How many files of one kind there are; the kind is one of two numbers",
        "tree": "Everything below a folder",
    }
    built = build({name: [[name, text]] for name, text in said.items()})
    for query in ("sum", "add two numbers", "sum of two numbers"):
        found = names(search(built, query))
        assert {"get-sum", "add"} == {name.rpartition("_")[2] for name in found[:2]}, query
        assert not any("tree" in name for name in found)
    page = search(built, "everything below a folder")
    assert (len(page.matches), page.total, page.has_more) == (1, 1, False)
    assert search(built, "everything below a folder or two numbers", server="count").total == 1


def test_a_part_of_a_word_finds_every_tool_that_has_it() -> None:
    texts = [("s_t", "t", "s", f"{'abc'[n % 3]}qwrtk{n:02}") for n in range(9)]
    found, _ = Ranking([ToolDocument.of(*text) for text in texts]).rank("qwrtk", 9)

    assert sorted(number for number, _ in found) == list(range(9))
    assert Ranking([ToolDocument.of(*text) for text in texts]).rank("plugh", 9) == ([], 0)


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


# ---- the door ----


def test_any_word_lists_a_tool(index: Index) -> None:
    found = names(search(index, "emoji timezone", limit=100))

    assert {"slack_add_reaction", "time_convert_time", "time_get_current_time"} <= set(found)


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


# ---- how good it is ----


def test_what_people_ask_for_is_found(index: Index) -> None:
    ranks = {
        query: names(search(index, query, limit=1000)).index(expected)
        for query, expected in QUERIES["queries"]
    }
    misses = {query: rank for query, rank in ranks.items() if rank > 0}

    assert sum(rank == 0 for rank in ranks.values()) >= 0.9 * len(ranks), misses
    assert sum(rank < 5 for rank in ranks.values()) == len(ranks), misses


# ---- what the index adds to it ---------------------------------------------------------------------------------------


def documents(*said: tuple[str, str]) -> Ranking:
    return Ranking([ToolDocument.of(f"s_{name}", name, "s", text) for name, text in said])


def test_a_name_is_found_in_every_spelling_and_in_parts_that_are_written_together() -> None:
    ranking = documents(("gitHubSearch", ""), ("git_hub", ""), ("github", ""), ("other", ""))
    for query in ("gitHubSearch", "git_hub_search", "git hub search", "s_gitHubSearch", "S_git-hub.search"):
        (first, score), *_ = ranking.rank(query, 4)[0]
        assert (first, score) == (0, EXACT), query
    assert {number for number, _ in ranking.rank("github", 4)[0]} == {0, 1, 2}


def test_a_search_of_some_documents_finds_and_counts_only_these() -> None:
    ranking = documents(("alpha", "beta"), ("beta", ""), ("alpha_beta", ""), ("gamma", ""))
    everything, total = ranking.rank("beta", 10)
    assert total == 3
    assert everything[0] == (1, EXACT)
    assert ranking.rank("beta", 10, [0, 2, 3])[1] == 2
    assert [number for number, _ in ranking.rank("beta", 10, [1])[0]] == [1]
    assert ranking.rank("beta", 10, []) == ([], 0)
    assert ranking.rank("beta", 1, [0, 2]) == (everything[1:2], 2)
    assert ranking.rank("", 10) == ranking.rank("--", 10) == ([], 0)


def test_words_that_say_nothing_count_only_where_there_are_no_others() -> None:
    assert asked("the cat of the day")[0] == ["cat", "day"]
    assert asked("about this")[0] == ["about", "this"]
    for number in range(1, 4):
        assert len(asked("pull request and more"[: 12 + number])[1]) <= 8


@for_each(
    ("query", "first"),
    [
        ("搜索", "zh_search"),
        ("搜索文件夹", "zh_search"),
        ("怎样删除文件", "zh_delete"),
        ("请打开", "zh_____"),
        ("注文を作成", "ja_create"),
        ("サーバーを再起動する", "ja_restart"),
        ("이슈 목록", "ko_list"),
        ("restart サーバー", "ja_restart"),
    ],
)
def test_words_without_spaces_between_them_are_found(query: str, first: str) -> None:
    index = build(
        {
            "zh": [["search", "在工作区中搜索文件"], ["delete", "把文件删除"], ["打开网页", ""]],
            "ja": [["create", "新しい注文を作成する"], ["restart", "サーバーの再起動"]],
            "ko": [["list", "저장소의 이슈를 나열한 목록"], ["close", "저장소를 닫는다"]],
        }
    )
    assert names(search(index, query))[0] == first


def test_a_name_without_letters_is_found() -> None:
    index = build({"s": [["___", "Rule."], ["alpha", ""]]})
    assert names(search(index, "___")) == ["s____"]
    assert names(search(index, "?!")) == ["s____"]
    assert names(search(build({"s": [["alpha", ""]]}), "?!")) == []


@for_each(
    ("query", "first"),
    [
        ("do", "s_do"),
        ("do it", "s_do"),
        ("do xyzzy", "s_do"),
        ("s do", "s_do"),
        ("how to", "s_how_to"),
        ("one", "one_run"),
        ("ONE!", "one_run"),
        ("in one", "one_run"),
        ("one xyzzy", "one_run"),
        ("all", "all-mcp_run"),
        ("all run", "all-mcp_run"),
        ("all mcp", "all-mcp_run"),
        ("next to me", "next-to-me_run"),
        ("to me", "into-me_run"),
    ],
)
def test_a_stop_word_counts_where_it_is_the_name_of_a_tool_or_a_server(query: str, first: str) -> None:
    servers = {name: [["run", "x"]] for name in ("one", "all-mcp", "into-me", "next-to-me")}
    index = build({"s": [["do", "x"], ["how_to", "x"], ["docs", "x"], ["onedrive", "x"]], **servers})
    assert names(search(index, query))[0] == first


def test_a_stop_word_that_is_a_name_does_not_outdo_the_words_that_say_something() -> None:
    issues = [["create_issue", "Make one."], ["list_issues", "All of them."]]
    index = build({"github": issues, "s": [["do", "Do it."], ["how", ""]], "all": [["run", ""]]})
    assert names(search(index, "how do I create an issue"))[0] == "github_create_issue"
    assert names(search(index, "list all issues"))[0] == "github_list_issues"
    assert names(search(build({"s": [["get_all", ""], ["x", "all"]]}), "all xyzzy")) == []


@pytest.mark.parametrize(
    ("word", "slips", "far"),
    [
        (
            "planet",
            ["plant", "lanet", "plane", "planeet", "xplanet", "planetx", "plamet", "palnet", "lpanet"],
            "plamit",
        ),
        ("zebra", ["zbera", "zebr", "zebrra", "debra"], "zrbea"),
    ],
)
def test_one_slip_is_a_letter_left_out_added_changed_or_exchanged(
    word: str, slips: list[str], far: str
) -> None:
    ranking = Ranking([ToolDocument.of("s_a", "a", "s", word)])
    for slip in slips:
        assert ranking.rank(slip, 1)[1] == 1, slip
    assert ranking.rank(far, 1)[1] == 0


def test_a_pattern_is_looked_for_in_names_and_in_descriptions_of_a_server() -> None:
    index = build({"a": [["zebra", ""], ["x", "a zebra"], ["y", ""]], "b": [["zebra", ""]]})
    page = search_matching(index, lambda text: "zebra" in text, limit=2)
    assert (names(page), page.total, page.next_offset) == (["a_x", "a_zebra"], 3, 2)
    rest = search_matching(index, lambda text: "zebra" in text, limit=2, offset=2)
    assert (names(rest), rest.total, rest.next_offset) == (["b_zebra"], 3, None)
    own = search_matching(index, lambda text: "zebra" in text, server="a")
    assert (names(own), own.total, own.has_more) == (["a_x", "a_zebra"], 2, False)
    assert names(search_matching(index, lambda text: "zebra" in text, limit=0)) == ["a_x"]
    assert search_matching(index, lambda text: True, server="nobody").total == 0


def test_a_blank_query_has_pages_too() -> None:
    index = build({"a": [[f"t{number}", ""] for number in range(5)], "b": [["t", ""]]})
    page = search(index, " ", server="a", limit=2, offset=3)
    assert (names(page), page.total, page.next_offset) == (["a_t3", "a_t4"], 5, None)
    assert search(index, "", server="a", limit=2).next_offset == 2
    assert search(index, "", server="nobody").total == 0
    assert {match.score for match in page.matches} == {0}


# ---- suggestions -----------------------------------------------------------------------------------------------------


def test_a_suggestion_is_of_the_name_the_servers_own_name_or_its_words() -> None:
    index = build({"git-mcp": [["create.issue", ""], ["list", ""]], "jira": [["delete", ""]]})
    for mistaken in (
        "git_create_isue",
        "git-mcp_create_isue",
        "git_mcp_creat_issue",
        "create_isue",
        "jira_create_isue",
    ):
        assert index.suggest(mistaken)[0] == "git-mcp_create_issue", mistaken
    assert index.suggest("git_mcp_lst") == ("git-mcp_list",)
    assert index.suggest("remove everything") == ("jira_delete",)
    assert index.suggest("x" * 129) == ()


def test_suggestions_are_as_many_as_are_asked_for_and_those_spelled_alike_come_first() -> None:
    tools = [[f"thing_{letter}", ""] for letter in "abcdefgh"]
    index = build({"s": [*tools, ["ting", "thing thing"]]})
    assert len(index.suggest("s_thing_x")) == 5
    assert len(index.suggest("s_thing_x", 3)) == 3
    assert index.suggest("s_ting_")[0] == "s_ting"


# ---- joined with what is near in meaning ----


def keys(index: Index, *names: str) -> list[bytes]:
    return [index.tools()[[one.name for one in index.tools()].index(name)].meaning_key for name in names]


def test_what_is_near_in_meaning_is_joined_with_what_matches_by_the_places_of_both() -> None:
    index = build({"s": [["alpha", "issue"], ["beta", "an issue"], ["delta", ""], ["gamma", ""]]})
    assert names(search(index, "issue")) == ["s_alpha", "s_beta"]
    assert names(search(index, "issue", near=keys(index, "s_beta"))) == ["s_beta", "s_alpha"]
    page = search(index, "issue", near=[*keys(index, "s_delta", "s_beta"), b"unknown"])
    assert (names(page), page.total) == (["s_beta", "s_alpha", "s_delta"], 3)
    assert names(search(index, "xyzzy", near=keys(index, "s_gamma", "s_delta"))) == ["s_gamma", "s_delta"]


def test_what_the_query_names_stays_before_what_is_near() -> None:
    index = build({"s": [["do", ""], ["create", "do it"]], "t": [["do", ""], ["other", ""]]})
    near = keys(index, "t_other", "s_create", "t_do")
    assert names(search(index, "do", near=near))[:2] == ["s_do", "t_do"]
    assert scores(index, "do")["s_do"] == EXACT


def test_what_is_near_has_pages_and_is_narrowed_to_a_server_too() -> None:
    index = build({"s": [["a", ""], ["b", ""], ["c", ""]], "t": [["d", ""]]})
    near = keys(index, "t_d", "s_c", "s_b", "s_a")
    assert names(search(index, "xyzzy", near=near, server="s")) == ["s_c", "s_b", "s_a"]
    page = search(index, "xyzzy", near=near, limit=2, offset=2)
    assert (names(page), page.total, page.next_offset) == (["s_b", "s_a"], 4, None)


def test_of_a_long_description_only_the_beginning_counts_for_the_meaning() -> None:
    index = build({"s": [["a", "x" * 10_000_000]]})
    (target,) = index.tools()
    assert len(target.meaning) < 400
    assert index.by_meaning == {target.meaning_key: 0}
