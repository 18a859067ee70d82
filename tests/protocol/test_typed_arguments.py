"""Texts as arguments: each is read by the schema of its parameter."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom.errors import UsageError
from greenroom.protocol.typed_arguments import typed_arguments
from greenroom.testing import FakeServer, tool

STRING, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
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


@in_virtual_time
async def test_a_room_reads_texts_by_the_schema_and_asks_the_server_for_it_first() -> None:
    schema = {"type": "object", "properties": {"id": STRING, "n": NUMBER}}
    server = FakeServer(tools=[tool("echo", inputSchema=schema)])
    async with open_room({"a": server}) as room:
        assert await room.typed_arguments("a_echo", {"id": "5", "n": "5"}) == {"id": "5", "n": 5}
        wrong: Any = {"id": 5}
        with pytest.raises(UsageError, match="The text of id must be a string"):
            await room.typed_arguments("a_echo", wrong)
