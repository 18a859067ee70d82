"""What each version of the protocol knows, as a table: each row in each version, as it is where the version knows it,
and in an older form where not; and the same through the `direct` door."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support.rows import for_each
from tests.support.said import said
from tests.support.whole import direct_door, whole

from greenroom.protocol.version_differences import (
    knows_notification,
    older_answer,
    older_question,
    older_result,
    older_tool,
)

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "x://a", "name": "a"}
TEXT = {"type": "text", "text": "t"}
AUDIO_AS_TEXT = {"type": "text", "text": "[Audio content: audio/wav]"}
LINK_AS_TEXT = {"type": "text", "text": "[Resource Link: a]\nURI: x://a"}
Adapt = Callable[[Any, str], Any]


def result(value: Any, version: str) -> Any:
    return json.loads(older_result(json.dumps(value).encode(), version, newer=True))


EITHER = {"type": ["object", "array"]}


def either(value: Any, version: str) -> Any:
    """A result of a tool whose schema allows an object and something else."""
    return json.loads(older_result(json.dumps(value).encode(), version, newer=True, wrapped=EITHER))


def tool(schema: Any, version: str) -> Any:
    made = {"name": "t", "outputSchema": schema}
    return (made if version == VERSIONS[-1] else older_tool(made))["outputSchema"]


def wrapped(schema: Any, **top: Any) -> Any:
    return {
        "type": "object",
        "properties": {"result": schema},
        "required": ["result"],
        "x-fastmcp-wrap-result": True,
        **top,
    }


def sampling(value: Any, version: str) -> Any:
    return older_question("sampling/createMessage", value, version)


def form(value: Any, version: str) -> Any:
    said = older_question(
        "elicitation/create", {"requestedSchema": {"type": "object", "properties": {"x": value}}}, version
    )
    return said["requestedSchema"]["properties"]["x"]


def answer(value: Any, version: str) -> Any:
    return older_answer("sampling/createMessage", value, version)


def structured(value: Any) -> tuple[str, Adapt, Any, Any]:
    made = {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
    return "2026-07-28", result, made, {**made, "structuredContent": {"result": value}}


MESSAGE = {"role": "user", "content": [TEXT, AUDIO]}
ROWS: Mapping[str, tuple[str, Adapt, Any, Any]] = {  # since, how, what is said, what is said to older ones
    "a list": structured([1, {"a": [2]}]),
    "a number": structured(7),
    "a text": structured("x"),
    "true": structured(True),
    "null": structured(None),
    "an object of a tool that might have answered with a list": (
        "2026-07-28",
        either,
        {"content": [], "structuredContent": {"a": 1}, "_meta": {"b": 2}},
        {"content": [], "structuredContent": {"result": {"a": 1}}, "_meta": {"b": 2}},
    ),
    "no structure of such a tool": ("2024-11-05", either, {"content": [TEXT], "isError": True}, None),
    "an object": (
        "2024-11-05",
        result,
        {"content": [], "structuredContent": {"structuredContent": [1], "type": "audio"}},
        None,
    ),
    "audio": ("2025-03-26", result, {"content": [TEXT, AUDIO]}, {"content": [TEXT, AUDIO_AS_TEXT]}),
    "a link": ("2025-06-18", result, {"content": [LINK]}, {"content": [LINK_AS_TEXT]}),
    "a link in a prompt": (
        "2025-06-18",
        result,
        {"messages": [{"role": "user", "content": LINK}, {"role": "user", "content": TEXT}]},
        {"messages": [{"role": "user", "content": LINK_AS_TEXT}, {"role": "user", "content": TEXT}]},
    ),
    "words like these in a text": (
        "2024-11-05",
        result,
        {"content": [{"type": "text", "text": '"audio" "structuredContent": [1] {"type":"audio"}'}]},
        None,
    ),
    "a form with titles": (
        "2025-11-25",
        form,
        {"type": "string", "title": "X", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]},
        {"type": "string", "title": "X", "enum": ["a", "b"], "enumNames": ["A", "b"]},
    ),
    "several choices": (
        "2025-11-25",
        form,
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, "minItems": 1},
        {"type": "string", "description": "(one or more of: a, b)"},
    ),
    "several untitled choices": (
        "2025-11-25",
        form,
        {"type": "array", "items": {"type": "string", "enum": ["a"]}, "title": "X", "description": "D"},
        {"type": "string", "title": "X", "description": "D (one or more of: a)"},
    ),
    "a plain form": ("2024-11-05", form, {"type": "string", "enum": ["a"], "enumNames": ["A"]}, None),
    "one block of an answer in a list": (
        "2025-11-25",
        answer,
        {"role": "assistant", "model": "m", "content": [TEXT]},
        {"role": "assistant", "model": "m", "content": TEXT},
    ),
    "several blocks of an answer": (
        "2025-11-25",
        answer,
        {"role": "assistant", "model": "m", "content": [TEXT, TEXT]},
        {"role": "assistant", "model": "m", "content": {"type": "text", "text": "t\nt"}},
    ),
    "an output schema of an object": ("2024-11-05", tool, {"type": "object", "$defs": {}}, None),
    "an output schema of a list": ("2026-07-28", tool, {"type": "array"}, wrapped({"type": "array"})),
    "an output schema of anything": ("2026-07-28", tool, {}, wrapped({})),
    "an output schema of an object or a list": (
        "2026-07-28", tool, {"type": ["object", "array"], "properties": {}},
        wrapped({"type": ["object", "array"], "properties": {}}),
    ),
    "an output schema of members without a type": (
        "2026-07-28", tool, {"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}},
    ),
    "an output schema that refers to an object": (
        "2026-07-28", tool,
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "object"}}},
        {"type": "object", "$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "object"}}},
    ),
    "an output schema that refers to itself": ("2026-07-28", tool, {"$ref": "#"},
        wrapped({"$ref": "#/properties/result"})),
    "an output schema with an id": (
        "2026-07-28", tool,
        {"$id": "x://a", "type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#"}}},
        wrapped({"$id": "x://a", "type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#"}}}),
    ),
}  # fmt: skip


@for_each("version", VERSIONS)
@for_each("row", ROWS)
def test_each_version_is_told_what_it_knows(row: str, version: str) -> None:
    since, adapt, value, older = ROWS[row]
    assert adapt(value, version) == (value if version >= since else older)


TREE = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}
ROWS_OF = {"type": "array", "items": {"type": "integer"}}


@for_each(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/row"}, "$defs": {"row": ROWS_OF}}, [[1]], [["x"]]),
        (
            {"type": "array", "items": {"$ref": "#/definitions/row"}, "definitions": {"row": ROWS_OF}},
            [[1]],
            [["x"]],
        ),
        (TREE, [1, [2, [3]]], [1, ["x"]]),
        (
            {"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/row"}]},
             "row": {"type": "array", "items": {"$ref": "#"}}}},
            [[None]],
            [[1]],
        ),
        ({"oneOf": [{"type": "object", "required": ["a"]}, ROWS_OF]}, {"a": 1}, {"b": 1}),
        ({"type": ["object", "null"], "properties": {"$ref": {"$ref": "#"}}}, {"$ref": None}, {"$ref": 1}),
        (
            {"type": "array", "items": {"$ref": "#/prefixItems/0"}, "prefixItems": [{"const": {"$ref": "#"}}]},
            [{"$ref": "#"}, {"$ref": "#"}],
            [{"$ref": "#"}, 1],
        ),
        ({"$id": "x://a", "type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": ROWS_OF}}, [[1]], [1]),
    ],
)  # fmt: skip
def test_a_wrapped_result_is_held_against_what_its_server_meant(schema: Any, good: Any, bad: Any) -> None:
    older = tool(schema, "2025-11-25")
    validator = Draft202012Validator(older)
    Draft202012Validator.check_schema(older)
    for value, is_good in ((good, True), (bad, False)):
        assert Draft202012Validator(schema).is_valid(value) is is_good
        assert (
            validator.is_valid(either({"structuredContent": value}, "2025-11-25")["structuredContent"])
            is is_good
        )


def test_null_of_an_older_server_means_that_there_is_none() -> None:
    said = b'{"content":[],"structuredContent":null}'
    assert json.loads(older_result(said, "2025-11-25")) == {"content": []}
    assert json.loads(older_result(said, "2025-11-25", wrapped={}))["structuredContent"] == {"result": None}


@for_each(
    ("schema", "is_null"),
    [
        ({"type": "null"}, True),
        ({}, True),
        ({"anyOf": [{"type": "object"}, {"$ref": "#/$defs/none"}], "$defs": {"none": {"enum": [1, None]}}}, True),
        ({"allOf": [{"type": ["array", "null"]}, True]}, True),
        ({"type": "array"}, False),
        ({"oneOf": [{"type": "object"}, {"type": "array"}]}, False),
        ({"enum": [1, 2]}, False),
        ({"const": 1}, False),
        ({"allOf": [{}, {"type": "string"}]}, False),
        ({"$ref": "#"}, False),
        (
            {
                "$ref": "#/$defs/0",
                "$defs": {
                    **{f"{n}": {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(40)},
                    "40": {},
                },
            },
            True,
        ),
    ],
)  # fmt: skip
def test_null_that_an_sdk_has_left_out_is_said_where_the_schema_allows_it(schema: Any, is_null: bool) -> None:
    def told(said: bytes, *, newer: bool = True) -> Any:
        return json.loads(older_result(said, "2025-11-25", newer=newer, wrapped=schema))

    assert told(b'{"content":[]}') == {
        "content": [],
        **({"structuredContent": {"result": None}} if is_null else {}),
    }
    assert told(b'{"content":[]}', newer=False) == {"content": []}
    assert told(b'{"content":[],"isError":true}') == {"content": [], "isError": True}


@for_each("version", VERSIONS)
def test_each_block_of_a_question_is_a_message_where_a_version_knows_one_only(version: str) -> None:
    one, two = {"role": "user", "content": TEXT}, {"role": "user", "content": AUDIO}
    told = sampling({"messages": [MESSAGE, one], "maxTokens": 9}, version)
    if version < "2025-03-26":
        two = {"role": "user", "content": AUDIO_AS_TEXT}
    messages = [MESSAGE, one] if version >= "2025-11-25" else [one, two, one]
    assert told == {"messages": messages, "maxTokens": 9}


@for_each("version", VERSIONS)
def test_notifications_that_a_version_does_not_have_are_not_sent(version: str) -> None:
    for method in ("notifications/elicitation/complete", "notifications/tasks/status"):
        assert knows_notification(method, version) == (version >= "2025-11-25")
    assert knows_notification("notifications/message", version)


def test_the_bytes_of_a_large_answer_pass() -> None:
    for value in ('{"a":1}', '{"a":{"structuredContent":{}}}'):
        large = b'{"content":[{"type":"text","text":"%b"}],"structuredContent":%b}' % (
            b"x" * 3_000_000,
            value.encode(),
        )
        assert older_result(large, "2025-11-25") is large
    listed = b'{"content":[{"type":"text","text":"%b"}],"structuredContent":[1]}' % (b"x" * 3_000_000)
    told = json.loads(older_result(listed, "2025-11-25"))
    assert told == {**json.loads(listed), "structuredContent": {"result": [1]}}


# ---- through the door ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_the_direct_door_tells_each_client_what_its_version_knows(tmp_path: Path, version: str) -> None:
    results: dict[str, Any] = {
        "list": {
            "content": [{"type": "text", "text": "[1]"}],
            "structuredContent": [1],
            "resultType": "complete",
        },
        "either": {"content": [TEXT], "structuredContent": {"a": 1}, "resultType": "complete"},
        "audio": {"content": [AUDIO, LINK], "resultType": "complete"},
    }
    schemas: dict[str, Any] = {
        "either": {"outputSchema": {"oneOf": [{"type": "object"}, {"type": "array"}]}},
        "list": {"outputSchema": {"type": "array"}},
    }
    answers = {
        "tools/list": {
            "tools": [
                {"name": name, "inputSchema": {"type": "object"}, **schemas.get(name, {})} for name in results
            ]
        },
        "prompts/list": {"prompts": [{"name": "p"}]},
        "prompts/get p": {"messages": [{"role": "user", "content": LINK}]},
        **{f"tools/call {name}": each for name, each in results.items()},
    }
    modern = version == VERSIONS[-1]
    server = said(tmp_path, "new", answers, "--modern")
    with direct_door(tmp_path, {"new": server}, modern=modern) as door:
        door.version = version
        hello = door.initialize()
        assert modern or hello["protocolVersion"] == version
        door.wait(lambda: len(door.list_all("tools")) == 3, "the catalogue")
        shown = {each["name"]: each.get("outputSchema") for each in door.list_all("tools")}
        for name in ("list", "either"):
            value, schema = results[name]["structuredContent"], schemas[name]["outputSchema"]
            told = door.call(f"new_{name}")["result"]
            assert told["structuredContent"] == (value if modern else {"result": value})
            assert told["content"] == results[name]["content"]
            assert shown[f"new_{name}"] == (schema if modern else wrapped(schema))
        blocks = door.call("new_audio")["result"]["content"]
        assert blocks[0] == (AUDIO if version >= "2025-03-26" else AUDIO_AS_TEXT)
        assert blocks[1]["type"] == ("resource_link" if version >= "2025-06-18" else "text")
        [message] = door.result("prompts/get", {"name": "new_p"})["messages"]
        assert message["content"]["type"] == ("resource_link" if version >= "2025-06-18" else "text")


def test_a_question_reaches_an_older_client_in_its_own_form(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]}},
    }
    params = {"message": "which", "requestedSchema": schema}
    with direct_door(tmp_path, {"old": whole("old")}) as door:
        door.version = "2025-06-18"
        door.answers["elicitation/create"] = lambda _params: {"result": {"action": "decline"}}
        door.initialize(elicitation={})
        door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        door.call("old_ask", {"method": "elicitation/create", "params": params})
        [asked] = (each for each in door.asked if each["method"] == "elicitation/create")
        field = asked["params"]["requestedSchema"]["properties"]["x"]
        assert field == {"type": "string", "enum": ["a"], "enumNames": ["A"]}
