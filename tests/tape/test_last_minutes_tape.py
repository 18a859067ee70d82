"""The last minutes of any room become a tape when somebody wants one, within a bound of bytes and without secrets."""

from __future__ import annotations

import gc
import json
import stat
import sys
import tracemalloc
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.rooms import Outcomes

from greenroom import Greenroom
from greenroom.errors import CallError, RemoteError, UsageError
from greenroom.protocol.bounds import (
    RECENT_BYTES,
    RECENT_CONTENT,
    RECENT_MINUTES,
    RECENT_NOTICES,
    RECENT_WORDS,
)
from greenroom.supervisor.room import port_of
from greenroom.tape import last_minutes_tape
from greenroom.tape.last_minutes_tape import write_tape
from greenroom.tape.story import told
from greenroom.tape.tape_reader import Tape, read_tape
from greenroom.testing.fake_servers import FakeServer, fake_room, tool

SECRET = "plover-51a3f9c2e7d84b6fa0"  # not of a form by which any text is cleaned
ECHO = {"command": sys.executable, "args": ["-S", "src/greenroom/testing/servers/echo.py"]}


async def tape_of(room: Greenroom, path: Path) -> Tape:
    await room.recent_tape(path)
    return read_tape(path)


def tape_now(room: Greenroom, path: Path, redact: Collection[str] = ()) -> Tape:
    """The same without a thread, which virtual time would not wait for."""
    write_tape(path, last_minutes_tape.tape_of(port_of(room).services.last_minutes(), redact))
    return read_tape(path)


def real_room(**entry: Any) -> Greenroom:
    return Greenroom.open({"mcpServers": {"e": {**ECHO, **entry}}}, cache_path=":memory:", bootstrap=False)


@in_real_time
async def test_what_was_asked_is_answered_again_byte_for_byte(tmp_path: Path) -> None:
    arguments = {"text": "", "n": 2**70}
    async with real_room() as room:
        for text in ("one", "two é\u2028", "three"):
            arguments["text"] = text  # the tape has what was sent, whatever became of it
            assert text in (await room.call("e_echo", arguments)).text
        arguments["text"] = "changed"
        tape = await tape_of(room, tmp_path / "x.tape")
    assert stat.S_IMODE(tape.path.stat().st_mode) == 0o600
    assert tape.head.is_part
    assert [json.loads(bytes(call.params))["arguments"]["text"] for call in tape.calls] == [
        "one",
        "two é\u2028",
        "three",
    ]
    assert [call.order for call in tape.calls] == [1, 2, 3]
    went = [line.event.get("to") for line in tape.events if line.event.get("event") == "Transition"]
    assert went == ["connecting", "connected"]
    async with Greenroom.replay(tape.path) as room:
        assert "three" in (await room.call("e_echo", {**arguments, "text": "three"})).text


@in_virtual_time
async def test_progress_questions_and_errors_come_again(tmp_path: Path) -> None:
    async def handler(call: Any) -> str:
        call.progress(1.0, 2.0, "half")
        return str((await call.elicit("Your name?")).get("action"))

    async def answer(_request: object) -> Mapping[str, Any]:
        return {"action": "decline"}

    server, steps = FakeServer(handler=handler), list[Any]()
    async with fake_room({"shop": server}, on_elicitation=answer) as room:
        await room.call("shop_echo", {}, on_progress=steps.append)
        server.call_error = (-32001, "no such bill")
        with pytest.raises(RemoteError):
            await room.call("shop_echo", {"bill": 7})
        tape = tape_now(room, tmp_path / "x.tape")
    again = list[Any]()
    async with Greenroom.replay(tape.path, on_elicitation=answer) as room:
        assert (await room.call("shop_echo", {}, on_progress=again.append)).text == "decline"
        assert again == steps != []
        with pytest.raises(RemoteError, match="no such bill") as refused:
            await room.call("shop_echo", {"bill": 7})
        assert refused.value.rpc_code == -32001


@in_virtual_time
async def test_a_call_that_has_not_ended_is_on_the_tape_and_cannot_be_replayed(tmp_path: Path) -> None:
    async with fake_room({"shop": FakeServer(call_latency=50.0)}) as room, Outcomes() as calls:
        calls.start(room, "shop_echo", {"text": "slow"})
        await anyio.sleep(10)
        tape = tape_now(room, tmp_path / "x.tape")
    (call,) = tape.calls
    assert (call.outcome, call.reach) == ("open", "sent")
    assert 9.9 < call.ended - call.accepted < 10.1
    async with Greenroom.replay(tape.path) as room:
        with pytest.raises(RemoteError, match=r"call #1\. It had not ended"):
            await room.call("shop_echo", {"text": "slow"})


