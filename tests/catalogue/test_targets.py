"""A target: what a name stands for, what its record says of it, and whether it may be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.catalogue.entries import DefinitionPins, ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import AmbiguousName, Kind, MissingName, Target
from greenroom.catalogue.search import search
from greenroom.config.model import Pinning, PrefixMode, ServerDefinition, Settings
from greenroom.protocol.errors import ToolChanged

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def target(record: Mapping[str, Any], kind: Kind = "tool", changed: tuple[str, ...] | None = None) -> Target:
    return Target("s_do", "s", kind, "do", {"name": "do", **record}, "", None, None, changed)


@for_each(
    ("hints", "harmless"),
    [
        (None, False),
        ({}, False),
        ("odd", False),
        ({"readOnlyHint": True}, True),
        ({"idempotentHint": True}, True),
        ({"readOnlyHint": False, "idempotentHint": True}, True),
        ({"readOnlyHint": True, "idempotentHint": False}, True),
        ({"readOnlyHint": "true", "idempotentHint": 1}, False),
        ({"destructiveHint": False}, False),
    ],
)
def test_a_tool_does_no_harm_twice_only_if_it_says_so_plainly(hints: Any, harmless: bool) -> None:
    assert target({"annotations": hints}).is_harmless is harmless
    assert target({"annotations": hints}, "resource").is_harmless is True
    assert target({}, "prompt").is_harmless is True


@for_each(
    ("execution", "needed"),
    [
        (None, False),
        ([], False),
        ({}, False),
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": True}, False),
    ],
)
def test_a_tool_may_say_that_it_runs_only_as_a_task(execution: Any, needed: bool) -> None:
    one = target({"execution": execution})
    assert (one.needs_task, one.may_be_called) == (needed, True)
    resource = target({"execution": execution}, "resource")
    assert (resource.needs_task, resource.may_be_called) == (False, True)


@pytest.mark.parametrize("changed", [(), ("description",), ("input schema", "annotations")])
def test_what_has_changed_may_not_be_called_whatever_has(changed: tuple[str, ...]) -> None:
    """Where it cannot be told what, too."""
    one = target({}, changed=changed)
    assert not one.may_be_called
    assert isinstance(one.refusal(), ToolChanged)
    assert one.refusal().message.endswith("greenroom accept s do")


def test_arguments_that_are_repeated_in_headers_are_those_of_a_schema_that_keeps_the_rules() -> None:
    good = {"properties": {"a": {"properties": {"b": {"type": "string", "x-mcp-header": "B"}}}}}
    assert target({"inputSchema": good}).mirrored == {("a", "b"): "B"}
    for bad in ({"type": "object", "x-mcp-header": "A"}, {"properties": {"a": {"x-mcp-header": "a b"}}}):
        assert target({"inputSchema": bad}).mirrored == {}
    assert target({}).mirrored == {}


# ---- in an index ---------------------------------------------------------------------------------------------------


def built(
    *tools: Mapping[str, Any],
    resources: tuple[Mapping[str, Any], ...] = (),
    settings: Settings | None = None,
    pinned: DefinitionPins | None = None,
    **definition: Any,
) -> Index:
    entry = ServerEntry("s", "h", tools=tools, resources=resources, pinned=pinned or DefinitionPins())
    servers = {"s": ServerDefinition("s", command="x", **definition)}
    return Index.build(servers, {"s": entry}, settings or Settings())


def only(index: Index) -> Target:
    [found] = index.tools()
    return found


def test_in_every_dialect_a_tool_has_the_name_by_which_it_is_called() -> None:
    """Also where that is not its own: cut to a limit, or given by the configuration."""
    for one in (
        only(built({"name": "n" * 90, "inputSchema": SCHEMA})),
        only(built({"name": "do", "inputSchema": SCHEMA}, tool_overrides={"do": {"rename": "act"}})),
        only(built({"name": "d.o", "inputSchema": None, "title": 5})),
    ):
        assert one.name != one.original
        assert one.to_openai()["function"]["name"] == one.name
        assert one.to_anthropic()["name"] == one.name
        assert one.to_mcp().name == one.name


def test_the_schema_of_a_resource_is_empty_and_its_description_stays() -> None:
    one = only(built(resources=({"uri": "u:x", "name": "x", "description": "an x"},)))
    assert one.schema() == {"type": "object", "properties": {}}
    assert (one.to_mcp().description, one.to_anthropic()["description"]) == ("an x", "an x")


def test_a_schema_may_be_changed_by_whoever_got_it() -> None:
    one = only(built({"name": "do", "inputSchema": SCHEMA}))
    one.schema()["properties"]["n"]["type"] = "text"
    one.to_openai()["function"]["parameters"]["properties"]["n"]["type"] = "text"
    assert one.schema() == SCHEMA


def test_an_unreadable_tool_is_still_described_to_a_program() -> None:
    one = only(built({"name": "do", "description": "does", "inputSchema": [1]}))
    assert one.to_mcp().description == "does"
    assert one.schema() == {"type": "object", "properties": {}}


def test_the_title_is_searched_and_so_is_the_beginning_of_a_description() -> None:
    early = "word " * 1_600 + "zebra "
    late = "word " * 1_640 + "giraffe "
    index = built(
        {"name": "a", "title": "Unicorn"},
        {"name": "b", "description": early},
        {"name": "c", "description": late},
        {"name": "d", "title": "x" * 8_192 + " ostrich"},
        {"name": "e", "title": ["heron"]},
    )

    def found(query: str) -> list[str]:
        return [match.target.original for match in search(index, query).matches]

    assert (found("unicorn"), found("zebra")) == (["a"], ["b"])
    assert (found("giraffe"), found("ostrich"), found("heron")) == ([], [], [])


def test_a_renamed_tool_is_found_by_its_new_name_and_not_by_its_own() -> None:
    index = built({"name": "create"}, tool_overrides={"create": {"rename": "report"}})
    for name in ("s_report", "report"):
        found = index.resolve(name, "s")
        assert isinstance(found, Target)
        assert found.original == "create"
    assert [match.target.original for match in search(index, "report").matches] == ["create"]
    assert search(index, "create").matches == ()


def test_a_resource_has_the_names_of_its_slug_and_its_uri() -> None:
    index = built({"name": "t"}, resources=({"uri": "u:x", "name": "My File"},))
    for name in ("s_get_my_file", "get_my_file", "get-my-file", "u:x"):
        found = index.resolve(name, "s")
        assert isinstance(found, Target), name
        assert found.original == "u:x"
    assert [match.target.original for match in search(index, "my file").matches] == ["u:x"]


def _meant(found: Target | AmbiguousName | MissingName) -> object:
    return found.original if isinstance(found, Target) else found


@for_each("mode", list(PrefixMode))
def test_a_resource_is_meant_by_the_spelling_that_pi_has_now(mode: PrefixMode) -> None:
    index = built({"name": "t"}, resources=({"uri": "u:x", "name": "My File"},), tool_prefix=mode)
    (resource,) = (target for target in index.tools() if target.kind == "resource")
    newer = resource.name.replace("get_", "read_")
    for name in (newer, newer.replace("_", "-"), "read_my_file"):
        assert _meant(index.resolve(name, "s")) == "u:x", name
    for name in (newer, newer.replace("read_my", "read-my")):
        assert _meant(index.resolve(name)) == "u:x", name
    assert isinstance(index.resolve("s_read_other"), MissingName)


def test_what_is_called_so_itself_comes_before_the_other_spelling() -> None:
    resources = ({"uri": "u:x", "name": "my file"},)
    for name in ("read_my_file", "read-my-file"):
        index = built({"name": name}, resources=resources)
        for spelled in ("s_read_my_file", "s_read-my-file"):
            found = index.resolve(spelled)
            assert isinstance(found, Target)
            assert found.original == name


@for_each("pattern", ["{}_simulators", "{}_*", "s_{}_simulators", "mcp__s_{}_simul*"])
@for_each("verb", ["get", "read"])
def test_a_resource_is_chosen_and_left_out_by_either_spelling(pattern: str, verb: str) -> None:
    resources = ({"uri": "u:x", "name": "simulators"},)
    said = (pattern.format(verb),)
    out = built({"name": "t"}, resources=resources, exclude_tools=said)
    assert [target.name for target in out.tools()] == ["s_t"]
    assert isinstance(out.resolve("s_get_simulators"), MissingName)
    only = built({"name": "t"}, resources=resources, include_tools=said)
    assert [target.original for target in only.tools()] == ["u:x"]


def test_the_mode_mcp_is_that_of_pi() -> None:
    index = built({"name": "do-it"}, tool_prefix=PrefixMode.MCP)
    assert [target.name for target in index.tools()] == ["mcp__s_do-it"]
    for name in ("mcp__s_do-it", "mcp__s_do_it"):
        assert isinstance(index.resolve(name), Target)


# ---- look-ups ------------------------------------------------------------------------------------------------------


def names_of(tools: Mapping[str, tuple[str, ...] | None], mode: PrefixMode = PrefixMode.SERVER) -> Index:
    servers = {name: ServerDefinition(name, command="x") for name in tools}
    entries = {
        name: None if said is None else ServerEntry(name, "h", tools=tuple({"name": one} for one in said))
        for name, said in tools.items()
    }
    return Index.build(servers, entries, Settings(tool_prefix=mode))


def came_to(found: object) -> object:
    return (found.server, found.original) if isinstance(found, Target) else found


def test_an_exposed_name_of_another_server_is_not_a_servers_own() -> None:
    index = names_of({"a": ("x",), "b": ("y",)})
    assert index.resolve("a_x", "b") == MissingName("a_x", ("b",))
    assert index.resolve("a_x", "nobody") == MissingName("a_x", ())


def test_after_a_prefix_the_servers_own_name_may_have_hyphens_for_underscores() -> None:
    """And letters keep their case, dots stay dots."""
    index = names_of({"my-srv": ("Do.It-now", "do_it")})
    for name in ("my_srv_Do.It-now", "my-srv_Do.It_now"):
        assert came_to(index.resolve(name)) == ("my-srv", "Do.It-now")
        assert came_to(index.resolve(name, "my-srv")) == ("my-srv", "Do.It-now")
    assert came_to(index.resolve("my_srv_do-it")) == ("my-srv", "do_it")
    assert index.resolve("my_srv_DO_IT") == MissingName("my_srv_DO_IT", ("my-srv",))


def test_of_two_own_names_that_are_equal_but_for_hyphens_neither_is_guessed() -> None:
    index = names_of({"s": ("a-b_c", "a_b-c", "d-e")})
    both = ("s_a-b_c", "s_a_b-c")
    assert index.resolve("a_b_c", "s") == AmbiguousName("a_b_c", both, ("s",))
    assert index.resolve("s_a_b_c") == AmbiguousName("s_a_b_c", both, ("s",))
    assert came_to(index.resolve("d_e", "s")) == ("s", "d-e")


def test_every_prefix_that_a_name_begins_with_is_tried_longest_first() -> None:
    index = names_of({"a": None, "a_b": None, "a_b_c": None, "c": None})
    assert index.resolve("a_b_c_d") == MissingName("a_b_c_d", ("a_b_c", "a_b", "a"))
    assert index.resolve("a_b_c") == MissingName("a_b_c", ("a_b", "a"))
    assert index.resolve("a") == MissingName("a", ())
    assert index.resolve("") == MissingName("", ())


def test_a_name_that_two_want_is_known_with_hyphens_for_underscores_too() -> None:
    index = names_of({"a": ("do_it",), "b": ("do_it",)}, PrefixMode.NONE)
    both = AmbiguousName("do-it", ("a_do_it", "b_do_it"), ("a", "b"))
    assert index.resolve("do-it") == both
    assert came_to(index.resolve("do-it", "b")) == ("b", "do_it")


def test_the_names_of_servers_merged_are_those_of_all_settled_together() -> None:
    """A name that one server wants twice, and another once."""
    index = names_of({"a": ("d.e", "d/e"), "b": ("d_e",)}, PrefixMode.NONE)
    found = index.resolve("d_e")
    assert isinstance(found, AmbiguousName)
    assert found.servers == ("a", "b")
    assert index.get("d_e") is None
    assert len({one.name for one in index.tools()}) == 3


# ---- quarantine ----------------------------------------------------------------------------------------------------

EVIL = {"name": "pay", "description": "Send it all.", "inputSchema": SCHEMA, "title": "Evil"}


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ({"hide": True}, None),
        ({"rename": "transfer"}, "s_transfer"),
        ({"description": "Ours.", "params": {"m": {"hide": True}}}, "s_pay"),
    ],
)
def test_an_override_of_a_changed_tool_hides_or_renames_it_and_says_nothing_of_its_new_definition(
    override: dict[str, Any], name: str | None
) -> None:
    changed = DefinitionPins(changed={"pay": ("description",)})
    index = built(EVIL, pinned=changed, tool_overrides={"pay": override})
    assert [tool.name for tool in index.tools()] == ([] if name is None else [name])
    assert index.faults("s") == ()
    if name is not None:
        assert only(index).description.startswith("Not callable: ")


def test_what_clients_would_refuse_of_a_changed_tool_is_not_told() -> None:
    odd = {**EVIL, "title": 5, "inputSchema": {"type": "string"}}
    assert len(built(odd).faults("s")) == 1
    assert built(odd, pinned=DefinitionPins(changed={"pay": ("description",)})).faults("s") == ()
    tolerated = Settings(pinning=Pinning.WARN)
    told = built(odd, pinned=DefinitionPins(changed={"pay": ("description",)}), settings=tolerated)
    assert len(told.faults("s")) == 1


# ---- what a definition and the settings say of names ---------------------------------------------------------------


@for_each(
    ("own", "general", "direct", "beside"),
    [
        (None, True, "ab", ""),  # all of them beside the tool that spares showing them: nobody means that
        (None, False, "", ""),
        (None, ("a",), "a", "a"),
        (None, (), "", ""),
        (True, False, "ab", "ab"),
        (False, True, "", ""),
        ((), True, "", ""),
        (("b",), True, "b", "b"),
        (("s_?",), False, "ab", "ab"),
    ],
)
def test_which_tools_are_shown_by_name_says_the_server_or_else_the_setting(
    own: bool | tuple[str, ...] | None, general: bool | tuple[str, ...], direct: str, beside: str
) -> None:
    settings = Settings(direct_tools=general)
    tools = ({"name": "a"}, {"name": "b"})
    resources = ({"uri": "u:x", "name": "b"},)
    index = built(*tools, resources=resources, settings=settings, direct_tools=own)

    def shown(*, is_beside: bool) -> str:
        return "".join(one.original for one in index.tools() if index.is_direct(one, beside=is_beside))

    assert (shown(is_beside=False), shown(is_beside=True)) == (direct, beside)


@pytest.mark.parametrize(("limit", "prefix", "longest"), [(64, None, 64), (50, None, 50), (64, "x" * 24, 40)])
def test_no_name_is_longer_than_the_settings_allow(limit: int, prefix: str | None, longest: int) -> None:
    settings = Settings(name_limit=limit, client_prefix=prefix)
    index = built({"name": "n" * 90}, {"name": "m" * (longest - 2)}, settings=settings)
    assert [len(one.name) for one in index.tools()] == [longest, longest]
    assert index.get("s_" + "m" * (longest - 2)) is not None


@pytest.mark.parametrize(
    ("own", "general", "name"),
    [
        (None, PrefixMode.SHORT, "gh_t"),
        (PrefixMode.NONE, PrefixMode.SHORT, "t"),
        (PrefixMode.SERVER, PrefixMode.NONE, "gh-mcp_t"),
    ],
)
def test_how_tools_are_named_says_the_server_or_else_the_setting(
    own: PrefixMode | None, general: PrefixMode, name: str
) -> None:
    servers = {"gh-mcp": ServerDefinition("gh-mcp", command="x", tool_prefix=own)}
    entry = ServerEntry("gh-mcp", "h", tools=({"name": "t"},))
    settings = Settings(tool_prefix=general)
    one = only(Index.build(servers, {"gh-mcp": entry}, settings))
    assert one.name == name
    unknown = Index.build(servers, {}, settings)
    prefix = "gh" if name == "gh_t" else "gh_mcp"
    assert unknown.resolve(f"{prefix}_x") == MissingName(f"{prefix}_x", ("gh-mcp",))


def test_a_tool_that_is_left_out_and_chosen_is_left_out_under_each_of_its_names() -> None:
    renamed = {"create": {"rename": "report"}}
    for pattern in ("create", "report", "s_create", "s-report", "rep*"):
        tools = ({"name": "create"}, {"name": "keep"})
        without = built(*tools, tool_overrides=renamed, exclude_tools=(pattern,))
        assert [one.original for one in without.tools()] == ["keep"]
        chosen = built(*tools, tool_overrides=renamed, include_tools=(pattern,))
        assert [one.original for one in chosen.tools()] == ["create"]
        neither = built(*tools, tool_overrides=renamed, include_tools=(pattern,), exclude_tools=(pattern,))
        assert neither.tools() == ()
        shown = built(*tools, tool_overrides=renamed, direct_tools=(pattern,))
        assert [one.original for one in shown.tools() if shown.is_direct(one)] == ["create"]


def test_under_no_prefix_what_two_servers_have_is_called_with_the_prefix_of_each() -> None:
    """Also prompts, and whichever was known first."""
    servers = {name: ServerDefinition(name, command="x", tool_prefix=PrefixMode.NONE) for name in "ab"}
    tools, prompts = ({"name": "t"},), ({"name": "p"}, {"name": "q"})
    entry = ServerEntry("a", "h", tools=tools, prompts=prompts[:1], fetched_at=1.0)
    for at in (0.5, 2.0):
        other = ServerEntry("b", "h", tools=tools, prompts=prompts, fetched_at=at)
        index = Index.build(servers, {"a": entry, "b": other}, Settings())
        named = [(one.name, one.server) for one in (*index.tools(), *index.prompts())]
        assert named == [("a_t", "a"), ("b_t", "b"), ("a_p", "a"), ("b_p", "b"), ("q", "b")]


def test_an_index_made_from_another_sees_every_change_and_keeps_the_rest() -> None:
    tools = {"a": ({"name": "x"},), "b": ({"name": "y"},)}
    servers = {name: ServerDefinition(name, command="x") for name in tools}
    entries = {name: ServerEntry(name, "h", tools=each) for name, each in tools.items()}
    first = Index.build(servers, entries, Settings())

    def names(index: Index) -> list[str]:
        return [one.name for one in index.tools()]

    bare = Settings(tool_prefix=PrefixMode.NONE)
    second = Index.build(servers, entries, bare, previous=first)
    assert names(second) == ["x", "y"]
    third = Index.build(servers, {**entries, "b": ServerEntry("b", "h", tools=())}, bare, previous=second)
    assert names(third) == ["x"]
    copied = {name: ServerDefinition(name, command="y", max_queued=5) for name in tools}
    fourth = Index.build(copied, entries, Settings(max_pages=5), previous=first)
    assert [one is other for one, other in zip(fourth.tools(), first.tools(), strict=True)] == [True, True]
    fifth = Index.build(copied, {**entries, "a": None}, Settings(max_pages=5), previous=fourth)
    assert (names(fifth), fifth.unknown_servers) == (["b_y"], ("a",))
    sixth = Index.build(servers, entries, Settings(max_pages=6), previous=fourth)
    assert names(sixth) == ["a_x", "b_y"]


def narrowed(index: Index, *servers: str, tools: tuple[str, ...] | None = None, **overrides: Any) -> Index:
    return index.narrowed(servers, tools, overrides)


def test_a_narrower_index_has_only_what_is_named_and_says_nothing_of_the_rest() -> None:
    odd = {"name": "odd", "title": 5, "inputSchema": {"type": "object"}}
    entry = ServerEntry("s", "h", tools=(odd, {"name": "look", "inputSchema": {"type": "object"}}))
    servers = {
        "s": ServerDefinition("s", command="x", tool_overrides={"gone": {"description": "no"}}),
        "t": ServerDefinition("t", command="x"),
    }
    index = Index.build(servers, {"s": entry}, Settings())
    assert len(index.faults("s")) == 2
    whole = narrowed(index, "s")
    assert (whole.servers, [one.original for one in whole.tools()]) == (("s",), ["look", "odd"])
    assert whole.faults("s") == index.faults("s")
    some = narrowed(index, "s", "t", tools=("look",))
    assert ([one.original for one in some.tools()], some.faults("s")) == (["look"], ())
    assert some.resolve("t_x") == MissingName("t_x", ("t",))
    assert [one.original for one in narrowed(index, "s", tools=()).tools()] == []
    assert [fault.split(":")[0] for fault in narrowed(index, "s", tools=("odd",)).faults("s")] == [
        'tool "odd"'
    ]
    renamed = narrowed(index, "s", s={"look": {"rename": "see"}})
    assert [one.name for one in renamed.tools()] == ["s_odd", "s_see"]
    again = index.narrowed(["s"], ("look",), previous=some)
    assert again.tools()[0] is some.tools()[0], "what is the same is not made again"


def test_what_clients_would_refuse_is_told_up_to_a_hundred_items_and_without_hidden_characters() -> None:
    def odd(number: int) -> dict[str, Any]:
        return {"name": f"t{number:03}\u200b", "title": 5, "inputSchema": {"type": "object"}}

    for count, more in (
        (100, ()),
        (101, ("1 more are not named here",)),
        (1_200, ("1,100 more are not named here",)),
    ):
        index = built(*map(odd, range(count)))
        faults = index.faults("s")
        assert faults[100:] == more
        assert faults[0] == 'tool "t000": title is not a string (corrected)'


@for_each(
    ("override", "fault"),
    [
        (
            {"look": {"rename": "pay"}},
            'toolOverrides of "look": another tool is called "pay" (both get longer names)',
        ),
        ({"look": {"rename": "pay", "hide": True}}, None),
        ({"look": {"rename": "pay"}, "pay": {"rename": "give"}}, None),
        ({"look": {"rename": "pay"}, "pay": {"hide": True}}, None),
        ({"look": {"rename": "look"}}, None),
        ({"gone": {"description": "x"}}, 'toolOverrides of "gone": the server has no such tool'),
        ({"gone": {"hide": True}}, None),
        (
            {"look": {"params": {"z": {"hide": True}}}},
            'toolOverrides of "look": has no parameter "z" (it has: none) (left out until that is corrected)',
        ),
        ({"look": {"hide": True, "params": {"z": {"hide": True}}}}, None),
    ],
)
def test_an_override_that_does_not_fit_is_told_unless_it_hides_the_tool(
    override: dict[str, Any], fault: str | None
) -> None:
    plain = {"inputSchema": {"type": "object"}}
    index = built({"name": "look", **plain}, {"name": "pay", **plain}, tool_overrides=override)
    assert index.faults("s") == (() if fault is None else (fault,))


def test_an_override_for_any_server_need_not_fit_and_a_servers_own_must() -> None:
    said = {"gone": {"description": "x"}}
    general = Settings(tool_overrides=said)
    plain = {"name": "look", "inputSchema": {"type": "object"}}
    assert built(plain, settings=general).faults("s") == ()
    assert len(built(plain, settings=general, tool_overrides=said).faults("s")) == 1


def test_counts_are_of_each_kind() -> None:
    resources = tuple({"uri": f"u:{number}", "name": f"r{number}"} for number in range(3))
    entry = ServerEntry(
        "s",
        "h",
        tools=({"name": "a"}, {"name": "b"}),
        resources=resources,
        prompts=tuple({"name": f"p{number}"} for number in range(4)),
    )
    index = Index.build({"s": ServerDefinition("s", command="x")}, {"s": entry}, Settings())
    counts = index.counts("s")
    assert counts is not None
    assert (counts.tools, counts.resources, counts.prompts) == (2, 3, 4)
    assert index.get("s_get_r0") is not None
    hidden = built(resources=({"uri": "u:\u200bx", "name": "x"},))
    assert only(hidden).description == "Read resource: u:x"


def test_a_server_whose_prefix_changes_is_known_by_the_new_one_though_others_change_otherwise() -> None:
    def built_of(mode: PrefixMode | None, tools: tuple[str, ...], previous: Index | None = None) -> Index:
        servers = {
            "a-mcp": ServerDefinition("a-mcp", command="x", tool_prefix=mode),
            "b": ServerDefinition("b", command="x"),
        }
        entry = ServerEntry("b", "h", tools=tuple({"name": one} for one in tools))
        return Index.build(servers, {"b": entry}, Settings(), previous=previous)

    first = built_of(None, ("x",))
    second = built_of(PrefixMode.SHORT, ("y",), first)
    assert first.resolve("a_mcp_x") == MissingName("a_mcp_x", ("a-mcp",))
    assert second.resolve("a_x") == MissingName("a_x", ("a-mcp",))
    assert came_to(second.resolve("b_y")) == ("b", "y")
