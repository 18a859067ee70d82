"""What a schema of a document becomes: JSON Schema that a client can read, and that says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.junk import VALUES

from greenroom.openapi.document import read_document
from greenroom.openapi.operation import Operation
from greenroom.openapi.request import build_request

JSON = "application/json"


def operation(
    schemas: dict[str, Any], *, send: Any = None, answer: Any = None, parameters: Any = ()
) -> Operation:
    said: dict[str, Any] = {"operationId": "op", "parameters": list(parameters), "responses": {}}
    if send is not None:
        said["requestBody"] = {"content": {JSON: {"schema": send}}, "required": True}
    if answer is not None:
        said["responses"] = {"200": {"description": "", "content": {JSON: {"schema": answer}}}}
    document = {
        "openapi": "3.0.3",
        "info": {},
        "components": {"schemas": schemas},
        "paths": {"/x": {"post": said}},
    }
    return read_document(json.dumps(document).encode(), "t.json").operations["op"]


def written(schema: Any, **schemas: Any) -> dict[str, Any]:
    """What the schema becomes, as one property of a body; and its definitions."""
    found = operation(schemas, send={"type": "object", "properties": {"v": schema}}).input_schema()
    Draft202012Validator.check_schema(found)
    return {"v": found["properties"]["v"], **({"$defs": found["$defs"]} if "$defs" in found else {})}


@pytest.mark.parametrize(
    ("schema", "becomes"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "x-nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"allOf": [{"type": "string"}], "nullable": True, "description": "d"},
         {"description": "d", "anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]}),
        ({"nullable": True}, {}),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": "number", "maximum": 1, "exclusiveMaximum": False}, {"type": "number", "maximum": 1}),
        ({"type": "number", "exclusiveMaximum": 3}, {"type": "number", "exclusiveMaximum": 3}),
        ({"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]}),
        ({"type": "array", "items": []}, {"type": "array"}),
        ({"type": "file"}, {"type": "string"}),
        ({"type": "any"}, {}),
        ({"type": ["integer", "any", "integer"]}, {"type": ["integer"]}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"type": "string", "minLength": "1", "pattern": 7, "enum": [], "title": None, "format": "date"},
         {"type": "string", "format": "date"}),
        ({"type": "object", "properties": None, "additionalProperties": "no", "anyOf": {}}, {"type": "object"}),
        ({"type": "string", "xml": {}, "example": "e", "externalDocs": {}, "x-own": 1, "deprecated": True},
         {"type": "string", "deprecated": True}),
        ({"type": "object", "properties": {"example": {"type": "string"}, "xml": True, "x-a": {"enum": [1]}}},
         {"type": "object", "properties": {"example": {"type": "string"}, "xml": True, "x-a": {"enum": [1]}}}),
        ({"type": "object", "properties": {"a": {"readOnly": True}, "b": {"writeOnly": True}}, "required": ["a", "b"]},
         {"type": "object", "properties": {"b": {}}, "required": ["b"]}),
        ({"enum": [{"$ref": "#/x"}], "default": {"nullable": True}, "const": {"example": 1}},
         {"enum": [{"$ref": "#/x"}], "default": {"nullable": True}, "const": {"example": 1}}),
        (True, True),
        (7, {}),
    ],
)  # fmt: skip
def test_older_dialects_are_written_as_json_schema(schema: Any, becomes: Any) -> None:
    assert written(schema) == {"v": becomes}


def test_a_reference_stays_one_and_recursion_is_no_special_case() -> None:
    node = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#/components/schemas/Node"},
            "other": {"$ref": "#/components/schemas/Other"},
        },
    }
    found = written({"$ref": "#/components/schemas/Node"}, Node=node, Other={"type": "string"}, Unused={})
    assert found["v"] == {"$ref": "#/$defs/Node"}
    assert found["$defs"] == {
        "Node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/Node"}, "other": {"$ref": "#/$defs/Other"}},
        },
        "Other": {"type": "string"},
    }


def test_a_chain_of_references_longer_than_python_recurses() -> None:
    schemas: dict[str, Any] = {
        f"S{number}": {"properties": {"a": {"$ref": f"#/components/schemas/S{number + 1}"}}}
        for number in range(4000)
    }
    tool = operation({**schemas, "S4000": {"type": "string"}}, send={"$ref": "#/components/schemas/S0"})
    assert tool.input_schema()["$defs"]["S4000"] == {"type": "string"}


def test_definitions_of_one_name_are_told_apart_and_odd_names_are_valid() -> None:
    references = [
        "#/components/schemas/a%20b",
        "#/components/schemas/a~1b",
        "#/components/schemas/%7Bid%7D",
        "#/components/schemas/C/properties/p",
    ]
    schemas: dict[str, Any] = {
        "a b": {"type": "string"},
        "a/b": {"type": "integer"},
        "{id}": {},
        "C": {"properties": {"p": {"type": "null"}}},
    }
    found = written({"anyOf": [{"$ref": each} for each in references]}, **schemas)
    assert found["v"]["anyOf"] == [{"$ref": f"#/$defs/{name}"} for name in ("a_b", "a_b_2", "id", "p")]
    assert found["$defs"] == {
        "a_b": {"type": "string"},
        "a_b_2": {"type": "integer"},
        "id": {},
        "p": {"type": "null"},
    }


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("other.json#/A", '"other.json#/A" is outside the document, and is not read'),
        ("https://evil.test/a", '"https://evil.test/a" is outside the document, and is not read'),
        ("file:///etc/passwd", '"file:///etc/passwd" is outside the document, and is not read'),
        ("#/components/schemas/Gone", '"#/components/schemas/Gone" leads nowhere'),
        ("#/paths/0/1", '"#/paths/0/1" leads nowhere'),
        ("#anchor", '"#anchor" names no place in the document'),
        ("#", '"#" names no place in the document'),
    ],
)
def test_a_broken_reference_costs_a_part_of_the_schema_and_is_noted(reference: str, why: str) -> None:
    found = operation(
        {}, send={"type": "object", "properties": {"v": {"$ref": reference, "description": "d"}}}
    )
    assert found.input_schema()["properties"]["v"] == {"description": "d"}
    assert found.notes == [f"Part of its schema is not described: the reference {why}."]


def test_what_is_too_large_or_too_deep_is_not_described_further() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(80):
        deep = {"type": "array", "items": deep}
    for schema in (deep, {"anyOf": [{"type": "string"}] * 20_000}):
        tool = operation({}, send={"type": "object", "properties": {"v": schema}})
        assert len(json.dumps(tool.input_schema())) < 400_000
        assert tool.notes == ["Its schema is too large, and what is beyond the bounds is not described."]


@pytest.mark.parametrize(
    ("schema", "arguments", "required"),
    [
        (
            {"allOf": [{"$ref": "#/components/schemas/A"}, {"required": ["b"]}, {"properties": {"c": {}}}]},
            "abc",
            "ab",
        ),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, "a", ""),
        ({"type": "object", "properties": {"a": {}}, "nullable": True}, "a", ""),
        ({"type": ["object", "null"], "properties": {"a": {}}}, "a", ""),
    ],
)
def test_an_object_whose_names_are_known_is_arguments(schema: Any, arguments: str, required: str) -> None:
    a = {
        "type": "object",
        "properties": {"a": {}, "b": {"type": "string"}, "r": {"readOnly": True}},
        "required": ["a", "r"],
    }
    found = operation({"A": a}, send=schema).input_schema()
    assert "".join(found["properties"]) == arguments
    assert "".join(sorted(found.get("required", []))) == required
    assert found["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"oneOf": [{"properties": {"a": {}}}]},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"allOf": [{"properties": {"a": {}}}, {"anyOf": [{}]}]},
        {"allOf": [{"$ref": "#/components/schemas/Gone"}]},
        {"allOf": [{"$ref": "#/components/schemas/Self"}]},
        {"type": "object"},
        {},
    ],
    ids=str,
)
def test_any_other_body_is_one_argument(schema: Any) -> None:
    loop = {"allOf": [{"$ref": "#/components/schemas/Self"}]}
    found = operation({"Self": loop}, send=schema).input_schema()
    assert [*found["properties"]] == ["body"]
    assert found["required"] == ["body"]
    Draft202012Validator.check_schema(found)


def test_a_body_that_has_nothing_is_no_argument() -> None:
    """Stripe declares one for each GET."""
    empty = {
        "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {}}}}
    }
    document = {"openapi": "3.0.0", "paths": {"/x": {"get": {"requestBody": empty}}}}
    found = read_document(json.dumps(document).encode(), "t.json").operations["get_x"]
    assert found.input_schema() == {"type": "object", "properties": {}, "additionalProperties": False}
    assert build_request(found, {}, "http://h").body is None


def test_an_answer_that_is_no_object_is_described_as_a_member() -> None:
    cases: list[tuple[Any, Any]] = [
        ({"type": "array", "items": {"type": "string"}}, {"result"}),
        ({"$ref": "#/components/schemas/A"}, None),
        ({"allOf": [{"$ref": "#/components/schemas/A"}]}, None),
        ({"type": "object", "nullable": True}, {"result"}),
        ({}, {"result"}),
    ]
    for schema, properties in cases:
        found = operation(
            {"A": {"type": "object", "properties": {"w": {"writeOnly": True}}}}, answer=schema
        ).output_schema()
        assert found is not None
        assert found["type"] == "object"
        assert properties is None or set(found["properties"]) == properties
        Draft202012Validator.check_schema(found)
    assert operation({}).output_schema() is None


SCHEMAS = st.recursive(
    VALUES | st.sampled_from([{"$ref": "#/components/schemas/A"}, {"$ref": "x"}, {"type": "string"}, {"type": 1}]),
    lambda inner: st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "allOf", "anyOf", "required", "enum", "nullable", "additionalProperties",
             "minimum", "exclusiveMinimum", "$ref", "format", "readOnly", "if", "prefixItems", "patternProperties"]
        ),
        inner | st.dictionaries(st.text(max_size=2), inner, max_size=2) | st.lists(inner, max_size=2),
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(SCHEMAS, SCHEMAS)
@example({"allOf": [{"$ref": "#/components/schemas/A"}]}, {"patternProperties": {"?": {}}})
@example({"pattern": "("}, {})
def test_whatever_a_document_says_the_schemas_are_valid(one: Any, other: Any) -> None:
    parameters = [{"name": "q", "in": "query", "schema": other}]
    tool = operation(
        {"A": one},
        send={"allOf": [other, {"$ref": "#/components/schemas/A"}]},
        answer=one,
        parameters=parameters,
    )
    for schema in (tool.input_schema(), tool.output_schema() or {}):
        Draft202012Validator.check_schema(schema)
        json.dumps(schema)
