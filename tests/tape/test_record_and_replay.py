"""What a room records, a room over the tape answers, and nothing is started for that."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from tests.support import run
from tests.support.gateway import PATIENCE, named_after, serve
from tests.support.patience import until
from tests.support.whole import whole

from greenroom import Greenroom
from greenroom.actors.call import Call
from greenroom.errors import CallError, RemoteError, SessionNeeded, UsageError
from greenroom.protocol.events import Kind
from greenroom.supervisor.room import port_of
from greenroom.tape.story import ending
from greenroom.tape.tape_reader import read_tape
from greenroom.testing.fake_servers import FakeServer, fake_room, tool

BACKENDS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
SECRET = "plover-51a3f9c2e7d84b6fa0"  # not of a form by which any text is cleaned


def tape_in(folder: Path) -> Path:
    (tape,) = folder.glob("*.tape")
    return tape


def lines_of(tape: Path) -> list[Any]:
    return [json.loads(line) for line in tape.read_text().splitlines()]


def children() -> set[str]:
    """The processes that this one has started."""
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }


@asynccontextmanager
async def recorded(folder: Path, server: FakeServer, **options: Any) -> AsyncGenerator[Greenroom]:
    async with fake_room({"shop": server}, record=folder, **options) as room:
        yield room


async def raw(room: Greenroom, name: str, arguments: Mapping[str, Any]) -> bytes:
    """An answer, byte for byte."""
    server, _, own = name.partition("_")
    call = Call("tools/call", {"name": own, "arguments": dict(arguments)}, tool=name)
    return await port_of(room).ask_raw(server, call)


@BACKENDS
def test_a_thousand_calls_are_answered_byte_for_byte_without_a_process(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        odd = {"text": "é\u2028 'x' \\ \" 1e400", "n": 2**70}
        asked = [{**odd, "k": number % 300} for number in range(1000)]
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")])) as room:
            answers = [await raw(room, "shop_echo", each) for each in asked]
        tape = tape_in(tmp_path)
        assert stat.S_IMODE(tape.stat().st_mode) == 0o600
        before = children()
        async with Greenroom.replay(tape) as room:
            assert [await raw(room, "shop_echo", each) for each in asked] == answers
            assert room.tape is not None
            assert room.tape.untaken == []
            assert children() <= before

    run(loop, main)


def test_what_is_read_after_a_write_is_what_was_read_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        state = {"v": "old"}

        def handler(call: Any) -> str:
            if call.tool == "put":
                state["v"] = str(call["v"])
            return state["v"]

        tools = [tool("get", annotations={"readOnlyHint": True}), tool("put")]
        async with recorded(tmp_path, FakeServer(tools=tools, handler=handler)) as room:
            for name, arguments in (("get", {}), ("get", {}), ("put", {"v": "new"}), ("get", {})):
                await room.call(f"shop_{name}", arguments)
        async with Greenroom.replay(tape_in(tmp_path)) as room:
            assert (await room.call("shop_get", {})).text == "old"
            await room.call("shop_put", {"v": "new"})
            assert (await room.call("shop_get", {})).text == "new", "it skipped a read before the write"

    run("asyncio", main)


def test_errors_ends_progress_and_questions_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        async def handler(call: Any) -> str:
            if call.tool == "ask":
                return str((await call.elicit("Your name?")).get("action"))
            call.progress(1.0, 2.0, "half")
            return "done"

        questions: list[str] = []

        async def answer(request: Any) -> Any:
            questions.append(request.params["message"])
            return {"action": "decline"}

        server = FakeServer(tools=[tool("ask"), tool("steps")], handler=handler)
        steps: list[Any] = []
        async with recorded(tmp_path, server, on_elicitation=answer) as room:
            assert (await room.call("shop_ask", {})).text == "decline"
            await room.call("shop_steps", {}, on_progress=steps.append)
            server.call_error = (-32001, "no such bill")
            for _ in range(2):
                with pytest.raises(RemoteError):
                    await room.call("shop_steps", {"bill": 7})
                server.call_error = None
                server.call_latency = 60.0
                break
            with pytest.raises(CallError) as late:
                await room.call("shop_steps", {"late": True}, timeout=1.0)
        again: list[Any] = []
        async with Greenroom.replay(tape_in(tmp_path), on_elicitation=answer) as room:
            assert (await room.call("shop_ask", {})).text == "decline"
            assert questions == ["Your name?"] * 2
            await room.call("shop_steps", {}, on_progress=again.append)
            assert again == steps != []
            with pytest.raises(RemoteError) as refused:
                await room.call("shop_steps", {"bill": 7})
            assert (refused.value.rpc_code, refused.value.rpc_message) == (-32001, "no such bill")
            with pytest.raises(CallError) as once_more:
                await room.call("shop_steps", {"late": True})
            said = (once_more.value.code, once_more.value.reach, str(once_more.value))
            assert said == (late.value.code, late.value.reach, str(late.value))

    run("asyncio", main)


def test_what_is_not_on_the_tape_is_refused_with_the_nearest_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")])) as room:
            for text in ("milk and honey", "bread"):
                await room.call("shop_echo", {"text": text, "at": 1})
        tape = tape_in(tmp_path)
        async with Greenroom.replay(tape) as room:
            with pytest.raises(RemoteError, match="nearest recorded call is #1:") as refused:
                await room.call("shop_echo", {"text": "milk and money", "at": 1})
            assert refused.value.data == {"error": "not_on_tape", "nearest": 1}
            await room.call("shop_echo", {"text": "bread", "at": 1})
            with pytest.raises(
                RemoteError, match=r"No answer is left .*: .* #2 has been answered already; .*--lenient"
            ):
                await room.call("shop_echo", {"text": "bread", "at": 1})
            assert room.tape is not None
            assert [params["arguments"]["text"] for _, _, params in room.tape.refused] == [
                "milk and money",
                "bread",
            ]
            assert [call["number"] for call in room.tape.untaken] == [1]
        async with Greenroom.replay(tape, strict=False, ignore=["at"], nearest=0.8) as room:
            for at in range(3):
                assert "bread" in (await room.call("shop_echo", {"text": "bread", "at": at})).text
            assert "honey" in (await room.call("shop_echo", {"text": "milk and money"})).text
            with pytest.raises(RemoteError, match="Not on the tape"):
                await room.call("shop_echo", {"quite": {"another": ["thing"]}})
        async with Greenroom.replay(tape, by_order=True) as room:
            assert "honey" in (await room.call("shop_echo", {"text": "whatever"})).text
            assert "bread" in (await room.call("shop_echo", {"text": "else"})).text

    run("asyncio", main)


def test_lists_change_where_they_changed(tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeServer(tools=[tool("echo")])
        async with recorded(tmp_path, server) as room:
            await room.call("shop_echo", {})
            server.tools = [tool("echo"), tool("more")]
            server.announce_tools()
            with anyio.fail_after(PATIENCE):
                while len(room.tools("shop")) < 2:
                    await anyio.sleep(0.01)
            await room.call("shop_more", {})
        async with Greenroom.replay(tape_in(tmp_path)) as room:
            await room.connect("shop")
            assert [each.name for each in room.tools("shop")] == ["shop_echo"]
            await room.call("shop_echo", {})
            with anyio.fail_after(PATIENCE):
                while len(room.tools("shop")) < 2:
                    await anyio.sleep(0.01)
            await room.call("shop_more", {})

    run("asyncio", main)


def test_in_recorded_time_a_call_takes_as_long_as_it_took(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")], call_latency=0.3)) as room:
            await room.call("shop_echo", {})
        async with Greenroom.replay(tape_in(tmp_path), pace="recorded") as room:
            await room.connect("shop")
            began = time.monotonic()
            await room.call("shop_echo", {})
            assert time.monotonic() - began >= 0.29

    run("asyncio", main)


def test_in_virtual_time_recorded_time_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")], call_latency=50.0)) as room:
            await room.call("shop_echo", {})
        async with Greenroom.replay(tape_in(tmp_path), pace="recorded") as room:
            await room.connect("shop")
            began = trio.current_time()
            await room.call("shop_echo", {})
            assert 49.9 < trio.current_time() - began < 50.1
        async with Greenroom.replay(tape_in(tmp_path), pace="at once") as room:
            await room.connect("shop")
            began = trio.current_time()
            await room.call("shop_echo", {})
            assert trio.current_time() - began < 1.0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_large_results_are_beside_the_tape_and_no_secret_is_in_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)

    async def main() -> None:
        def handler(call: Any) -> str:
            call.progress(1.0, 2.0, f"half of {SECRET}")
            return f"{call.get('text')} {SECRET} {'x' * int(call.get('size', 0))}"

        arguments = [{"text": f"my {SECRET}", "pin": "pin-4711"}, {"text": "t", "size": 200_000}]
        server = FakeServer(tools=[tool("echo")], handler=handler)
        async with recorded(tmp_path, server, redact=["pin"]) as room:
            for each in arguments:
                await room.call("shop_echo", each, on_progress=lambda _: None)
        tape = tape_in(tmp_path)
        assert any(line.get("progress") for line in lines_of(tape))
        files = [tape, *(tape.with_name(tape.name + ".d")).iterdir()]
        assert len(files) == 2
        assert [file for file in files if SECRET in file.read_text()] == []
        assert "pin-4711" not in tape.read_text()
        async with Greenroom.replay(tape) as room:
            result = await room.call("shop_echo", arguments[1])
            assert result.text.endswith("x" * 200_000)

    run("asyncio", main)


def test_a_tape_of_a_killed_gateway_is_whole_up_to_the_last_answer(tmp_path: Path) -> None:
    folder = tmp_path / "tapes"
    options = ("--expose", "direct", "--record", os.fspath(folder))
    with serve(tmp_path, {"own": whole("own")}, *options) as gateway:
        gateway.initialize()
        for arguments in (*({"n": number} for number in range(20)), {"text": "x" * 1_000_000}):
            asked = gateway.send("tools/call", {"name": "own_echo", "arguments": arguments})
            assert "result" in gateway.answer(asked)
        gateway.end(signal.SIGKILL)
    *calls, large = read_tape(tape_in(folder)).calls
    assert [call.said["arguments"]["n"] for call in calls] == list(range(20))
    assert large.outcome == "result"
    assert ending(read_tape(tape_in(folder))).startswith("The recording was not ended")
    until(lambda: not named_after(tmp_path), "the server's end")


def test_what_is_known_of_a_server_that_never_runs_is_on_the_tape(tmp_path: Path) -> None:
    cache, folder = tmp_path / "catalogue.json", tmp_path / "tapes"

    async def main() -> None:
        server = FakeServer(tools=[tool("echo")])
        async with fake_room({"shop": server}, cache_path=cache) as room:
            await room.connect("shop")
        async with fake_room({"shop": server}, cache_path=cache, record=folder) as room:
            shown = [each.name for each in room.tools()]
            assert (shown, server.starts) == (["shop_echo"], 1)
        async with Greenroom.replay(tape_in(folder)) as room:
            await room.connect("shop")
            assert [each.name for each in room.tools()] == shown

    run("asyncio", main)


def test_a_full_disk_ends_the_tape_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        opened = recorded(tmp_path, FakeServer(tools=[tool("echo")]))
        async with opened as room, room.events([Kind.NOTE]) as events:
            await room.call("shop_echo", {})
            tape = tape_in(tmp_path)
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (tape.stat().st_size + 100, most[1]))
            try:
                for _ in range(3):
                    await room.call("shop_echo", {})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
            await room.call("shop_echo", {})
            with anyio.fail_after(PATIENCE):
                while "the tape" not in str(getattr(await anext(events), "detail", "")):
                    pass
        read = read_tape(tape)
        assert len(read.calls) == 1
        assert ending(read) == "The recording ended before its room did: No space left on device."

    run("asyncio", main)


def test_a_tape_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    place = tmp_path / "one.tape"

    async def main() -> None:
        async with recorded(place, FakeServer(tools=[tool("echo")])) as room:
            await room.call("shop_echo", {})
        kept = place.read_bytes()
        with pytest.raises(UsageError, match="No tape can be recorded"):
            async with recorded(place, FakeServer(tools=[tool("echo")])):
                pass
        assert place.read_bytes() == kept

    run("asyncio", main)


@pytest.mark.parametrize("is_modern", [False, True])
def test_what_a_room_asks_by_itself_is_no_call_that_is_missing(tmp_path: Path, is_modern: bool) -> None:
    config = {"mcpServers": {"own": whole("own", *(["--modern"] if is_modern else []))}}

    async def use(room: Greenroom) -> str:
        room.set_log_level("debug")
        await room.connect("own")
        async with room.subscribe("own://one", "own"):
            return (await room.call("own_echo", {"n": 1})).text

    async def main() -> None:
        place = tmp_path / "own.tape"
        async with Greenroom.open(config, cache_path=":memory:", record=place) as room:
            said = await use(room)
        async with Greenroom.replay(place) as room:
            assert await use(room) == said
            assert room.tape is not None
            assert room.tape.made == [("own_echo", {"n": 1})]
            assert room.tape.refusals == []
            assert room.tape.untaken == []

    run("asyncio", main)


def test_who_has_a_server_of_its_own_has_one_in_the_replay(tmp_path: Path) -> None:
    async def use(room: Greenroom) -> list[str]:
        said: list[str] = []
        with pytest.raises(SessionNeeded) as refused:
            await room.call("own_echo", {})
        said.append(str(refused.value))
        for name in ("a", "b"):
            async with room.session(name) as session:
                said.append((await session.call("own_echo", {})).text)
        return [*said, (await room.call("all_echo", {})).text]

    async def main() -> None:
        count = iter(range(9))
        servers = {name: FakeServer(handler=lambda _: str(next(count))) for name in ("own", "all")}
        own = {"own": {"isolation": "per_session"}}
        async with fake_room(servers, entries=own, record=tmp_path / "own.tape") as room:
            said = await use(room)
        async with Greenroom.replay(tmp_path / "own.tape") as room:
            assert await use(room) == said
            assert room.tape is not None
            assert room.tape.untaken == []

    run("asyncio", main)
