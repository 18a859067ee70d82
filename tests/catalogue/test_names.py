"""Names: total, legal, unique, independent of order."""

from __future__ import annotations

import re
import time
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.names import settled
from tests.support.rows import for_each

from greenroom.catalogue.names import (
    MAX_LENGTH,
    TOP,
    Claim,
    Proposal,
    _losers,
    has_prefix,
    prefix_of,
    resource_name,
    settle,
    spellings,
)
from greenroom.config.model import PrefixMode, selector

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
MODES = st.sampled_from(list(PrefixMode))
WORDS = st.text(alphabet="ab_-.é\ud800", max_size=4)


def claim(server: str, original: str, mode: PrefixMode = PrefixMode.SERVER, kind: str = "tool") -> Claim:
    local = resource_name(original) if kind == "resource" else original
    return Claim(server, kind, original, local, mode)


def names(claims: list[Claim]) -> list[str]:
    return [proposal.name for proposal in settle(map(Proposal.first, claims)).proposals]


CLAIMS = st.lists(
    st.builds(claim, WORDS, WORDS, MODES, st.sampled_from(["tool", "resource"])),
    unique_by=lambda c: (c.server, c.kind, c.original),
    max_size=24,
)


@for_each(
    ("server", "mode", "prefix"),
    [
        ("github", PrefixMode.SERVER, "github"),
        ("github-mcp", PrefixMode.SERVER, "github-mcp"),
        ("github-mcp", PrefixMode.SHORT, "github"),
        ("githubMCP", PrefixMode.SHORT, "github"),
        ("mcp", PrefixMode.SHORT, "mcp"),
        ("mcp-server", PrefixMode.SHORT, "mcp-server"),
        ("my server.v2", PrefixMode.SERVER, "my_server_v2"),
        ("github", PrefixMode.NONE, ""),
    ],
)
def test_prefix(server: str, mode: PrefixMode, prefix: str) -> None:
    assert prefix == prefix_of(server, mode)


@for_each(
    ("name", "tool"),
    [
        ("README.md", "get_readme_md"),
        ("  Project -- notes ", "get_project_notes"),
        ("2024 report", "get_resource_2024_report"),
        ("日本", "get_resource"),
        ("", "get_resource"),
    ],
)
def test_a_resource_is_named_by_its_slug(name: str, tool: str) -> None:
    assert tool == resource_name(name)


def test_t17_an_over_long_name_is_cut_and_hashed() -> None:
    long, longer = names([claim("server", "x" * 80), claim("server", "x" * 81)])

    assert MAX_LENGTH == len(long) == len(longer)
    assert re.fullmatch(r"server_x+_[0-9a-f]{8}", long)
    assert long != longer


@given(WORDS | st.text(max_size=200), st.text(max_size=200), MODES, st.integers(0, TOP))
def test_t17_every_spelling_is_legal_whatever_the_server_says(
    server: str, tool: str, mode: PrefixMode, level: int
) -> None:
    assert LEGAL.fullmatch(claim(server, tool, mode).spelling(level))


@given(CLAIMS)
def test_t18_everybody_gets_a_legal_name_of_their_own(claims: list[Claim]) -> None:
    found = names(claims)

    assert len(claims) == len(set(found))
    assert all(LEGAL.fullmatch(name) for name in found)


@given(CLAIMS, st.randoms(use_true_random=False))
def test_t18_names_do_not_depend_on_order(claims: list[Claim], random: Random) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)

    assert dict(zip(map(id, claims), names(claims), strict=True)) == dict(
        zip(map(id, shuffled), names(shuffled), strict=True)
    )


@given(CLAIMS)
def test_t18_names_are_those_of_the_model(claims: list[Claim]) -> None:
    found = settle(map(Proposal.first, claims))
    names, contested = settled(claims)

    assert [proposal.name for proposal in found.proposals] == names
    assert {name: set(rivals) for name, rivals in found.contested.items()} == contested


@given(CLAIMS)
def test_t18_a_contested_name_belongs_to_nobody(claims: list[Claim]) -> None:
    settled = settle(map(Proposal.first, claims))

    assert not settled.contested.keys() & {proposal.name for proposal in settled.proposals}


@given(CLAIMS, st.integers(0, 24))
def test_t18_a_claim_that_is_added_takes_no_name_from_others(claims: list[Claim], count: int) -> None:
    """A name goes on to mean what it meant, or is refused: never does it mean something else."""
    known = claims[:count]
    servers = {each.server for each in known}
    claims = known + [each for each in claims[count:] if each.server not in servers]
    before = dict(zip(names(known), known, strict=True))
    settled = settle(map(Proposal.first, claims))
    after = {proposal.name: proposal.claim for proposal in settled.proposals}

    assert all(after.get(name, claim) is claim for name, claim in before.items())
    assert all(name in after or name in settled.contested for name in before)


@for_each("level", range(TOP + 1))
def test_t17_a_hash_tail_fits_the_limit_that_is_set(level: int) -> None:
    assert len(msgspec.structs.replace(claim("a" * 50, "b" * 50), limit=45).spelling(level)) == 45


@given(CLAIMS, st.integers(40, 64))
def test_t17_no_name_is_over_the_limit_that_is_set(claims: list[Claim], limit: int) -> None:
    found = names([msgspec.structs.replace(each, limit=limit) for each in claims])

    assert all(len(name) <= limit for name in found)
    assert len(set(found)) == len(claims)


