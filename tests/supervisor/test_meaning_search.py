"""Finding by meaning in a room: a real child with a tiny model, to which all tools are near."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, record_events, teach
from tests.support.tiny_model import write_model

from greenroom import Greenroom
from greenroom.events import Note
from greenroom.protocol.events import NoteCode
from greenroom.testing.fake_servers import FakeServer, tool

TOOLS = (tool("alpha", "Search files."), tool("beta", "Delete a file."))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenroom.supervisor.meaning_search.SOON", 0.01)
    monkeypatch.setattr("greenroom.actors.workers.FIRST_PAUSE", 0.01)


def a_room(model: str | bool) -> Greenroom:
    return open_room({"s": FakeServer()}, semanticSearch=model)


async def found(room: Greenroom, query: str = "xyzzy", **more: Any) -> list[str]:
    """What a query finds, once it finds anything."""
    with anyio.fail_after(PATIENCE):
        while True:
            page = await room.find(query, **more)
            if page.matches:
                return [match.target.name for match in page.matches]
            await anyio.sleep(0.01)


def children(mark: str = "_meaning_program") -> list[int]:
    """The children that find by meaning, by a word of their command line."""
    mine = list[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = mark.encode() in (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if is_ours and int(parent) == os.getpid():
            mine.append(int(entry.name))
    return mine


@in_real_time
async def test_tools_are_found_that_share_no_word_with_the_query(tmp_path: Path) -> None:
    async with a_room(str(write_model(tmp_path))) as room:
        await teach(room, "s", TOOLS)
        assert sorted(await found(room)) == ["s_alpha", "s_beta"]
        assert (await found(room, "beta"))[0] == "s_beta"
        assert (await found(room, "search files"))[0] == "s_alpha"
        assert (await room.find(" ")).matches == room.search("xyzzy").matches == ()
    assert children() == []


@in_real_time
async def test_a_tool_that_is_listed_later_is_found_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    async with a_room(str(write_model(tmp_path))) as room:
        await teach(room, "s", TOOLS[:1])
        assert await found(room) == ["s_alpha"]
        await teach(room, "s", TOOLS[1:])
        assert await found(room) == ["s_beta"]


@in_real_time
async def test_a_child_that_was_killed_is_started_again_and_the_log_says_both(tmp_path: Path) -> None:
    async with a_room(str(write_model(tmp_path))) as room:
        notes = record_events(room, Note)
        await teach(room, "s", TOOLS)
        await found(room)
        for child in children():
            os.kill(child, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            while not any("works again" in note.words for note in notes):
                await room.find("xyzzy")
                await anyio.sleep(0.01)
        assert len(await found(room)) == 2
        said = [note.words for note in notes if note.code is NoteCode.MEANING]
        assert "SIGKILL" in said[0]
        assert "found by their words alone" in said[0]
        assert len(said) == 2


@in_real_time
async def test_a_model_that_is_missing_is_said_once_and_words_find(tmp_path: Path) -> None:
    async with a_room(str(tmp_path)) as room:
        notes = record_events(room, Note)
        await teach(room, "s", TOOLS)
        with anyio.fail_after(PATIENCE):
            while not notes:
                await anyio.sleep(0.01)
        assert await found(room, "search") == ["s_alpha"]
        (note,) = notes
        assert "has no model.safetensors" in note.words
        assert "semanticSearch" in note.words


@in_real_time
async def test_the_setting_is_heeded_when_the_configuration_changes(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))

    def config(**settings: Any) -> dict[str, Any]:
        return {"mcpServers": {"s": {"command": "x"}}, "settings": settings}

    async with Greenroom.open(config(), cache_path=tmp_path / "catalogue.json", bootstrap=False) as room:
        await teach(room, "s", TOOLS)
        assert (await room.find("xyzzy")).matches == ()
        assert children() == []
        await room.reload(config(semanticSearch=model))
        await teach(room, "s", TOOLS)
        assert len(await found(room)) == 2
        with anyio.fail_after(PATIENCE):
            while not (tmp_path / "catalogue.vectors").exists():
                await anyio.sleep(0.01)
        await room.reload(config())
        await teach(room, "s", TOOLS)
        assert (await room.find("xyzzy")).matches == ()
        with anyio.fail_after(PATIENCE):
            while children():
                await anyio.sleep(0.01)


@in_real_time
async def test_a_query_does_not_wait_for_a_child_that_hangs(tmp_path: Path) -> None:
    async with a_room(str(write_model(tmp_path))) as room:
        await teach(room, "s", TOOLS)
        await found(room)
        (child,) = children()
        os.kill(child, signal.SIGSTOP)
        try:
            with anyio.fail_after(PATIENCE):
                assert (await room.find("xyzzy")).matches == ()
                assert [match.target.name for match in (await room.find("search")).matches] == ["s_alpha"]
        finally:
            os.kill(child, signal.SIGCONT)


@in_real_time
async def test_of_more_tools_than_the_bound_the_rest_is_found_by_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.supervisor.meaning_search.MEANINGS", 1)
    async with a_room(str(write_model(tmp_path))) as room:
        await teach(room, "s", TOOLS)
        assert await found(room) == ["s_alpha"]
        assert await found(room, "delete") == ["s_beta", "s_alpha"]


@in_real_time
async def test_texts_of_any_size_and_form_are_told_to_the_child(tmp_path: Path) -> None:
    odd = tool("\ud83d", "\0 \u202e 搜索", inputSchema={"type": "object", "properties": {"\ud83d" * 9: 1}})
    tools = (tool("long", "x" * 2_000_000), tool("none", ""), odd)
    async with a_room(str(write_model(tmp_path))) as room:
        await teach(room, "s", tools)
        assert len(await found(room)) == len(room.tools("s"))
        assert await found(room, "\ud83d \0" * 100_000)


ANSWERS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "nearest" or asked["method"] == %r:
        %s
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}), flush=True)
"""
SAYS = 'print(\'{"jsonrpc":"2.0","id":%%d,"result":%s}\' %% asked["id"], flush=True); continue'