@in_real_time
async def test_of_what_is_large_the_size_is_kept_and_a_replay_says_so(tmp_path: Path) -> None:
    async with real_room() as room:
        await room.call("e_echo", {"size": RECENT_CONTENT})
        await room.call("e_echo", {"what": "a report", "text": "x y " * RECENT_CONTENT})
        tape = await tape_of(room, tmp_path / "x.tape")
    assert tape.path.stat().st_size < RECENT_CONTENT
    asked, gave = tape.calls[1].left_out["params"], tape.calls[0].left_out["result"]
    assert 4 * RECENT_CONTENT < asked < 4 * RECENT_CONTENT + 300
    assert RECENT_CONTENT < gave < RECENT_CONTENT + 300
    assert json.loads(bytes(tape.calls[1].params)) == {"name": "echo"}
    assert f"#2 e_echo {asked:,} bytes, which are not on the tape" in "\n".join(told(tape))
    async with Greenroom.replay(tape.path) as room:
        with pytest.raises(RemoteError, match=rf"call #1\. Its {gave:,} bytes"):
            await room.call("e_echo", {"size": RECENT_CONTENT})
        with pytest.raises(RemoteError, match="Not on the tape"):
            await room.call("e_echo", {})
        assert room.tape is not None
        assert len(room.tape.refused) == 2


@in_virtual_time
async def test_the_last_small_notifications_are_on_it(tmp_path: Path) -> None:
    server = FakeServer()
    async with fake_room({"shop": server}) as room:
        await room.call("shop_echo", {})
        [connection] = server.connections
        for number in range(RECENT_NOTICES + 10):
            connection.tell("notifications/message", {"level": "info", "data": f"no. {number}"})
        connection.tell("notifications/message", {"level": "error", "data": "x" * 5_000})
        connection.tell("notifications/message", {"level": "error", "data": ["x"] * 5_000})
        connection.tell("notifications/odd", None)
        tape = tape_now(room, tmp_path / "x.tape")
    assert len(tape.notices) == RECENT_NOTICES
    *small, long, wide, odd = tape.notices
    assert [line.params["data"] for line in small if line.params] == [
        f"no. {number}" for number in range(13, RECENT_NOTICES + 10)
    ]
    assert (long.params, wide.params, odd.params) == (None, None, None)
    assert (long.left_out, odd.left_out) == (5_000, 0)
    assert wide.left_out > 20_000
    story = "\n".join(told(tape, most=None))
    assert 'says message {"level":"info","data":"no. 13"}' in story
    assert "says message, with 5,000 bytes, which are not on the tape" in story


@in_virtual_time
async def test_only_the_last_minutes_are_on_it(tmp_path: Path) -> None:
    async with fake_room({"shop": FakeServer()}) as room:
        await room.call("shop_echo", {"n": 1})
        await anyio.sleep(60 * RECENT_MINUTES - 1)
        await room.call("shop_echo", {"n": 2})
        await anyio.sleep(2)
        tape = tape_now(room, tmp_path / "x.tape")
    assert [call.n for call in tape.calls] == [2]
    assert tape.events == ()


@in_real_time
async def test_no_more_is_kept_than_the_bound(tmp_path: Path) -> None:
    async with real_room() as room:
        await room.call("e_echo", {"n": 0})
        gc.collect()
        tracemalloc.start()
        text = "x" * 1000
        for number in range(1, 1000):
            await room.call("e_echo", {"n": number, "text": text})
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        tape = await tape_of(room, tmp_path / "x.tape")
    numbers = [json.loads(bytes(call.params))["arguments"]["n"] for call in tape.calls]
    assert numbers == list(range(1000 - len(numbers), 1000))
    assert 100 < len(numbers) < 300
    assert grown < RECENT_BYTES


