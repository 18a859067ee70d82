"""What clients refuse, before `greenroom serve --expose direct`: real clients of the SDK and FastMCP, real servers.

A client checks a list as a whole. Each fault below is tried on the client itself first, so that the tests know which it
refuses; behind the door it sees the rest, and the server's status names what was done.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from tests.support import in_real_time, run
from tests.support.loops import on_one_loop
from tests.support.rows import for_each
from tests.support.said import said
from tests.support.whole import direct_door

from greenroom import Greenroom
from greenroom.catalogue.schema_repair import fit
from greenroom.protocol.events import Event, Kind

SCHEMA = {"type": "object"}
GOOD = {"name": "good", "inputSchema": {**SCHEMA, "x-vendor": 1}, "x-vendor": {"kept": None}}
TOOLS: Mapping[str, dict[str, Any]] = {
    "schemaless": {},
    "null_schema": {"inputSchema": None},
    "true_schema": {"inputSchema": True},
    "untyped": {"inputSchema": {"properties": {"a": {}}}},
    "either": {"inputSchema": {"type": ["object", "null"]}},
    "text_schema": {"inputSchema": {"type": "string"}},
    "list_schema": {"inputSchema": []},
    "word_schema": {"inputSchema": "object"},
    "php": {"inputSchema": {**SCHEMA, "properties": []}},
    "odd_properties": {"inputSchema": {**SCHEMA, "properties": {"a": True, "b": None, "c": False}}},
    "properties_list": {"inputSchema": {**SCHEMA, "properties": [{"name": "a"}]}},
    "odd_required": {"inputSchema": {**SCHEMA, "required": True}},
    "null_description": {"description": None, "inputSchema": SCHEMA},
    "odd_title": {"title": 3, "inputSchema": SCHEMA},
    "odd_hint": {"annotations": {"readOnlyHint": "yes", "title": None}, "inputSchema": SCHEMA},
    "odd_annotations": {"annotations": [], "inputSchema": SCHEMA},
    "odd_output": {"outputSchema": "text", "inputSchema": SCHEMA},
    "output_nowhere": {
        "outputSchema": {**SCHEMA, "properties": {"a": {"$ref": "#/$defs/A"}}},
        "inputSchema": SCHEMA,
    },
    "output_untype": {
        "outputSchema": {**SCHEMA, "properties": {"a": {"type": "any"}}},
        "inputSchema": SCHEMA,
    },
    "odd_icons": {"icons": [{"src": 1}, {"src": "data:", "sizes": "48x48"}], "inputSchema": SCHEMA},
    "odd_meta": {"_meta": [], "inputSchema": SCHEMA},
    "odd_tasks": {"execution": {"taskSupport": "sometimes"}, "inputSchema": SCHEMA},
}
LEFT_OUT = {"text_schema", "list_schema", "word_schema"}
RESOURCES = [
    {"uri": "x://good", "name": "good", "x-vendor": 1},
    {"uri": "x://nameless"},
    {"uri": "x://priority", "name": "p", "annotations": {"priority": 7, "audience": ["user", "robot"]}},
    {"uri": "x://size", "name": "s", "size": "big", "mimeType": None},
    {"uri": "x://when", "name": "w", "annotations": {"lastModified": "yesterday"}},
    {"uri": "no scheme", "name": "relative"},
]
TEMPLATES = [{"uriTemplate": "x://{a}"}, {"uriTemplate": "y://{a}", "name": "y", "annotations": None}]
PROMPTS = [
    {"name": "good", "x-vendor": 1},
    {"name": "nameless_argument", "arguments": [{"description": "?"}, {"name": "a", "required": "yes"}]},
    {"name": "odd_arguments", "arguments": {"a": {}}},
    {"name": "null", "description": None, "arguments": None},
]


def _answers() -> dict[str, Any]:
    tools = [GOOD, *({"name": name, **rest} for name, rest in TOOLS.items())]
    return {
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "called"}]},
        "resources/list": {"resources": RESOURCES},
        "resources/templates/list": {"resourceTemplates": TEMPLATES},
        "prompts/list": {"prompts": PROMPTS},
        "resources/read no scheme": {"contents": [{"uri": "no scheme", "text": "read"}]},
    }


def _door(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """The command of a gateway in front of a server with all the faults, and its environment."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"odd": said(tmp_path, "odd", _answers())}}))
    home = os.fspath(tmp_path)
    env = {
        "HOME": home,
        "XDG_CACHE_HOME": f"{home}/cache",
        "XDG_RUNTIME_DIR": home,
        "PATH": os.environ["PATH"],
    }
    return [sys.executable, "-m", "greenroom", "serve", "--expose", "direct", "--config", str(config)], env


