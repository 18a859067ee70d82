"""The parts of HTTP that need no server: events out of chunks, headers out of bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.actors._http import EventParser, ServerEvent, ToolHeaders, encode_value


def parser(limit: int = 1 << 20) -> tuple[EventParser, list[bytes]]:
    heads: list[bytes] = []
    return EventParser(limit, heads.append), heads


# ---- events ---------------------------------------------------------------------------------------------------------

STREAM = (
    b": hello\r\nid: 7\nretry: 250\n\nevent: endpoint\r\ndata:/a\r\n\r\n"
    b"data: one\rdata:  two\r\rdata\n\nid: 8\ndata: {}\n\n"
)
EVENTS = [
    ServerEvent("endpoint", b"/a"),
    ServerEvent("message", b"one\n two"),
    ServerEvent("message", b"{}"),
]


@given(st.lists(st.integers(1, 12), max_size=60))
def test_events_are_the_same_however_they_are_cut(sizes: list[int]) -> None:
    events, _ = parser()
    found: list[ServerEvent] = []
    rest = STREAM
    for size in sizes:
        found += events.feed(rest[:size])
        rest = rest[size:]
    found += events.feed(rest)
    assert found == EVENTS
    assert (events.last_id, events.retry) == ("8", 0.25)


@given(st.lists(st.integers(1, 40), max_size=40))
def test_data_over_the_bound_is_told_once_and_thrown_away(sizes: list[int]) -> None:
    events, heads = parser(limit=64)
    rest = b'data: {"id":3,"x":"' + b"y" * 200 + b'"}\ndata: more\n\ndata: after\n\n'
    found: list[ServerEvent] = []
    for size in sizes:
        found += events.feed(rest[:size])
        rest = rest[size:]
    found += events.feed(rest)
    assert found == [ServerEvent("message", b"after")]
    assert len(heads) == 1
    assert heads[0].startswith(b'{"id":3,"x":"yyy')


def test_an_endless_line_is_not_kept() -> None:
    events, heads = parser(limit=1000)
    for _ in range(100):
        assert events.feed(b"data: " + b"x" * 500) == []
    assert len(heads) == 1


@pytest.mark.parametrize("retry", [b"-5", b"soon", b"1e3", b"12345678901"])
def test_a_retry_that_is_no_time_is_no_time(retry: bytes) -> None:
    events, _ = parser()
    events.feed(b"retry: " + retry + b"\n\n")
    assert events.retry is None


# ---- headers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("two words", "two words"),
        ("", ""),
        (" padded", "=?base64?IHBhZGRlZA==?="),
        ("Zoë", "=?base64?Wm/Dqw==?="),
        ("a\nb", "=?base64?YQpi?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ],
)
def test_a_value_survives_the_way(text: str, value: str) -> None:
    assert encode_value(text) == value


def tool(properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    return {"name": "play", "inputSchema": {"type": "object", "properties": properties, **schema}}


def test_annotated_arguments_are_mirrored() -> None:
    headers = ToolHeaders()
    nested = {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}}
    annotated = {
        "city": {"type": "string", "x-mcp-header": "City"},
        "late": {"type": "boolean", "x-mcp-header": "Late"},
        "seat": nested,
        "note": {"type": "string"},
        "none": {"type": "string", "x-mcp-header": "None"},
    }
    assert headers.learn(tool(annotated)) is None
    arguments = {"city": "Zürich", "late": True, "seat": {"row": 3}, "note": "hush", "none": None}
    assert headers.headers("tools/call", {"name": "play", "arguments": arguments}) == {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "play",
        "Mcp-Param-City": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-Late": "true",
        "Mcp-Param-Row": "3",
    }


def test_other_methods_name_what_they_are_about() -> None:
    headers = ToolHeaders()
    read = headers.headers("resources/read", {"uri": "stage://prop"})
    assert read == {"Mcp-Method": "resources/read", "Mcp-Name": "stage://prop"}
    assert headers.headers("tools/list", None) == {"Mcp-Method": "tools/list"}


@pytest.mark.parametrize(
    "broken",
    [
        tool({"a": {"type": "string", "x-mcp-header": ""}}),
        tool({"a": {"type": "string", "x-mcp-header": "two words"}}),
        tool({"a": {"type": "string", "x-mcp-header": 3}}),
        tool({"a": {"type": "number", "x-mcp-header": "A"}}),
        tool({"a": {"type": "object", "x-mcp-header": "A"}}),
        tool({"a": {"x-mcp-header": "A"}}),
        tool({"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}),
        tool({}, anyOf=[{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]),
        tool({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}),
    ],
)
def test_a_tool_whose_annotations_break_the_rules_is_refused(broken: dict[str, Any]) -> None:
    assert ToolHeaders().learn(broken) is not None


def test_data_that_only_looks_like_an_annotation_is_none() -> None:
    harmless = tool(
        {"a": {"type": "object", "default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": 1}]}}
    )
    assert ToolHeaders().learn(harmless) is None


def test_a_schema_nested_ten_thousand_deep_is_walked() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        schema = {"type": "object", "properties": {"a": schema}}
    assert ToolHeaders().learn({"name": "deep", "inputSchema": schema}) is None
