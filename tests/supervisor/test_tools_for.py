"""Tools for a model without a framework: what it is given, what it calls, and what it is told."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom import CallError, ToolResult, UnknownTool, UsageError
from greenroom.testing import FakeServer, tool

PIXEL = base64.b64encode(b"a picture").decode()
ODD = tool(
    "odd.name",
    inputSchema={"type": "object", "properties": {"$top": {"type": "integer"}, "n": {"type": "string"}}},
)
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def shown(given: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(dict(given))}, IMAGE]}


def wish(format: str, name: str, arguments: dict[str, Any]) -> Any:
    """A call of a model, in the form of its API."""
    said = json.dumps(arguments)
    return {
        "openai": SimpleNamespace(
            id="c1", type="function", function=SimpleNamespace(name=name, arguments=said)
        ),
        "openai-responses": SimpleNamespace(type="function_call", call_id="c1", name=name, arguments=said),
        "anthropic": {"type": "tool_use", "id": "c1", "name": name, "input": arguments},
        "gemini": {"functionCall": {"id": "c1", "name": name, "args": arguments}},
        "mcp": {"name": name, "arguments": arguments},
    }[format]


ANSWERS: dict[str, Any] = {
    "openai": [
        {"role": "tool", "tool_call_id": "c1", "content": "TEXT"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images from the result of NAME (c1):"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        },
    ],
    "openai-responses": [
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "TEXT"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
            ],
        }
    ],
    "anthropic": [
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [
                        {"type": "text", "text": "TEXT"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                        },
                    ],
                }
            ],
        }
    ],
    "gemini": [
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "NAME",
                        "id": "c1",
                        "response": {"output": "TEXT"},
                        "parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}],
                    }
                }
            ],
        }
    ],
    "mcp": [{"content": [{"type": "text", "text": "TEXT"}, IMAGE], "isError": False}],
}


@pytest.mark.parametrize("format", list(ANSWERS))
@in_virtual_time
async def test_what_a_model_calls_reaches_the_tool_under_its_own_names(format: Any) -> None:
    async with open_room({"a": FakeServer(tools=[ODD], handler=shown)}) as room:
        await room.connect("a")
        tools = room.tools_for(format)
        [name] = tools.names
        assert tools.names[name] == "a_odd_name"
        [definition] = tools.definitions
        about = definition.get("function", definition)
        assert about["name"] == name
        schema = next(
            about[key]
            for key in ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
            if key in about
        )
        [top] = [key for key in schema["properties"] if "top" in key]
        told = await tools.run([wish(format, name, {top: 3})])
        text = json.dumps({"$top": 3})
        expected = json.dumps(ANSWERS[format]).replace('"TEXT"', json.dumps(text)).replace("NAME", name)
        assert told == json.loads(expected)


@in_virtual_time
async def test_a_strict_model_says_null_for_what_it_leaves_out() -> None:
    async with open_room({"a": FakeServer(tools=[ODD], handler=shown)}) as room:
        await room.connect("a")
        tools = room.tools_for("openai", strict=True)
        assert tools.not_strict == []
        [name] = tools.names
        [answer, _] = await tools.run([wish("openai", name, {"$top": 3, "n": None})])
        assert json.loads(answer["content"]) == {"$top": 3}


@pytest.mark.parametrize("format", list(ANSWERS))
@in_virtual_time
async def test_a_call_that_goes_wrong_is_told(format: Any) -> None:
    async with open_room({"a": FakeServer(call_error=(-32050, "no ink"))}) as room:
        await room.connect("a")
        tools = room.tools_for(format)
        for name in ("a_echo", "a_none"):
            said = json.dumps(await tools.run([wish(format, name, {})]))
            assert ("no ink" if name == "a_echo" else "a_none") in said
            if format in ("anthropic", "mcp"):
                assert '"is_error": true' in said or '"isError": true' in said
            if format == "gemini":
                assert '"error"' in said


@in_virtual_time
async def test_a_session_has_tools_of_its_profile_alone() -> None:
    async with open_room({"a": FakeServer(), "b": FakeServer()}) as room:
        await room.connect("a")
        await room.connect("b")
        assert set(room.tools_for("openai").names) == {"a_echo", "b_echo"}
        assert set(room.tools_for("openai", server="b").names) == {"b_echo"}
        async with room.session("alice") as session:
            tools = session.tools_for("anthropic")
            [answer] = await tools.run([wish("anthropic", "a_echo", {"x": 1})])
            assert json.loads(answer["content"][0]["content"][0]["text"]) == {"x": 1}
        with pytest.raises(UsageError):
            room.tools_for("no api")  # type: ignore[arg-type]


@in_virtual_time
async def test_many_calls_run_at_once_and_each_has_what_came_of_it() -> None:
    server = FakeServer(call_latency=5)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        began = anyio.current_time()
        done = await room.call_many([("a_echo", {"n": 1}), ("a_none", None), ("a_echo", {"n": 2})])
        assert anyio.current_time() - began < 6
        one, missing, two = done
        assert isinstance(one, ToolResult)
        assert isinstance(two, ToolResult)
        assert (json.loads(one.text), json.loads(two.text)) == ({"n": 1}, {"n": 2})
        assert isinstance(missing, UnknownTool)
        [late] = await room.call_many([("a_echo", {})], timeout=1)
        assert isinstance(late, CallError)
        assert await room.call_many([]) == []
