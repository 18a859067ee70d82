"""What a schema of a document becomes: JSON Schema that a client can read, and that says the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.junk import VALUES
from tests.support.rows import for_each

from greenroom.openapi.answer import to_result
from greenroom.openapi.document import read_document, read_root
from greenroom.openapi.operation import Operation
from greenroom.openapi.request import build_request
from greenroom.openapi.schemas import MOST
from greenroom.protocol.bounds import ITEM_PARTS, is_too_deep

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
    found = operation(schemas, send={"type": "object", "properties": {"v": schema}}).listed()[0][
        "inputSchema"
    ]
    Draft202012Validator.check_schema(found)
    return {"v": found["properties"]["v"], **({"$defs": found["$defs"]} if "$defs" in found else {})}


@for_each(
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
        for number in range(1_100)
    }
    tool = operation({**schemas, "S1100": {"type": "string"}}, send={"$ref": "#/components/schemas/S0"})
    assert tool.listed()[0]["inputSchema"]["$defs"]["S1100"] == {"type": "string"}


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


@for_each(
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
    assert found.listed()[0]["inputSchema"]["properties"]["v"] == {"description": "d"}
    assert found.notes == [f"Part of its schema is not described: the reference {why}."]


TOO_LARGE = "Its schema is too large, and what is beyond the bounds is not described."


def nested(levels: int) -> Any:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        deep = {"type": "object", "properties": {"a": deep}, "nullable": True}
    return deep


@for_each(
    "schema",
    [
        nested(80),
        {"anyOf": [{"type": "string"}] * 20_000},
        {"enum": [f"value {number}" for number in range(50_000)]},
        {"type": "string", "default": "x" * MOST},
        {"type": "array", "default": [[]] * 20_000},
        {"type": "array", "default": [[[[[[[[[[1]]]]]]]]]]},
        {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(20_000)}},
        {"type": "object", "properties": {"p" * MOST: {}, "q": {}}},
        {"type": "string", "description": "[" * MOST, "title": "t" * MOST, "enum": ["["] * MOST},
    ],
    ids=lambda schema: f"{str(schema)[:40]}",
)
def test_what_is_too_large_or_too_deep_is_not_described_further(schema: Any) -> None:
    """So that whoever lists tools takes it: see the bounds of an item."""
    tool = operation(
        {}, send={"type": "object", "properties": {"v": schema, "w": {"type": "string"}}}, answer=schema
    )
    assert tool.listed()[0]["inputSchema"]["properties"]["w"] == {"type": "string"}
    assert tool.notes == [TOO_LARGE]
    listed = tool.listed(with_output=True)[0]
    said = json.dumps(listed)
    assert len(said) < 2 * MOST
    assert said.count("{") + said.count("[") < ITEM_PARTS
    assert not is_too_deep(said.encode(), listed)
    Draft202012Validator.check_schema(listed["inputSchema"])


class Counted(dict[str, Any]):
    """Counts what is looked up in it."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return super().__getitem__(name)


