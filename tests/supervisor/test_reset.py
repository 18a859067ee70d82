"""Children that are reset by their server's own tool and used again: when, by whom, and when not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import Outcomes, open_room, record_events, settle

from greenroom import Greenroom
from greenroom.actors.peer import LostReason
from greenroom.config.parse import parse_config
from greenroom.events import Note, NoteCode, WarmChildMoved, WarmMove
from greenroom.protocol.errors import RpcRefusal
from greenroom.protocol.jsonrpc.terms import INVALID_PARAMS
from greenroom.testing.fake_servers import HANG, FakeCall, FakeServer, tool
from greenroom.testing.room_inside import RoomInside

SESSIONS = {"isolation": "per_session", "warm": 2, "reset": "reset"}
CALLS = {**SESSIONS, "isolation": "per_call"}
SECRET = "plover-51a3f9c2e7d84b6fa0"


class Stateful:
    """The handler of a server that keeps what it is told, in each of its processes, and whose tool `reset` forgets."""

    def __init__(self) -> None:
        self.kept: dict[int, list[str]] = {}
        self.resets = 0
        self.reset_result: Mapping[str, Any] = {"content": []}

    def __call__(self, call: FakeCall) -> Mapping[str, Any] | str:
        kept = self.kept.setdefault(call.start, [])
        if call.tool == "reset":
            self.resets += 1
            if self.reset_result == {"content": []}:
                kept.clear()
            return self.reset_result
        kept.append(str(call.get("what")))
        return json.dumps({"process": call.start, "kept": kept})


def stateful(**more: Any) -> tuple[FakeServer, Stateful]:
    keeps = Stateful()
    tools = [tool("echo"), tool("reset")]
    return FakeServer(tools=tools, handler=keeps, start_latency=5.0, **more), keeps


async def put(session: Any, what: str, server: str = "a") -> tuple[int, list[str]]:
    said = json.loads((await session.call(f"{server}_echo", {"what": what})).text)
    return said["process"], said["kept"]


async def use(room: Greenroom, name: str, what: str = "x") -> tuple[int, list[str]]:
    async with room.session(name) as session:
        return await put(session, what)


def moves(events: list[WarmChildMoved]) -> list[WarmMove]:
    return [event.move for event in events]


def not_reset(events: list[WarmChildMoved]) -> list[str]:
    return [event.words for event in events if event.move is WarmMove.NOT_RESET]


async def with_two_warm(room: Greenroom) -> None:
    """The first use of a lazy server, after which it has its children."""
    await use(room, "first")
    await anyio.sleep(20)


@in_virtual_time
async def test_the_next_session_has_the_process_of_the_last_one_and_nothing_of_it() -> None:
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        starts, events = server.starts, record_events(room, WarmChildMoved)
        began = anyio.current_time()
        processes = set[int]()
        for number in range(20):
            process, kept = await use(room, f"s{number}", f"of {number}")
            assert kept == [f"of {number}"]
            processes.add(process)
        assert anyio.current_time() == began, "nobody waited for a start"
        assert server.starts == starts
        assert len(processes) == 1, "one that has had its handshake goes first"
        await settle()
        assert (server.live, keeps.resets) == (2, 20)
        assert moves(events).count(WarmMove.RESET) == 20
        assert [event.uses for event in events if event.move is WarmMove.RESET] == list(range(1, 21))
        row = next(row for row in room.status() if row.scope == "shared")
        assert (row.warm, row.reused) == (2, 19)
    assert server.live == 0


@in_virtual_time
async def test_the_room_says_once_to_the_process_who_it_is() -> None:
    server, _ = stateful(initialize_latency=1.0)
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        began = anyio.current_time()
        await use(room, "one")
        assert anyio.current_time() == began + 1.0
        await use(room, "two")
        assert anyio.current_time() == began + 1.0, "the handshake is not made again"


@in_virtual_time
async def test_so_it_is_for_calls_with_a_process_each() -> None:
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": CALLS}) as room:
        await room.call("a_echo", {"what": "x"})
        await anyio.sleep(20)
        starts = server.starts
        for number in range(10):
            _, kept = await put(room, f"of {number}")
            assert kept == [f"of {number}"]
        await settle()
        assert (server.starts, server.live, keeps.resets) == (starts, 2, 10)


@in_virtual_time
async def test_sixteen_at_a_time_over_two_lose_nothing_and_meet_nothing() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        left = iter(range(100))

        async def play() -> None:
            for number in left:
                async with room.session(f"r{number}") as session:
                    for count in range(1, 4):
                        _, kept = await put(session, str(number))
                        assert kept == [str(number)] * count

        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(play)
        await anyio.sleep(20)
        assert server.live == 2


@in_virtual_time
async def test_who_comes_during_a_reset_waits_for_it_and_not_for_a_start() -> None:
    server, _ = stateful()
    entry = {**SESSIONS, "warm": 1}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        await use(room, "first")
        await anyio.sleep(20)
        await use(room, "one")
        await settle()
        server.call_latency = 1.0
        one, _ = await use(room, "two")
        began = anyio.current_time()
        two, kept = await use(room, "three", "y")
        assert (one, kept) == (two, ["y"])
        assert anyio.current_time() == began + 2.0, "the reset, and its own call"


@pytest.mark.parametrize(
    "result",
    [
        {"content": [], "isError": True},
        {"content": "?"},
        {"resultType": "input_required", "inputRequests": {}},
    ],
)
@in_virtual_time
async def test_what_is_no_plain_result_is_no_reset_and_is_noted_once(result: Mapping[str, Any]) -> None:
    server, keeps = stateful()
    keeps.reset_result = result
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        notes, events = record_events(room, Note), record_events(room, WarmChildMoved)
        for number in range(5):
            _, kept = await use(room, f"s{number}", str(number))
            assert kept == [str(number)]
            await anyio.sleep(20)
        assert keeps.resets == 4
        assert len(not_reset(events)) == 4
        (told,) = [note.words for note in notes if note.code is NoteCode.RESET]
        assert '"reset"' in told
        assert "new process" in told
        assert server.live == 2


@in_virtual_time
async def test_a_tool_that_does_not_exist_resets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = stateful()
    server.tools = [tool("echo")]
    keeps = server.handler

    def handler(call: FakeCall) -> Any:
        if call.tool == "gone":
            raise RpcRefusal(INVALID_PARAMS, f"Unknown tool: gone, of {SECRET}")
        return keeps(call)

    server.handler = handler
    monkeypatch.setenv("API_TOKEN", SECRET)
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "reset": "gone"}}) as room:
        await with_two_warm(room)
        notes, starts = record_events(room, Note), server.starts
        events = record_events(room, WarmChildMoved)
        await use(room, "one")
        await anyio.sleep(20)
        assert server.starts == starts + 1
        (told,) = [note.words for note in notes if note.code is NoteCode.RESET]
        assert "Unknown tool: gone, of ***" in told
        assert SECRET not in f"{notes}{events}"


@pytest.mark.parametrize(("has", "to_connect"), [(5.0, 60_000), (3.0, 9_000)])
@in_virtual_time
async def test_a_tool_that_hangs_has_five_seconds_or_less_and_whoever_waits_gets_a_new_process(
    has: float, to_connect: int
) -> None:
    server, _ = stateful()
    entry = {**SESSIONS, "warm": 1, "connectTimeoutMs": to_connect}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        await use(room, "first")
        await anyio.sleep(20)
        async with room.session("one") as one:
            old, _ = await put(one, "of one")
            server.call_latency = HANG
        began = anyio.current_time()
        async with room.session("two") as session, Outcomes() as calls:
            call = calls.start(session, "a_echo", {"what": "of two"})
            await anyio.sleep(1)
            server.call_latency = 0.0
        said = json.loads(str(call.outcome))
        assert said["process"] != old
        assert said["kept"] == ["of two"]
        assert anyio.current_time() == pytest.approx(began + has + 5.0, abs=0.1), "the reset, then a start"


@pytest.mark.parametrize("when", ["while it is reset", "while it waits", "while it is claimed"])
@in_virtual_time
async def test_a_child_that_dies_is_nobodys_error(when: str) -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "warm": 1}}) as room:
        await use(room, "first")
        await anyio.sleep(20)
        await use(room, "one", "of one")
        (connection,) = server.connections
        if when == "while it is reset":
            server.call_latency = 1.0
            await use(room, "two")
            await anyio.sleep(0.5)
        elif when == "while it is claimed":
            server.call_latency = 1.0
            await use(room, "two")
            async with room.session("three") as three, Outcomes() as calls:
                call = calls.start(three, "a_echo", {"what": "of three"})
                await anyio.sleep(0.5)
                connection.lose(LostReason("killed by SIGKILL", -9))
            assert json.loads(str(call.outcome))["kept"] == ["of three"]
            return
        connection.lose(LostReason("killed by SIGKILL", -9))
        server.call_latency = 0.0
        process, kept = await use(room, "last", "of last")
        assert kept == ["of last"]
        assert process != connection.start


@in_virtual_time
async def test_a_call_that_was_cancelled_ends_the_process_whatever_comes_later() -> None:
    """The answer of the last session would come in the time of the next."""
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        events = record_events(room, WarmChildMoved)
        async with room.session("one") as session, Outcomes() as calls:
            old, _ = await put(session, "x")
            server.call_latency = 3.0
            left = calls.start(session, "a_echo", {"what": "late"})
            await settle()
            left.cancel()
        server.call_latency = 0.0
        process, kept = await use(room, "two", "y")
        assert (kept, process != old) == (["y"], True)
        assert not_reset(events) == ["tools/call was cancelled, and its answer may still come"]
        assert keeps.resets == 1, "of the second session's own child"


@in_virtual_time
async def test_a_session_that_ends_in_the_middle_of_a_call_ends_its_process() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        events = record_events(room, WarmChildMoved)
        server.call_latency = 3.0
        async with Outcomes() as calls, room.session("one") as session:
            calls.start(session, "a_echo", {"what": "late"})
            await anyio.sleep(1)
        server.call_latency = 0.0
        assert len(not_reset(events)) == 1
        _, kept = await use(room, "two", "y")
        assert kept == ["y"]


LEAVINGS = [
    "a subscription",
    "a log level",
    "a question",
    "a changed list",
    "junk",
    "a late answer",
    "a gap",
    "stray progress",
]


@pytest.mark.parametrize("what", LEAVINGS)
@in_virtual_time
async def test_whatever_lasts_ends_the_process(what: str) -> None:
    server, _ = stateful(
        resources={"note://1": "x"}, capabilities={"logging": {}, "resources": {"subscribe": True}}
    )
    server.methods["logging/setLevel"] = lambda params: {}
    keeps = server.handler

    async def handler(call: FakeCall) -> Any:
        if call.get("what") == "ask":
            await call.sample("Who are you?")
        return keeps(call)

    server.handler = handler

    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        events = record_events(room, WarmChildMoved)
        asks = what == "a question"
        async with room.session("one", on_sampling=_declines if asks else None) as session:
            old, _ = await put(session, "ask" if asks else "x")
            connection = next(each for each in server.connections if each.start == old)
            match what:
                case "a subscription":
                    async with session.subscribe("note://1", "a"):
                        pass
                case "a log level":
                    session.set_log_level("debug")
                case "a changed list":
                    server.announce_tools(only=connection)
                case "junk":
                    connection.note(NoteCode.JUNK, "it printed junk")
                case "a late answer":
                    connection.hooks.on_late_answer(b"{}")
                case "a gap":
                    connection.hooks.on_gap()
                case "stray progress":
                    connection.tell("notifications/progress", {"progressToken": 99, "progress": 1})
                case _:
                    pass
            await anyio.sleep(1)
        (why,) = not_reset(events)
        assert why
        process, kept = await use(room, "two", "y")
        assert process != old
        assert kept == ["y"]


async def _declines(*_: Any) -> Any:
    return {"role": "assistant", "model": "none", "content": {"type": "text", "text": "No."}}


@in_virtual_time
async def test_a_client_that_can_answer_something_else_gets_a_process_that_was_told_so() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        old, _ = await use(room, "one")
        async with room.session("other", on_sampling=_declines) as other:
            process, kept = await put(other, "y")
        assert (process != old, kept) == (True, ["y"])
        await settle()
        again, _ = await use(room, "two")
        assert again == old
        async with room.session("another", on_sampling=_declines) as other:
            assert (await put(other, "z")) == (process, ["z"]), "each goes on with its own handshake"


@in_virtual_time
async def test_children_that_nobody_can_use_any_more_make_room() -> None:
    """All were used by clients of one kind, and now those of another come."""
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        async with room.session("one") as one, room.session("two") as two:
            await put(one, "x")
            await put(two, "x")
        await settle()
        assert [child.uses for child in RoomInside(room).warm()] == [1, 1]
        async with room.session("other", on_sampling=_declines) as other:
            _, kept = await put(other, "y")
            assert kept == ["y"]
        await anyio.sleep(20)
        assert sorted(child.uses for child in RoomInside(room).warm()) == [0, 1]
        assert server.live == 2


@in_virtual_time
async def test_who_may_be_told_later_how_a_page_ended_leaves_its_process_to_nobody() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        events = record_events(room, WarmChildMoved)
        capable = {"elicitation": {"url": {}}}
        async with room.session("one", on_elicitation=_declines, capabilities=capable) as session:
            await put(session, "x")
        assert not_reset(events) == ["its client may be told later how a page ended"]


@in_virtual_time
async def test_a_server_that_makes_tasks_gets_a_new_process_each_time() -> None:
    server, _ = stateful(capabilities={"tasks": {"requests": {"tools": {"call": {}}}}})
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        events = record_events(room, WarmChildMoved)
        await use(room, "one")
        assert not_reset(events) == ["its server makes tasks, which may go on"]


HOW = ["drain", "restart", "remove", "disable", "definition"]


@pytest.mark.parametrize("where", ["waits", "is reset", "is used"])
@pytest.mark.parametrize("how", HOW)
@in_virtual_time
async def test_what_ends_a_server_ends_those_that_were_used(how: str, where: str) -> None:
    server, _ = stateful()
    entry = {**SESSIONS, "warm": 1}
    async with open_room({"a": server, "b": FakeServer()}, entries={"a": entry}) as room:
        await use(room, "first")
        await anyio.sleep(20)
        old, _ = await use(room, "one")
        await settle()
        session = room.session("two")
        if where == "is reset":
            server.call_latency = 1.0
            await use(room, "two")
            server.call_latency = 0.0
        elif where == "is used":
            await session.__aenter__()
            assert (await put(session, "x"))[0] == old
        entries: dict[str, Any] = {"a": {"command": "fake", **entry}, "b": {"command": "fake"}}
        match how:
            case "drain":
                await room.drain("a")
            case "restart":
                await room.restart("a")
            case "remove":
                del entries["a"]
            case "disable":
                entries["a"]["disabled"] = True
            case _:
                entries["a"]["args"] = ["new"]
        if how not in ("drain", "restart"):
            await room.reload({"mcpServers": entries})
        if where == "is used":
            await session.aclose()
        await anyio.sleep(20)
        assert old not in {connection.start for connection in server.connections}


@in_virtual_time
async def test_a_session_that_outlives_a_restart_does_not_bring_its_old_process_back() -> None:
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "warm": 1}}) as room:
        await use(room, "first")
        await anyio.sleep(20)
        async with room.session("one") as session, Outcomes() as calls:
            old, _ = await put(session, "x")
            server.call_latency = 3.0
            calls.start(session, "a_echo", {"what": "slow"})
            await settle()
            with anyio.move_on_after(1):
                await room.restart("a")
        await anyio.sleep(20)
        assert keeps.resets == 0
        assert old not in {connection.start for connection in server.connections}


@in_virtual_time
async def test_whoever_needs_a_slot_gets_that_of_a_child_that_was_used() -> None:
    (server, keeps), other = stateful(), FakeServer()
    entries = {"a": SESSIONS, "b": {"isolation": "per_session"}}
    async with open_room({"a": server, "b": other}, entries=entries, maxSessionConnections=2) as room:
        await use(room, "first")
        await anyio.sleep(20)
        await use(room, "one")
        await settle()
        assert (server.live, keeps.resets) == (1, 1), "the last slot stays free"
        async with room.session("two") as two, room.session("three") as three:
            await two.call("b_echo")
            await three.call("b_echo")
            assert (server.live, other.live) == (0, 2)


@in_virtual_time
async def test_where_somebody_waits_for_a_slot_nothing_is_reset() -> None:
    (server, keeps), other = stateful(), FakeServer()
    entries = {"a": SESSIONS, "b": {"isolation": "per_session"}}
    async with open_room({"a": server, "b": other}, entries=entries, maxSessionConnections=2) as room:
        await use(room, "first")
        await anyio.sleep(20)
        events = record_events(room, WarmChildMoved)
        two = room.session("two")
        await two.__aenter__()
        async with room.session("held") as held, room.session("waits") as waits, Outcomes() as calls:
            await put(two, "x")
            await held.call("b_echo")
            call = calls.start(waits, "b_echo")
            await settle()
            assert call.outcome is None
            await two.aclose()
            await settle()
            assert call.outcome is not None
        assert not_reset(events) == ["somebody waits for its slot"]
        assert keeps.resets == 0


@in_virtual_time
async def test_a_room_that_closes_while_a_child_is_reset_leaves_nothing() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        server.call_latency = HANG
        async with Outcomes() as calls:
            async with room.session("one") as one:
                server.call_latency = 0.0
                await put(one, "x")
                server.call_latency = HANG
            async with room.session("two") as two:
                calls.start(two, "a_echo", {"what": "x"})
                await settle()
    assert server.live == 0


@in_virtual_time
async def test_they_end_when_nobody_has_needed_one_for_the_idle_time() -> None:
    server, _ = stateful()
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "idleTimeout": 1}}) as room:
        await with_two_warm(room)
        await use(room, "one")
        await anyio.sleep(59)
        assert server.live == 2
        await anyio.sleep(2)
        assert server.live == 0


@in_virtual_time
async def test_without_the_key_nothing_is_reset() -> None:
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": {"isolation": "per_session", "warm": 2}}) as room:
        await with_two_warm(room)
        starts = server.starts
        await use(room, "one")
        await anyio.sleep(20)
        assert (keeps.resets, server.starts) == (0, starts + 1)


@in_virtual_time
async def test_the_key_may_come_and_go_while_children_live() -> None:
    server, keeps = stateful()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await with_two_warm(room)
        await use(room, "one")
        await settle()
        without = {key: value for key, value in SESSIONS.items() if key != "reset"}
        await room.reload({"mcpServers": {"a": {"command": "fake", **without}}})
        old, kept = await use(room, "two", "y")
        assert kept == ["y"]
        await anyio.sleep(20)
        assert keeps.resets == 1
        assert old not in {connection.start for connection in server.connections}
        await room.reload({"mcpServers": {"a": {"command": "fake", **SESSIONS}}})
        await use(room, "three")
        await settle()
        assert keeps.resets == 2


# ---- the configuration ---------------------------------------------------------------------------------------------

WRONG: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "shared by all": (
        {"command": "x", "warm": 2},
        'only over HTTP, where each session has its own child: add "isol',
    ),
    "neither": ({"command": "x", "isolation": "persistent"}, '"per_call" and "warm", or remove it'),
    "none ahead": ({"command": "x", "isolation": "per_session"}, 'add "warm"'),
    "no program": (
        {"url": "http://127.0.0.1:1/mcp", "isolation": "per_session", "warm": 2},
        "a program that is started here",
    ),
    "of a session": (
        {"command": "x", "isolation": "per_session", "warm": 2, "env": {"KEY": "${session.key}"}},
        "started with ${session.key}",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_where_it_cannot_be_the_problem_says_what_to_do_and_the_server_is_served(case: str) -> None:
    entry, told = WRONG[case]
    config = parse_config({"mcpServers": {"a": {**entry, "reset": "reset"}}}, source="mcp.json", environ={})
    (problem,) = (problem for problem in config.problems if problem.where.endswith("a.reset"))
    assert told in problem.what
    assert not problem.fatal
    assert "a" in config.servers


def test_a_complete_entry_has_no_problem() -> None:
    assert not parse_config({"mcpServers": {"a": {"command": "x", **SESSIONS}}}, environ={}).problems
