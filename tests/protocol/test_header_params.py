"""Arguments that are repeated in headers: where a schema may ask for it, and which header says the same as one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.protocol.header_params import as_text, decode_value, encode_value, mirrored_in, mismatch

MARKED = {"type": "string", "x-mcp-header": "A"}
ONE = [
    "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties", "not",
    "if", "then", "else", "contentSchema",
]  # fmt: skip
MANY = ["allOf", "anyOf", "oneOf", "prefixItems"]
NAMED = ["patternProperties", "dependentSchemas", "$defs", "definitions"]


@for_each(
    "schema",
    [
        *({key: MARKED} for key in ONE),
        *({key: [{}, MARKED]} for key in MANY),
        *({key: {"x": MARKED}} for key in NAMED),
        *({"properties": {"p": {key: {"properties": {"a": MARKED}}}}} for key in ONE),
        MARKED,
    ],
)
def test_an_annotation_anywhere_but_on_an_argument_breaks_the_rules(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not on a property of the arguments"):
        mirrored_in(schema)


@for_each("key", ["enum", "const", "default", "examples", "x-other", "required"])
def test_data_that_looks_like_an_annotation_is_none(key: str) -> None:
    assert (
        mirrored_in({"properties": {"a": {"type": "string", key: [MARKED, {"properties": {"a": MARKED}}]}}})
        == {}
    )
    assert mirrored_in({"properties": {"a": {"type": "string", key: MARKED}}}) == {}


def test_arguments_may_be_marked_at_any_depth_and_of_three_types() -> None:
    deep: dict[str, Any] = {"type": "boolean", "x-mcp-header": "Deep"}
    for _ in range(2_000):
        deep = {"properties": {"d": deep}}
    found = mirrored_in(
        {
            "properties": {
                "a": {"properties": {"b": {"type": "integer", "x-mcp-header": "B"}}},
                "c": {"type": "string", "x-mcp-header": "!#$%&'*+-.^_`|~0aZ"},
                "deep": deep,
            }
        }
    )
    assert found == {("a", "b"): "B", ("c",): "!#$%&'*+-.^_`|~0aZ", ("deep", *["d"] * 2_000): "Deep"}
    for nothing in (None, [], "x", {}, {"properties": []}, {"properties": {"a": True}}):
        assert mirrored_in(nothing) == {}


@for_each(
    ("marked", "wrong"),
    [
        ({"type": "string", "x-mcp-header": ""}, "the x-mcp-header of 'o.a' is not a header name"),
        ({"type": "string", "x-mcp-header": "a b"}, "the x-mcp-header of 'o.a' is not a header name"),
        ({"type": "string", "x-mcp-header": "é"}, "the x-mcp-header of 'o.a' is not a header name"),
        ({"type": "string", "x-mcp-header": None}, "the x-mcp-header of 'o.a' is not a header name"),
        ({"type": "number", "x-mcp-header": "A"}, "'o.a' has an x-mcp-header but is not a string, integer or boolean"),
        ({"type": ["string"], "x-mcp-header": "A"}, "'o.a' has an x-mcp-header but is not"),
        ({"x-mcp-header": "A"}, "'o.a' has an x-mcp-header but is not"),
        ({"type": "string", "x-mcp-header": "b"}, "is there twice"),
    ],
)  # fmt: skip
def test_a_broken_annotation_is_named(marked: dict[str, Any], wrong: str) -> None:
    other = {"type": "string", "x-mcp-header": "B"}
    with pytest.raises(ValueError, match="header") as caught:
        mirrored_in({"properties": {"o": {"properties": {"a": marked}}, "b": other}})
    assert wrong in str(caught.value)


@for_each(
    ("text", "value"),
    [
        ("", ""),
        ("plain text!", "plain text!"),
        (" x", "=?base64?IHg=?="),
        ("x ", "=?base64?eCA=?="),
        ("a\tb", "=?base64?YQli?="),
        ("é", "=?base64?w6k=?="),
        ("a\nb", "=?base64?YQpi?="),
        ("\x7f", "=?base64?fw==?="),
        ("~", "~"),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("=?base64?YQ==", "=?base64?YQ=="),
        ("\ud800", "=?base64?77+9?="),
    ],
)
def test_a_text_is_written_as_it_is_where_a_header_can_carry_it(text: str, value: str) -> None:
    assert encode_value(text) == value
    assert decode_value(value) == (text if text.isascii() or text == "é" else "\ufffd")


@for_each("broken", ["=?base64?YQ?=", "=?base64?YR==?=", "=?base64?!?=", "=?base64?/w==?=", "=?base64?é?="])
def test_what_is_no_base64_stands_for_nothing(broken: str) -> None:
    assert decode_value(broken) is None
    said = mismatch({("a",): "A"}, {"a": "x"}, {b"mcp-param-a": broken.encode("latin-1")})
    assert said == "Mcp-Param-A"


@for_each(
    ("value", "text"),
    [
        (True, "true"), (False, "false"), (0, "0"), (-7, "-7"), (1.5, "1.5"), ("", ""), ("x", "x"),
        (None, None), ([], None), ({}, None),
    ],
)  # fmt: skip
def test_what_a_header_can_say_of_a_value(value: Any, text: str | None) -> None:
    assert as_text(value) == text


@for_each(
    ("header", "value", "agree"),
    [
        ("0", 0, True), ("-0", 0, False), ("0.0", 0, True), ("-7", -7, True), ("-7.00", -7, True), ("07", 7, False),
        ("7.", 7, False), ("7.01", 7, False), ("7", 7.0, True), ("7.0", 7.0, True), ("8", 7, False), ("7e0", 7, False),
        ("1.5", 1.5, True), ("1.50", 1.5, False), ("1", 1.5, False), ("false", False, True), ("0", False, False),
        ("True", True, False), ("", "", True), ("x", "", False), ("7", "7", True), ("7.0", "7", False),
        ("inf", float("inf"), True), ("1" * 21, int("1" * 21), True),
    ],
)  # fmt: skip
def test_a_whole_number_may_be_written_with_zeros_behind_the_point(
    header: str, value: Any, agree: bool
) -> None:
    headers = {b"mcp-param-a": header.encode()}
    said = mismatch({("o", "a"): "A"}, {"o": {"a": value}}, headers)
    assert said == (None if agree else "Mcp-Param-A")


def test_every_marked_argument_is_compared_and_the_first_that_differs_is_named() -> None:
    mirrored = {("a",): "One", ("b",): "Two"}
    headers = {b"mcp-param-one": b"x", b"mcp-param-two": b"y"}
    assert mismatch(mirrored, {"a": "x", "b": "y"}, headers) is None
    assert mismatch(mirrored, {"a": "x", "b": "z"}, headers) == "Mcp-Param-Two"
    assert mismatch(mirrored, {"a": "x"}, headers) == "Mcp-Param-Two"
    assert mismatch(mirrored, {"a": "w", "b": "z"}, headers) == "Mcp-Param-One"
    assert mismatch(mirrored, None, {}) is None
    assert mismatch(mirrored, None, {b"mcp-param-one": b""}) == "Mcp-Param-One"
