"""The tools that were called in most conversations stand beside the `mcp` tool in the next ones (`frequentTools`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
from tests.gateway.test_beside import mcp, names
from tests.gateway.test_conversations import talking
from tests.support import in_real_time, in_virtual_time
from tests.support.memory_client import MemoryClient
from tests.support.rooms import settle, teach

from greenroom import Greenroom
from greenroom.gateway.conversations import Conversations
from greenroom.gateway.frequent_tools import FILE, ToolCount, counted, most_called
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

DAY = 86_400.0
TOOLS = [tool(name) for name in ("one", "two", "three")]


def open_room(most: int, place: str = ":memory:", **settings: Any) -> Greenroom:
    config = {"mcpServers": {"a": {"command": "fake"}}, "settings": {"frequentTools": most, **settings}}
    connectors = fake_connectors({"a": FakeServer(TOOLS)})
    return Greenroom.open(config, cache_path=place, bootstrap=False, connectors=connectors)


async def converse(talk: Any, *called: str) -> list[str]:
    """What a new client is shown; then it calls these tools."""
    async with talk("ann") as ann:
        shown = await names(ann)
        for name in called:
            await mcp(ann, tool=name, args={})
        assert await names(ann) == shown, "it stays as it was when the client came"
        await settle()
    return shown


@in_virtual_time
async def test_what_was_called_in_two_conversations_is_shown_in_the_third() -> None:
    async with open_room(2) as room, talking(room, "proxy") as talk:
        await teach(room, "a", TOOLS)
        assert await converse(talk, "a_two", "a_one", "a_one", "a_one") == ["mcp"]
        assert await converse(talk, "a_two") == ["mcp"]
        assert await converse(talk, "a_one", "a_three") == ["mcp", "a_two"]
        assert await converse(talk, "a_two") == ["mcp", "a_one", "a_two"]  # the one called last first
        assert await converse(talk) == ["mcp", "a_two", "a_one"]
        async with talk("ben") as ben:
            answer = await ben.ask("tools/call", {"name": "a_two", "arguments": {}})
            assert not answer["result"].get("isError")


@in_virtual_time
async def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    async with open_room(0) as room, talking(room, "proxy") as talk:
        await teach(room, "a", TOOLS)
        for _ in range(3):
            assert await converse(talk, "a_one") == ["mcp"]


@in_virtual_time
async def test_a_client_is_shown_nothing_that_its_profile_does_not_have() -> None:
    config = {
        "mcpServers": {"a": {"command": "fake"}},
        "profiles": {"small": {"tools": ["two"]}},
        "settings": {"frequentTools": 3},
    }
    connectors = fake_connectors({"a": FakeServer(TOOLS)})
    async with (
        Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors) as room,
        talking(room, "proxy") as talk,
    ):
        await teach(room, "a", TOOLS)
        for _ in range(2):
            await converse(talk, "a_one", "a_two")
        async with talk("cat", profile="small") as cat:
            assert await names(cat) == ["mcp", "a_two"]


@in_real_time
async def test_gateways_count_together_and_a_broken_file_is_an_empty_one(tmp_path: Path) -> None:
    place, file = os.fspath(tmp_path / "catalogue.json"), tmp_path / FILE
    file.write_text("{never")
    file.chmod(0o600)
    for shown in (["mcp"], ["mcp"], ["mcp", "a_one"]):
        async with open_room(1, place) as room, talking(room, "proxy") as talk:
            await teach(room, "a", TOOLS)
            assert await converse(talk, "a_one") == shown
            while "a_one" not in file.read_text():
                await settle()
    assert [*json.loads(file.read_text())] == ["a_one"]
    assert file.stat().st_mode & 0o777 == 0o600


@in_real_time
async def test_a_file_that_cannot_be_used_is_said_once_and_calls_go_on(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    notes: list[str] = []
    async with (
        open_room(1, os.fspath(tmp_path / "catalogue.json")) as room,
        anyio.create_task_group() as tasks,
    ):
        await teach(room, "a", TOOLS)
        conversations = Conversations(room, expose="proxy", version="1", note=notes.append)
        await tasks.start(conversations.watch)
        for name in ("ann", "ben", "cat"):
            person = MemoryClient()
            async with conversations.open(person, tasks.start_soon, name=name) as person.session:
                person.initialize()
                assert await names(person) == ["mcp"]
                assert not (await mcp(person, tool="a_one", args={})).get("isError")
                while not notes:
                    await settle()
        tasks.cancel_scope.cancel()
    (note,) = notes
    assert note.startswith("frequentTools: ")


def test_a_count_halves_in_thirty_days() -> None:
    counts: dict[str, ToolCount] = {}
    for day, name in enumerate(["spring"] * 4):
        counts = counted(counts, name, day * DAY)
    assert most_called(counts, 5, 4 * DAY) == ("spring",)
    later = 94 * DAY
    for _ in range(2):
        counts = counted(counts, "summer", later)
    assert most_called(counts, 5, later) == ("summer",)


def test_there_is_a_bound_and_the_newest_name_always_has_room() -> None:
    counts: dict[str, ToolCount] = {}
    for number in range(700):
        counts = counted(counted(counts, f"t{number}", 0.0), "always", 0.0)
    assert len(counts) == 500
    assert most_called(counts, 3, 0.0) == ("always",)
    assert "t699" in counts
