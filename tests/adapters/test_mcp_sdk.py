"""A room that looks like a session of the MCP SDK."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support import in_virtual_time
from tests.support.rooms import open_room, settle

from greenroom.adapters.mcp_sdk import RoomSession, without_references
from greenroom.adapters.shared import said_besides
from greenroom.errors import RemoteError
from greenroom.testing import HANG, FakeServer, tool

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/tree"}, "$ref": {"type": "string"}},
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        }
    },
}


@in_virtual_time
async def test_it_lists_and_calls_with_the_sdks_own_types() -> None:
    server = FakeServer(
        tools=[tool("echo", inputSchema=TREE)],
        resources={"memo://a": "ink"},
        prompts={"greet": "Good evening."},
    )
    async with open_room({"a": server}) as room:
        await room.connect("a")
        session = RoomSession(room)
        await session.initialize()
        [listed] = (await session.list_tools()).tools
        assert (listed.name, listed.input_schema) == ("a_echo", TREE)
        result = await session.call_tool("a_echo", arguments={"n": 1})
        assert json.loads(result.content[0].text) == {"n": 1}  # type: ignore[union-attr]
        assert not result.is_error
        [resource] = (await session.list_resources()).resources
        assert (await session.read_resource(resource.uri)).contents[0].text == "ink"  # type: ignore[union-attr]
        with pytest.raises(RemoteError, match="not found"):
            await session.read_resource("memo://none")
        [prompt] = (await session.list_prompts()).prompts
        assert (await session.get_prompt(prompt.name)).messages
        assert (await session.list_resource_templates()).resource_templates == []
        async with room.session("alice") as alice:
            assert (await RoomSession(alice).list_tools()).tools[0].name == "a_echo"


@pytest.mark.parametrize("what", ["tools", "resources", "prompts"])
@in_virtual_time
async def test_each_list_waits_for_the_servers_of_which_nothing_is_known(what: str) -> None:
    server = FakeServer(
        tools=[tool("echo")],
        resources={"memo://a": "ink"},
        prompts={"greet": "Good evening."},
    )
    async with open_room({"a": server}, bootstrap=True) as room:
        session = RoomSession(room)
        listed = await getattr(session, f"list_{what}")()
        assert len(getattr(listed, what)) == 1


@pytest.mark.parametrize(
    ("server", "name", "code"),
    [
        (FakeServer(call_error=(-32050, "no ink")), "a_echo", "call_failed"),
        (FakeServer(), "a_none", "tool_not_found"),
        (FakeServer(call_latency=HANG), "a_echo", "timeout"),
    ],
)
@in_virtual_time
async def test_a_call_that_fails_is_a_result(server: FakeServer, name: str, code: str) -> None:
    async with open_room({"a": server}) as room:
        await room.connect("a")
        result = await RoomSession(room).call_tool(name, {}, timedelta(seconds=3))
        assert result.is_error
        assert result.meta is not None
        said = result.meta["greenroom/error"]
        assert said["error"] == code
        assert said["reach"] in ("not_sent", "sent", "answered")
        told = said_besides(await room.call_for_model(name, {}, timeout=3))
        assert told == {"_meta": result.meta}, "the adapters of frameworks say the same"


@in_virtual_time
async def test_progress_is_reported_and_a_cancellation_reaches_the_server() -> None:
    async def work(call: Any) -> Any:
        for step in (1, 2):
            call.progress(step, 2, f"step {step}")
        return {"content": [{"type": "text", "text": str(call.meta.get("team"))}]}

    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(*said: Any) -> None:
        heard.append(said)

    server = FakeServer(handler=work)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        session = RoomSession(room)
        result = await session.call_tool("a_echo", {}, progress_callback=hear, meta={"team": "blue"})
        assert result.content[0].text == "blue"  # type: ignore[union-attr]
        assert heard == [(1, 2, "step 1"), (2, 2, "step 2")]
        server.call_latency = HANG
        for callback in (None, hear):
            with anyio.move_on_after(1):
                await session.call_tool("a_echo", {}, progress_callback=callback)
            await settle()
        assert server.cancelled == 2


@in_virtual_time
async def test_schemas_without_cycles_for_what_cannot_take_them() -> None:
    async with open_room({"a": FakeServer(tools=[tool("echo", inputSchema=TREE)])}) as room:
        await room.connect("a")
        [listed] = (await RoomSession(room, cycles=False).list_tools()).tools
        once = {"type": "object"}
        children = {"type": "array", "items": once}
        assert listed.input_schema == {
            "type": "object",
            "properties": {
                "root": {"type": "object", "properties": {"name": {"type": "string"}, "children": children}},
                "$ref": {"type": "string"},
            },
        }


NAMES = ["a", "b", "c"]
INNER: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, *({"$ref": f"#/$defs/{name}"} for name in NAMES)]
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}),
        st.dictionaries(st.sampled_from(NAMES), inner).map(
            lambda some: {"type": "object", "properties": some}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=6,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.just("x"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)


@given(INNER, st.fixed_dictionaries(dict.fromkeys(NAMES, INNER)), VALUES)
def test_a_schema_without_its_references_allows_the_same(root: Any, defs: dict[str, Any], value: Any) -> None:
    own = {"properties": {"p": root}, "$defs": defs}
    written = without_references(own)
    assert '"#/$defs/' not in json.dumps(written)
    try:
        allowed = Draft202012Validator(own).is_valid({"p": value})
    except RecursionError:
        return  # a definition that is only itself allows nothing, and cannot be checked
    assert Draft202012Validator(written).is_valid({"p": value}) or not allowed


def test_a_schema_that_would_become_too_large_is_cut() -> None:
    defs = {
        f"d{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}}
        for n in range(40)
    }
    assert len(json.dumps(without_references({"$ref": "#/$defs/d0", "$defs": defs}))) < 1_000_000
