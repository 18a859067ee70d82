"""What a program that has a model of its own asks of a room: what the model is told, and who asks its person."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room, record_events, teach

from greenroom import Greenroom, Reach, ServerRequest, Verdict
from greenroom.errors import ApprovalNeeded, ConnectFailed, RemoteError, UnknownServer, UnknownTool
from greenroom.events import ApprovalDecision, ApprovalMove
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
TEXT = {"type": "text", "text": "42"}


async def hang(_call: Any) -> str:
    await anyio.sleep_forever()
    return ""


@in_virtual_time
async def test_a_model_is_told_text_and_images_and_a_program_has_the_rest() -> None:
    sound = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
    said = {"content": [TEXT, IMAGE, sound], "structuredContent": {"answer": 42}}
    async with open_room({"a": FakeServer(handler=lambda _: said)}) as room:
        told = await room.call_for_model("a_echo", server="a")
        assert told.images == [IMAGE]
        assert told.text.startswith("42\n[Audio content: audio/wav]")
        assert (told.is_error, told.error, told.reach, told.is_cut) == (False, None, Reach.ANSWERED, False)
        assert told.structured == {"answer": 42}
        assert told.result is not None
        assert told.result.content == said["content"]


@in_virtual_time
async def test_what_is_too_long_is_cut_and_its_structure_is_not_given_in_its_place() -> None:
    said = {"content": [], "structuredContent": {"text": "x" * 2_000}}
    async with open_room({"a": FakeServer(handler=lambda _: said)}, outputGuard={"maxBytes": 1_000}) as room:
        told = await room.call_for_model("a_echo", server="a")
        assert told.is_cut
        assert len(told.text.encode()) <= 1_000
        assert told.structured is None
        assert told.result is not None
        assert told.result.structured == said["structuredContent"]


@in_virtual_time
async def test_a_tool_that_fails_and_a_call_that_fails_are_told_and_raise_nothing() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    failing = FakeServer(
        tools=[tool("echo", inputSchema=schema)], handler=lambda _: {"content": [TEXT], "isError": True}
    )
    refusing = FakeServer(tools=[tool("echo", inputSchema=schema)], call_error=(-32602, "no such n"))
    servers = {"a": failing, "b": refusing, "c": FakeServer(refuse_start="it is not there")}
    async with open_room(servers) as room:
        told = await room.call_for_model("a_echo", server="a")
        assert (told.is_error, told.error, told.structured) == (True, None, None)
        assert told.text.startswith("Error: 42\n\nExpected parameters:")
        refused = await room.call_for_model("b_echo", server="b")
        assert isinstance(refused.error, RemoteError)
        assert "no such n\n\nExpected parameters:\nn (integer)" in refused.text
        away = await room.call_for_model("c_echo", server="c")
        assert isinstance(away.error, ConnectFailed)
        assert (away.reach, away.result, away.structured) == (Reach.NOT_SENT, None, None)
        assert isinstance((await room.call_for_model("nothing")).error, UnknownTool)
        assert isinstance((await room.call_for_model("echo", server="nowhere")).error, UnknownServer)
        one = {"id": "1", "type": "function", "function": {"name": "a_echo", "arguments": "{}"}}
        messages = await room.run_tool_calls([one], format="openai")
        assert messages[0]["content"] == told.text


@in_virtual_time
async def test_a_credential_is_taken_out_of_what_a_model_is_told() -> None:
    server = FakeServer(handler=lambda _: "it is ghp_abcdefghijklmnopqrst0123")
    entries = {"a": {"scrub": "mcp"}}
    async with open_room({"a": server}, entries=entries) as room:
        assert "ghp_" in (await room.call("a_echo", server="a")).text
        assert "ghp_" not in (await room.call_for_model("a_echo", server="a")).text


@in_virtual_time
async def test_it_takes_meta_progress_a_timeout_and_a_cancellation() -> None:
    heard: list[Any] = []

    async def report(call: Any) -> str:
        call.progress(1, total=2)
        return "done"

    servers = {"a": FakeServer(handler=report), "b": FakeServer(handler=hang)}
    async with open_room(servers) as room:
        told = await room.call_for_model("a_echo", server="a", on_progress=heard.append, meta={"team": "x"})
        assert told.text == "done"
        assert [one["progress"] for one in heard] == [1]
        assert servers["a"].calls[0]["_meta"]["team"] == "x"
        late = await room.call_for_model("b_echo", server="b", timeout=2)
        assert late.reach is Reach.SENT
        with anyio.move_on_after(2) as scope:
            await room.call_for_model("b_echo", server="b")
        assert scope.cancelled_caught
        assert servers["b"].cancelled == 2


# ---- approval ------------------------------------------------------------------------------------------------------


def room_that_asks(**callbacks: Any) -> tuple[Greenroom, FakeServer]:
    server = FakeServer(tools=[tool("look", annotations={"readOnlyHint": True}), tool("wipe")])
    room = open_room({"a": server}, entries={"a": {"approve": "writes"}}, callbacks=callbacks)
    return room, server


@in_virtual_time
async def test_where_nobody_is_there_to_ask_whoever_calls_has_to() -> None:
    room, server = room_that_asks()
    async with room, room.session("s") as session:
        await teach(room, "a", server.tools)
        for caller in (room, session):
            assert caller.needs_approval("a_wipe")
            assert not caller.needs_approval("a_look")
            refused = await caller.call_for_model("a_wipe")
            assert isinstance(refused.error, ApprovalNeeded)
            assert refused.error.question
        assert server.starts == 0
        moves = record_events(room, ApprovalDecision)
        assert not (await session.call_for_model("a_wipe", allowed=True)).is_error
        assert not (await room.call("a_wipe", allowed=True)).is_error
        assert [(event.move, event.client) for event in moves] == [
            (ApprovalMove.ALLOWED, "s"),
            (ApprovalMove.ALLOWED, None),
        ]
        again = await session.call_for_model("a_wipe")  # each yes is for one call
        assert isinstance(again.error, ApprovalNeeded)
        with pytest.raises(UnknownTool):
            room.needs_approval("a_nothing")


@in_virtual_time
async def test_whoever_is_there_to_be_asked_is_asked_by_the_room() -> None:
    async def yes(_request: Any) -> Verdict:
        return Verdict.ONCE

    async def fill(_request: ServerRequest) -> dict[str, Any]:
        return {"action": "accept", "content": {"allow": "once"}}

    for callbacks in ({"on_approval": yes}, {"on_elicitation": fill}):
        room, server = room_that_asks(**callbacks)
        async with room:
            await teach(room, "a", server.tools)
            assert not room.needs_approval("a_wipe")
            assert not (await room.call_for_model("a_wipe")).is_error


@in_virtual_time
async def test_without_the_key_nothing_needs_approval() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await teach(room, "a")
        assert not room.needs_approval("a_echo")


# ---- what a session knows ------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_session_lists_what_its_profile_shows() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    config = {
        "mcpServers": {name: {"command": "fake"} for name in servers},
        "profiles": {"work": {"servers": ["b"]}},
    }
    opened = Greenroom.open(config, cache_path=":memory:", connectors=fake_connectors(servers))
    async with opened as room, room.session("ann", profile="work") as ann:
        await ann.catalogued()
        assert [target.name for target in room.tools()] == ["a_echo", "b_echo"]
        assert [target.name for target in ann.tools()] == ["b_echo"]
        assert ann.describe("b_echo").server == "b"
        assert [match.target.name for match in ann.search("echo").matches] == ["b_echo"]
        with pytest.raises(UnknownTool):
            ann.describe("a_echo")
        with pytest.raises(UnknownServer):
            ann.tools("a")
