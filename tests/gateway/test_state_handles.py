"""A client without a session has state of its own by a handle: real HTTP, and real servers that remember."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.http_door import Opened, http_door
from tests.support.loops import on_asyncio

from greenroom import Greenroom
from greenroom.gateway.doors.http_auth import Access, Token
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.state_handles import META_KEY, NEW_STATE, STATE

ANN, BEN = "token-of-ann-0123456789", "token-of-ben-0123456789"
TOKENS = (Token.of("ann", ANN), Token.of("ben", BEN))
NOTES = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_notes"]}
CONFIG = {
    "mcpServers": {
        "notes": {**NOTES, "isolation": "per_session", "directTools": True},
        "board": {**NOTES, "isolation": "persistent", "directTools": True},
    },
    "settings": {"http": {"stateHandles": True}},
}


@asynccontextmanager
async def door(*, expose: str = "direct", rules: Rules | None = None) -> AsyncGenerator[Opened]:
    access, rules = Access("127.0.0.1", TOKENS), rules or Rules(state_handles=True)
    async with Greenroom.open(CONFIG, cache_path=":memory:") as room:
        await room.connect("board")
        await room.catalogued()
        async with http_door(room, access=access, rules=rules, expose=expose) as opened:
            yield opened


async def call(
    opened: Opened, name: str, token: str = ANN, meta: Any = None, **arguments: Any
) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, **({} if meta is None else {"_meta": meta})}
    answer = await opened.stateless("tools/call", params, authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def new_state(opened: Opened, token: str = ANN) -> str:
    return (await call(opened, NEW_STATE, token))["structuredContent"][STATE]


async def notes_of(opened: Opened, *, server: str = "notes", token: str = ANN, **how: Any) -> Any:
    return (await call(opened, f"{server}_find", token, **how))["structuredContent"]["notes"]


def is_gone(result: dict[str, Any]) -> bool:
    return result["isError"] and NEW_STATE in result["content"][0]["text"]


@on_asyncio
@in_real_time
async def test_agents_that_look_alike_keep_their_state_apart_by_handles() -> None:
    async with door() as opened:
        one, other = await new_state(opened), await new_state(opened)
        assert one != other
        await call(opened, "notes_add", text="of the one", **{STATE: one})
        await call(opened, "notes_add", text="of the other", meta={META_KEY: other})
        await call(opened, "notes_add", text="of whoever has no handle")
        assert await notes_of(opened, **{STATE: one}) == ["of the one"]
        assert await notes_of(opened, meta={META_KEY: one}) == ["of the one"]
        assert await notes_of(opened, **{STATE: other}) == ["of the other"]
        assert await notes_of(opened) == await notes_of(opened, **{STATE: ""}) == ["of whoever has no handle"]
        params = {"uri": "greenroom://notes/notes://all", "_meta": {META_KEY: one}}
        answer = await opened.stateless("resources/read", params, authorization=f"Bearer {ANN}")
        assert "of the one" in answer.text


@on_asyncio
@in_real_time
async def test_a_handle_is_worth_nothing_to_another_token_and_after_its_state_has_ended() -> None:
    async with door() as opened:
        handle = await new_state(opened)
        await call(opened, "notes_add", text="secret", **{STATE: handle})
        guessed = handle[:-1] + ("A" if handle[-1] != "A" else "B")
        for token, given in ((BEN, handle), (ANN, guessed), (ANN, "new"), (ANN, 7), (ANN, {"a": 1})):
            assert is_gone(await call(opened, "notes_find", token, **{STATE: given}))
            assert is_gone(await call(opened, "notes_find", token, meta={META_KEY: given}))
        answer = await opened.stateless(
            "tools/list", {"_meta": {META_KEY: handle}}, authorization=f"Bearer {BEN}"
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
        assert await notes_of(opened, **{STATE: handle}) == ["secret"]
        opened.door.sessions.end_all()
        assert is_gone(await call(opened, "notes_find", **{STATE: handle}))
        assert await notes_of(opened) == []


@on_asyncio
@in_real_time
async def test_only_tools_that_have_state_take_a_handle() -> None:
    async with door() as opened:
        await call(opened, "notes_find")  # its lists are known now
        answer = await opened.stateless("tools/list", authorization=f"Bearer {ANN}")
        tools = {tool["name"]: tool for tool in answer.json()["result"]["tools"]}
        assert "notes" in tools[NEW_STATE]["description"]
        assert "board" not in tools[NEW_STATE]["description"]
        takes = {name for name, tool in tools.items() if STATE in tool["inputSchema"]["properties"]}
        assert takes == {"notes_add", "notes_find"}
        session = await opened.session(authorization=f"Bearer {ANN}")
        listed = (await session.ask("tools/list"))["result"]["tools"]
        assert NEW_STATE not in {tool["name"] for tool in listed}, "a session is a state of its own"


@on_asyncio
@in_real_time
async def test_the_mcp_tool_takes_a_handle_beside_its_own_arguments() -> None:
    async with door(expose="proxy") as opened:
        one = await new_state(opened)
        said = await call(opened, "mcp", tool="notes_add", args={"text": "mine"}, **{STATE: one})
        assert not said.get("isError"), said
        mine = await call(opened, "mcp", tool="notes_find", args={}, **{STATE: one})
        others = await call(opened, "mcp", tool="notes_find", args={})
        assert ("mine" in str(mine), "mine" in str(others)) == (True, False)
        answer = await opened.stateless("tools/list", authorization=f"Bearer {ANN}")
        tools = {tool["name"]: tool for tool in answer.json()["result"]["tools"]}
        assert STATE in tools["mcp"]["inputSchema"]["properties"]


@on_asyncio
@in_real_time
async def test_states_count_among_the_sessions_of_their_owner() -> None:
    async with door(rules=Rules(state_handles=True, max_sessions=4)) as opened:
        for _ in range(2):  # no token can have more than half of them
            await new_state(opened)
        params = {"name": NEW_STATE, "arguments": {}}
        answer = await opened.stateless("tools/call", params, authorization=f"Bearer {ANN}")
        assert answer.status_code == 503
        await new_state(opened, BEN)


@pytest.mark.parametrize("given", [NEW_STATE, "notes_find"])
@on_asyncio
@in_real_time
async def test_without_the_setting_there_are_no_handles(given: str) -> None:
    async with door(rules=Rules()) as opened:
        answer = await opened.stateless("tools/list", authorization=f"Bearer {ANN}")
        assert STATE not in answer.text
        assert NEW_STATE not in answer.text
        params = {"name": given, "arguments": {STATE: "x"}}
        answer = await opened.stateless("tools/call", params, authorization=f"Bearer {ANN}")
        assert "no_such_state" not in answer.text
