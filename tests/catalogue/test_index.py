"""The index: resolving names, never guessing, whatever was connected first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import names

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Counts, Index
from greenroom.catalogue.names import Claim, Proposal, settle
from greenroom.catalogue.namespace import AmbiguousName, MissingName, Target
from greenroom.config.model import PrefixMode, ServerDefinition, Settings

T = TypeVar("T")
Tools = Mapping[str, tuple[str, ...] | None]


def entry(server: str, *tools: str, **more: Any) -> ServerEntry:
    return ServerEntry(server, "hash", tools=tuple({"name": tool} for tool in tools), **more)


def build(
    tools: Tools, mode: PrefixMode = PrefixMode.SERVER, previous: Index | None = None, **definition: Any
) -> Index:
    servers = {name: ServerDefinition(name, command="x", **definition) for name in tools}
    entries = {name: None if said is None else entry(name, *said) for name, said in tools.items()}
    return Index.build(servers, entries, Settings(tool_prefix=mode), previous=previous)


def build_one(entry: ServerEntry, **definition: Any) -> Index:
    servers = {entry.server: ServerDefinition(entry.server, command="x", **definition)}
    return Index.build(servers, {entry.server: entry}, Settings())


def meaning(found: Target | AmbiguousName | MissingName | None) -> object:
    """What a look-up came to, in a form that can be compared across indexes."""
    return (found.server, found.original) if isinstance(found, Target) else found


def test_a_name_means_a_tool_of_a_server() -> None:
    schema = {"type": "object"}
    record = {"name": "now", "description": "The time", "inputSchema": schema, "title": "Now"}
    target = build_one(ServerEntry("clock", "h", tools=(record,))).get("clock_now")

    assert target is not None
    assert (target.name, target.server, target.kind, target.original) == ("clock_now", "clock", "tool", "now")
    assert target.record is record
    assert target.description == "The time"
    assert schema == target.input_schema


def test_records_without_a_usable_name_or_schema_do_no_harm() -> None:
    records: Any = ({"name": ""}, {"name": 7}, {}, {"name": "ok", "description": 3, "inputSchema": "no"})
    (target,) = build_one(ServerEntry("s", "h", tools=records)).tools()

    assert (target.name, target.description, target.input_schema) == ("s_ok", "", None)


def test_a_tool_listed_twice_counts_once() -> None:
    records = ({"name": "t", "description": "first"}, {"name": "t", "description": "second"})
    (target,) = build_one(ServerEntry("s", "h", tools=records)).tools()

    assert target.description == "first"


def test_resources_are_tools_too() -> None:
    resources = ({"name": "Read me", "uri": "file:///r"}, {"name": "no uri"}, {"uri": "file:///x"})
    index = build_one(entry("fs", "list", resources=resources))
    target = index.get("fs_get_read_me")

    assert target is not None
    assert (
        target.kind,
        target.original,
        target.description,
    ) == ("resource", "file:///r", "Read resource: file:///r")
    assert Counts(tools=1, resources=1, prompts=0) == index.counts("fs")


def test_resources_can_be_kept_out() -> None:
    index = build_one(entry("fs", resources=({"name": "a", "uri": "b:"},)), expose_resources=False)

    assert index.tools() == ()


def test_include_and_exclude_take_every_spelling() -> None:
    offered = entry("gh-mcp", "read_a", "read_b", "write_a", "drop-all")
    names = [
        target.name
        for target in build_one(
            offered,
            include_tools=("read_*", "gh-mcp_write_a", "gh_drop_all"),
            exclude_tools=("gh_mcp_read-b", "drop_*"),
        ).tools()
    ]

    assert names == ["gh-mcp_read_a", "gh-mcp_write_a"]


@pytest.mark.parametrize("key", ["include_tools", "exclude_tools"])
def test_an_empty_list_means_none(key: str) -> None:
    names = [target.name for target in build_one(entry("s", "a"), **{key: ()}).tools()]
    assert names == ([] if key == "include_tools" else ["s_a"])


def test_hyphen_equals_underscore_and_an_exact_name_beats_it() -> None:
    index = build({"my-server": ("do-it", "a-b", "a_b")})

    assert meaning(index.resolve("my_server_do_it")) == ("my-server", "do-it")
    assert meaning(index.resolve("my-server_a-b")) == ("my-server", "a-b")
    assert meaning(index.resolve("my-server_a_b")) == ("my-server", "a_b")
    assert isinstance(index.resolve("my_server_a_b"), AmbiguousName)


def test_a_servers_own_name_is_taken_when_the_server_is_given() -> None:
    index = build({"gh": ("create.issue", "list"), "gl": ("list",)})

    assert meaning(index.resolve("create.issue", "gh")) == ("gh", "create.issue")
    assert meaning(index.resolve("list", "gl")) == ("gl", "list")
    assert meaning(index.resolve("gh_list", "gh")) == ("gh", "list")
    assert MissingName("gl_list", ("gh",)) == index.resolve("gl_list", "gh")
    assert MissingName("list", ()) == index.resolve("list", "nobody")


def test_a_servers_own_spelling_of_equal_names_is_not_guessed_at() -> None:
    index = build({"s": ("x", "s_x")})

    assert meaning(index.resolve("s_x", "s")) == ("s", "x")
    assert AmbiguousName("s-x", ("s_s_x", "s_x"), ("s",)) == index.resolve("s-x", "s")


def test_a_servers_own_exact_name_beats_a_hyphen_equal_one() -> None:
    index = build({"s": ("a_b", "a-b", "c-d")})

    assert meaning(index.resolve("a_b", "s")) == ("s", "a_b")
    assert meaning(index.resolve("a-b", "s")) == ("s", "a-b")
    assert meaning(index.resolve("c_d", "s")) == ("s", "c-d")


def test_t17_a_long_tool_is_found_by_its_cut_name_and_by_its_full_one() -> None:
    tool = "a" * 90
    index = build({"server": (tool,)})
    (target,) = index.tools()

    assert len(target.name) == 64
    assert tool == target.original
    assert target is index.get(target.name)
    assert target is index.resolve(f"server_{tool}")
    assert target is index.resolve(tool, "server")


def test_t18_a_name_two_servers_share_lists_the_candidates() -> None:
    index = build({"a": ("b_c",), "a_b": ("c",)})
    found = index.resolve("a_b_c")

    assert index.get("a_b_c") is None
    assert isinstance(found, AmbiguousName)
    assert found.servers == ("a", "a_b")
    assert set(found.candidates) == {target.name for target in index.tools()}
    assert meaning(index.resolve("a_b_c", "a_b")) == ("a_b", "c")


def test_under_none_a_bare_name_exists_only_while_unique() -> None:
    index = build({"a": ("search", "read"), "b": ("search",)}, PrefixMode.NONE)

    assert [target.name for target in index.tools()] == ["a_search", "b_search", "read"]
    assert AmbiguousName("search", ("a_search", "b_search"), ("a", "b")) == index.resolve("search")
    assert meaning(index.resolve("a_read")) == ("a", "read")


def test_an_unknown_name_says_who_is_worth_connecting() -> None:
    index = build({"git": ("log",), "git-hub": None, "git_hub": None, "other": None})

    assert MissingName("git_hub_new", ("git-hub", "git_hub", "git")) == index.resolve("git_hub_new")
    assert MissingName("gitx_new", ()) == index.resolve("gitx_new")
    assert index.unknown_servers == ("git-hub", "git_hub", "other")


def test_unknown_is_not_empty() -> None:
    index = build({"empty": (), "unknown": None})

    assert Counts(0, 0, 0) == index.counts("empty")
    assert index.counts("unknown") is None
    assert index.counts("nobody") is None


def test_a_disabled_server_is_not_in_it() -> None:
    index = build({"a": ("t",)}, disabled=True)

    assert () == index.servers == index.tools()
    assert MissingName("a_t", ()) == index.resolve("a_t")
    assert MissingName("t", ()) == index.resolve("t", "a")


def test_tools_are_sorted_by_name() -> None:
    index = build({"b": ("z", "a"), "a": ("y",)})

    assert [target.name for target in index.tools()] == ["a_y", "b_a", "b_z"]
    assert [target.name for target in index.tools("b")] == ["b_a", "b_z"]
    assert index.tools("nobody") == ()


def test_prompts_follow_tools_in_a_namespace_of_their_own() -> None:
    index = build_one(entry("s", "review", prompts=({"name": "review"}, {"name": "plan"})))

    assert [prompt.name for prompt in index.prompts()] == ["s_plan", "s_review"]
    assert [prompt.name for prompt in index.prompts("s")] == ["s_plan", "s_review"]
    prompt = index.resolve_prompt("s_review")
    assert isinstance(prompt, Target)
    assert prompt.kind == "prompt"
    assert getattr(index.get("s_review"), "kind", None) == "tool"


def test_suggestions_forget_the_prefix() -> None:
    index = build({"github-mcp": ("create_issue", "list_issues"), "jira": ("create_ticket",)})

    assert index.suggest("github_create_isue_issue")[0] == "github-mcp_create_issue"
    assert index.suggest("jira_ticket")[0] == "jira_create_ticket"
    assert index.suggest("zzz") == ()
    assert len(index.suggest("create", limit=1)) == 1


def test_suggestions_look_past_a_slip_of_the_pen_and_make_nothing_of_a_single_letter() -> None:
    index = build({"git": ("git_status", "git_log"), "text": ("export",)})

    assert index.suggest("git_stats") == ("git_git_status",)
    assert index.suggest("git_git_satus")[0] == "git_git_status"
    assert index.suggest("exprot") == ("text_export",)
    assert index.suggest("off_x") == ()
    assert index.suggest("x" * 100_000) == ()


def test_an_unchanged_server_is_not_read_again() -> None:
    servers = {name: ServerDefinition(name, command="x") for name in "ab"}
    old = {name: entry(name, "t") for name in "ab"}
    first = Index.build(servers, old, Settings())
    second = Index.build(servers, {**old, "b": entry("b", "u")}, Settings(), previous=first)

    assert second.get("a_t") is first.get("a_t")
    assert second.get("b_t") is None
    assert second.get("b_u") is not None


def test_a_policy_change_of_a_name_is_seen() -> None:
    servers = {"a": ServerDefinition("a", command="x")}
    said = {"a": entry("a", "t", "u")}
    first = Index.build(servers, said, Settings())
    changed = {"a": msgspec.structs.replace(servers["a"], exclude_tools=("u",), tool_prefix=PrefixMode.NONE)}

    assert [t.name for t in Index.build(changed, said, Settings(), previous=first).tools()] == ["t"]


# ---- properties ------------------------------------------------------------------------------------------

NAMES = st.text(alphabet="ab_-.", min_size=1, max_size=4)
ROOMS = st.dictionaries(NAMES, st.none() | st.lists(NAMES, max_size=6).map(tuple), max_size=6)
MODES = st.sampled_from(list(PrefixMode))


@given(ROOMS, MODES)
def test_t18_merging_gives_what_settling_all_together_would(room: Tools, mode: PrefixMode) -> None:
    claims = [
        Claim(server, "tool", tool, tool, mode)
        for server, tools in room.items()
        for tool in dict.fromkeys(tools or ())
    ]
    settled = settle(map(Proposal.first, claims))
    expected = {
        proposal.name: (proposal.claim.server, proposal.claim.original) for proposal in settled.proposals
    }
    index = build(room, mode)

    assert expected == {target.name: (target.server, target.original) for target in index.tools()}
    assert all(
        isinstance(index.resolve(name), AmbiguousName)
        for name, who in settled.contested.items()
        if len(who) > 1
    )


@given(ROOMS, MODES, st.text(alphabet="ab_-.", max_size=9))
def test_t17_a_look_up_comes_to_what_the_model_says(room: Tools, mode: PrefixMode, name: str) -> None:
    claims = [Claim(s, "tool", t, t, mode) for s, tools in room.items() for t in dict.fromkeys(tools or ())]
    found = build(room, mode).resolve(name)

    match names.meaning(name, claims, list(room), mode):
        case set() as servers:
            assert isinstance(found, MissingName)
            assert set(found.servers) == servers
        case list() as candidates:
            assert isinstance(found, AmbiguousName)
            assert list(found.candidates) == candidates
        case target:
            assert meaning(found) == target


@given(ROOMS, MODES)
def test_t17_every_name_leads_back_to_one_tool(room: Tools, mode: PrefixMode) -> None:
    index = build(room, mode)
    everything = index.tools()

    assert {(s, t) for s, tools in room.items() for t in tools or ()} == {
        (x.server, x.original) for x in everything
    }
    assert all(index.get(target.name) is target is index.resolve(target.name) for target in everything)
    assert all(target is index.resolve(target.name, target.server) for target in everything)


@given(ROOMS, MODES, st.text(alphabet="ab_-.", max_size=9), st.none() | NAMES)
def test_t18_nothing_depends_on_the_order_of_servers(
    room: Tools, mode: PrefixMode, name: str, server: str | None
) -> None:
    there = build(room, mode)
    back = build(dict(reversed(list(room.items()))), mode)

    assert meaning(there.resolve(name, server)) == meaning(back.resolve(name, server))


@given(ROOMS, ROOMS, MODES)
def test_a_rebuilt_index_equals_a_fresh_one(before: Tools, after: Tools, mode: PrefixMode) -> None:
    rebuilt = build(after, mode, previous=build(before, mode))

    assert [(t.name, t.server, t.original) for t in build(after, mode).tools()] == [
        (t.name, t.server, t.original) for t in rebuilt.tools()
    ]


@given(st.lists(ROOMS, min_size=2, max_size=4), MODES)
def test_an_index_made_of_the_one_before_equals_a_fresh_one(said: list[Tools], mode: PrefixMode) -> None:
    """The same definitions, as while servers are asked one after the other."""
    servers = {name: ServerDefinition(name, command="x") for room in said for name in room}
    settings, entries, index = Settings(tool_prefix=mode), dict[str, ServerEntry | None](), None
    for room in said:
        entries |= {name: None if tools is None else entry(name, *tools) for name, tools in room.items()}
        index = Index.build(servers, entries, settings, previous=index)

        fresh = Index.build(servers, entries, settings)
        assert [msgspec.structs.astuple(tool) for tool in index.tools()] == [
            msgspec.structs.astuple(tool) for tool in fresh.tools()
        ]
        assert index._tools.prefixes == fresh._tools.prefixes


def test_a_resource_named_like_anothers_tool_is_contested() -> None:
    servers = {name: ServerDefinition(name, command="x") for name in ("a", "a_get")}
    entries = {
        "a": entry("a", resources=({"name": "x", "uri": "u:x"},)),
        "a_get": entry("a_get", "x"),
    }
    index = Index.build(servers, entries, Settings())

    assert isinstance(index.resolve("a_get_x"), AmbiguousName)
    assert len(index.tools()) == 2
