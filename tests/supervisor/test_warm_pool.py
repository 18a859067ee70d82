"""Children that are started ahead: how many there are, who takes them over, and that nothing else comes of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import in_virtual_time
from tests.support.profiles import examples
from tests.support.rooms import Outcomes, open_room, record_events, settle
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.actors.peer import Connection, LostReason, PeerHooks
from greenroom.config.parse import parse_config
from greenroom.events import Note, NoteCode, WarmChildMoved, WarmMove
from greenroom.protocol.address import Address
from greenroom.supervisor.policy.pool import IdleConnections, PoolLimits, SlotWaiter, Snapshot, decide
from greenroom.supervisor.policy.warm import WarmServer, WarmSnapshot, fill
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors
from greenroom.testing.room_inside import RoomInside

# ---- the policy ----------------------------------------------------------------------------------------------------

NOW = 100.0
_UNTIL = st.sampled_from([math.inf, math.inf, math.inf, NOW + 1, NOW, -math.inf])
_SINCE = st.sampled_from([-math.inf, -math.inf, -math.inf, NOW, NOW + 1])
_FEW = st.integers(0, 4)


@st.composite
def snapshots(draw: st.DrawFn) -> WarmSnapshot:
    servers: list[WarmServer] = []
    for number in range(draw(st.integers(1, 4))):
        held, in_use, of_sessions = draw(_FEW), draw(_FEW), draw(st.booleans())
        in_group = 0 if of_sessions else held + in_use + draw(_FEW)
        until, since, is_probed = (
            draw(_UNTIL),
            draw(_SINCE),
            draw(st.sampled_from([False, False, False, True])),
        )
        most = draw(st.integers(0, 6))
        servers.append(
            WarmServer(f"s{number}", most, of_sessions, held, in_use, in_group, until, since, is_probed)
        )
    free = {False: draw(_FEW), True: draw(_FEW)}
    return WarmSnapshot(NOW, servers, free, draw(st.integers(-1, 5)), draw(st.integers(1, 6)))


@settings(examples(300))
@given(snapshots())
def test_no_more_are_started_than_wanted_than_there_is_room_for_and_than_may_start(it: WarmSnapshot) -> None:
    decision = fill(it)
    started = Counter(decision.starts)
    assert started.total() <= max(0, it.permits)
    for each in it.servers:
        more = started[each.name]
        if not more:
            continue
        assert each.held + each.in_use + more <= each.wanted(it.now) <= each.most
        assert it.now >= each.since
        assert each.name not in decision.surplus
        assert each.of_sessions or each.in_group + more <= it.most_of_group
    for of_sessions, free in it.free.items():
        of_kind = sum(started[each.name] for each in it.servers if each.of_sessions is of_sessions)
        assert not of_kind or of_kind < free, "the last slot is for somebody who needs it"


@settings(examples(300))
@given(snapshots())
def test_what_is_too_much_ends_and_nothing_is_left_undone(it: WarmSnapshot) -> None:
    decision = fill(it)
    started = Counter(decision.starts)
    left = {
        kind: it.free[kind] - sum(started[s.name] for s in it.servers if s.of_sessions is kind)
        for kind in it.free
    }
    for each in it.servers:
        wanted = each.wanted(it.now)
        too_many = max(0, each.held + each.in_use - wanted)
        assert decision.surplus.get(each.name, 0) == min(too_many, each.held), "those in use come back first"
        is_short = each.held + each.in_use + started[each.name] < wanted and it.now >= each.since
        has_place = left[each.of_sessions] > 1 and (
            each.of_sessions or each.in_group + started[each.name] < it.most_of_group
        )
        assert not (is_short and has_place) or started.total() == max(0, it.permits)
    assert decision.look_at > it.now


@settings(examples(300))
@given(snapshots())
def test_the_emptiest_server_is_not_passed_over(it: WarmSnapshot) -> None:
    for first in fill(it).starts[:1]:
        chosen = next(each for each in it.servers if each.name == first)
        alike = [
            each for each in it.servers if each.of_sessions and chosen.of_sessions and each.since <= it.now
        ]
        assert all(
            chosen.there / chosen.wanted(it.now) <= each.there / each.wanted(it.now)
            for each in alike
            if each.there < each.wanted(it.now)
        )


def test_of_servers_that_have_some_those_with_the_least_of_what_they_want_come_first() -> None:
    half, third = WarmServer("half", 4, held=2), WarmServer("third", 3, held=1)
    assert fill(WarmSnapshot(NOW, [half, third], {False: 9, True: 9}, 9, 9)).starts == (
        "third",
        "half",
        "third",
        "half",
    )


def test_the_children_for_calls_of_one_server_hold_so_many_slots_and_no_more() -> None:
    server = WarmServer("s", 4, of_sessions=False, held=1, in_group=1)
    assert fill(WarmSnapshot(NOW, [server], {False: 9, True: 9}, 9, most_of_group=3)).starts == ("s", "s")


def test_time_changes_nothing_for_a_server_that_has_what_it_wants() -> None:
    server = WarmServer("s", 1, held=1, since=NOW + 1)
    assert fill(WarmSnapshot(NOW, [server], {False: 9, True: 9}, 9, 9)).look_at == math.inf


def test_when_many_have_died_in_a_row_only_one_is_tried() -> None:
    server = WarmServer("s", 5, is_probed=True)
    assert fill(WarmSnapshot(NOW, [server], {False: 9, True: 9}, 9, 9)).starts == ("s",)


def test_no_minimum_keeps_what_nobody_has_used_and_it_counts_for_none() -> None:
    limits = PoolLimits(3, minimum=2)
    full: Any = {
        "shared": 3,
        "staying": 3,
        "warm": 2,
        "waiting": (SlotWaiter("x", NOW), SlotWaiter("y", NOW)),
    }
    idle = [("warm", -math.inf), ("older", -math.inf), ("used", 0.0)]
    assert decide(Snapshot(NOW, limits, **full, candidates=2, idle=IdleConnections(idle))).evictions == (
        "warm",
        "older",
    )
    expired: Any = {"shared": 3, "staying": 3, "warm": 1, "overdue": ("used",)}
    assert decide(Snapshot(NOW, limits, **expired, idle=IdleConnections(idle))).evictions == ()


# ---- a room of fakes -----------------------------------------------------------------------------------------------

SESSIONS = {"isolation": "per_session", "warm": 3}
CALLS = {"isolation": "per_call", "warm": 3}
SLOW: Any = {"start_latency": 5.0}


def moves(events: list[WarmChildMoved]) -> Counter[WarmMove]:
    return Counter(event.move for event in events)


def warm(room: Greenroom, server: str = "a") -> int:
    return next(row.warm for row in room.status() if row.server == server and row.scope == "shared")


async def use(room: Greenroom, session: str, server: str = "a") -> float:
    """Open a session, call once, and return how long that took."""
    began = anyio.current_time()
    async with room.session(session) as opened:
        await opened.call(f"{server}_echo")
        return anyio.current_time() - began


@in_virtual_time
async def test_the_next_session_does_not_wait_for_a_start() -> None:
    server = FakeServer(**SLOW)
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        events = record_events(room, WarmChildMoved)
        assert await use(room, "first") == 5.0
        assert (server.live, warm(room)) == (3, 3)
        await anyio.sleep(10)

        for number in range(3):
            assert await use(room, f"next {number}") == 0.0
        await anyio.sleep(10)
        assert (server.live, warm(room)) == (3, 3)
        assert server.starts == 1 + 3 + 3, "each child that was used is replaced, and used once"
        assert moves(events)[WarmMove.TAKEN] == 3
        takers = [event.child for event in events if event.move is WarmMove.TAKEN]
        assert len(set(takers)) == 3
    assert server.live == 0


@in_virtual_time
async def test_nothing_is_started_before_somebody_uses_the_server() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room, room.session("alice"):
        await anyio.sleep(100)
        assert (server.starts, warm(room)) == (0, 0)


@in_virtual_time
async def test_a_lazy_server_keeps_them_for_its_idle_time_after_the_last_use() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "idleTimeout": 1}}) as room:
        await use(room, "alice")
        await anyio.sleep(59)
        assert server.live == 3
        await use(room, "bob")
        await anyio.sleep(59)
        assert server.live == 3
        await anyio.sleep(2)
        assert (server.live, warm(room)) == (0, 0)
        await use(room, "carol")
        await anyio.sleep(1)
        assert server.live == 3


@in_virtual_time
async def test_an_eager_server_has_them_from_the_opening_on() -> None:
    server = FakeServer(**SLOW)
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "lifecycle": "eager"}}) as room:
        await anyio.sleep(6)
        assert await use(room, "alice") == 0.0
        await anyio.sleep(10_000)
        assert server.live == 3


@in_virtual_time
async def test_of_what_may_have_to_be_installed_none_is_started_before_a_first_use() -> None:
    server = FakeServer()
    entry = {**SESSIONS, "lifecycle": "eager", "command": "npx", "args": ["-y", "some-server"]}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        await anyio.sleep(100)
        assert server.starts == 0
        await use(room, "alice")
        await anyio.sleep(1)
        assert server.live == 3


@in_virtual_time
async def test_sixty_four_calls_have_a_child_each_and_eight_of_them_do_not_wait_for_it() -> None:
    server = FakeServer(**SLOW)
    entries = {"a": {**CALLS, "warm": 8, "lifecycle": "eager"}}
    async with open_room({"a": server}, entries=entries, maxConnections=200, startPermits=64) as room:
        events = record_events(room, WarmChildMoved)
        await port_of(room).find("a_echo")
        await anyio.sleep(10)
        began, starts = anyio.current_time(), server.starts
        async with Outcomes() as calls:
            for number in range(64):
                calls.start(room, "a_echo", {"n": number})
        await settle()
        assert {str(call.outcome) for call in calls.all} == {f'{{"n": {n}}}' for n in range(64)}
        assert [call.at for call in calls.all].count(began) == 8
        assert moves(events)[WarmMove.TAKEN] >= 8
        await anyio.sleep(10)
        assert (server.live, warm(room)) == (8, 8)
        assert server.starts - starts == 64


@in_virtual_time
async def test_whoever_needs_a_slot_gets_that_of_a_warm_child() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    entries = {"a": {**SESSIONS, "warm": 8}, "b": {"isolation": "per_session"}}
    async with open_room(servers, entries=entries, maxSessionConnections=4) as room:
        await use(room, "alice")
        await anyio.sleep(1)
        assert servers["a"].live == 3, "the last slot stays free"
        async with (
            room.session("one") as one, room.session("two") as two, room.session("three") as three,
            room.session("four") as four,
        ):  # fmt: skip
            began = anyio.current_time()
            for session in (one, two, three, four):
                await session.call("b_echo")
            assert anyio.current_time() == began
            assert (servers["a"].live, servers["b"].live) == (0, 4)
        await anyio.sleep(1)
        assert servers["a"].live == 3


@in_virtual_time
async def test_who_has_a_warm_child_needs_no_free_slot() -> None:
    server = FakeServer()
    async with open_room(
        {"a": server}, entries={"a": {**SESSIONS, "warm": 8}}, maxSessionConnections=4
    ) as room:
        await use(room, "first")
        await anyio.sleep(1)
        async with room.session("alice") as alice, room.session("bob") as bob:
            await alice.call("a_echo")
            await bob.call("a_echo")
            await anyio.sleep(1)
            assert server.live == 3
            assert {row.scope for row in room.status()} == {"shared", "session:alice", "session:bob"}


@in_virtual_time
async def test_no_more_start_at_once_than_have_permits() -> None:
    server = FakeServer(**SLOW)
    async with open_room({"a": server}, entries={"a": {**SESSIONS, "warm": 8}}, startPermits=2) as room:
        await use(room, "alice")
        for started in (2, 4, 6):
            await anyio.sleep(3)
            assert server.starts == 1 + started, "each takes five seconds"
            await anyio.sleep(3)


@in_virtual_time
async def test_a_start_that_somebody_waits_for_is_not_behind_those_that_nobody_waits_for() -> None:
    servers = {"a": FakeServer(), "b": FakeServer(**SLOW)}
    entries = {"a": SESSIONS, "b": {"isolation": "per_session"}}
    async with open_room(servers, entries=entries, startPermits=1) as room:
        await use(room, "alice")
        began = anyio.current_time()
        async with room.session("bob") as bob, Outcomes() as calls:
            call = calls.start(bob, "b_echo")
        assert call.at == began + 5.0


@in_virtual_time
async def test_a_warm_child_that_dies_is_replaced_and_no_caller_is_refused_for_it() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        events = record_events(room, WarmChildMoved)
        await use(room, "alice")
        await anyio.sleep(1)
        server.connections[0].lose(LostReason("killed by SIGKILL", -9))
        await anyio.sleep(1)
        assert (server.live, warm(room)) == (3, 3)
        assert [event.words for event in events if event.move is WarmMove.LOST] == ["killed by SIGKILL"]
        await use(room, "bob")
        assert next(row.failure for row in room.status()) is None


@in_virtual_time
async def test_children_that_die_at_once_are_not_started_in_a_loop() -> None:
    """Those that somebody speaks to live, so the server works."""
    server = FakeServer()
    connect = fake_connectors({"a": server})

    def connector(definition: Any, address: Address, incarnation: int) -> Any:
        return _DiesSoon() if address.scope.startswith("warm:") else connect(definition, address, incarnation)

    class _DiesSoon:
        @asynccontextmanager
        async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
            async with connect(None, Address("a"), 1).open(hooks) as connection:
                server.connections[-1].lose(LostReason("exited with code 1", 1))
                yield connection

    async with open_room({"a": server}, entries={"a": SESSIONS}, connectors=connector) as room:
        events = record_events(room, WarmChildMoved)
        for number in range(60):
            await use(room, f"s{number}")
            await anyio.sleep(10)
        lost = moves(events)[WarmMove.LOST]
        assert 5 <= lost <= 30, "ten minutes, and backoff grows to a minute"
        assert server.starts == 60 + lost
        assert warm(room) == 0


@in_virtual_time
async def test_one_that_cannot_be_started_is_told_and_tried_later() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        events = record_events(room, WarmChildMoved)
        await use(room, "alice")
        server.refuse_start = "its disk is full"
        for connection in tuple(server.connections):
            connection.lose(LostReason("exited with code 1", 1))
        await anyio.sleep(200)
        assert 4 <= moves(events)[WarmMove.LOST] <= 16
        assert "its disk is full" in {event.words for event in events}
        server.refuse_start = None
        await anyio.sleep(100)
        assert warm(room) == 1, "one is tried"
        await use(room, "bob")
        await anyio.sleep(1)
        assert warm(room) == 3


@pytest.mark.parametrize("how", ["drain", "restart", "remove", "disable", "definition"])
@in_virtual_time
async def test_what_ends_a_server_ends_its_warm_children(how: str) -> None:
    server = FakeServer()
    async with open_room({"a": server, "b": FakeServer()}, entries={"a": SESSIONS}) as room:
        await use(room, "alice")
        await anyio.sleep(1)
        old = set(server.connections)
        entries: dict[str, Any] = {"a": {"command": "fake", **SESSIONS}, "b": {"command": "fake"}}
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
        await anyio.sleep(1)
        assert not old & set(server.connections)
        if how in ("restart", "definition"):
            assert await use(room, "bob") == 0.0
            await anyio.sleep(1)
            assert server.live == 3
        else:
            assert server.live == 0


@in_virtual_time
async def test_what_leaves_the_process_as_it_is_leaves_the_warm_children() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": SESSIONS}) as room:
        await use(room, "alice")
        await anyio.sleep(1)
        old = list(server.connections)
        await room.reload({"mcpServers": {"a": {"command": "fake", **SESSIONS, "requestTimeoutMs": 5}}})
        await anyio.sleep(1)
        assert server.connections == old
        await room.reload({"mcpServers": {"a": {"command": "fake", **SESSIONS, "warm": 1}}})
        await anyio.sleep(1)
        assert server.connections == old[:1], "the one that has waited longest stays"


@in_virtual_time
async def test_a_caller_that_leaves_takes_none_with_it() -> None:
    """With one permit, it waits for it after it has been promised a warm child."""
    servers = {"a": FakeServer(), "b": FakeServer(**SLOW)}
    entries = {"a": SESSIONS, "b": {"isolation": "per_session"}}
    async with open_room(servers, entries=entries, startPermits=1) as room:
        events = record_events(room, WarmChildMoved)
        await use(room, "first")
        await anyio.sleep(1)
        async with room.session("alice") as alice, room.session("bob") as bob, Outcomes() as calls:
            calls.start(bob, "b_echo")
            await settle()
            left = calls.start(alice, "a_echo")
            await settle()
            assert warm(room) == 2
            left.cancel()
            await settle()
            assert (warm(room), moves(events)[WarmMove.RETURNED]) == (3, 1)
        assert servers["a"].live == 3


@pytest.mark.parametrize("server", ["notifications", "requests"])
@in_virtual_time
async def test_what_a_child_says_before_anybody_speaks_to_it_reaches_no_session(server: str) -> None:
    fake = FakeServer()
    async with open_room({"a": fake}, entries={"a": {**SESSIONS, "warm": 1}}) as room:
        notes = record_events(room, Note)
        await use(room, "alice")
        await anyio.sleep(1)
        (connection,) = fake.connections
        if server == "notifications":
            connection.tell("notifications/message", {"level": "info", "data": "hello"})
            connection.note(NoteCode.JUNK, "it printed junk")
        else:
            connection.hooks.on_request("1", "ping", None)
            connection.hooks.on_request("2", "sampling/createMessage", {"messages": []})
        async with room.session("bob") as bob:
            await bob.call("a_echo")
            assert fake.connections[0] is connection
            odd = [(note.address, note.words) for note in notes if note.code is NoteCode.JUNK]
            told = [(Address.of_session("a", "bob"), "it printed junk")] if server == "notifications" else []
            assert odd == told, "junk is told of whoever has it then"


@in_virtual_time
async def test_a_bug_in_its_connection_ends_who_uses_it_and_nobody_else() -> None:
    server, breaks = FakeServer(call_latency=5.0), anyio.Event()
    connect = fake_connectors({"a": server})

    class _Broken:
        @asynccontextmanager
        async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
            async with connect(None, Address("a"), 1).open(hooks) as connection:
                try:
                    async with anyio.create_task_group() as pumps:
                        pumps.start_soon(_raise_after, breaks)
                        yield connection
                        pumps.cancel_scope.cancel()
                except BaseExceptionGroup as group:
                    raise group.exceptions[0] from None

    def connector(definition: Any, address: Address, incarnation: int) -> Any:
        return _Broken() if address.scope == "warm:1" else connect(definition, address, incarnation)

    async with open_room({"a": server}, entries={"a": {**SESSIONS, "warm": 1}}, connectors=connector) as room:
        await use(room, "first")
        await anyio.sleep(1)
        notes = record_events(room, Note)
        async with room.session("alice") as alice, Outcomes() as calls:
            call = calls.start(alice, "a_echo")
            await settle()
            breaks.set()
        assert call.error.code == "bug"
        assert any(note.code is NoteCode.BUG for note in notes)
        await use(room, "bob")


async def _raise_after(event: anyio.Event) -> None:
    await event.wait()
    raise ZeroDivisionError


@in_virtual_time
async def test_it_is_shown_with_its_server() -> None:
    async with open_room({"a": FakeServer(), "b": FakeServer()}, entries={"a": SESSIONS}) as room:
        await use(room, "alice")
        await anyio.sleep(1)
        assert (warm(room, "a"), warm(room, "b")) == (3, 0)
        lines = str(room.tree()).splitlines()
        assert any("warm 3/3" in line for line in lines)
        assert not RoomInside(room).holders()


# ---- the configuration ---------------------------------------------------------------------------------------------

WRONG: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "shared by all": (
        {"command": "x"},
        'only over HTTP, where each session has its own child: add "isolation": "per_session" or "per_call"',
    ),
    "persistent": (
        {"command": "x", "isolation": "persistent"},
        'for a child per session or per call: add "isolation": "per_session" or "per_call"',
    ),
    "no program": (
        {"url": "http://127.0.0.1:1/mcp", "isolation": "per_session"},
        "a program that is started here",
    ),
    "of a session": (
        {"command": "x", "isolation": "per_session", "env": {"KEY": "${session.key}"}},
        "started with ${session.key}",
    ),
    "with a default": (
        {"command": "x", "isolation": "per_call", "args": ["${session.key:-none}"]},
        "started with ${session.key}",
    ),
}


@for_each("case", WRONG)
def test_where_it_cannot_be_the_problem_says_what_to_do_and_the_server_is_served(case: str) -> None:
    entry, told = WRONG[case]
    config = parse_config({"mcpServers": {"a": {**entry, "warm": 2}}}, source="mcp.json", environ={})
    (problem,) = (problem for problem in config.problems if problem.where.endswith("a.warm"))
    assert told in problem.what
    assert not problem.fatal
    assert "a" in config.servers


@pytest.mark.parametrize("case", [case for case in WRONG if case != "no program"])
@in_virtual_time
async def test_where_it_cannot_be_nothing_is_started_ahead(case: str) -> None:
    server = FakeServer()
    entry = {**WRONG[case][0], "warm": 2, "lifecycle": "lazy"}
    async with (
        open_room({"a": server}, entries={"a": entry}) as room,
        room.session("alice", variables={"key": "k"}) as alice,
    ):
        await alice.call("a_echo")
        await anyio.sleep(1)
        assert server.live <= 1


def test_an_eager_server_may_be_isolated_if_children_of_it_are_started_ahead() -> None:
    entry = {"command": "x", "isolation": "per_session", "lifecycle": "eager"}
    with_warm = parse_config({"mcpServers": {"a": {**entry, "warm": 2}}}, source="mcp.json", environ={})
    assert not with_warm.problems
    (problem,) = parse_config({"mcpServers": {"a": entry}}, source="mcp.json", environ={}).problems
    assert 'or "warm"' in problem.what
