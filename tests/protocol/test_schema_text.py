"""Schemas as text: exact for what is usual, calm about everything else."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.protocol.content import MAX_SCHEMA_LINES as MAX_LINES
from greenroom.protocol.content import parameters_text


def text(**properties: Any) -> str:
    return parameters_text({"type": "object", "properties": properties})


def test_a_line_says_all_of_a_property() -> None:
    schema = {
        "type": "object",
        "required": ["title"],
        "properties": {
            "title": {"type": "string", "description": "What it is\n  about", "minLength": 1, "default": "x"},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
        },
    }

    assert parameters_text(schema, "    ") == (
        '    title (string) *required* - What it is about [minLength: 1] [default: "x"]\n'
        "    count (integer) [minimum: 0] [maximum: 9]"
    )


@for_each(
    ("schema", "line"),
    [
        ({"const": 1}, "p (const 1)"),
        ({"type": "string", "enum": ["a", "b"]}, 'p (enum: "a", "b")'),
        ({"type": ["string", "null"]}, "p (string | null)"),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "p (string | null) [default: null]",
        ),
        ({"oneOf": [{"const": "x"}, {"type": "integer"}]}, 'p (const "x" | integer)'),
        ({}, "p"),
        (True, "p"),
        ({"description": "  "}, "p"),
        ({"type": 5, "enum": "no", "anyOf": {}, "properties": []}, "p"),
        ({"type": "string", "description": "é", "pattern": "^é$"}, 'p (string) - é [pattern: "^é$"]'),
    ],
)
def test_types(schema: Any, line: str) -> None:
    assert text(p=schema) == line


def test_what_is_inside_stands_two_further_in() -> None:
    schema = {
        "properties": {
            "filter": {
                "type": "object",
                "required": ["by"],
                "properties": {
                    "by": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
            "target": {
                "anyOf": [{"type": "object", "properties": {"id": {"type": "integer"}}}, {"type": "null"}]
            },
        }
    }

    expected = """\
        filter (object)
          by (string) *required*
          tags (array)
            items (string)
        target (object | null)
          anyOf (object)
            id (integer)"""
    assert parameters_text(schema) == dedent(expected)


def test_local_references_are_followed_but_not_in_circles() -> None:
    schema = {
        "$ref": "#/$defs/Root",
        "$defs": {
            "Root": {"properties": {"node": {"$ref": "#/$defs/Node", "description": "the first"}}},
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}, "v": {"type": "number"}},
            },
        },
    }

    assert parameters_text(schema) == "node (object) - the first\n  next\n  v (number)"
    assert text(p={"$ref": "https://example.com/x"}, q={"$ref": "#/nowhere"}) == "p\nq"


@for_each(
    ("schema", "expected"),
    [
        (None, "(no schema)"),
        ([], "(no schema)"),
        ("object", "(no schema)"),
        ({}, "(no parameters)"),
        ({"type": "object"}, "(no parameters)"),
        ({"type": "object", "properties": {}, "additionalProperties": False}, "(no parameters)"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "(complex schema)"),
        ({"anyOf": [{"type": "object"}]}, "(complex schema)"),
        ({"type": "string"}, "(complex schema)"),
    ],
)
def test_schemas_without_properties(schema: Any, expected: str) -> None:
    assert parameters_text(schema, "  ") == f"  {expected}"


def test_a_small_schema_cannot_make_a_long_text() -> None:
    defs = {
        f"D{n}": {"properties": {k: {"$ref": f"#/$defs/D{n + 1}"} for k in "abcdefgh"}} for n in range(20)
    }
    lines = parameters_text({"$defs": defs, "$ref": "#/$defs/D0"}).split("\n")

    assert len(lines) == MAX_LINES + 1
    assert "left out" in lines[-1]


def test_deep_values_do_not_end_the_program() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    assert text(p={"default": deep}) == "p [default: (deeply nested)]"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=3)
            | st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "enum",
                    "const",
                    "required",
                    "$ref",
                    "description",
                ]
            ),
            inner | st.sampled_from(["#", "#/properties", "object"]),
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(JUNK)
def test_any_json_is_a_schema_we_can_print(junk: object) -> None:
    assert parameters_text(junk)


@given(JUNK, st.text(max_size=4))
def test_any_json_is_a_property_we_can_print(junk: object, name: str) -> None:
    lines = text(**{name: junk}).split("\n")

    assert lines[0].startswith(" ".join(name.split()))
    assert all(line.startswith("  ") for line in lines[1:])
