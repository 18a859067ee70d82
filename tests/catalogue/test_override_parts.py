"""Overrides by themselves: two of one tool together, what a record becomes, and what a call is turned into."""

from __future__ import annotations

from typing import Any

import pytest

from greenroom.catalogue.hidden_characters import Spelled
from greenroom.catalogue.overrides import ToolOverride, overrides_of
from greenroom.protocol.errors import UsageError

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
RECORD = {"name": "t", "description": "does", "inputSchema": SCHEMA, "annotations": {"x": 1}}


def of(**said: Any) -> ToolOverride:
    return ToolOverride.of(said)


def shown(**said: Any) -> dict[str, Any]:
    return dict(of(**said).shown(RECORD))


def test_a_record_is_changed_where_the_override_says_so_and_nowhere_else() -> None:
    assert shown() == RECORD
    assert shown(rename="u") == RECORD, "the name is the caller's to change"
    assert shown(description="") == {**RECORD, "description": ""}
    changed = shown(
        params={"a": {"rename": "x", "description": ""}, "b": {"default": 0}, "c": {"rename": "y"}}
    )
    assert changed == {
        **RECORD,
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


@pytest.mark.parametrize(
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
    assert of(params=params).faults(RECORD) == faults


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


@pytest.mark.parametrize(
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
    spelled = Spelled({"ab": "a\u200bb"}, {"v": "v\u200b"})
    override = ToolOverride(spelled=spelled)
    assert override.own({"ab": "v", "c": {"ab": ["v", 5]}}, "s") == {
        "a\u200bb": "v\u200b",
        "c": {"a\u200bb": ["v\u200b", 5]},
    }


def test_an_error_names_no_parameter_that_is_hidden() -> None:
    override = of(rename="act", params={"a": {"rename": "first"}, "h": {"hide": True, "rename": "shown"}})
    assert override.told("do: a and h, a-b, b_a, do.it", "do") == "act: first and h, a-b, b_a, act.it"
    assert of().told("do: a", "do") == "do: a"


@pytest.mark.parametrize(
    ("params", "inside"),
    [
        (5, ".t.params"),
        ({"p": 5}, ".t.params.p"),
        ({"p": {"hide": 1}}, ".t.params.p.hide"),
        ({"p": {"nullIsNothing": 0}}, ".t.params.p.nullIsNothing"),
        ({"p": {"description": 5}}, ".t.params.p.description"),
        ({"p": {"rename": ""}}, ".t.params.p.rename"),
        ({"p": {"rename": "x" * 65}}, ".t.params.p.rename"),
        ({"p": {"rename": "x"}, "x": {}}, ".t.params.x"),
    ],
)
def test_what_cannot_be_read_of_a_parameter_is_told_by_its_place(params: Any, inside: str) -> None:
    from greenroom.config.parse import parse_config

    entry = {"command": "x", "toolOverrides": {"t": {"params": params}}}
    broken = parse_config({"mcpServers": {"s": entry}}, source="m").broken["s"]
    assert broken.where == f"m: mcpServers.s.toolOverrides{inside}"


def test_names_that_a_hidden_one_leaves_may_be_taken() -> None:
    from greenroom.config.parse import parse_config

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
