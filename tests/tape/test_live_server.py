"""A tape as a cache of an evaluation: each session has it to itself, and live servers run for what it lacks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from tests.support import in_virtual_time
from tests.support.asking import AskingServer, asking_connectors

from greenroom import Greenroom
from greenroom.errors import CallError, CallTimeout, RemoteError, UsageError
from greenroom.protocol.errors import Reach
from greenroom.protocol.fault_scripts import Fault, FaultScript
from greenroom.tape.replay_servers import Replay
from greenroom.tape.tape_reader import read_tape
from greenroom.tape.tape_use import TapeUse, append_use, count_words, read_use
from greenroom.testing import FakeServer, fake_room, tool
from greenroom.testing.fake_servers import fake_connectors

CONFIG: dict[str, Any] = {"mcpServers": {"shop": {"command": "a fake"}}}
ONCE: list[tuple[str, dict[str, Any]]] = [("get", {}), ("put", {"v": "new"}), ("get", {})]


def shop(**options: Any) -> FakeServer:
    """A server with a state: `get` says it, `put` changes it."""
    state = {"v": "old"}

    def handler(call: Any) -> Any:
        if call.tool == "put":
            state["v"] = str(call["v"])
        return f"{state['v']}{call.get('more', '')}"

    tools = [tool("get", annotations={"readOnlyHint": True}), tool("put")]
    return FakeServer(tools=tools, handler=handler, **options)


async def recorded(folder: Path) -> Path:
    place = folder / "shop.tape"
    async with fake_room({"shop": shop()}, record=place) as room:
        for name, arguments in ONCE:
            await room.call(f"shop_{name}", arguments)
    return place


def over(place: Path, server: FakeServer, **options: Any) -> Greenroom:
    """A room over this tape in which `shop` is live."""
    given: dict[str, Any] = {"live": ["shop"], "config": CONFIG, "bootstrap": False, **options}
    return Greenroom.replay(place, connectors=fake_connectors({"shop": server}), **given)


async def said(caller: Any, name: str, **arguments: Any) -> str:
    return (await caller.call(f"shop_{name}", arguments)).text


def replay_of(room: Greenroom) -> Replay:
    assert room.tape is not None
    return room.tape


@in_virtual_time
async def test_a_live_server_is_started_by_the_first_call_that_the_tape_cannot_answer(tmp_path: Path) -> None:
    server = shop()
    async with over(await recorded(tmp_path), server) as room:
        assert await said(room, "get") == "old"
        assert server.starts == 0, "the tape has this call"
        assert await said(room, "get", more="!") == "old!"
        assert (server.starts, len(server.calls)) == (1, 1)
        assert await said(room, "get") == "new", "it only read, so the tape still holds"
        use = replay_of(room).summary
        assert (sum(use.met.values()), use.ran, use.refused) == (2, {}, {})
        assert list(use.lacked) == ['shop_get with {"more":"!"}']
        assert replay_of(room).refused == []


@in_virtual_time
async def test_what_was_written_is_read_from_the_server_that_ran_it(tmp_path: Path) -> None:
    server = shop()
    async with over(await recorded(tmp_path), server, strict=False) as room:
        assert await said(room, "get") == "old"
        assert await said(room, "put", v="mine") == "mine"
        assert await said(room, "get") == "mine", "the tape knows nothing of this"
        assert len(server.calls) == 2
        assert replay_of(room).made == [
            ("shop_get", {}),
            ("shop_put", {"v": "mine"}),
            ("shop_get", {}),
        ]


@in_virtual_time
async def test_a_write_that_is_on_the_tape_is_run_and_counts_as_met(tmp_path: Path) -> None:
    server = shop()
    async with over(await recorded(tmp_path), server) as room:
        for name, arguments in ONCE:
            await said(room, name, **arguments)
        use, tape = replay_of(room).summary, replay_of(room).tape
        assert [call.n for call in use.unmet(tape)] == []
        assert (use.met, use.ran) == ({1: 1}, {2: 1, 3: 1})
        assert replay_of(room).untaken == []


@in_virtual_time
async def test_without_live_nothing_is_reached(tmp_path: Path) -> None:
    server = shop()
    async with over(await recorded(tmp_path), server, live=[]) as room:
        assert await said(room, "put", v="new") == "new"
        with pytest.raises(RemoteError, match="Not on the tape"):
            await said(room, "put", v="other")
        assert server.starts == 0
        assert replay_of(room).summary.refused == {'shop_put with {"v":"other"}': 1}


@in_virtual_time
async def test_a_live_server_that_is_lost_says_whether_the_call_may_have_run(tmp_path: Path) -> None:
    script = FaultScript((Fault(at="call", do="crash", nth=1, start=1),))
    server = shop(script=script)
    async with over(await recorded(tmp_path), server) as room:
        with pytest.raises(CallError) as lost:
            await said(room, "put", v="mine")
        assert lost.value.reach is Reach.SENT
        assert await said(room, "get") == "old", "another process, which has not seen the write"
        assert server.starts == 2


@in_virtual_time
async def test_a_tape_of_a_live_server_says_when_its_calls_ended(tmp_path: Path) -> None:
    server, again = shop(call_latency=5.0), tmp_path / "again.tape"
    async with over(await recorded(tmp_path), server, record=again) as room:
        for _ in range(2):
            await anyio.sleep(100)
            await said(room, "put", v="a")
    calls = read_tape(again).calls
    assert [(call.accepted, call.sent, call.ended) for call in calls] == [(100, 100, 105), (205, 205, 210)]


@in_virtual_time
async def test_a_live_server_that_answers_passes_its_health_checks(tmp_path: Path) -> None:
    server, config = shop(), {"mcpServers": {"shop": {"command": "a fake", "lifecycle": "keep-alive"}}}
    async with over(await recorded(tmp_path), server, config=config) as room:
        await said(room, "put", v="mine")
        await anyio.sleep(600)
        assert (room.status()[0].incarnation, server.starts) == (1, 1)
        assert await said(room, "get") == "mine"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(at="start", do="crash", text="no memory"), "no memory"),
        (Fault(at="start", do="hang"), "could not be started in 30 s"),
        (Fault(at="initialize", do="refuse", text="not today"), "not today"),
    ],
)
@in_virtual_time
async def test_a_call_that_waits_for_a_live_server_that_never_starts_was_not_sent(
    tmp_path: Path, fault: Fault, words: str
) -> None:
    server = shop(script=FaultScript((fault,)))
    async with over(await recorded(tmp_path), server) as room:
        with pytest.raises(CallError, match=words) as failed:
            await said(room, "put", v="mine")
        assert failed.value.reach is Reach.NOT_SENT
        assert server.calls == []


@in_virtual_time
async def test_a_write_that_is_made_twice_takes_each_of_two_recorded_ones_once(tmp_path: Path) -> None:
    place = tmp_path / "shop.tape"
    async with fake_room({"shop": shop()}, record=place) as room:
        for _ in range(2):
            await said(room, "put", v="a")
    async with over(place, shop()) as room:
        for _ in range(3):
            await said(room, "put", v="a")
        use = replay_of(room).summary
        assert (use.ran, use.lacked) == ({1: 1, 2: 1}, {'shop_put with {"v":"a"}': 1})
        assert replay_of(room).untaken == []


@in_virtual_time
async def test_a_call_that_is_sent_again_ran_once(tmp_path: Path) -> None:
    script = FaultScript((Fault(at="call", do="crash_before", nth=1, start=1),))
    server = shop(script=script)
    async with over(await recorded(tmp_path), server) as room:
        assert await said(room, "put", v="new") == "new"
        assert server.starts == 2
        assert replay_of(room).summary.ran == {2: 1}


@in_virtual_time
async def test_what_was_never_sent_changes_nothing(tmp_path: Path) -> None:
    server = shop(start_latency=10.0)
    async with over(await recorded(tmp_path), server) as room:
        with anyio.move_on_after(3):
            await said(room, "put", v="new")
        assert await said(room, "get") == "old", "the tape has it, and nothing was written"
        use = replay_of(room).summary
        assert (use.met, use.ran, use.lacked, server.calls) == ({1: 1}, {}, {}, [])
        assert [call["number"] for call in replay_of(room).untaken] == [2, 3]


@in_virtual_time
async def test_what_is_read_while_a_write_waits_is_read_after_it(tmp_path: Path) -> None:
    server = shop(start_latency=10.0)
    async with over(await recorded(tmp_path), server) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(said, room, "put", v="mine"))
        await anyio.sleep(1)
        assert await said(room, "get") == "mine"
        assert server.starts == 1


@in_virtual_time
async def test_only_so_many_live_servers_start_at_a_time(tmp_path: Path) -> None:
    server, config = shop(initialize_latency=14.0), {**CONFIG, "settings": {"startPermits": 2}}
    async with over(await recorded(tmp_path), server, config=config, per_session=True) as room:
        answers: list[str] = []

        async def rollout(number: int) -> None:
            async with room.session(f"r{number}") as session:
                answers.append(await said(session, "put", v=str(number)))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(rollout, number)
            for starts in (
                2,
                4,
                5,
            ):  # the last one is there after longer than one attempt to connect may take
                await anyio.sleep(7)
                assert server.starts == starts
                await anyio.sleep(7)
        assert sorted(answers) == ["0", "1", "2", "3", "4"]


@in_virtual_time
async def test_a_live_server_has_the_time_to_be_installed(tmp_path: Path) -> None:
    config = {"mcpServers": {"shop": {"command": "uvx", "args": ["shop"]}}}
    server = shop(start_latency=400.0)
    async with over(await recorded(tmp_path), server, config=config) as room:
        for _ in range(7):  # more than failures in a row that open a circuit breaker
            with pytest.raises(CallTimeout) as failed:
                await said(room, "put", v="mine")
            assert failed.value.reach is Reach.NOT_SENT
        await anyio.sleep_until(390.0)
        assert await said(room, "put", v="mine") == "mine"
        assert (server.starts, len(server.calls), room.status()[0].incarnation) == (1, 1, 1)


@in_virtual_time
async def test_a_server_that_is_not_on_the_tape_has_that_time_too(tmp_path: Path) -> None:
    place, other = await recorded(tmp_path), FakeServer(tools=[tool("now")], start_latency=400.0)
    servers = {"mcpServers": {"clock": {"command": "uvx", "args": ["clock"]}}}
    given: dict[str, Any] = {"config": servers, "connectors": fake_connectors({"clock": other})}
    async with Greenroom.replay(place, live=["clock"], bootstrap=False, **given) as room:
        with pytest.raises(CallTimeout, match="installing"):
            await room.call("clock_now", {})
        await anyio.sleep_until(390.0)
        await room.call("clock_now", {})
        assert (other.starts, len(other.calls)) == (1, 1)


@pytest.mark.parametrize("name", ["shop", "other"])
@in_virtual_time
async def test_a_live_server_that_could_not_ask_is_refused(tmp_path: Path, name: str) -> None:
    ran: list[Any] = []

    async def put(_asking: Any, arguments: Any) -> Any:
        ran.append(arguments)
        return {"resultType": "input_required", "inputRequests": {}}

    server = AskingServer({"put": put}, modern=True)
    async with Greenroom.replay(
        await recorded(tmp_path),
        live=[name],
        config={"mcpServers": {name: {"command": "a fake"}}},
        connectors=asking_connectors({name: server}),
        bootstrap=False,
    ) as room:
        with pytest.raises(CallError, match="speaks only MCP 2026-07-28") as failed:
            await room.call(f"{name}_put", {"v": "mine"})
        assert (failed.value.reach, ran) == (Reach.NOT_SENT, [])


@in_virtual_time
async def test_each_session_has_the_tape_to_itself(tmp_path: Path) -> None:
    async with Greenroom.replay(await recorded(tmp_path), per_session=True, bootstrap=False) as room:
        async with room.session("a") as a, room.session("b") as b:
            assert await said(a, "get") == "old"
            assert await said(a, "put", v="new") == "new"
            assert [await said(b, "get"), await said(a, "get")] == ["old", "new"]
        for number in range(150):  # more than servers of sessions may run at once
            async with room.session(f"r{number}") as rollout:
                assert [await said(rollout, name, **given) for name, given in ONCE] == ["old", "new", "new"]
                if number == 0:
                    with pytest.raises(RemoteError, match="No answer is left on the tape"):
                        await said(rollout, "get")
        use = replay_of(room).summary
        assert (use.met, use.refused) == ({1: 152, 2: 151, 3: 151}, {"shop_get with {}": 1})


@in_virtual_time
async def test_each_session_has_a_live_server_to_itself(tmp_path: Path) -> None:
    server = shop()
    place = await recorded(tmp_path)
    async with (
        over(place, server, per_session=True) as room,
        room.session("a") as a,
        room.session("b") as b,
    ):
        assert await said(a, "put", v="mine") == "mine"
        assert await said(b, "get") == "old"
        assert server.starts == 1, "what b asked is on the tape"


@in_virtual_time
async def test_a_server_that_is_not_on_the_tape_is_asked_for_everything(tmp_path: Path) -> None:
    place, other = await recorded(tmp_path), FakeServer(tools=[tool("now")])
    servers = {"mcpServers": {"clock": {"command": "a fake"}}}
    connectors = fake_connectors({"clock": other})
    async with Greenroom.replay(place, live=["clock"], config=servers, connectors=connectors) as room:
        await room.call("clock_now", {})
        assert await said(room, "get") == "old"
        assert len(other.calls) == 1


@in_virtual_time
async def test_a_live_server_may_be_an_object_of_the_program(tmp_path: Path) -> None:
    place = await recorded(tmp_path)

    async def put(v: str) -> str:
        return f"ran {v}"

    server = MCPServer("shop")
    server.add_tool(put)
    async with (
        Greenroom.replay(place, live=["shop"], in_process={"shop": server}, per_session=True) as room,
        room.session("a") as session,
    ):
        assert await said(session, "get") == "old"
        assert await said(session, "put", v="mine") == "ran mine"


@in_virtual_time
async def test_what_it_cannot_be_said_of_is_refused(tmp_path: Path) -> None:
    place = await recorded(tmp_path)
    for options, words in (
        ({"config": None}, "config="),
        ({"live": ["shpo"]}, 'no server "shpo".*There are: shop'),
        ({"faults": ["shop call 1: crash"]}, "leave out its faults"),
        ({"per_session": 3}, "per_session"),
    ):
        with pytest.raises(UsageError, match=words):
            over(place, shop(), **options)


@in_virtual_time
async def test_runs_of_many_processes_are_added_up(tmp_path: Path) -> None:
    place, file = await recorded(tmp_path), tmp_path / "runs.jsonl"
    for more in ("!", "!", "?"):
        async with Greenroom.replay(place, bootstrap=False) as room:
            await said(room, "get")
            with pytest.raises(RemoteError):
                await said(room, "get", more=more)
            append_use(file, replay_of(room).summary)
            tape = replay_of(room).tape
    use = read_use(file)
    assert (use.runs, use.asked, use.met) == (3, 6, {1: 3})
    assert "\n".join(use.in_words(tape)).splitlines() == [
        "3 runs, 6 calls. Of 3 on the tape 1 was met.",
        "      3 × #1 shop_get",
        "Not on the tape, and refused:",
        '      2 × shop_get with {"more":"!"}',
        '      1 × shop_get with {"more":"?"}',
        "On the tape, and never met:",
        "  #2 shop_put",
        "  #3 shop_get",
    ]


@in_virtual_time
async def test_a_line_of_a_summary_that_was_cut_costs_only_its_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    append_use(file, TapeUse(met={1: 1}))
    with file.open("ab") as cut:
        cut.write(b'{"runs":1,"met":{"1":')
    append_use(file, TapeUse(met={1: 2}))
    use = read_use(file)
    assert (use.runs, use.met, use.unread) == (2, {1: 3}, 1)
    tape = read_tape(await recorded(tmp_path))
    assert "1 line of the file could not be read: those runs are not counted." in use.in_words(tape)
    file.write_text("no summary\n")
    with pytest.raises(UsageError, match="not a summary of a replay"):
        read_use(file)


def test_calls_beyond_the_kinds_that_are_kept_are_counted_once() -> None:
    use = TapeUse()
    for number in range(1000):
        for _ in range(2):
            count_words(use.refused, f"call {number}")
    count_words(use.refused, "one more")
    assert use.asked == 2001
    assert (use + TapeUse() + TapeUse()).asked == 2001


def test_a_summary_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written.*directory"):
        append_use(tmp_path / "none" / "runs.jsonl", TapeUse())
    if Path("/dev/full").exists():  # a disk with no room left
        with pytest.raises(UsageError, match="No space left"):
            append_use("/dev/full", TapeUse())
