"""Tools as the APIs of models take them: whatever a server lists is fitted, and a call finds its way back."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.protocol.errors import UsageError
from greenroom.protocol.model_calls import ToolCall, read_calls
from greenroom.protocol.model_tools import (
    ANTHROPIC,
    OPENAI,
    FittedTool,
    allows_null,
    fit_tools,
    fitted_name,
    flat_root,
    gemini_schema,
    own_call,
    strict_schema,
)

TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


@attrs.frozen
class Tool:
    name: str
    own: dict[str, Any] = attrs.field(factory=dict[str, Any])
    description: str = ""

    @property
    def record(self) -> Mapping[str, Any]:
        return {"name": self.name, "annotations": {"readOnlyHint": True}}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}, **copy.deepcopy(self.own)}


# ---- names -----------------------------------------------------------------------------------------------------------
@given(st.lists(st.text(min_size=1, max_size=200), unique=True, max_size=30))
def test_every_name_is_one_that_every_api_takes_and_comes_back(names: list[str]) -> None:
    tools = {tool.name: tool for tool in fit_tools([Tool(name) for name in names], "anthropic")}
    assert len(tools) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in tools)
    assert {own_call(ToolCall("1", name), tools).name for name in tools} == set(names)


def test_a_name_that_fits_stays_and_one_that_does_not_says_what_it_was() -> None:
    assert fitted_name("github_create-issue") == "github_create-issue"
    assert fitted_name("dev.server") == fitted_name("dev.server")
    assert fitted_name("dev.server").startswith("dev_server_")
    assert fitted_name("dev.server") != fitted_name("dev/server")
    longest = fitted_name("x" * 65)
    assert len(longest) == 64
    assert fitted_name(longest) != longest, "another tool may be called what we call one"


# ---- schemas ---------------------------------------------------------------------------------------------------------
KEYS = st.text("abcdef$. []", min_size=1, max_size=5)
SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "integer", "description": "a number"}),
    st.just({"type": ["boolean", "null"]}),
    st.lists(st.sampled_from(["a", "b", 1, None, True]), min_size=1, unique_by=repr).map(
        lambda v: {"enum": v}
    ),
    st.sampled_from([{"const": "x"}, {"const": 3}, {"type": "null"}, {"type": "number"}]),
)


def of_objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(KEYS, inner, min_size=1, max_size=4).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties))).map(
            lambda required: {"type": "object", "properties": properties, "required": sorted(required)}
        )
    )


CLOSED: st.SearchStrategy[Any] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        of_objects(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
    ),
    max_leaves=8,
)
ODD = st.sampled_from([
    {}, True, False, None, 3, "x", {"type": "object"}, {"type": "array"}, {"type": "none"}, {"not": {"type": "string"}},
    {"type": "string", "minLength": 3, "pattern": "^a", "format": "uri", "default": "b", "title": "T", "x-y": 1},
    {"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]},
    {"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object", "patternProperties": {"a": {}}},
    {"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/gone"}, {"$ref": "http://x/y"}, {"$ref": "#"}, {"$ref": 3},
    {"allOf": [{"type": "string"}, {"minLength": 2}]}, {"allOf": [{"$ref": "#/$defs/tree"}], "description": "d"},
    {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "integer"}}}]}, {"enum": []},
    {"type": "object", "properties": {"a": {"type": "string"}}, "dependentRequired": {"a": ["b"]}}, {"type": []},
    {"if": {}, "then": {}}, {"enum": [{"a": 1}]}, {"type": ["object", "array"]}, {"anyOf": []}, {"anyOf": None},
    {"type": "integer", "minimum": 1, "multipleOf": 2}, {"type": "array", "items": {"type": "string"}, "minItems": 2},
    {"type": "object", "properties": None, "required": 3}, {"type": "object", "properties": {"a": True}},
])  # fmt: skip
TREE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}, "name": {"type": "string"}}}
ANY: st.SearchStrategy[Any] = st.recursive(
    st.one_of(SIMPLE, ODD),
    lambda inner: st.one_of(
        of_objects(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.lists(inner, max_size=2).map(lambda branches: {"oneOf": branches, "type": "object"}),
        st.lists(inner, max_size=2).map(lambda branches: {"allOf": branches}),
    ),
    max_leaves=8,
)
TOPS: st.SearchStrategy[dict[str, Any]] = st.tuples(
    st.dictionaries(KEYS, ANY, max_size=4),
    st.one_of(st.just({}), ANY.filter(lambda one: isinstance(one, dict))),
).map(
    lambda both: {
        "type": "object",
        "properties": both[0],
        "required": sorted(both[0])[:1],
        "$defs": {"tree": TREE},
        **both[1],
    }
)
AT_NO_TOP = {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const", "$ref"}


def parts(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema inside of this one, with its place."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    for key in ("properties", "$defs", "definitions"):
        for name, each in (schema.get(key) or {}).items():
            yield from parts(each, f"{place}/{key}/{name}")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, each in enumerate(schema.get(key) or ()):
            yield from parts(each, f"{place}/{key}/{number}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key], f"{place}/{key}")


def check_top(schema: dict[str, Any]) -> None:
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not AT_NO_TOP & schema.keys()
    assert set(schema.get("required", ())) <= schema["properties"].keys()


def check_strict(schema: dict[str, Any], *, openai: bool) -> None:
    """The subset, as the documentation has it and not as the code does."""
    keys = {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "items",
        "anyOf",
        "enum",
        "$ref",
    }
    keys |= {"$defs", "format", "minItems"}
    if openai:
        keys |= {
            "pattern",
            "multipleOf",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "maxItems",
        }
    check_top(schema)
    for place, part in parts(schema):
        assert isinstance(part, dict), place
        assert part.keys() <= keys, (place, part)
        assert {"type", "anyOf", "$ref"} & part.keys(), (place, part)
        if "$ref" in part:
            assert part.keys() == {"$ref"}
            assert part["$ref"] == "#" or part["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        kinds = part.get("type", [])
        assert set([kinds] if isinstance(kinds, str) else kinds) <= TYPES
        if "object" in kinds and kinds != "null":
            assert part["additionalProperties"] is False
            if openai:
                assert sorted(part["required"]) == sorted(part["properties"])
        if kinds == "array":
            assert "items" in part
        if not openai:
            assert part.get("minItems", 0) in (0, 1)
        assert all(not isinstance(value, dict | list) for value in part.get("enum", ()))


@examples(400)
@given(TOPS)
def test_any_schema_becomes_one_that_the_api_takes(own: dict[str, Any]) -> None:
    tool = Tool("t", own)
    before = copy.deepcopy(own)
    for strict in (False, True):
        for format in ("openai", "openai-responses", "anthropic"):
            [fitted] = fit_tools([tool], format, strict=strict)
            said = fitted.definition.get("function", fitted.definition)
            schema = said.get("parameters", said.get("input_schema"))
            json.dumps(fitted.definition)
            check_top(schema)
            assert bool(said.get("strict")) is fitted.is_strict
            if fitted.is_strict:
                check_strict(schema, openai=format != "anthropic")
                Draft202012Validator.check_schema(schema)
            if format == "anthropic":
                assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in schema["properties"])
                assert {fitted.keys.get(key, key) for key in schema["properties"]} == fitted.own_schema[
                    "properties"
                ].keys()
    assert own == before


GEMINI = {
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
}  # fmt: skip


@examples(400)
@example({"type": "object", "properties": {"x": False}, "required": ["x"]})
@example({"type": "object", "properties": {"x": {"allOf": [{"type": "string"}, {"$ref": 3}]}}})
@given(TOPS)
def test_gemini_gets_no_keyword_that_it_does_not_list(own: dict[str, Any]) -> None:
    [fitted] = fit_tools([Tool("t", own)], "gemini")
    schema = fitted.definition["parametersJsonSchema"]
    check_top(schema)
    for place, part in parts(schema):
        if part is True or part is False:
            assert place.endswith("additionalProperties")
            continue
        assert part.keys() <= GEMINI, (place, part)
        if "$ref" in part:
            assert all(key.startswith("$") for key in part)
        assert all(isinstance(value, str | int | float) for value in part.get("enum", ()))


def instances(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a schema of the strict subset."""
    if "anyOf" in schema:
        return st.one_of([instances(each) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema["type"]
    if isinstance(kinds, list):
        return st.one_of([instances({**schema, "type": kind}) for kind in kinds])
    plain: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "string": st.text(max_size=3),
        "integer": st.integers(),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
    }
    if kinds == "array":
        return st.lists(instances(schema["items"]), max_size=2)
    if kinds == "object":
        return st.fixed_dictionaries({key: instances(each) for key, each in schema["properties"].items()})
    return plain[kinds]


@examples(400)
@given(st.data(), of_objects(CLOSED))
def test_what_a_strict_model_says_is_what_the_servers_own_schema_takes(
    data: Any, own: dict[str, Any]
) -> None:
    [fitted] = fit_tools([Tool("t", own)], "openai", strict=True)
    assert fitted.is_strict
    said = data.draw(instances(fitted.definition["function"]["parameters"]))
    errors = list(Draft202012Validator(own).iter_errors(fitted.own_arguments(said)))
    assert not errors, errors


def test_a_null_that_means_nothing_is_left_out_and_one_that_means_something_stays() -> None:
    own = {
        "properties": {
            "a": {"type": "string"},
            "b": {"type": ["string", "null"]},
            "c": {"type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}},
        },
        "$defs": {"D": {"type": "integer"}},
    }
    [fitted] = fit_tools([Tool("t", own)], "openai", strict=True)
    assert fitted.own_arguments({"a": None, "b": None, "c": {"d": None}}) == {"b": None, "c": {}}
    [usual] = fit_tools([Tool("t", own)], "openai")
    assert usual.own_arguments({"a": None}) == {"a": None}, (
        "what a model says by itself is not ours to change"
    )


def test_branches_at_the_top_become_parameters_and_what_they_said_is_told() -> None:
    own = {
        "type": "object",
        "description": "Attach.",
        "required": ["page"],
        "properties": {"page": {"type": "string"}},
        "anyOf": [
            {"properties": {"content": {"type": "string"}}, "required": ["content"]},
            {"properties": {"url": {"type": "string"}}, "required": ["url"]},
        ],
        "not": {"required": ["x"]},
    }
    flat = flat_root(own)
    check_top(flat)
    assert flat["properties"].keys() == {"page", "content", "url"}
    assert flat["required"] == ["page"]
    assert flat["description"].startswith("Attach. (give one of these: content; url")
    assert strict_schema(flat, OPENAI) is not None


def test_branches_that_double_at_each_level_are_followed_up_to_a_bound_and_that_is_told() -> None:
    doubled: dict[str, Any] = {"d0": {"properties": {"a": {"type": "string"}}}}
    for level in range(1, 30):
        doubled[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    flat = flat_root({"$ref": "#/$defs/d12", "additionalProperties": False, "$defs": doubled})
    check_top(flat)
    assert "additionalProperties" not in flat
    assert "too many branches" in flat["description"]
    assert "too many branches" in flat_root({"$ref": "#/$defs/d29", "$defs": doubled})["description"]
    assert "description" not in flat_root({"$ref": "#/$defs/d3", "$defs": doubled})


def test_a_value_is_found_among_definitions_that_refer_to_the_same_ones_again_and_again() -> None:
    last = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a"],
    }
    doubled: dict[str, Any] = {"d0": last}
    for level in range(1, 40):  # so many that nobody could try all the ways
        doubled[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    own: dict[str, Any] = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d39"}}, "$defs": doubled}
    fitted = FittedTool("t", "t", own, {}, is_strict=True)

    assert not allows_null(own["properties"]["x"], own)
    assert fitted.own_arguments({"x": {"a": "1", "b": None}}) == {"x": {"a": "1"}}
    assert fitted.own_arguments({"x": None}) == {}
    assert fitted.own_arguments({"x": {"c": 1}}) == {"x": {"c": 1}}


def test_what_only_narrows_a_value_is_told_and_what_cannot_be_said_makes_it_not_strict() -> None:
    own = {"properties": {"a": {"type": "string", "minLength": 3, "format": "uri", "default": "abc"}}}
    said = strict_schema(flat_root(own), OPENAI)
    assert said is not None
    assert said["properties"]["a"] == {
        "type": ["string", "null"],
        "description": "(minLength: 3; format: uri; default: abc)",
    }
    anthropic = strict_schema(flat_root(own), ANTHROPIC)
    assert anthropic is not None
    assert anthropic["properties"]["a"]["format"] == "uri"
    assert anthropic["required"] == []
    for free in ({"type": "object"}, {}, {"type": "object", "additionalProperties": True}, {"not": {}}):
        assert strict_schema(flat_root({"properties": {"a": free}}), OPENAI) is None


def test_recursion_is_strict_where_the_api_takes_it() -> None:
    own = flat_root({"properties": {"root": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": TREE}})
    said = strict_schema(own, OPENAI)
    assert said is not None
    assert said["$defs"]["tree"]["required"] == ["next", "name"]
    assert strict_schema(own, ANTHROPIC) is None


@for_each(
    ("bound", "own"),
    [
        ("properties", {"properties": {f"p{n}": {"type": "string"} for n in range(5001)}}),
        ("letters", {"properties": {"p" * 120_001: {"type": "string"}}}),
        ("enums", {"properties": {"a": {"enum": list(range(1001))}}}),
        ("long enums", {"properties": {"a": {"enum": [f"{n:0100}" for n in range(251)]}}}),
    ],
)
def test_a_schema_over_a_bound_of_strict_mode_is_not_strict(bound: str, own: dict[str, Any]) -> None:
    assert strict_schema(flat_root(own), OPENAI) is None, bound


def test_a_schema_that_is_too_deep_is_not_strict() -> None:
    own: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        own = {"type": "object", "properties": {"a": own}}
    assert strict_schema(flat_root(own), OPENAI) is None
    assert strict_schema(flat_root(own), ANTHROPIC) is not None


def test_a_parameter_that_anthropic_refuses_is_renamed_and_found_again() -> None:
    own = {
        "properties": {"$top": {"type": "integer"}, "filter[id]": {"type": "string"}, "ok": {}},
        "required": ["$top"],
    }
    [fitted] = fit_tools([Tool("t", own)], "anthropic")
    schema = fitted.definition["input_schema"]
    [top] = schema["required"]
    assert top in schema["properties"]
    assert fitted.own_arguments({top: 3, "ok": 1}) == {"$top": 3, "ok": 1}
    assert "$top" in schema["properties"][top]["description"]


def test_the_definitions_have_the_form_of_their_api() -> None:
    tool = Tool("t", {"properties": {"a": {"type": "string"}}}, "Does it.")
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert [
        fit_tools([tool], format)[0].definition
        for format in ("openai", "openai-responses", "anthropic", "gemini", "mcp")
    ] == [
        {"type": "function", "function": {"name": "t", "description": "Does it.", "parameters": parameters}},
        {
            "type": "function",
            "name": "t",
            "description": "Does it.",
            "parameters": parameters,
            "strict": False,
        },
        {"name": "t", "description": "Does it.", "input_schema": parameters},
        {"name": "t", "description": "Does it.", "parametersJsonSchema": parameters},
        {"name": "t", "annotations": {"readOnlyHint": True}, "inputSchema": parameters},
    ]
    [later] = fit_tools([tool], "anthropic", defer_loading=True)
    assert later.definition["defer_loading"] is True


def test_what_an_api_does_not_have_is_said() -> None:
    for wrong in (
        {"format": "none"},
        {"format": "gemini", "strict": True},
        {"format": "openai", "defer_loading": True},
    ):
        with pytest.raises(UsageError):
            fit_tools([], **wrong)  # type: ignore[arg-type]


def test_gemini_keeps_what_it_can_say_and_tells_the_rest() -> None:
    said = gemini_schema({
        "const": "x", "minLength": 2, "description": "d", "allOf": [{"type": "string"}],
        "$defs": {"a": {"const": 1}},
    })  # fmt: skip
    assert said == {
        "description": "d (minLength: 2)", "enum": ["x"], "type": "string", "$defs": {"a": {"enum": [1]}},
    }  # fmt: skip


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_comes_from_a_model_is_read_or_passed_over(value: Any) -> None:
    for format in ("openai", "openai-responses", "anthropic", "gemini", "mcp"):
        for call in read_calls([value, {"functionCall": value}, {"name": value}], format):
            assert isinstance(call.name, str)
            assert isinstance(call.arguments, Mapping)
