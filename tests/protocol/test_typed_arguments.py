"""Texts as arguments: each is read by the schema of its parameter."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room
from tests.support.rows import for_each

from greenroom.errors import UsageError
from greenroom.protocol.typed_arguments import foreign_in, mistyped_in, required_in, typed_arguments
from greenroom.testing import FakeServer, tool

STRING, NUMBER = {"type": "string"}, {"type": "number"}


@for_each(
    ("schema", "text", "value"),
    [
        (STRING, "42", "42"),
        (STRING, "true", "true"),
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, "many", "many"),
        ({"type": "integer"}, "1.5", "1.5"),
        (NUMBER, "42", 42),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [STRING, {"type": "null"}]}, "5", "5"),
        ({"$ref": "#/$defs/Name"}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"$ref": "#/properties/x"}, "1", 1),
        ({}, "1", 1),
        (None, "[1]", [1]),
        ({"type": "array"}, "[1]", [1]),
        (NUMBER, "NaN", "NaN"),
    ],
)
def test_a_text_is_json_where_the_schema_allows_that(schema: Any, text: str, value: Any) -> None:
    whole = {"properties": {"x": schema}, "$defs": {"Name": STRING}}
    assert typed_arguments({"x": text}, whole) == {"x": value}
    assert type(typed_arguments({"x": text}, whole)["x"]) is type(value)


def test_a_schema_in_circles_is_not_followed_for_ever() -> None:
    """Each of four definitions has a thousand alternatives of the next: 10^12 ways to an integer."""
    circles = {str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}] * 1_000} for at in range(4)}
    schema = {"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {**circles, "4": {"type": "integer"}}}
    assert typed_arguments({"x": "5"}, schema) == {"x": 5}, "it does not say in time, so JSON is JSON"
    assert mistyped_in(schema, {"x": "many"}) == {}, "and the server decides"


@in_virtual_time
async def test_a_room_reads_texts_by_the_schema_and_asks_the_server_for_it_first() -> None:
    schema = {"type": "object", "properties": {"id": STRING, "n": NUMBER}}
    server = FakeServer(tools=[tool("echo", inputSchema=schema)])
    async with open_room({"a": server}) as room:
        assert await room.typed_arguments("a_echo", {"id": "5", "n": "5"}) == {"id": "5", "n": 5}
        wrong: Any = {"id": 5}
        with pytest.raises(UsageError, match="The text of id must be a string"):
            await room.typed_arguments("a_echo", wrong)


def test_only_what_a_schema_clearly_refuses_is_called_missing_or_foreign() -> None:
    named = {"properties": {"a": {"default": 1}, "b": {}}, "required": ["a", "b", 5]}
    assert required_in(named) == ["b"], "what has a default need not be given"
    assert required_in({"required": "b"}) == required_in(None) == required_in({"anyOf": [named]}) == []
    assert foreign_in(named, {"b": 1, "c": 2}) == ["c"]
    for more in ("anyOf", "allOf", "$ref", "patternProperties"):
        assert foreign_in({**named, more: {"x": 1}}, {"c": 2}) == [], more
    assert foreign_in({"required": ["b"]}, {"c": 2}) == [], "it names no parameters"
    assert foreign_in({**named, "required": ["d"]}, {"c": 2, "d": 3}) == ["c"], "what it requires, it takes"
    for others in (True, {}, {"type": "string"}):
        assert foreign_in({**named, "additionalProperties": others}, {"c": 2}) == [], "it takes any name"
