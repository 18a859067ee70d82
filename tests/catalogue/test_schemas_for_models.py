"""Whatever schema a server lists, what leaves us is valid JSON Schema 2020-12 and inside what each API documents: in
the forms of `tools_for`, as frameworks get it, and in the list of the `direct` door."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support import in_real_time
from tests.support.profiles import examples
from tests.support.rows import for_each
from tests.support.said import said
from tests.support.whole import direct_door

from greenroom import Greenroom, Target
from greenroom.protocol.model_calls import Format
from greenroom.protocol.model_tools import fit_tools

TYPES = ["object", "array", "string", "integer", "number", "boolean", "null"]
# What was wrong, and what is to be left of it at this place.
MENDED: Mapping[str, tuple[Any, Any]] = {
    "array": ({"type": "array"}, {"type": "array", "items": {}}),
    "tuple": (
        {"type": "array", "items": [{"type": "int"}, {}]},
        {"type": "array", "items": {}, "prefixItems": [{"type": "integer"}, {}]},
    ),
    "closed": (
        {"type": "array", "items": [{}], "additionalItems": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}, "prefixItems": [{}]},
    ),
    "no_items": ({"type": "array", "items": []}, {"type": "array", "items": {}}),
    "any": ({"type": "any"}, {}),
    "float": ({"type": "float", "minimum": "0.5"}, {"type": "number", "minimum": 0.5}),
    "shouted": ({"type": "STRING"}, {"type": "string"}),
    "null": ({"type": None}, {}),
    "either": ({"type": ["str", None]}, {"type": ["string", "null"]}),
    "list_of": ({"type": "string[]"}, {"type": "array", "items": {"type": "string"}}),
    "odd": ({"type": "Foo"}, {"description": '(type: "Foo")'}),
    "draft_3": ({"type": [{"type": "int"}, "null"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "above": ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
    "not_above": ({"minimum": 3, "exclusiveMinimum": False}, {"minimum": 3}),
    "beneath": ({"exclusiveMaximum": True}, {}),
    "no_properties": ({"type": "object", "properties": None}, {"type": "object"}),
    "php": ({"type": "object", "properties": []}, {"type": "object", "properties": {}}),
    "named": (
        {"type": "object", "properties": [{"name": "x", "type": "bool"}]},
        {"type": "object", "properties": {"x": {"type": "boolean"}}},
    ),
    "told": ({"description": None, "title": 3}, {}),
    "lines": ({"description": ["one", "two"]}, {"description": "one two"}),
    "one": ({"enum": "x"}, {"enum": ["x"]}),
    "twice": ({"enum": ["a", "a", 1, True, 1.0]}, {"enum": ["a", 1, True]}),
    "nothing": ({"enum": []}, {}),
    "long": ({"minLength": "1", "maxLength": -1, "minItems": 1.5}, {"minLength": 1}),
    "text": ("string", {"type": "string"}),
    "words": ("who it is for", {"description": "who it is for"}),
    "number": (7, {}),
    "list": (["string", "null"], {"type": ["string", "null"]}),
    "nowhere": ({"$ref": "#/$defs/gone"}, {"description": "(as #/$defs/gone)"}),
    "elsewhere": ({"$ref": "#/components/schemas/kept"}, {"$ref": "#/$defs/kept"}),
    "odd_ref": ({"$ref": 3}, {}),
    "flags": ({"uniqueItems": "true", "readOnly": None, "deprecated": 1}, {"uniqueItems": True}),
    "branches": ({"anyOf": [], "allOf": None, "oneOf": {"type": "int"}}, {"oneOf": [{"type": "integer"}]}),
    "pattern": ({"pattern": "[a-"}, {"description": '(pattern: "[a-")'}),
    "patterns": ({"patternProperties": {"(": {}, "a": {}}}, {"patternProperties": {"a": {}}}),
    "needed": ({"required": True}, {}),
    "text_needed": ({"type": "object", "required": "x"}, {"type": "object", "required": ["x"]}),
    "inner": (
        {"type": "object", "properties": {"x": {"type": "string", "required": True}, "y": {"required": False}}},
        {"type": "object", "properties": {"x": {"type": "string"}, "y": {}}, "required": ["x"]},
    ),
    "examples": ({"examples": "x"}, {"examples": ["x"]}),
    "depends": ({"dependentRequired": {"a": "b", "c": 3}}, {"dependentRequired": {"a": ["b"]}}),
    "ids": ({"$id": "#x", "$anchor": "1 2", "$comment": 3}, {}),
    "recursive": ({"$recursiveAnchor": True}, {}),
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: wrong for name, (wrong, _) in MENDED.items()},
    "$defs": {"kept": {"type": "string"}},
}
FORMATS: tuple[Format, ...] = ("openai", "openai-responses", "anthropic", "gemini", "mcp")


def target(schema: Any) -> Target:
    record = {"name": "t", "inputSchema": schema}
    return Target("t", "s", "tool", "t", record, "", schema if isinstance(schema, dict) else None)


def parts(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema inside of this one, with its place."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    inside = cast("dict[str, Any]", schema)
    for key in ("properties", "$defs", "patternProperties", "dependentSchemas"):
        for name, each in inside.get(key, {}).items():
            yield from parts(each, f"{place}/{key}/{name}")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, each in enumerate(inside.get(key, ())):
            yield from parts(each, f"{place}/{key}/{number}")
    for key in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        if key in inside:
            yield from parts(inside[key], f"{place}/{key}")


def check(schema: dict[str, Any], *, for_api: bool) -> None:
    """What every API and every client takes."""
    json.dumps(schema)
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    for place, part in parts(schema):
        if isinstance(part, bool):
            continue
        kinds = part.get("type", ())
        if "array" in (kinds if isinstance(kinds, list) else [kinds]):
            assert "items" in part, place
        assert "required" not in part or all(isinstance(name, str) for name in part["required"])
        reference = part.get("$ref")
        if for_api and reference is not None:
            assert reference == "#" or reference.removeprefix("#/$defs/") in schema["$defs"], place
    if for_api:
        assert isinstance(schema["properties"], dict)
        assert not {"anyOf", "oneOf", "allOf", "not", "if", "enum", "const", "$ref"} & schema.keys()


GEMINI = {
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
}  # fmt: skip


def check_gemini(schema: dict[str, Any]) -> None:
    for place, part in parts(schema):
        if not isinstance(part, bool):
            assert part.keys() <= GEMINI, place
            assert "$ref" not in part or all(key.startswith("$") for key in part), place
            assert all(
                isinstance(value, str | int | float) and not isinstance(value, bool)
                for value in part.get("enum", ())
            )
    # A circle of references only below parameters that are not required.
    definitions: dict[str, Any] = {f"#/$defs/{name}": each for name, each in schema.get("$defs", {}).items()}
    definitions["#"] = {key: value for key, value in schema.items() if key != "$defs"}
    must = {name: set(_required_references(each)) for name, each in definitions.items()}
    for name in must:
        seen, rest = set[str](), [name]
        while rest:
            fresh = must[rest.pop()] - seen
            assert name not in fresh, f"{name} must have itself in it"
            seen |= fresh
            rest += fresh


def _required_references(node: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    said = cast("dict[str, Any]", node)
    if "$ref" in said:
        yield said["$ref"]
    for name in said.get("required", ()):
        yield from _required_references(said.get("properties", {}).get(name))
    for key in ("items", "additionalProperties"):
        yield from _required_references(said.get(key))
    for key in ("anyOf", "oneOf", "prefixItems"):
        for each in said.get(key, ()):
            yield from _required_references(each)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 5), st.floats(-2, 2), st.text("ab$[]{}()*+\\", max_size=4),
        st.sampled_from([*TYPES, "float", "STRING", "any", "#", "#/$defs/a", "#/$defs/b~1c", "x.json"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=4,
)  # fmt: skip
KEYWORDS = [
    "type", "items", "prefixItems", "additionalItems", "properties", "required", "enum", "const", "anyOf", "oneOf",
    "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$defs",
    "definitions", "$id", "$anchor", "$schema", "$comment", "description", "title", "default", "examples", "format",
    "pattern", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minProperties", "maxProperties", "patternProperties",
    "additionalProperties", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains",
    "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "contentSchema", "deprecated",
    "readOnly", "writeOnly", "nullable", "$vocabulary",
]  # fmt: skip
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=4),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(KEYWORDS), inner, st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=2)).map(
            lambda three: {**three[2], three[0]: three[1]}
        ),
        st.tuples(
            st.sampled_from(["properties", "$defs", "definitions"]),
            st.dictionaries(st.sampled_from(["a", "b/c"]), inner),
            st.lists(st.sampled_from(["a", "b/c"]), unique=True),
        ).map(lambda three: {three[0]: three[1], "required": three[2]}),
        st.tuples(st.sampled_from(["anyOf", "oneOf", "allOf", "items"]), st.lists(inner, max_size=2)).map(
            lambda pair: {pair[0]: pair[1]}
        ),
    ),
    max_leaves=8,
)  # fmt: skip
TREE = {
    "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
    "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#"}},
    "required": ["a", "b"],
}


@examples(750)
@example(SCHEMA)
@example(TREE)
@example(
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}}}
)
@example(
    {
        "properties": {
            "a": {"type": "array", "items": [{"pattern": r"\p{L}"}]},
            "b": {"$ref": "#/properties/a/items/0"},
        }
    }
)
@example({"properties": {"a": {"$ref": "#/anyOf/0"}}, "anyOf": [{"properties": {"b": {}}}]})
@example({"properties": {"a": {"type": "array", "items": [False]}}})
@given(SCHEMAS)
def test_every_schema_that_leaves_us_is_valid_and_what_each_api_documents(own: dict[str, Any]) -> None:
    before = copy.deepcopy(own)
    tool = target(own)
    check(tool.schema(), for_api=False)
    for format in FORMATS:
        for strict in (False, True) if format not in ("gemini", "mcp") else (False,):
            [fitted] = fit_tools([tool], format, strict=strict)
            definition = fitted.definition.get("function", fitted.definition)
            [schema] = [
                definition[key]
                for key in ("parameters", "parametersJsonSchema", "input_schema", "inputSchema")
                if key in definition
            ]
            check(schema, for_api=format != "mcp")
            if format == "gemini":
                check_gemini(schema)
    assert own == before, "what a server listed is never changed"


@for_each("name", MENDED)
def test_each_is_mended_by_its_meaning_at_any_depth(name: str) -> None:
    wrong, meant = MENDED[name]
    deep = {"type": "object", "properties": {"in": {"type": "array", "items": {"properties": {name: wrong}}}}}
    for schema in ({"type": "object", "properties": {name: wrong}}, deep):
        tool = target({**schema, "$defs": SCHEMA["$defs"]})
        inner = tool.schema()["properties"]
        inner = inner if name in inner else inner["in"]["items"]["properties"]
        assert inner[name] == meant
        assert tool.faults
        assert all(name in fault for fault in tool.faults), "it is said where it was"


@for_each(
    "fine",
    [
        {"type": "object", "properties": {"a": {"type": ["string", "null"], "pattern": "^[[a]--&&b]$"}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#b"}},
            "$defs": {"x": {"$anchor": "b", "minimum": 1.5}},
        },
        {"type": "object", "$defs": {"n": {"$id": "http://x/n", "$ref": "#/$defs/m", "$defs": {"m": True}}}},
        {"type": "object", "properties": {"type": {"enum": ["type", 1, None]}, "required": {"const": True}}},
    ],
)
def test_what_is_valid_is_left_alone(fine: dict[str, Any]) -> None:
    assert target(fine).faults == ()
    assert {"properties": {}, **fine} == target(fine).schema()


@in_real_time
async def test_each_door_shows_the_mended_schema_and_says_what_was_wrong(tmp_path: Path) -> None:
    server = said(tmp_path, "odd", {"tools/list": {"tools": [{"name": "t", "inputSchema": SCHEMA}]}})
    async with Greenroom.open({"mcpServers": {"odd": server}}) as room:
        await room.connect("odd")
        [tool] = room.tools()
        for format in FORMATS:
            [definition] = room.tools_for(format).definitions
            check_any(definition)
        assert tool.schema() == tool.to_mcp().input_schema
        told = room.describe(tool.name)
        assert told.faults == tool.faults
        [row] = (row for row in room.status() if row.server == "odd")
        assert any("inputSchema.properties.float.type" in fault for fault in row.faults)
        assert any('type "float" is not a type' in fault for fault in tool.faults)


def check_any(definition: Mapping[str, Any]) -> None:
    for each in (definition, definition.get("function", {})):
        for key in ("parameters", "parametersJsonSchema", "input_schema", "inputSchema"):
            if key in each:
                check(each[key], for_api=key != "inputSchema")
                return
    raise AssertionError(definition)


def test_the_direct_door_lists_it_mended(tmp_path: Path) -> None:
    server = said(tmp_path, "odd", {"tools/list": {"tools": [{"name": "t", "inputSchema": SCHEMA}]}})
    with direct_door(tmp_path, {"odd": server}) as door:
        door.initialize()
        door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        [tool] = door.list_all("tools")
        check(tool["inputSchema"], for_api=False)
        assert re.search("integer", json.dumps(tool["inputSchema"]["properties"]["tuple"]))