def of_everybody(size: int) -> tuple[Operation, Counted]:
    """An operation whose body and answer name all schemas of a document: each has all others within a few steps."""
    schemas = Counted({
        f"S{number}": {
            "allOf": [
                {"$ref": f"#/components/schemas/S{(number + 1) % size}"},
                {
                    "type": "object",
                    "description": "d" * 100,
                    "properties": {
                        f"p{step}": {"$ref": f"#/components/schemas/S{number * step % size}"} for step in range(2, 22)
                    },
                },
            ]
        }
        for number in range(size)
    })  # fmt: skip
    content = {JSON: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/S1"}}}}
    said = {
        "operationId": "op",
        "requestBody": {"content": content},
        "responses": {"200": {"content": content}},
    }
    root: dict[str, Any] = {"paths": {"/x": {"post": said}}, "components": {"schemas": schemas}}
    return read_root(root, "3.0.3", "t.json").operations["op"], schemas


def test_a_schema_costs_what_it_says_and_not_what_the_document_has() -> None:
    looks = set[int]()
    for size in (2_000, 20_000):
        tool, schemas = of_everybody(size)
        assert len(json.dumps(tool.listed()[0]["inputSchema"])) < 1.2 * MOST
        answer = tool.output_schema()
        assert len(json.dumps(answer)) < 0.4 * MOST
        assert tool.notes == [TOO_LARGE]
        looks.add(schemas.looks)
    assert max(looks) < 1.5 * min(looks)
    assert max(looks) < 20_000


def test_what_is_nearest_is_told_first_and_what_is_cut_says_so() -> None:
    tool, _ = of_everybody(2_000)
    found = tool.listed(most=4_000)[0]["inputSchema"]
    assert found["properties"]["body"]["items"] == {"$ref": "#/$defs/S1"}
    assert found["$defs"]["S1"]["allOf"][0] == {"$ref": "#/$defs/S2"}
    assert {"description": "Not shown: too large"} in found["$defs"].values()
    assert len(json.dumps(found)) < 5_000


@for_each(
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
    found = operation({"A": a}, send=schema).listed()[0]["inputSchema"]
    assert "".join(found["properties"]) == arguments
    assert "".join(sorted(found.get("required", []))) == required
    assert found["additionalProperties"] is False


@for_each(
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
    found = operation({"Self": loop}, send=schema).listed()[0]["inputSchema"]
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
    assert found.listed()[0]["inputSchema"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert build_request(found, {}, "http://h").body is None


@for_each(
    ("schema", "answers", "others"),
    [
        ({"type": "array", "items": {"type": "string"}}, [["a"]], [[1], {}, "a"]),
        ({"type": "string"}, ["a"], [{}, 1]),
        ({"$ref": "#/components/schemas/A"}, [{"a": 1}], [{}, [], None]),
        ({"allOf": [{"$ref": "#/components/schemas/A"}]}, [{"a": 1}], [{}, []]),
        ({"type": "object", "nullable": True}, [{}, None], []),
        ({"$ref": "#/components/schemas/A", "nullable": True}, [{"a": 1}, None], [{}, 1]),
        ({"oneOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}]}, [{"a": 1}, {"b": 1}],
         [{}, 1]),
        ({"anyOf": [{"$ref": "#/components/schemas/A"}, {"type": "array"}]}, [{"a": 1}, []], [{}, 1]),
        ({"$ref": "#/components/schemas/Loop"}, [{"a": 1}], []),
        ({}, [{}, [], 1, None, {"a": 1}], []),
        (True, [{}, 1], []),
    ],
    ids=str,
)  # fmt: skip
def test_the_schema_of_a_result_takes_what_is_made_of_an_answer(
    schema: Any, answers: list[Any], others: list[Any]
) -> None:
    schemas = {
        "A": {"type": "object", "properties": {"w": {"writeOnly": True}, "a": {}}, "required": ["a"]},
        "B": {"type": "object", "properties": {"b": {}}, "required": ["b"]},
        "Loop": {"anyOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/Loop"}]},
    }
    tool = operation(schemas, answer=schema)
    found = tool.output_schema()
    assert found is not None
    assert found["type"] == "object"
    Draft202012Validator.check_schema(found)
    for fits, values in ((True, answers), (False, others)):
        for value in values:
            result = to_result(tool, 200, {"Content-Type": JSON}, json.dumps(value).encode())
            assert Draft202012Validator(found).is_valid(result["structuredContent"]) == fits, value


def test_an_answer_without_a_schema_has_none() -> None:
    assert operation({}).output_schema() is None


@for_each("pattern", ["[[a]b]", "[a--b]", "(?i)a", "(?i:a)", "(", "a" * 3_000, "[\\d&&[^5]]"])
def test_a_pattern_that_clients_cannot_read_is_left_out(pattern: str) -> None:
    assert written({"type": "string", "pattern": pattern}) == {"v": {"type": "string"}}
    said = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    assert written(said) == {"v": {"type": "object", "patternProperties": {}}}


@for_each(
    "pattern", [r"^[\[\]]+$", r"\[a[b]", r"[a[b]", r"[^\w[\]]", "(?:a|b)(?=c)(?!d)(?<=e)", "[a-z-]--&&"]
)
def test_other_patterns_stay(pattern: str) -> None:
    assert written({"type": "string", "pattern": pattern}) == {"v": {"type": "string", "pattern": pattern}}


def test_properties_of_one_name_in_many_parts_stay_flat() -> None:
    parts = [{"properties": {"a": {"minLength": number}}} for number in range(200)]
    found = operation({}, send={"allOf": parts}).listed()[0]["inputSchema"]
    assert len(found["properties"]["a"]["allOf"]) == 200


def test_an_object_of_very_many_names_is_one_argument() -> None:
    for count, arguments in ((1_000, 1_000), (1_001, 1)):
        body = {"type": "object", "properties": {f"p{number}": {} for number in range(count)}}
        assert len(operation({}, send=body).inputs.arguments) == arguments


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
    for schema in (tool.listed()[0]["inputSchema"], tool.output_schema() or {}):
        Draft202012Validator.check_schema(schema)
        json.dumps(schema)


KINDS = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"$ref": "#/components/schemas/A"},
                         {"$ref": "#/components/schemas/B"}, {"$ref": "#/components/schemas/Gone"},
                         {"type": "string", "pattern": "[[a]"}])  # fmt: skip
STRICT = st.recursive(
    KINDS,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
        st.fixed_dictionaries({"type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=2),
                               "items": inner}),
        st.fixed_dictionaries({"type": st.just("array"), "contains": inner, "maxContains": st.just(1)}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
             "additionalProperties": inner | st.booleans()}
        ),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2),
                               "unevaluatedProperties": st.just(False)}),
        st.fixed_dictionaries({"patternProperties": st.dictionaries(st.sampled_from(["a", "[[b]"]), inner, max_size=2),
                               "additionalProperties": st.booleans()}),
    ),
    max_leaves=10,
)  # fmt: skip
GIVEN = st.recursive(
    st.sampled_from(["x", 1, None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)


@given(STRICT, STRICT, GIVEN, st.integers(0, 700))
@example({"oneOf": [{"$ref": "#/components/schemas/A"}, {"type": "integer"}]}, {"type": "string"}, 1, 60)
def test_a_shortened_schema_refuses_nothing_that_the_whole_one_takes(
    one: Any, other: Any, value: Any, most: int
) -> None:
    a = {"type": "object", "properties": {"a": one, "b": other}}
    tool = operation(
        {"A": a, "B": {"type": "string"}}, parameters=[{"name": "v", "in": "query", "schema": one}]
    )
    whole, short = tool.listed()[0]["inputSchema"], tool.listed(most=most)[0]["inputSchema"]
    if Draft202012Validator(whole).is_valid({"v": value}):
        assert Draft202012Validator(short).is_valid({"v": value})
