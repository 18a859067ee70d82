"""Children that are reset and used again, as real processes: whatever they do, no session meets what is another's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.forked import forked
from tests.support.gateway import PATIENCE, alive, gone_within, serve
from tests.support.patience import until
from tests.support.rooms import record_events

from greenroom import CallError, Greenroom
from greenroom.events import Note, NoteCode, WarmChildMoved, WarmMove

# It keeps what it is told. Its tool `reset` forgets, or does what the last argument says in place of that.
PROGRAM = """
import json, os, sys, time

log, how = sys.argv[1:3]
with open(log, "a") as file:
    file.write(f"{os.getpid()}\\n")
kept, answered = [], []

def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

def text(said, **more):
    return {"content": [{"type": "text", "text": said}], **more}

def call(id, name, arguments):
    if name == "put":
        if arguments.get("dies") == "in silence":
            os._exit(3)
        kept.append(arguments.get("what"))
        answered.append(id)
        sys.stderr.write(f"error: secret of {kept[0]}\\n")
        sys.stderr.flush()
        if arguments.get("dies"):
            sys.exit(3)
        return text(json.dumps({"pid": os.getpid(), "kept": kept}))
    if how == "missing" or name != "reset":
        return None
    if how == "dies":
        os._exit(9)
    if how == "hangs":
        time.sleep(60)
    if how == "fails":
        return text("no", isError=True)
    if how == "asks":
        say({"id": "mine", "method": "roots/list"})
    kept.clear()
    return text("done")

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    id, method, params = asked["id"], asked["method"], asked.get("params") or {}
    if method == "initialize":
        info = {"name": "keeps", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("put", "reset")]}
    elif method == "ping":
        result = {}
    elif method == "tools/call":
        result = call(id, params["name"], params.get("arguments") or {})
    else:
        result = None
    if result is None:
        say({"id": id, "error": {"code": -32601, "message": f"no {params.get('name', method)} here"}})
    else:
        say({"id": id, "result": result})
    if method == "tools/call" and params["name"] == "reset" and how == "late":
        for old in answered:
            say({"id": old, "result": text("of the session before")})