def _learned(tmp_path: Path) -> None:
    with direct_door(tmp_path, {"odd": said(tmp_path, "odd", _answers())}) as door:
        door.initialize()
        door.wait(lambda: len(door.list_all("tools")) > 1, "the catalogue")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@on_one_loop
def test_t46_an_sdk_client_sees_all_the_rest(backend: str, tmp_path: Path, mode: Any) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    _learned(tmp_path)
    command, env = _door(tmp_path)

    async def body() -> None:
        transport = stdio_client(
            StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=tmp_path)
        )
        async with Client(transport, mode=mode) as client:
            tools = {tool.name.removeprefix("odd_"): tool for tool in (await client.list_tools()).tools}
            resources = (await client.list_resources()).resources
            assert set(tools) == {"good", *TOOLS} - LEFT_OUT
            assert {"x://good", "x://nameless", "greenroom://odd/no scheme"} <= {r.uri for r in resources}
            assert len((await client.list_resource_templates()).resource_templates) == len(TEMPLATES)
            assert len((await client.list_prompts()).prompts) == len(PROMPTS)
            assert (await client.call_tool("odd_schemaless", {"any": 1})).content
            assert (await client.read_resource("greenroom://odd/no scheme")).contents

    run(backend, body)


def test_t46_fastmcps_client_sees_all_the_rest(tmp_path: Path) -> None:
    import asyncio

    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    _learned(tmp_path)
    command, env = _door(tmp_path)

    async def body() -> None:
        async with Client(
            StdioTransport(command[0], command[1:], env=env, cwd=str(tmp_path), keep_alive=False)
        ) as client:
            assert {tool.name for tool in await client.list_tools()} == {
                f"odd_{name}" for name in {"good", *TOOLS} - LEFT_OUT
            }
            assert len(await client.list_prompts()) == len(PROMPTS)

    asyncio.run(body())


def test_t46_what_is_valid_passes_as_it_is_and_what_is_not_is_mended_field_by_field(tmp_path: Path) -> None:
    with direct_door(tmp_path, {"odd": said(tmp_path, "odd", _answers())}) as door:
        door.initialize()
        door.wait(lambda: len(door.list_all("tools")) > 1, "the catalogue")
        tools = {tool["name"].removeprefix("odd_"): tool for tool in door.list_all("tools")}
        assert tools["good"] == {**GOOD, "name": "odd_good"}
        schemas = {name: tool["inputSchema"] for name, tool in tools.items()}
        assert schemas["schemaless"] == schemas["null_schema"] == schemas["true_schema"] == SCHEMA
        assert schemas["untyped"] == {**SCHEMA, "properties": {"a": {}}}
        assert schemas["php"] == {**SCHEMA, "properties": {}}
        assert schemas["odd_properties"]["properties"] == {"a": {}, "b": {}, "c": {"not": {}}}
        assert "description" not in tools["null_description"]
        assert tools["odd_hint"]["annotations"] == {}
        assert tools["odd_icons"]["icons"] == [{"src": "data:"}]
        assert {"outputSchema"}.isdisjoint(tools["output_nowhere"].keys() | tools["output_untype"].keys())
        resources = {each["uri"]: each for each in door.list_all("resources")}
        assert resources["x://good"] == RESOURCES[0]
        assert resources["x://nameless"]["name"] == "x://nameless"
        assert resources["x://priority"]["annotations"] == {"audience": ["user"]}
        prompts = {each["name"]: each for each in door.list_all("prompts")}
        assert prompts["odd_good"] == {**PROMPTS[0], "name": "odd_good"}
        assert prompts["odd_nameless_argument"]["arguments"] == [{"name": "a"}]