@in_virtual_time
async def test_what_was_planted_is_nowhere_on_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)

    async def handler(call: Any) -> str:
        call.progress(1.0, 2.0, f"half of {SECRET}")
        await call.elicit(f"Is {SECRET} yours?")
        return f"it is {SECRET}"

    async def answer(_request: object) -> Mapping[str, Any]:
        return {"action": "accept", "content": {"key": SECRET}}

    server = FakeServer(tools=[tool("echo", f"needs {SECRET}")], handler=handler)
    async with fake_room({"shop": server}, on_elicitation=answer) as room, Outcomes() as calls:
        await room.call("shop_echo", {"key": SECRET, "pin": "4711"}, on_progress=lambda _: None)
        server.call_error = (-32001, f"no {SECRET}")
        with pytest.raises(CallError):
            await room.call("shop_echo", {"again": SECRET})
        server.call_error, server.call_latency = None, 50.0
        open_call = calls.start(room, "shop_echo", {"open": SECRET})
        await anyio.sleep(1)
        tape = tape_now(room, tmp_path / "x.tape", redact=["pin"])
        server.crash(f"wrote: {SECRET} is wrong")
        open_call.cancel()
        after = tape_now(room, tmp_path / "y.tape")
    assert len(tape.calls) == 3
    assert tape.calls[0].progress
    assert tape.calls[0].asked
    assert any(line.event.get("cause") == "lost" for line in after.events)
    for each in (tape, after):
        assert SECRET not in each.path.read_text()
    assert "4711" not in tape.path.read_text()


@in_virtual_time
async def test_what_is_kept_in_short_ends_with_no_half_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    async with fake_room({"shop": FakeServer()}) as room:
        for length in range(RECENT_WORDS - 60, RECENT_WORDS, 7):
            name = f"{'x' * (length - 1)} {SECRET}"
            with pytest.raises(CallError):
                await room.call(name)
            with pytest.raises(CallError):
                await room.call("shop_echo", server=name)
        tape = tape_now(room, tmp_path / "x.tape")
    assert len(tape.events) > 10
    assert SECRET[:5] not in tape.path.read_text()


@in_real_time
async def test_the_secrets_of_a_session_that_has_ended_are_cut_out_too(tmp_path: Path) -> None:
    entry = {"env": {"TOKEN": "${session.TOKEN}"}, "isolation": "per_session"}
    async with real_room(**entry) as room:
        for number, name in enumerate(("ann", "bob", "ann")):
            token = f"{number}-{SECRET}"
            async with room.session(name, variables={"TOKEN": token}) as session:
                assert token in (await session.call("e_echo", {"text": f"my {token}"}, server="e")).text
                kept = port_of(room).services.last_minutes()
            assert SECRET.encode() not in b"".join(last_minutes_tape.tape_of(kept)), (
                "it ended before the tape was made"
            )
        tape = await tape_of(room, tmp_path / "x.tape")
    assert [call.session for call in tape.calls] == ["ann", "bob", "ann"]
    assert SECRET not in tape.path.read_text()


@in_virtual_time
async def test_what_was_refused_at_once_is_told_and_is_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    server = FakeServer(refuse_start=f"no key {SECRET}")
    settings = {"failureThreshold": 1, "cooldownMs": 30_000}
    async with fake_room({"shop": FakeServer(), "down": server}, settings=settings) as room:
        await room.call("shop_echo")
        for tool in ("down_echo", "down_echo", "shop_nothing", f"nobody_{SECRET}"):
            with pytest.raises(CallError):
                await room.call(tool)
        tape = tape_now(room, tmp_path / "x.tape")
    refused = [line.event for line in tape.events if line.event.get("event") == "Refusal"]
    assert ("down", "server_unavailable") in {(one.get("server"), one.get("code")) for one in refused}
    assert any("shop_nothing" in one.get("detail", "") for one in refused)
    assert len(refused) == 4
    assert [call.tool for call in tape.calls] == ["shop_echo"]
    assert SECRET not in tape.path.read_text()
    story = "\n".join(told(tape))
    assert 'refused: ✗ down_echo → server_unavailable: Server "down" not available' in story


@in_real_time
async def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.tape"
    path.write_text("mine")
    async with fake_room({"shop": FakeServer()}) as room:
        with pytest.raises(UsageError, match="is there already"):
            await room.recent_tape(path)
        with pytest.raises(UsageError, match="No tape can be written"):
            await room.recent_tape(tmp_path / "no" / "x.tape")
    assert path.read_text() == "mine"
