"""The headers that repeat what a request is about, from its body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.rows import for_each

from greenroom.actors.transports.streamable_http import ToolHeaders


def tool(properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    return {"name": "play", "inputSchema": {"type": "object", "properties": properties, **schema}}


@pytest.mark.parametrize(
    "arguments",
    [
        msgspec.Raw(b'{"city": "Bern", "seat": {"row": 3}}'),  # the direct door's
        {
            "city": msgspec.Raw(b'"Bern"'),
            "seat": msgspec.Raw(b'{"row": 3}'),
        },  # those of a large call of the mcp tool
    ],
)
def test_a_call_that_is_passed_on_as_it_came_has_its_headers_too(arguments: object) -> None:
    headers = ToolHeaders()
    row = {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}}
    assert headers.learn(tool({"city": {"type": "string", "x-mcp-header": "City"}, "seat": row})) is None
    said = headers.headers("tools/call", {"name": "play", "arguments": arguments})
    assert (said["Mcp-Param-City"], said["Mcp-Param-Row"]) == ("Bern", "3")


@for_each("arguments", [msgspec.Raw(b"[1]"), msgspec.Raw(b"null"), msgspec.Raw(b'{"city": {}}'), None])
def test_arguments_that_say_nothing_there_have_no_header(arguments: object) -> None:
    headers = ToolHeaders()
    assert headers.learn(tool({"city": {"type": "string", "x-mcp-header": "City"}})) is None
    assert "Mcp-Param-City" not in headers.headers("tools/call", {"name": "play", "arguments": arguments})


@for_each(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "play"}, "play"),
        ("tools/call", {"name": ""}, ""),
        ("tools/call", {"name": 5}, None),
        ("tools/call", {}, None),
        ("prompts/get", {"name": "Zoë"}, "=?base64?Wm/Dqw==?="),
        ("prompts/get", {"uri": "x"}, None),
        ("resources/read", {"uri": "a://ü", "name": "n"}, "=?base64?YTovL8O8?="),
        ("resources/subscribe", {"uri": "a://b"}, None),
        ("completion/complete", {"name": "x"}, None),
    ],
)
def test_a_request_is_routed_by_what_it_is_about(
    method: str, params: dict[str, Any], name: str | None
) -> None:
    headers = ToolHeaders()
    headers.learn(tool({"a": {"type": "string", "x-mcp-header": "A"}}))
    expected = {"Mcp-Method": method} if name is None else {"Mcp-Method": method, "Mcp-Name": name}
    assert headers.headers(method, params) == expected
    said = headers.headers(method, {"name": "play", "arguments": {"a": "x"}})
    assert said.get("Mcp-Param-A") == ("x" if method == "tools/call" else None), "only a tool has arguments"


def test_a_tool_that_is_listed_anew_mirrors_what_it_says_now() -> None:
    headers, call = ToolHeaders(), {"name": "play", "arguments": {"a": "x"}}
    for schema, mirrored in (({"type": "string", "x-mcp-header": "A"}, "x"), ({"type": "string"}, None)):
        listed = ToolHeaders()
        assert listed.learn(tool({"a": schema})) is None
        headers.update(listed)
        assert headers.headers("tools/call", call).get("Mcp-Param-A") == mirrored