@pytest.mark.parametrize(
    ("fails_at", "does", "why"),
    [
        ("nearest", SAYS % '{"numbers":"AAAAAAAAAAD/////"}', "answered what cannot be read"),
        ("nearest", SAYS % '{"numbers":"AAA"}', "answered what cannot be read"),
        ("nearest", SAYS % '{"numbers":7}', "answered what cannot be read"),
        ("nearest", SAYS % "{}", "answered what cannot be read"),
        ("nearest", SAYS % "[]", "answered what cannot be read"),
        ("nearest", 'print("no JSON", flush=True); sys.exit(3)', "exited with code 3"),
        ("nearest", "continue", "does not answer"),
        ("begin", SAYS % "null", "answered what cannot be read"),
        ("begin", "continue", "does not answer"),
        ("begin", "sys.exit(3)", "exited with code 3"),
        ("learn", SAYS % "7", "answered what cannot be read"),
        ("learn", "continue", "does not answer"),
        ("learn", "sys.exit(3)", "exited with code 3"),
    ],
)
@in_real_time
async def test_whatever_the_child_does_words_find_and_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str, does: str, why: str
) -> None:
    starts = tmp_path / "starts"  # one may have ended before anybody can look at it
    starts.touch()
    begins = f"open({str(starts)!r}, 'a').write('x')\n"
    monkeypatch.setattr("greenroom.supervisor.meaning_search.ANSWERS_WITHIN", 0.5)
    program = (sys.executable, "-S", "-c", begins + ANSWERS % (fails_at, does))
    monkeypatch.setattr("greenroom.supervisor.meaning_search.command", lambda: program)
    async with a_room("any") as room:
        notes = record_events(room, Note)
        await teach(room, "s", TOOLS)
        with anyio.fail_after(PATIENCE):
            while starts.stat().st_size < 2 or not any(why in note.words for note in notes):
                page = await room.find("search")
                assert [match.target.name for match in page.matches] == ["s_alpha"]
                await anyio.sleep(0.01)
        assert not any("bug" in note.words for note in notes), notes


def test_without_the_setting_nothing_of_it_is_imported() -> None:
    code = """
import sys, anyio
from greenroom import Greenroom, SearchTool

async def main():
    async with Greenroom.open({"mcpServers": {}}, cache_path=":memory:") as room:
        await room.find("anything")
        await SearchTool(room).run({"search": "anything"})

anyio.run(main)
ours = "greenroom.catalogue.mean", "greenroom.supervisor.mean"
print([name for name in sys.modules if name.startswith(("numpy", *ours))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