@pytest.mark.parametrize("modern", [False, True])
def test_t46_an_output_that_is_no_object_is_shown_as_one_to_clients_that_know_no_other(
    tmp_path: Path, modern: bool
) -> None:
    tool = {"name": "many", "inputSchema": SCHEMA, "outputSchema": {"type": "array"}}
    with direct_door(
        tmp_path, {"s": said(tmp_path, "s", {"tools/list": {"tools": [tool]}})}, modern=modern
    ) as door:
        door.initialize()
        door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        shown = door.list_all("tools")[0]["outputSchema"]
        assert (shown if modern else shown["properties"]["result"]) == tool["outputSchema"]
        assert modern or shown["type"] == "object"


@in_real_time
async def test_t46_a_note_and_the_status_name_server_and_item(tmp_path: Path) -> None:
    heard: list[str] = []

    servers = {"odd": said(tmp_path, "odd", _answers())}
    async with Greenroom.open({"mcpServers": servers}) as room:
        async with room.events([Kind.NOTE]) as events:
            await room.connect("odd")
            await room.settled()
            async for event in events:
                assert isinstance(event, Event)
                if "refuse" in event.detail:
                    heard.append(f"{event.address}: {event.detail}")
                    if "more" in event.detail:
                        break
        row = room.status()[0]
        assert f"odd: clients would refuse {row.faults[0]}" == heard[0]
        assert row.faults[0] == 'tool "schemaless": inputSchema is missing (corrected)'
        assert 'tool "text_schema": inputSchema.type is not "object" (left out)' in row.faults
        assert len(heard) == 11
        assert not any('"good"' in fault for fault in row.faults)


@for_each("name", TOOLS)
def test_t46_whatever_is_listed_is_what_the_sdk_can_read(name: str) -> None:
    fitted = fit("tool", {"name": name, **TOOLS[name]})
    assert fitted is not None, "the fault is none"
    assert fitted.faults
    assert (fitted.record is None) == (name in LEFT_OUT)
    if fitted.record is not None:
        types.Tool.model_validate(fitted.record)
        assert fit("tool", fitted.record) is None


# ---- by itself ---------------------------------------------------------------------------------------------------


def _fitted(kind: str, **record: Any) -> tuple[Any, tuple[str, ...]]:
    found = fit(kind, record)
    return (record, ()) if found is None else (found.record, found.faults)


def _output(schema: Any) -> str:
    """What was wrong with it, in words; empty: nothing."""
    record, faults = _fitted("tool", name="t", inputSchema=SCHEMA, outputSchema=schema)
    assert ("outputSchema" in record) == (not faults)
    return "; ".join(faults)


def test_t46_a_schema_that_says_nothing_is_mended_and_what_is_none_is_left_out() -> None:
    def schema(value: Any) -> Any:
        record, faults = _fitted("tool", name="t", inputSchema=value)
        assert faults or record["inputSchema"] is value
        return None if record is None else record["inputSchema"]

    for fine in (SCHEMA, {**SCHEMA, "properties": {}, "required": [], "x": 1}):
        assert schema(fine) is fine
    for vague in (None, True, {}, {"type": ["object", "null"]}, {"type": None}):
        assert schema(vague) == SCHEMA
    for other in (False, [], "object", {"type": "array"}, {"type": ["string"]}):
        assert schema(other) is None
    assert schema({**SCHEMA, "properties": []}) == {**SCHEMA, "properties": {}}
    assert schema({**SCHEMA, "properties": [1], "$schema": 7}) == SCHEMA
    properties = schema({**SCHEMA, "properties": {"a": True, "b": False, "c": None, "d": 0, "e": {"x": 1}}})
    assert properties["properties"] == {"a": {}, "b": {"not": {}}, "c": {}, "d": {}, "e": {"x": 1}}
    assert schema({**SCHEMA, "required": ["a", 1, "b"]})["required"] == ["a", "b"]
    assert fit("tool", {"name": 7, "inputSchema": SCHEMA}) == fit(
        "tool", {"name": None, "inputSchema": SCHEMA}
    )


