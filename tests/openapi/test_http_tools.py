"""Tools written by hand: what they send, and what is wrong with others, by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.junk import VALUES
from tests.support.rows import for_each

from greenroom.openapi.answer import to_result
from greenroom.openapi.http_tools import read_tools
from greenroom.openapi.operation import Operation
from greenroom.openapi.request import ArgumentError, build_request

WHERE = "c.json: mcpServers.x.http.tools"


def tool(**said: Any) -> Operation:
    found, problems = read_tools({"t": said}, WHERE)
    assert problems == []
    return found["t"]


def faults(said: Any, name: str = "t") -> list[str]:
    found, problems = read_tools({name: said}, WHERE)
    assert bool(found) != bool(problems)
    return [str(each).removeprefix(f"{WHERE}.{name}") for each in problems]


def test_parameters_one_by_one_as_the_adapter_has_them() -> None:
    found = tool(
        method="post",
        path="/users/{user-id}/notes",
        description="Write a note",
        params={
            "user": {"in": "path", "name": "user-id"},
            "dry": {"in": "query", "default": False, "schema": {"type": "boolean"}},
            "tags": {"in": "query", "style": "pipeDelimited", "schema": {"type": "array"}},
            "trace": {"in": "header", "name": "X-Trace", "description": "for the log"},
            "text": {"in": "body", "name": "note-text", "required": True},
            "size": {"in": "body", "schema": {"type": "integer"}},
        },
        headers={"X-Team": "a"},
    )
    assert found.listed()[0] == {
        "name": "t",
        "description": "Write a note",
        "inputSchema": {
            "type": "object",
            "properties": {
                "user": {"type": "string"},
                "dry": {"type": "boolean", "default": False},
                "tags": {"type": "array"},
                "trace": {"type": "string", "description": "for the log"},
                "text": {"type": "string"},
                "size": {"type": "integer"},
            },
            "required": ["user", "text"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "openWorldHint": True},
    }
    request = build_request(
        found, {"user": "a/b", "text": "x", "tags": ["1", "2"], "trace": "t"}, "http://h/v1"
    )
    assert request.method == "POST"
    assert request.url == "http://h/v1/users/a%2Fb/notes?dry=false&tags=1%7C2"
    assert dict(request.headers) == {
        "Accept": "application/json, */*;q=0.1",
        "X-Team": "a",
        "X-Trace": "t",
        "Content-Type": "application/json",
    }
    assert request.body == b'{"note-text":"x"}'
    with pytest.raises(ArgumentError, match='t needs the argument "text"'):
        build_request(found, {"user": "a"}, "http://h")


def test_one_schema_whose_properties_go_where_they_belong() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "q": {"type": "string"}, "of": {"$ref": "#/$defs/D"}},
        "required": ["q"],
        "$defs": {"D": {"type": "array"}},
    }
    listed = tool(method="GET", path="/x/{id}", inputSchema=schema)
    assert (
        build_request(listed, {"id": 1, "q": "a", "of": [1, 2]}, "http://h").url
        == "http://h/x/1?q=a&of=1&of=2"
    )
    changed = tool(method="PUT", path="/x/{id}", inputSchema=schema)
    request = build_request(changed, {"id": 1, "q": "a"}, "http://h")
    assert (request.url, request.body) == ("http://h/x/1", b'{"q":"a"}')
    for each in (listed, changed):
        said = each.listed()[0]["inputSchema"]
        assert said["properties"]["of"] == {"$ref": "#/$defs/D"}
        assert said["$defs"] == {"D": {"type": "array"}}
        assert sorted(said["required"]) == ["id", "q"]
        Draft202012Validator.check_schema(said)


def test_a_form_and_a_body_as_one_argument() -> None:
    form = tool(
        method="POST",
        path="/f",
        params={"a": {"in": "body"}, "b": {"in": "body", "schema": {"type": "object"}}},
        body={"mediaType": "application/x-www-form-urlencoded", "encoding": {"b": {"style": "deepObject"}}},
    )
    assert build_request(form, {"a": "1 2", "b": {"c": 3}}, "http://h").body == b"a=1%202&b%5Bc%5D=3"
    whole = tool(method="POST", path="/f", body={"mediaType": "text/plain", "required": True})
    assert build_request(whole, {"body": "hello"}, "http://h").body == b"hello"
    assert whole.listed()[0]["inputSchema"]["required"] == ["body"]


def test_what_an_answer_is_may_be_declared() -> None:
    found = tool(method="GET", path="/", outputSchema={"type": "array", "items": {"type": "integer"}})
    assert found.output_schema() == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "integer"}}},
        "required": ["result"],
    }
    result = to_result(found, 200, {"content-type": "application/json"}, b"[1]")
    assert result["structuredContent"] == {"result": [1]}


@for_each(
    ("said", "fault"),
    [
        (7, ": is not an object"),
        ({"path": "/"}, ".method: is none of DELETE, GET"),
        ({"method": "CONNECT", "path": "/"}, ".method: is none of"),
        ({"method": "GET"}, ": needs a path (below the server's baseUrl)"),
        ({"method": "GET", "path": "x"}, ".path: begins with no slash"),
        ({"method": "GET", "path": "/../x"}, ".path: has a step upwards"),
        ({"method": "GET", "path": 7}, ".path: is not text"),
        ({"method": "GET", "path": "/", "params": []}, ".params: is not an object"),
        ({"method": "GET", "path": "/", "parms": {}}, '.parms: is not known here. Did you mean "params"?'),
        ({"method": "GET", "path": "/", "params": {}, "inputSchema": {}}, ": has inputSchema and params"),
        ({"method": "GET", "path": "/", "params": {"a": 1}}, ".params.a: is not an object"),
        ({"method": "GET", "path": "/", "params": {"a": {}}}, ".params.a.in: is none of path, query"),
        ({"method": "GET", "path": "/", "params": {"a": {"in": "path"}}}, ".params.a: cannot be sent: its path has no"),
        ({"method": "GET", "path": "/", "params": {"a b": {"in": "header"}}}, ".params.a b: cannot be sent: no header"),
        ({"method": "GET", "path": "/", "params": {"Host": {"in": "header"}}}, ".params.Host: cannot be sent: that"),
        ({"method": "GET", "path": "/", "params": {"a": {"in": "query", "style": "label"}}}, ".params.a.style: is"),
        ({"method": "GET", "path": "/", "params": {"a": {"in": "query", "typ": 1}}}, ".params.a.typ: is not"),
        ({"method": "PUT", "path": "/", "body": {"media": "x"}}, ".body.media: is not known here."),
        ({"method": "PUT", "path": "/", "body": {"schema": {}}, "params": {"a": {"in": "body"}}}, ".body.schema"),
        ({"method": "GET", "path": "/", "headers": {"A": 1}}, ".headers.A: is not text"),
        ({"method": "GET", "path": "/", "headers": {"A": "x\r\nB: y"}}, ".headers.A: holds characters"),
        ({"method": "GET", "path": "/", "headers": {"Content-Length": "1"}}, ".headers.Content-Length: is not a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(said: Any, fault: str) -> None:
    assert [each[: len(fault)] for each in faults(said)] == [fault]


def test_a_name_is_one_of_a_tool_and_one_fault_costs_one_tool() -> None:
    good = {"method": "GET", "path": "/"}
    assert faults(good, "a b")[0].startswith(": is not a name of a tool")
    found, problems = read_tools({"a": good, "b": {}, "c": good}, WHERE)
    assert [*found] == ["a", "c"]
    assert {each.where.removeprefix(WHERE) for each in problems} == {".b.method", ".b"}


@given(
    st.dictionaries(
        st.sampled_from(["method", "path", "url", "params", "inputSchema", "headers", "body", "outputSchema", "x"]),
        VALUES | st.sampled_from(["GET", "POST", "/a/{b}", "http://h/{c}", "http://["])
        | st.dictionaries(st.sampled_from(["b", "properties", "schema", "A"]), VALUES, max_size=2),
    )
)  # fmt: skip
def test_whatever_is_declared_is_a_tool_or_a_problem(said: dict[str, Any]) -> None:
    found, problems = read_tools({"t": said}, WHERE)
    assert bool(found) != bool(problems)
    for each in found.values():
        Draft202012Validator.check_schema(each.listed()[0]["inputSchema"])


@for_each("said", [{"a": 1}, [1, 2], "text", 0, False])
def test_the_argument_body_is_the_body_itself(said: Any) -> None:
    """As in mcp-gateway's adapter: only an argument of another name is a member of an object."""
    one = tool(method="post", path="/a", params={"body": {"in": "body", "required": True, "schema": {}}})
    request = build_request(one, {"body": said}, "https://h")
    assert json.loads(request.body or b"") == said
    assert one.listed()[0]["inputSchema"]["required"] == ["body"]
    with pytest.raises(ArgumentError, match="needs the argument"):
        build_request(one, {}, "https://h")
    member = tool(method="post", path="/a", params={"it": {"in": "body", "name": "body", "schema": {}}})
    assert json.loads(build_request(member, {"it": said}, "https://h").body or b"") == {"body": said}


def test_what_nobody_gives_of_a_body_is_sent_as_its_default() -> None:
    whole = tool(
        method="post", path="/a", params={"body": {"in": "body", "required": True, "default": {"a": 1}}}
    )
    assert json.loads(build_request(whole, {}, "https://h").body or b"") == {"a": 1}
    params = {"a": {"in": "body", "required": True, "default": 1}, "b": {"in": "body", "default": 2}}
    parts = tool(method="post", path="/a", params=params)
    assert json.loads(build_request(parts, {"b": 3}, "https://h").body or b"") == {"a": 1, "b": 3}


def test_nothing_goes_beside_the_argument_that_is_the_body() -> None:
    both = {"body": {"in": "body"}, "more": {"in": "body"}}
    assert "params.more: " in faults({"method": "post", "path": "/a", "params": both})[0]
    again = {"method": "post", "path": "/a", "params": {"body": {"in": "body"}}, "body": {"schema": {}}}
    assert "body.schema" in faults(again)[0]