"""


def keeps(folder: Path, how: str = "resets", warm: int = 1, **more: Any) -> dict[str, Any]:
    program = folder / "keeps.py"
    program.write_text(PROGRAM)
    args = ["-S", os.fspath(program), os.fspath(folder / "pids"), how]
    entry = {"command": sys.executable, "args": args, "isolation": "per_session", "warm": warm}
    return {**entry, "reset": "reset", **more}


def pids(folder: Path) -> set[int]:
    log = folder / "pids"
    return {int(line) for line in log.read_text().split()} if log.exists() else set()


async def comes(holds: Callable[[], Any]) -> None:
    with anyio.fail_after(PATIENCE):
        while not holds():
            await anyio.sleep(0.01)


@asynccontextmanager
async def opened(entry: dict[str, Any], **settings: Any) -> AsyncGenerator[Greenroom]:
    config = {"mcpServers": {"a": entry}, "settings": {"stopTimeoutMs": 2000, **settings}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        yield room


def warm(room: Greenroom) -> int:
    return next(row.warm for row in room.status() if row.scope == "shared")


async def put(session: Any, what: str, **more: Any) -> dict[str, Any]:
    import json

    return json.loads((await session.call("a_put", {"what": what, **more})).text)


async def use(room: Greenroom, name: str) -> int:
    said: dict[str, Any] = {}
    async with room.session(name) as session:
        for count in range(1, 4):
            said = await put(session, name)
            assert said["kept"] == [name] * count, "what it met is its own"
    return said["pid"]


@in_real_time
async def test_one_process_serves_many_sessions_and_each_meets_it_as_new(tmp_path: Path) -> None:
    async with opened(keeps(tmp_path)) as room:
        await use(room, "first")
        await comes(lambda: warm(room) == 1)
        used = {await use(room, f"s{number}") for number in range(20)}
        assert len(used) == 1
        await comes(lambda: warm(room) == 1)
        assert len(pids(tmp_path)) == 2
    assert gone_within(pids(tmp_path)) == set()


@in_real_time
async def test_many_at_a_time_over_few_processes(tmp_path: Path) -> None:
    async with opened(keeps(tmp_path, warm=3), maxSessionConnections=12) as room:
        await use(room, "first")
        await comes(lambda: warm(room) == 3)
        left = iter(range(40))

        async def play() -> None:
            for number in left:
                await use(room, f"r{number}")

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(play)
        await comes(lambda: warm(room) == 3)
        row = next(row for row in room.status() if row.scope == "shared")
        assert row.reused >= 20
    assert gone_within(pids(tmp_path)) == set()


BROKEN = {
    "fails": "its result is an error",
    "missing": "no reset here",
    "hangs": "no answer within",
    "dies": "exited with code 9",
    "asks": "it has asked its client for roots/list",
}


def told(events: list[WarmChildMoved]) -> list[str]:
    return [event.words for event in events if event.move is WarmMove.NOT_RESET]


@pytest.mark.parametrize("how", BROKEN)
@in_real_time
async def test_what_does_not_reset_gets_a_new_process(tmp_path: Path, how: str) -> None:
    async with opened(keeps(tmp_path, how), connectTimeoutMs=6000) as room:
        notes, events = record_events(room, Note), record_events(room, WarmChildMoved)
        seen = {await use(room, "first")}
        with anyio.fail_after(PATIENCE):
            while len(told(events)) < 2:  # where another has come meanwhile, it ends and is not reset
                await comes(lambda: warm(room) == 1)
                pid = await use(room, f"s{len(seen)}")
                assert pid not in seen, "nobody has had it before"
                seen.add(pid)
                await comes(lambda: not alive({pid}))  # noqa: B023  (it is awaited at once)
        words = told(events)
        assert all(BROKEN[how] in each for each in words), words
        assert len([note for note in notes if note.code is NoteCode.RESET]) == 1
    assert gone_within(pids(tmp_path)) == set()


@in_real_time
async def test_an_answer_of_the_session_before_that_comes_after_the_reset_is_nobodys(tmp_path: Path) -> None:
    async with opened(keeps(tmp_path, "late")) as room:
        await use(room, "first")
        await comes(lambda: warm(room) == 1)
        for number in range(6):
            await use(room, f"s{number}")
            await comes(lambda: warm(room) == 1)
    assert gone_within(pids(tmp_path)) == set()


@in_real_time
async def test_an_error_quotes_nothing_that_the_process_wrote_for_somebody_else(tmp_path: Path) -> None:
    async with opened(keeps(tmp_path)) as room:
        await use(room, "first")
        for dies in ("in words", "in silence"):
            await comes(lambda: warm(room) == 1)
            pid = await use(room, "alice")
            await comes(lambda: warm(room) == 1)
            async with room.session("bob") as bob:
                with pytest.raises(CallError) as caught:
                    await put(bob, "bob", dies=dies)
            assert "exited with code 3" in str(caught.value)
            assert ("secret of bob" in str(caught.value)) is (dies == "in words")
            assert "alice" not in str(caught.value)
            assert gone_within({pid}) == set(), "it was the same process"


@in_real_time
async def test_one_that_is_killed_while_it_waits_is_replaced_and_never_handed_out(tmp_path: Path) -> None:
    async with opened(keeps(tmp_path)) as room:
        await use(room, "first")
        for number in range(3):
            await comes(lambda: warm(room) == 1)
            victim = await use(room, f"s{number}")
            await comes(lambda: warm(room) == 1)
            os.kill(victim, signal.SIGKILL)
            assert await use(room, f"next {number}") != victim
    assert gone_within(pids(tmp_path)) == set()


@in_real_time
async def test_a_server_of_the_newer_era_is_used_again_though_it_streams_its_news(tmp_path: Path) -> None:
    """As its author would write it with the official SDK."""
    command, *args = forked("tests.support.sdk_asker")
    entry = keeps(tmp_path) | {"command": command, "args": args}
    async with opened(entry) as room:
        events = record_events(room, WarmChildMoved)
        first = await use(room, "first")
        await comes(lambda: warm(room) == 1)
        used = set[int]()
        for number in range(4):
            used.add(await use(room, f"s{number}"))
            await comes(lambda: [event.move for event in events].count(WarmMove.RESET) == number + 1)  # noqa: B023
        assert len(used) == 1
        assert first not in used


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, None, signal.SIGTERM], ids=["killed", "its client left", "ended"]
)
def test_a_gateway_that_ends_leaves_none_that_was_used(tmp_path: Path, how: int | None) -> None:
    entry = {**keeps(tmp_path, warm=2), "isolation": "per_call"}
    with serve(tmp_path, {"a": entry}) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_put", args={"what": "x"})
        until(lambda: len(alive(pids(tmp_path))) == 2)
        for number in range(4):
            gateway.mcp(tool="a_put", args={"what": str(number)})
        gateway.end(how)
        assert gone_within(pids(tmp_path)) == set()
