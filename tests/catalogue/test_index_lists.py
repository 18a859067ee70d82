"""What an index has besides tools: prompts, resources and templates, of all servers and of one, and items left out."""

from __future__ import annotations

from typing import Any

import pytest

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import AmbiguousName, MissingName, ResourceEntry, Target
from greenroom.config.model import PrefixMode, ServerDefinition, Settings


def entry(
    server: str, prompts: Any = (), resources: Any = (), templates: Any = (), tools: Any = ()
) -> ServerEntry:
    return ServerEntry(
        server,
        "h",
        tools=None if tools is None else tuple({"name": name} for name in tools),
        prompts=tuple({"name": name} for name in prompts),
        resources=tuple({"uri": uri, "name": uri} for uri in resources),
        templates=tuple({"uriTemplate": uri, "name": uri} for uri in templates),
    )


def index_of(*entries: ServerEntry, mode: PrefixMode = PrefixMode.SERVER, **definition: Any) -> Index:
    servers = {one.server: ServerDefinition(one.server, command="x", **definition) for one in entries}
    return Index.build(servers, {one.server: one for one in entries}, Settings(tool_prefix=mode))


A = entry("a", ["p", "q"], ["u:1", "u:both"], ["t:{x}", "t:both{x}"])
B = entry("b", ["q", "r"], ["u:2", "u:both"], ["t:both{x}"])


@pytest.mark.parametrize("prepared", [False, True])
def test_each_list_is_of_all_servers_or_of_one(prepared: bool) -> None:
    index = index_of(B, A)
    if prepared:
        index.prepare_lists()
        index.prepare_names()
        index.prepare()
    assert [one.name for one in index.prompts()] == ["a_p", "a_q", "b_q", "b_r"]
    assert [one.name for one in index.prompts("b")] == ["b_q", "b_r"]
    assert [one.uri for one in index.resources("a")] == ["greenroom://a/u:both", "u:1"]
    assert len(index.resources()) == 4
    assert [one.uri for one in index.templates("b")] == ["greenroom://b/t:both{x}"]
    assert [one.uri for one in index.templates()] == [
        "greenroom://a/t:both{x}", "greenroom://b/t:both{x}", "t:{x}",
    ]  # fmt: skip
    for nobody in (index.prompts("c"), index.resources("c"), index.templates("c")):
        assert nobody == ()


def test_a_prompt_is_looked_up_as_a_tool_is() -> None:
    index = index_of(A, B, mode=PrefixMode.NONE)
    both = index.resolve_prompt("q")
    assert both == AmbiguousName("q", ("a_q", "b_q"), ("a", "b"))
    own = index.resolve_prompt("q", "b")
    assert isinstance(own, Target)
    assert (own.server, own.kind) == ("b", "prompt")
    assert index.resolve_prompt("p", "b") == MissingName("p", ("b",))
    assert index.resolve("q") == MissingName("q", ())


def test_a_resource_is_listed_also_when_several_have_it() -> None:
    index = index_of(A, B)
    listed = {
        uri
        for uri in ("u:1", "u:2", "u:both", "u:3", "t:{x}", "greenroom://a/u:both")
        if index.lists_resource(uri)
    }
    assert listed == {"u:1", "u:2", "u:both", "greenroom://a/u:both"}


def test_a_template_is_looked_up_as_it_is_spelled_and_matches_nothing() -> None:
    index = index_of(A, B)
    one = index.resolve_template("t:{x}")
    assert isinstance(one, ResourceEntry)
    assert (one.server, one.original) == ("a", "t:{x}")
    assert isinstance(index.resolve_template("t:both{x}"), AmbiguousName)
    assert isinstance(index.resolve_template("t:1"), MissingName)
    assert isinstance(index.resolve_uri("t:1"), ResourceEntry)


def test_a_server_without_tools_that_are_known_is_unknown_whatever_else_is() -> None:
    index = index_of(A, entry("c", ["p"], tools=None))
    assert index.unknown_servers == ("c",)
    assert index.counts("c") is None
    assert index.counts("a") is not None
    assert [one.name for one in index.prompts("c")] == ["c_p"]


def test_what_a_server_may_not_offer_is_in_no_list_and_its_prompts_are() -> None:
    index = index_of(A, expose_resources=False)
    assert (index.resources(), index.templates(), index.tools()) == ((), (), ())
    assert len(index.prompts()) == 2
    assert not index.lists_resource("u:1")


def test_an_item_that_clients_refuse_is_mended_or_left_out_and_any_other_is_itself() -> None:
    good, odd, bad = (
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "odd", "inputSchema": {"type": "object"}, "title": 5},
        {"name": "bad", "inputSchema": {"type": "string"}},
    )
    servers = {"s": ServerDefinition("s", command="x")}
    index = Index.build(servers, {"s": ServerEntry("s", "h", tools=(good, odd, bad))}, Settings())
    assert index.as_listed("tool", "s", "good", good) is good
    assert index.as_listed("tool", "s", "odd", odd) == {"name": "odd", "inputSchema": {"type": "object"}}
    assert index.as_listed("tool", "s", "bad", bad) is None
    assert index.as_listed("prompt", "s", "odd", odd) is odd
    assert index.as_listed("tool", "nobody", "odd", odd) is odd
    assert index.faults("s") == (
        'tool "odd": title is not a string (corrected)',
        'tool "bad": inputSchema.type is not "object" (left out)',
    )


def test_an_item_that_is_listed_twice_is_judged_by_the_first() -> None:
    odd = {"name": "t", "inputSchema": {"type": "object"}, "title": 5}
    fine = {"name": "t", "inputSchema": {"type": "object"}}
    servers = {"s": ServerDefinition("s", command="x")}

    def faults(*tools: Any) -> int:
        return len(Index.build(servers, {"s": ServerEntry("s", "h", tools=tools)}, Settings()).faults("s"))

    assert (faults(odd, fine), faults(fine, odd)) == (1, 0)


def test_an_override_is_judged_with_the_tool_that_it_changes() -> None:
    tool = {"name": "t", "inputSchema": {"type": "object", "properties": {"a": True}}}
    servers = {"s": ServerDefinition("s", command="x", tool_overrides={"t": {"description": "ours"}})}
    index = Index.build(servers, {"s": ServerEntry("s", "h", tools=(tool,))}, Settings())
    listed = index.as_listed("tool", "s", "t", index.tools()[0].record)
    assert listed is not None
    assert listed["description"] == "ours"
    assert listed["inputSchema"]["properties"] == {"a": {}}


def test_what_is_prepared_is_not_made_again() -> None:
    index = index_of(*(entry(f"s{number}", tools=[f"t{n}" for n in range(40)]) for number in range(20)))
    assert not index.is_searchable
    index.prepare()
    ranking = index.ranking
    index.prepare()
    assert index.is_searchable
    assert index.ranking is ranking
    assert len(ranking.rank("t1", 1_000)[0]) >= 20