def test_t18_a_tool_takes_no_name_from_another_servers_resource() -> None:
    """Of one server the better claim keeps a name; between two, that would hang on which of them is known."""
    rivals = [claim("a", "b_get_c"), claim("a_b", "c", kind="resource")]

    assert "a_b_get_c" not in names(rivals)


def test_a_tool_keeps_its_name_from_a_resource_of_the_same_server() -> None:
    tool, resource = names([claim("fs", "get_readme"), claim("fs", "readme", kind="resource")])

    assert tool == "fs_get_readme"
    assert re.fullmatch(r"fs_get_readme_[0-9a-f]{8}", resource)


def test_a_server_cannot_take_a_hashed_name_by_calling_a_tool_so() -> None:
    victim = [claim("a", "b_c"), claim("a_b", "c")]
    stolen = names(victim)[0]
    found = names([*victim, claim("a", stolen.removeprefix("a_"))])

    assert len(set(found)) == 3
    assert stolen not in found


@for_each(
    ("patterns", "name", "chosen"),
    [
        (("read_*",), "read_file", True),
        (("read_*",), "unread_file", False),
        (("read?file",), "read-file", True),
        (("delete_repo",), "delete-repo", True),
        (("a", "b"), "b", True),
        (("[ab]",), "a", False),
        ((), "a", False),
    ],
)
def test_selectors_are_anchored_globs(patterns: tuple[str, ...], name: str, chosen: bool) -> None:
    assert chosen is selector(patterns)(name)


def test_a_pattern_of_many_stars_is_matched_in_linear_time() -> None:
    """Looking back at each star would take some 10**9 steps."""
    matches = selector(("*a*a*b",))
    began = time.process_time()
    assert not matches("a" * 1800)
    assert matches("a" * 1800 + "b")
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("highest", ["the best claim", "the other"])
def test_of_two_that_want_one_name_the_one_that_can_still_go_up_gives_way(highest: str) -> None:
    """However good its claim is: what has its last spelling has nowhere else to go."""
    best, other = claim("s", "x"), claim("s", "x", kind="resource")
    levels = (TOP, 0) if highest == "the best claim" else (0, TOP)
    proposals = [Proposal(each, "s_x", level) for each, level in zip((best, other), levels, strict=True)]
    assert _losers(proposals, False) == {proposals[levels.index(0)]}


@for_each(
    ("server", "written"),
    [
        ("github-mcp", {"a-b", "github-mcp_a-b", "github_a-b", "mcp__github-mcp_a-b"}),
        ("mcp", {"a-b", "mcp_a-b", "mcp__mcp_a-b"}),
        ("x", {"a-b", "x_a-b", "mcp__x_a-b"}),
        ("é.x", {"a-b", "__x_a-b", "mcp____x_a-b"}),
    ],
)
def test_each_way_to_write_a_tool_of_one_server_selects_it(server: str, written: set[str]) -> None:
    assert set(spellings(server, "a-b")) == written
    for one in written:
        assert any(map(selector((one,)), spellings(server, "a-b")))
        assert any(map(selector((one.replace("-", "_"),)), spellings(server, "a-b")))


@pytest.mark.parametrize("limit", [20, 64])
def test_a_name_that_just_fits_stays_as_it_is(limit: int) -> None:
    for over in (-1, 0, 1):
        local = "b" * (limit - len("a_") + over)
        one = msgspec.structs.replace(claim("a", local), limit=limit)
        assert (one.spelling(0) == f"a_{local}") is (over <= 0)
        assert len(one.spelling(0)) == min(limit, limit + over)


@for_each(
    ("server", "has"),
    [
        ("git", ["git_x", "git_", "git__x"]),
        ("git-mcp", ["git_x", "git-mcp_x", "git_mcp_x"]),
        ("my server", ["my_server_x", "my-server_x"]),
        ("mcp", ["mcp_x"]),
    ],
)
def test_a_name_that_begins_with_a_servers_prefix_is_like_one_of_its_tools(
    server: str, has: list[str]
) -> None:
    assert all(has_prefix(name, server) for name in has)
    assert not any(has_prefix(name, server) for name in ("x", "gi_x", "gitx", "other_git_x"))


def test_a_tool_and_a_resource_of_one_name_have_hashes_of_their_own() -> None:
    tool, resource = claim("s", "x" * 80), msgspec.structs.replace(claim("s", "x" * 80), kind="resource")
    twin = msgspec.structs.replace(tool, server="t")
    hashes = {each.spelling(level)[-8:] for each in (tool, resource, twin) for level in (0, 2)}
    assert len({each.identity for each in (tool, resource, twin)}) == 3
    assert len(hashes) == 3, "a cut name ends as the first hashed one does, and each claim's is another"
    halves = [claim("s", f"{half}{'x' * 80}") for half in ("\ud800", "\udbff")]
    assert len({each.spelling(0) for each in halves}) == 2


def test_a_pattern_crosses_line_breaks_and_knows_no_other_wildcards() -> None:
    assert selector(("a*b",))("a\n\nb")
    assert selector(("a?b",))("a\nb")
    assert not selector(("a.b",))("axb")
    assert not selector(("a",))("a\n")
    assert selector(("*",))("")
    assert selector(("**a**",))("xay")
    assert not selector(("a*a",))("a")