def test_t46_an_output_that_no_compiler_takes_is_left_out() -> None:
    several = {"$defs": {"a/b": {"c~d": {"type": "string"}, "list": [{}, {"type": "null"}]}}}
    for reference in ("#", "#/$defs/a~1b/c~0d", "#/$defs/a~1b/list/1", "#/%24defs/a~1b", "other.json"):
        assert _output({**several, "properties": {"x": {"$ref": reference}}}) == "", reference
    for reference in (
        "#/$defs/a/b",
        "#/$defs/a~01b",
        "#/$defs/a~1b/list/2",
        "#/$defs/a~1b/list/-1",
        "#/none",
        "#/a%20b",
    ):
        said = _output({**several, "properties": {"x": {"$ref": reference}}})
        assert said == f"outputSchema.properties.x.$ref refers to {reference}, which it does not have"
    wrong = {"type": "any"}
    for key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        assert _output({key: {"x": wrong}}).endswith('type "any" is not a type'), key
    for key in ("allOf", "anyOf", "oneOf", "prefixItems", "items"):
        assert _output({key: [{}, wrong]}).endswith('type "any" is not a type'), key
    for key in (
        "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
        "unevaluatedProperties", "unevaluatedItems",
    ):  # fmt: skip
        assert _output({key: wrong}).endswith('type "any" is not a type'), key
        assert _output({key: True}) == ""
    assert _output({"type": ["string", "null"]}) == ""
    for name in ("string", "number", "integer", "boolean", "array", "object", "null"):
        assert _output({**SCHEMA, "properties": {"x": {"type": name}}}) == ""
    for name in ("", "s", None, ["any"], 7):
        assert _output({"type": name}).endswith("is not a type")
    assert _output({"type": ["string", 1]}) == 'outputSchema.type ["string", 1] is not a type'
    assert _output({"enum": [wrong], "const": wrong, "default": wrong}) == "", "these are no schemas"


def test_t46_each_field_has_its_own_bounds() -> None:
    def resource(**more: Any) -> tuple[Any, tuple[str, ...]]:
        return _fitted("resource", uri="x://", name="n", **more)

    for size in (0, 7, 7.0, None):
        assert ("size" in resource(size=size)[0]) == (size is not None)
    for size in (7.5, True, "7"):
        record, faults = resource(size=size)
        assert (record, faults) == ({"uri": "x://", "name": "n"}, ("size is not a whole number",))
    for priority in (0, 1, 0.5):
        assert resource(annotations={"priority": priority})[1] == ()
    for priority in (-0.1, 1.1, True, "1"):
        record, faults = resource(annotations={"priority": priority, "x": 1})
        assert record["annotations"] == {"x": 1}
        assert faults == ("annotations.priority is not from 0 to 1",)
    for when in ("2026-01-02T03:04Z", "2026-01-02T03:04:05.678+01:00", "2026-01-02T03:04:05-0100"):
        assert resource(annotations={"lastModified": when})[1] == ()
    for when in ("2026-01-02", "2026-01-02T03:04", 7):
        assert resource(annotations={"lastModified": when})[1] == ("annotations.lastModified is not a time",)
    assert _fitted("resource", uri="x://") == ({"uri": "x://", "name": "x://"}, ("name is missing",))
    assert _fitted("template", uriTemplate="x://{a}", name=7)[0]["name"] == "x://{a}"
    assert _fitted("resource", name="n") == (None, ("uri is missing",))
    icons = [{"src": "a", "theme": "dark"}, {"src": 1}, {"src": "b", "theme": "blue", "sizes": ["1x1", 2]}]
    record, faults = resource(icons=icons)
    assert record["icons"] == [icons[0], {"src": "b", "sizes": ["1x1"]}]
    assert faults == (
        "icons[1].src is not a string",
        "icons[2].sizes[1] is not a string",
        "icons[2].theme is not one of light, dark",
    )
    _, faults = _fitted("prompt", name="p", arguments=[{"name": "a", "required": 1}])
    assert faults == ("arguments[0].required is not true or false",)
    assert _fitted("prompt", name="p", arguments=[{"name": "a", "required": True}])[1] == ()
    assert _fitted("prompt", name=True) == (None, ("name is not a string",))
