"""`toolOverrides`: tools that are shown otherwise than their server shows them, at every door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.gateway.test_conversations import call, talking
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import Asking, AskingServer, asking_connectors
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.catalogue.hidden_characters import OriginalSpelling
from greenroom.catalogue.overrides import ToolOverride, _fits, overrides_of
from greenroom.config.parse import parse_config
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import UnknownTool, UsageError
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

ISSUE = {
    "type": "object",
    "properties": {
        "repo": {"type": "string"},
        "title": {"type": "string", "description": "what it is called"},
        "labels": {"type": "array", "items": {}},
    },
    "required": ["repo", "title"],
}
OVERRIDES: dict[str, Any] = {
    "create": {
        "rename": "new_issue",
        "description": "Report a defect",
        "params": {
            "repo": {"hide": True, "default": "ours/main"},
            "title": {"rename": "summary", "description": "in a few words"},
            "labels": {"default": ["bug"]},
        },
    },
    "delete": {"hide": True},
}


async def _create(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
    if arguments.get("title") == "":
        return {"content": [{"type": "text", "text": 'create: "title" must not be empty'}], "isError": True}
    return {"content": [{"type": "text", "text": str(sorted(arguments.items()))}]}


def room_with(
    overrides: Mapping[str, Any], everywhere: Mapping[str, Any] | None = None, **profiles: Any
) -> Greenroom:
    server = AskingServer({"create": _create, "delete": _create, "list": _create}, schemas={"create": ISSUE})
    config = {
        "mcpServers": {"github": {"command": "x", "toolOverrides": overrides}},
        "settings": {"toolOverrides": everywhere or {}},
        "profiles": profiles,
    }
    connectors = asking_connectors({"github": server})
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors)


SENT = "[('labels', ['bug']), ('repo', 'ours/main'), ('title', 'x')]"


@in_virtual_time
async def test_a_tool_is_shown_and_called_by_what_the_configuration_says() -> None:
    async with room_with(OVERRIDES) as room:
        await room.connect("github")
        await room.settled()
        assert [tool.name for tool in room.tools()] == ["github_list", "github_new_issue"]
        shown = room.describe("github_new_issue")
        assert shown.description == "Report a defect"
        assert shown.schema()["properties"] == {
            "summary": {"type": "string", "description": "in a few words"},
            "labels": {"type": "array", "items": {}, "default": ["bug"]},
        }
        assert shown.schema()["required"] == ["summary"]
        assert [match.target.name for match in room.search("defect").matches] == ["github_new_issue"]
        result = await room.call("github_new_issue", {"summary": "x"})
        assert result.text == SENT
        for wrong, text in (("repo", 'Unknown parameter "repo"'), ("title", 'It is called "summary"')):
            with pytest.raises(UsageError, match=text):
                await room.call("github_new_issue", {wrong: "y"})
        for name in ("github_delete", "github_create"):
            with pytest.raises(UnknownTool):
                await room.call(name, {})
        refused = await ask(McpTool(port_of(room)), {"tool": "github_new_issue", "args": {"repo": "y"}})
        said = refused["content"][0]["text"]
        assert refused["isError"] is True
        assert said.startswith(
            'Unknown parameter "repo".\n\nExpected parameters:\nsummary (string) *required*'
        )
        failed = await ask(McpTool(port_of(room)), {"tool": "github_new_issue", "args": {"summary": ""}})
        assert failed["content"][0]["text"].startswith('Error: new_issue: "summary" must not be empty')


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_both_exposures_show_and_call_it_so(expose: str) -> None:
    async with room_with(OVERRIDES) as room:
        await room.connect("github")
        await room.settled()
        async with talking(room, expose) as talk, talk("ann") as ann:
            result = await call(ann, expose, "github_new_issue", summary="x")
            assert result["result"]["content"][0]["text"] == SENT
            failed = await call(ann, expose, "github_new_issue", summary="")
            assert 'new_issue: "summary" must not be empty' in failed["result"]["content"][0]["text"]
            refused = await call(ann, expose, "github_new_issue", summary="x", repo="theirs")
            assert refused["result"]["isError"] is True
            if expose == "direct":
                listed = (await ann.ask("tools/list"))["result"]["tools"]
                assert [tool["name"] for tool in listed] == ["github_list", "github_new_issue"]
                assert listed[1]["description"] == "Report a defect"
                assert list(listed[1]["inputSchema"]["properties"]) == ["summary", "labels"]


@in_virtual_time
async def test_a_profile_shows_it_otherwise_still() -> None:
    more = {
        "github": {
            "create": {"rename": "report", "params": {"labels": {"hide": True}}},
            "list": {"hide": True},
        }
    }

    async with room_with(OVERRIDES, work={"toolOverrides": more}) as room:
        await room.connect("github")
        await room.settled()
        async with room.session("ann", profile="work") as ann:
            assert [tool.name for tool in port_of(ann).catalogue.index.tools()] == ["github_report"]
            schema = port_of(ann).catalogue.index.tools()[0].schema()
            assert (list(schema["properties"]), schema["required"]) == (["summary"], ["summary"])
            assert (await ann.call("github_report", {"summary": "x"})).text == SENT
        assert [tool.name for tool in room.tools()] == ["github_list", "github_new_issue"]


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ({"params": {"titel": {"hide": True}}}, 'has no parameter "titel" (it has: repo, title, labels)'),
        ({"params": {"labels": {"default": "bug"}}}, 'the default of "labels" does not fit its schema'),
        ({"params": {"repo": {"hide": True}}}, '"repo" is required, so hiding it needs a default'),
        ({"params": {"repo": {"rename": "title"}}}, 'two parameters would be called "title"'),
    ],
)
@in_virtual_time
async def test_an_override_that_does_not_fit_leaves_the_tool_out_and_the_status_says_why(
    override: dict[str, Any], what: str
) -> None:
    async with room_with({"create": override}) as room:
        await room.connect("github")
        await room.settled()
        assert [tool.name for tool in room.tools()] == ["github_delete", "github_list"]
        (said,) = port_of(room).catalogue.index.faults("github")
        assert said == f'toolOverrides of "create": {what} (left out until that is corrected)'


@for_each(
    ("overrides", "where", "what"),
    [
        ([], "", "must be an object like"),
        ({"a": True}, ".a", "must be an object"),
        ({"a": {"rename": "b c"}}, ".a.rename", "must be a name"),
        ({"a": {"hide": 1}}, ".a.hide", "must be true or false"),
        ({"a": {"renam": "b"}}, ".a.renam", 'did you mean "rename"?'),
        ({"a": {"params": {"p": {"hidden": True}}}}, ".a.params.p.hidden", "unknown key"),
        ({"a": {"params": 5}}, ".a.params", ""),
        ({"a": {"params": {"p": 5}}}, ".a.params.p", ""),
        ({"a": {"params": {"p": {"hide": 1}}}}, ".a.params.p.hide", ""),
        ({"a": {"params": {"p": {"nullIsNothing": 0}}}}, ".a.params.p.nullIsNothing", ""),
        ({"a": {"params": {"p": {"description": 5}}}}, ".a.params.p.description", ""),
        ({"a": {"params": {"p": {"rename": "x" * 65}}}}, ".a.params.p.rename", ""),
        ({"a": {"rename": "x"}, "b": {"rename": "x"}}, ".b", 'two tools would be called "x"'),
        ({"a": {"rename": "b"}, "b": {"description": ""}}, ".b", 'two tools would be called "b"'),
        (
            {"a": {"params": {"p": {"rename": "x"}, "q": {"rename": "x"}}}},
            ".a.params.q",
            'two parameters would be called "x"',
        ),
        # A hyphen is as good as an underscore where names are looked up.
        ({"a": {"rename": "x_y"}, "b": {"rename": "x-y"}}, ".b", 'two tools would be called "x-y"'),
        ({"a": {"rename": "x-y"}, "x_y": {"description": ""}}, ".x_y", 'two tools would be called "x_y"'),
    ],
)
def test_what_cannot_be_read_breaks_its_server_because_half_of_it_may_be_worse(
    overrides: Any, where: str, what: str
) -> None:
    config = parse_config({"mcpServers": {"s": {"command": "x", "toolOverrides": overrides}}})
    problem = config.broken["s"]
    assert problem.where.endswith(f"mcpServers.s.toolOverrides{where}")
    assert what in problem.what
    wrong = {"profiles": {"p": {"toolOverrides": {"s": overrides}}}, "mcpServers": {"s": {"command": "x"}}}
    assert "p" not in parse_config(wrong).profiles


@in_virtual_time
async def test_tools_that_would_share_a_name_after_renaming_are_never_mistaken() -> None:
    async with room_with({"create": {"rename": "list"}}) as room:
        await room.connect("github")
        await room.settled()
        names = [tool.name for tool in room.tools()]
        assert len(names) == 3
        assert "github_list" not in names
        assert any('"list"' in said for said in port_of(room).catalogue.index.faults("github"))


@in_virtual_time
async def test_tools_of_any_server_may_be_given_one_name_and_are_never_mistaken() -> None:
    same = {"create": {"rename": "same"}, "other": {"rename": "same"}}
    async with room_with({}, same) as room:
        await room.connect("github")
        await room.settled()
        assert "github_same" in [tool.name for tool in room.tools()]
    async with room_with({}, {**same, "list": {"rename": "same"}}) as room:
        await room.connect("github")
        await room.settled()
        names = [tool.name for tool in room.tools()]
        assert len(set(names)) == 3
        assert "github_same" not in names


def test_words_of_errors_are_replaced_whole_and_once() -> None:
    override = ToolOverride.of({"rename": "b", "params": {"id": {"rename": "a"}, "a": {"rename": "id"}}})
    assert override.told("id, a, idle and tool-id of t", "t") == "a, id, idle and tool-id of b"
    assert override.own({"a": 1, "id": 2}, "s") == {"id": 1, "a": 2}
    assert override.faults({"inputSchema": {"properties": {"a": {}, "id": {}}}}) == []


def test_a_name_in_an_error_that_begins_with_another_name_is_replaced_whole() -> None:
    params = {"user": {"rename": "who"}, "user.name": {"rename": "whose name"}}
    assert ToolOverride.of({"params": params}).told("user.name of user", "t") == "whose name of who"


def test_a_caller_cannot_set_a_hidden_parameter_under_any_name() -> None:
    """Two overrides together may rename and hide one: it is hidden then."""
    renamed = ToolOverride.of({"params": {"repo": {"rename": "where"}}})
    hidden = ToolOverride.of({"params": {"repo": {"hide": True, "default": "ours/main"}}})
    together = renamed.under(hidden)
    assert list(together.shown({"inputSchema": ISSUE})["inputSchema"]["properties"]) == ["title", "labels"]
    assert together.own({}, "s") == {"repo": "ours/main"}
    assert together.own({"where": "theirs"}, "s")["repo"] == "ours/main"
    with pytest.raises(UsageError, match='Unknown parameter "repo"'):
        together.own({"repo": "theirs"}, "s")


@in_virtual_time
async def test_the_setting_changes_tools_of_whichever_server_has_them() -> None:
    everywhere = {
        "create": {
            "rename": "add",
            "params": {"repo": {"default": "ours/main"}, "title": {"rename": "name"}},
        },
        "destroy": {"hide": True},  # no server has it, and that is not a fault
    }
    own = {"create": {"params": {"title": {"rename": "summary"}}}}

    async with room_with(own, everywhere) as room:
        await room.connect("github")
        await room.settled()
        assert [tool.name for tool in room.tools()] == ["github_add", "github_delete", "github_list"]
        assert list(room.describe("github_add").schema()["properties"]) == ["repo", "summary", "labels"]
        assert (await room.call("github_add", {"summary": "x"})).text == (
            "[('repo', 'ours/main'), ('title', 'x')]"
        )
        (status,) = room.status()
        assert not status.faults
        await room.reload({"mcpServers": {"github": {"command": "x"}}})
        await room.settled()
        assert "github_create" in [tool.name for tool in room.tools()]


SAMPLES: dict[str, tuple[Any, ...]] = {
    "string": ("", "x"),
    "boolean": (True, False),
    "integer": (0, 7),
    "array": ([], [1]),
    "object": ({}, {"a": 1}),
    "null": (None,),
}


@for_each("kind", [*SAMPLES, "number", "unheard of"])
def test_a_default_is_of_the_type_that_its_parameter_has(kind: str) -> None:
    """Python takes true for a number; JSON does not."""
    values = [*(each for some in SAMPLES.values() for each in some), 1.5]
    number = (*SAMPLES["integer"], 1.5)
    fitting = {"number": number, "unheard of": tuple(values)}.get(kind) or SAMPLES[kind]
    for value in values:
        fits = any(type(value) is type(each) and value == each for each in fitting)
        for said in (kind, [kind], [kind, "unheard of"]):
            assert _fits(value, {"type": said}) is fits, (value, said)
    assert _fits(1, {"enum": [1, 2]})
    assert not _fits(3, {"enum": [1, 2]})
    assert _fits("x", {"const": "x"})
    assert not _fits("y", {"const": "x"})


@in_virtual_time
async def test_an_error_of_the_server_is_told_in_the_names_of_here_and_nothing_else_is() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "create: no title", "annotations": {"priority": 1}},
        {"type": "resource", "resource": {"uri": "a:b", "text": "create"}},
        {"type": "text", "text": 7},
        "create",
    ]
    told = [{**blocks[0], "text": "new_issue: no summary"}, *blocks[1:]]

    server = FakeServer([tool("create", inputSchema=ISSUE)], call_error=(-32099, "no title for create"))
    config = {"mcpServers": {"github": {"command": "x", "toolOverrides": OVERRIDES, "scrub": "off"}}}
    connectors = fake_connectors({"github": server})
    opened = Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors)
    async with opened as room, talking(room, "direct") as talk:
        await room.connect("github")
        await room.settled()
        async with talk("ann") as ann:
            error = (await call(ann, "direct", "github_new_issue", summary="x"))["error"]
            assert (error["code"], error["message"]) == (-32099, "[github] no summary for new_issue")
            server.call_error = None
            for is_error in (True, False, None, 1):
                said = {"content": blocks, "isError": is_error, "structuredContent": {"create": "create"}}
                server.handler = lambda _arguments, said=said: said
                result = (await call(ann, "direct", "github_new_issue", summary="x"))["result"]
                assert result["content"] == (told if is_error is True else blocks)
                assert result["structuredContent"] == said["structuredContent"]


@in_real_time
async def test_a_large_error_is_told_in_the_names_of_here_too() -> None:
    filler = {"type": "text", "text": "x" * LARGE_MESSAGE}
    said = {"content": [{"type": "text", "text": "create: no title"}, filler], "isError": True}
    server = FakeServer([tool("create", inputSchema=ISSUE)], handler=lambda _arguments: said)
    config = {"mcpServers": {"github": {"command": "x", "toolOverrides": OVERRIDES}}}
    connectors = fake_connectors({"github": server})
    opened = Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors)
    async with opened as room, talking(room, "direct") as talk:
        await room.connect("github")
        await room.settled()
        async with talk("ann") as ann:
            result = (await call(ann, "direct", "github_new_issue", summary="x"))["result"]
            assert result["content"] == [{"type": "text", "text": "new_issue: no summary"}, filler]


# ---- an override by itself ------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "title": "kept",
    "properties": {
        "a": {"type": "string", "description": "an a"},
        "b": {"type": "integer"},
        "c": True,
    },
    "required": ["a", "b", "c", 5],
}
SHOWN_BY_SERVER = {"name": "t", "description": "does", "inputSchema": SCHEMA, "annotations": {"x": 1}}


def of(**said: Any) -> ToolOverride:
    return ToolOverride.of(said)


def shown(**said: Any) -> dict[str, Any]:
    return dict(of(**said).shown(SHOWN_BY_SERVER))


def test_a_record_is_changed_where_the_override_says_so_and_nowhere_else() -> None:
    assert shown() == SHOWN_BY_SERVER
    assert shown(rename="u") == SHOWN_BY_SERVER, "the name is the caller's to change"
    assert shown(description="") == {**SHOWN_BY_SERVER, "description": ""}
    changed = shown(
        params={"a": {"rename": "x", "description": ""}, "b": {"default": 0}, "c": {"rename": "y"}}
    )
    assert changed == {
        **SHOWN_BY_SERVER,
        "inputSchema": {
            "type": "object",
            "title": "kept",
            "properties": {
                "x": {"type": "string", "description": ""},
                "b": {"type": "integer", "default": 0},
                "y": True,
            },
            "required": ["x", "y"],
        },
    }
    hidden = shown(params={"a": {"hide": True, "default": None}})["inputSchema"]
    assert (list(hidden["properties"]), hidden["required"]) == (["b", "c"], ["b", "c"])
    assert SCHEMA["required"] == ["a", "b", "c", 5], "the server's own record stays"
    bare = of(params={"a": {"rename": "x"}}).shown({"inputSchema": {"properties": {"a": {}}}})
    assert bare["inputSchema"] == {"properties": {"x": {}}}
    assert of(params={"a": {"hide": True}}).shown({"inputSchema": None})["inputSchema"] == {"properties": {}}


@for_each(
    ("params", "faults"),
    [
        ({"a": {"hide": True}}, ['"a" is required, so hiding it needs a default']),
        ({"a": {"hide": True, "default": "x"}}, []),
        ({"a": {"hide": True, "default": None}}, ['the default of "a" does not fit its schema']),
        ({"b": {"default": True}}, ['the default of "b" does not fit its schema']),
        ({"c": {"default": object()}}, []),
        ({"z": {}}, ['has no parameter "z" (it has: a, b, c)']),
        ({"a": {"rename": "b"}}, ['two parameters would be called "b"']),
        ({"a": {"rename": "b"}, "b": {"rename": "a"}}, []),
        ({"a": {"rename": "b"}, "b": {"hide": True, "default": 1}}, []),
        (
            {"a": {"rename": "z"}, "b": {"rename": "z"}, "c": {"rename": "z"}},
            ['two parameters would be called "z"'],
        ),
    ],
)
def test_why_an_override_does_not_fit_is_said_in_full(params: Any, faults: list[str]) -> None:
    assert of(params=params).faults(SHOWN_BY_SERVER) == faults


STRONG = of(
    rename="s", hide=True, description="", params={"a": {"rename": "as", "description": "", "default": 1}}
)
WEAK = of(
    rename="w",
    description="weak",
    params={
        "a": {"rename": "aw", "hide": True, "description": "weak", "default": 2, "nullIsNothing": True},
        "b": {"rename": "bw"},
    },
)


def test_of_two_overrides_the_stronger_counts_wherever_it_says_something() -> None:
    assert WEAK.under(None) is WEAK
    both = WEAK.under(STRONG)
    assert (both.rename, both.hide, both.description) == ("s", True, "")
    one = both.parameters["a"]
    assert (one.rename, one.hide, one.description, one.default) == ("as", True, "", 1)
    assert one.null_is_nothing is True
    assert both.parameters["b"].rename == "bw"
    other = STRONG.under(of())
    assert other == STRONG
    kept = of().under(WEAK)
    assert kept == WEAK
    assert of(hide=True).under(of()).hide is True
    quiet = of(params={"a": {"default": None}}).under(of(params={"a": {}}))
    assert (quiet.parameters["a"].has_default, quiet.parameters["a"].default) == (True, None)
    assert of(params={"a": {"default": 1}}).under(of(params={"a": {"default": None}})).own({}, "s") == {
        "a": None
    }


def test_overrides_of_a_definition_lie_over_weaker_ones_tool_by_tool() -> None:
    weaker = overrides_of({"t": {"rename": "w", "description": "d"}, "u": {"hide": True}})
    found = overrides_of({"t": {"rename": "s"}, "v": {"description": ""}}, weaker)
    assert {name: (one.rename, one.hide, one.description) for name, one in found.items()} == {
        "t": ("s", False, "d"),
        "u": (None, True, None),
        "v": (None, False, ""),
    }
    assert weaker["t"].rename == "w"
    assert overrides_of({}) == {}


@for_each(
    ("given", "sent"),
    [
        (None, {"a": "x", "b": 1}),
        ({}, {"a": "x", "b": 1}),
        ({"first": "y"}, {"a": "y", "b": 1}),
        ({"first": None, "b": None}, {"a": "x", "b": None}),
        ({"first": "", "b": 0}, {"a": "", "b": 0}),
        ({"other": 5}, {"other": 5, "a": "x", "b": 1}),
    ],
)
def test_a_call_gets_its_defaults_where_nothing_is_given(given: Any, sent: Any) -> None:
    params = {"a": {"rename": "first", "default": "x", "nullIsNothing": True}, "b": {"default": 1}}
    assert of(params=params).own(given, "s") == sent


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"h": 1}, 'Unknown parameter "h".'),
        ({"a": 1}, 'Unknown parameter "a". It is called "first".'),
        ({"hidden": 1}, None),
    ],
)
def test_a_parameter_under_its_old_name_is_refused_for_its_server(given: Any, message: str | None) -> None:
    params = {"a": {"rename": "first"}, "h": {"hide": True, "rename": "hidden", "default": 0}}
    override = of(params=params)
    if message is None:
        assert override.own(given, "s") == {"hidden": 1, "h": 0}
        return
    with pytest.raises(UsageError) as caught:
        override.own(given, "s")
    assert (caught.value.message, caught.value.code, caught.value.server) == (message, "invalid_args", "s")


def test_the_way_back_to_hidden_characters_comes_last() -> None:
    spelled = OriginalSpelling({"ab": "a\u200bb"}, {"v": "v\u200b"})
    override = ToolOverride(spelled=spelled)
    assert override.own({"ab": "v", "c": {"ab": ["v", 5]}}, "s") == {
        "a\u200bb": "v\u200b",
        "c": {"a\u200bb": ["v\u200b", 5]},
    }


def test_an_error_names_no_parameter_that_is_hidden() -> None:
    override = of(rename="act", params={"a": {"rename": "first"}, "h": {"hide": True, "rename": "shown"}})
    assert override.told("do: a and h, a-b, b_a, do.it", "do") == "act: first and h, a-b, b_a, act.it"
    assert of().told("do: a", "do") == "do: a"


def test_names_that_a_hidden_one_leaves_may_be_taken() -> None:
    fine = [
        {"t": {"rename": "u"}, "u": {"hide": True}},
        {"t": {"rename": "x" * 64}},
        {"t": {"params": {"a": {"rename": "b"}, "b": {"hide": True, "default": 1}}}},
        {"t": {"params": {}}},
    ]
    for overrides in fine:
        config = parse_config({"mcpServers": {"s": {"command": "x", "toolOverrides": overrides}}})
        assert not config.problems, config.problems
        assert config.servers["s"].tool_overrides == overrides
