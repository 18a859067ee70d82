"""The pool as users meet it: a room with fewer slots than servers."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time, run_virtual
from tests.support.gateway import faulty, named_after, serve
from tests.support.loops import on_one_loop
from tests.support.rooms import Outcomes, Running, open_room, record_events, settle, teach

from greenroom import Greenroom
from greenroom.protocol.errors import CallError, CallTimeout, Reach, UnknownTool
from greenroom.protocol.events import Place, StartMoved, Transition
from greenroom.protocol.lifecycle import Cause, State
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors
from greenroom.testing.room_inside import RoomInside


def _servers(count: int, **settings: float) -> dict[str, FakeServer]:
    return {f"s{n}": FakeServer(**settings) for n in range(count)}  # type: ignore[arg-type]


def states(room: Greenroom) -> str:
    return " ".join(status.state.value for status in room.status())


def _live(servers: dict[str, FakeServer]) -> int:
    return sum(server.live for server in servers.values())


@in_virtual_time
async def test_there_are_never_more_live_than_slots_and_the_longest_idle_makes_room() -> None:
    servers = _servers(4)
    async with open_room(servers, maxConnections=2) as room:
        for name in ("s0", "s1"):
            await room.call(f"{name}_echo")
            await anyio.sleep(1)
        await room.call("s0_echo")  # now s1 is the longest idle

        await room.call("s2_echo")

        states = {status.server: status.state for status in room.status()}
        assert states["s1"] is State.IDLE
        assert states["s0"] is states["s2"] is State.CONNECTED
        assert _live(servers) == 2


def _price(room: Greenroom) -> int:
    """How many functions of ours one more decision calls: counted, not timed."""
    count = 0

    def counted(_frame: Any, what: str, _argument: object) -> None:
        nonlocal count
        count += what == "call"

    inside = RoomInside(room)
    gc.disable()  # Hypothesis has functions of its own called with each collection
    sys.setprofile(counted)
    inside.decide_again()
    sys.setprofile(None)
    gc.enable()
    return count


_LONG: dict[str, Any] = {"call_latency": 10_000.0, "stop_latency": 10_000.0}
# How many servers are called, with which settings and keys of their entries, how long they take, and where most of them
# are then: with `n` of those who wait, live, stop or start.
_ROOMS: dict[str, Callable[[int], tuple[int, dict[str, Any], dict[str, Any], dict[str, float], Place]]] = {
    "wait": lambda n: (n + 4, {"maxConnections": 4}, {}, _LONG, Place.SLOT),
    "wait, a call apart of each": lambda n: (
        *(n + 4, {"maxConnections": 4}, {"isolation": "per_call"}, _LONG, Place.SLOT),
    ),
    "live and busy": lambda n: (n + 4, {"maxConnections": n}, {}, _LONG, Place.LIVE),
    "live, some kept by a minimum": lambda n: (
        *(n, {"maxConnections": n + 5, "minConnections": 2}, {}, _LONG, Place.LIVE),
    ),
    "live, with slots set aside": lambda n: (
        *(n, {"maxConnections": n}, {"lifecycle": "keep-alive"}, _LONG, Place.LIVE),
    ),
    "start": lambda n: (n + 4, {"maxConnections": n}, {}, {"initialize_latency": 10_000.0}, Place.STARTING),
    "stop": lambda n: (2 * n, {"maxConnections": n}, {}, {"stop_latency": 10_000.0}, Place.LEAVING),
}


@pytest.mark.parametrize("who", _ROOMS)
@on_one_loop
def test_a_decision_costs_the_same_however_many_wait_or_live(who: str, backend: str) -> None:
    prices: list[int] = []

    async def main(n: int) -> None:
        count, settings, entry, fake, place = _ROOMS[who](n)
        servers = _servers(count, **fake)
        long: dict[str, Any] = {
            "acquireTimeoutMs": 9_000_000,
            "callTimeoutMs": 9_000_000,
            "startPermits": 1_000,
        }
        async with (
            open_room(servers, entries=dict.fromkeys(servers, entry), **settings, **long) as room,
            Outcomes() as calls,
        ):
            for server in servers:
                calls.start(room, f"{server}_echo")
                await settle(10)
            await settle()
            assert RoomInside(room).count(place) >= n - 1
            prices.append(_price(room))
            for call in calls.all:
                call.scope.cancel()

    for n in (10, 60):
        run_virtual(backend, lambda n=n: main(n))
    assert prices[0] == prices[1] < 100


@on_one_loop
def test_a_decision_costs_the_same_however_many_sessions_wait(backend: str) -> None:
    prices: list[int] = []

    async def main(sessions: int) -> None:
        servers = {"a": FakeServer(call_latency=1_000.0)}
        entries: dict[str, dict[str, Any]] = {"a": {"isolation": "per_session"}}
        async with (
            open_room(servers, entries=entries, maxSessionConnections=4, acquireTimeoutMs=900_000) as room,
            AsyncExitStack() as stack,
            Outcomes() as calls,
        ):
            await port_of(room).find("a_echo")
            for number in range(sessions):
                session = await stack.enter_async_context(room.session(f"{number}"))
                calls.start(session, "a_echo")
            await settle()
            assert RoomInside(room).count(Place.SLOT) == sessions - 4
            prices.append(_price(room))
            for call in calls.all:
                call.scope.cancel()

    for sessions in (10, 120):
        run_virtual(backend, lambda sessions=sessions: main(sessions))
    assert prices[0] == prices[1] < 100


@on_one_loop
def test_a_turn_for_a_discovery_costs_the_same_however_many_wait_for_a_slot(backend: str) -> None:
    prices: list[int] = []

    async def main(n: int) -> None:
        called = _servers(n + 4, **_LONG)
        found = {f"d{k}": FakeServer(list_latency=10_000.0) for k in range(40)}
        entries: dict[str, dict[str, Any]] = {
            name: {"command": "fake", "bootstrap": False} for name in called
        }
        settings: dict[str, Any] = {
            "maxConnections": 4,
            "acquireTimeoutMs": 9_000_000,
            "callTimeoutMs": 9_000_000,
        }
        connectors = fake_connectors(called | found)
        async with (
            open_room(called, entries=entries, bootstrap=True, connectors=connectors, **settings) as room,
            Outcomes() as calls,
        ):
            for name in called:
                calls.start(room, f"{name}_echo")
                await settle(10)
            entries |= {name: {"command": "fake"} for name in found}
            await room.reload({"mcpServers": entries, "settings": settings})
            await settle()
            assert RoomInside(room).count(Place.TURN) > 30
            prices.append(_price(room))
            for call in calls.all:
                call.scope.cancel()

    for n in (10, 60):
        run_virtual(backend, lambda n=n: main(n))
    assert prices[0] == prices[1] < 300


@in_virtual_time
async def test_first_come_first_served_also_between_calls_apart_of_many_servers() -> None:
    """Where one server holds its half, whoever came next gets the slot; when it gives one back, it is first again."""
    servers = _servers(4, call_latency=5.0)
    entries: dict[str, dict[str, Any]] = {name: {"isolation": "per_call"} for name in servers}
    async with (
        open_room(servers, entries=entries, maxConnections=4, acquireTimeoutMs=900_000) as room,
        Outcomes() as calls,
    ):
        for name in servers:
            await teach(room, name)
        began = anyio.current_time()
        running: list[Running] = []
        for name in ("s0", "s0", "s0", "s0", "s1", "s2", "s3", "s0"):
            running.append(calls.start(room, f"{name}_echo"))
            await settle()
        await anyio.sleep(30)
        ended = [round((call.at or 0) - began) for call in running]
        assert ended == [5, 5, 10, 10, 5, 5, 10, 15]


@in_virtual_time
async def test_a_stopping_child_keeps_its_slot_until_it_is_gone() -> None:
    servers = _servers(2, stop_latency=3.0)
    async with open_room(servers, maxConnections=1) as room:
        await room.call("s0_echo")
        begun = anyio.current_time()

        await room.call("s1_echo")

        assert anyio.current_time() - begun == pytest.approx(3.0)
        assert max(server.most_live for server in servers.values()) == 1


@in_virtual_time
async def test_a_busy_server_is_never_evicted_and_waiters_are_served_in_order() -> None:
    servers = _servers(3, call_latency=5.0)
    async with open_room(servers, maxConnections=1) as room, Outcomes() as calls:
        running: list[Running] = []
        for n in (0, 1, 2):
            running.append(calls.start(room, f"s{n}_echo"))
            await settle()
        waiting = {status.server: status.waiting_for for status in room.status()}
        assert sorted(filter(None, waiting.values())) == ["slot", "slot"]
        for call in running:
            while call.at is None:
                await anyio.sleep(1)

        assert [call.at for call in running] == sorted(call.at or 0 for call in running)
        assert all(isinstance(call.outcome, str) for call in running)


@in_virtual_time
async def test_a_cancelled_waiter_leaves_the_queue_with_its_last_call() -> None:
    servers = _servers(3, call_latency=10.0)
    async with open_room(servers, maxConnections=1) as room, Outcomes() as calls:
        first = calls.start(room, "s0_echo")
        await settle()
        gone, stays = calls.start(room, "s1_echo"), calls.start(room, "s2_echo")
        await settle()
        gone.cancel()
        await settle()
        assert RoomInside(room).count(Place.SLOT) == 1
        while stays.at is None:
            await anyio.sleep(1)

        assert (first.outcome, gone.outcome, stays.outcome) == ("{}", "cancelled", "{}")
        assert servers["s1"].starts == 0


@in_virtual_time
async def test_who_waits_too_long_is_told_and_nothing_was_sent() -> None:
    servers = _servers(2, call_latency=20.0)
    async with open_room(servers, maxConnections=1, acquireTimeoutMs=5000) as room, Outcomes() as calls:
        calls.start(room, "s0_echo")
        await settle()
        late = calls.start(room, "s1_echo")
        await anyio.sleep(6)

        assert isinstance(late.error, CallTimeout)
        assert late.error.reach is Reach.NOT_SENT
        assert late.at == 5
        assert "no slot of 1" in str(late.error)
        assert RoomInside(room).count(Place.SLOT) == 0


@in_virtual_time
async def test_who_has_got_its_slot_in_time_may_take_longer_to_start() -> None:
    servers = {"s0": FakeServer(call_latency=3.0), "s1": FakeServer(initialize_latency=4.0)}
    async with open_room(servers, maxConnections=1, acquireTimeoutMs=5000) as room, Outcomes() as calls:
        calls.start(room, "s0_echo")
        await settle()
        late = calls.start(room, "s1_echo")
        await anyio.sleep(10)

        assert (late.outcome, late.at) == ("{}", pytest.approx(7.0))


@pytest.mark.parametrize("how", ["cancelled", "too late"])
@in_virtual_time
async def test_a_server_that_nobody_waits_for_any_more_is_not_started_when_a_slot_is_free(how: str) -> None:
    servers = _servers(2, call_latency=10.0)
    times: dict[str, Any] = {"queueTimeoutMs": 1_000, "connectTimeoutMs": 1_000} if how == "too late" else {}
    async with open_room(servers, maxConnections=1, **times) as room, Outcomes() as calls:
        calls.start(room, "s0_echo")
        await settle()
        with anyio.move_on_after(5), suppress(CallTimeout):
            await room.connect("s1")
        assert anyio.current_time() == (2.0 if how == "too late" else 5.0)
        assert [status.waiting_for for status in room.status()] == [None, None]
        await anyio.sleep(20)

        assert [server.starts for server in servers.values()] == [1, 0]


@in_virtual_time
async def test_the_reserve_opens_after_its_time_and_closes_again() -> None:
    servers = _servers(2, call_latency=20.0)
    async with (
        open_room(servers, maxConnections=1, reserve=1, reserveTimeoutMs=4000) as room,
        Outcomes() as calls,
    ):
        calls.start(room, "s0_echo")
        await settle()
        second = calls.start(room, "s1_echo")
        await anyio.sleep(3.9)
        assert _live(servers) == 1
        await anyio.sleep(0.2)
        assert _live(servers) == 2
        while second.at is None:
            await anyio.sleep(1)

        assert _live(servers) == 1  # the first that became idle went at once


@in_virtual_time
async def test_a_reserve_without_a_time_is_off() -> None:
    servers = _servers(2, call_latency=20.0)
    async with (
        open_room(servers, maxConnections=1, reserve=1, reserveTimeoutMs=0) as room,
        Outcomes() as calls,
    ):
        calls.start(room, "s0_echo")
        await settle()
        calls.start(room, "s1_echo")
        await anyio.sleep(15)
        assert _live(servers) == 1


@in_virtual_time
async def test_the_minimum_keeps_connections_that_have_outstayed_their_idle_time() -> None:
    servers = _servers(3)
    async with open_room(servers, maxConnections=3, minConnections=2, idleTimeout=0.1) as room:
        for name in servers:
            await room.call(f"{name}_echo")
            await anyio.sleep(0.5)
        await anyio.sleep(60)

        assert states(room) == "idle connected connected"
        await room.call("s0_echo")
        await anyio.sleep(0.1)  # the total exceeds the minimum: the oldest it held goes
        assert states(room) == "connected idle connected"


@in_virtual_time
async def test_t52_the_minimum_is_held_while_one_whose_idle_time_is_over_still_stops() -> None:
    """Three idle times end within a second of each other, and the first takes five to stop: all three went."""
    servers = _servers(3, stop_latency=5.0)
    async with open_room(servers, maxConnections=3, minConnections=2, idleTimeout=0.1) as room:
        for name in servers:
            await room.call(f"{name}_echo")
            await anyio.sleep(0.5)
        await anyio.sleep(60)

        assert states(room) == "idle connected connected"


@in_virtual_time
async def test_one_that_was_held_and_then_used_has_its_idle_time_anew() -> None:
    servers = _servers(3)
    async with open_room(servers, maxConnections=3, minConnections=2, idleTimeout=0.1) as room:
        for name in ("s0", "s1"):
            await room.call(f"{name}_echo")
            await anyio.sleep(0.5)
        await anyio.sleep(10)  # the minimum holds both
        await room.call("s0_echo")
        await room.call("s2_echo")
        await anyio.sleep(0.1)

        assert states(room) == "connected idle connected"


@in_virtual_time
async def test_a_slot_that_is_given_back_at_once_takes_nobody_below_the_minimum() -> None:
    """The third server's start was granted, one of the two that the minimum held was asked to go, and then the start
    was refused: restarts had become too many."""
    servers = _servers(3)
    async with (
        open_room(servers, maxConnections=3, minConnections=2, idleTimeout=0.1, failureThreshold=50,
                  restartBackoff={"minMs": 50, "maxMs": 50}) as room,
        Outcomes() as calls,
    ):  # fmt: skip
        for name in ("s0", "s1"):
            await room.call(f"{name}_echo")
        for _ in range(6):
            await room.call("s2_echo")
            servers["s2"].crash()
            await anyio.sleep(0.1)
        await anyio.sleep(7)
        late = calls.start(room, "s2_echo")
        await settle()

        assert servers["s2"].starts == 6, "it was not kept from starting"
        assert [status.state for status in room.status()][:2] == [State.CONNECTED, State.CONNECTED]
        late.cancel()


@pytest.mark.parametrize("how", ["idle", "lost", "drain"])
@in_virtual_time
async def test_a_slot_that_is_on_its_way_costs_nobody_else_an_eviction(how: str) -> None:
    servers = _servers(3, stop_latency=5.0, wreck_latency=5.0)
    entries = {"s0": {"idleTimeout": 0.05}}
    async with (
        open_room(servers, entries=entries, maxConnections=2) as room,
        anyio.create_task_group() as tasks,
    ):
        events = record_events(room, Transition)
        await room.call("s0_echo")
        await room.call("s1_echo")
        match how:
            case "idle":
                await anyio.sleep(3.5)
            case "lost":
                servers["s0"].crash()
            case _:
                tasks.start_soon(getattr(room, how), "s0")
        await settle()
        assert room.status()[0].state is State.DRAINING

        await room.call("s2_echo")

        left = [event.address for event in events if event.after is State.DRAINING]
        assert [address and address.server for address in left] == ["s0"]
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_keep_alive_servers_keep_their_slots_and_leave_one_for_the_rest() -> None:
    servers = _servers(3)
    entries = {name: {"lifecycle": "keep-alive"} for name in ("s0", "s1")}
    async with open_room(servers, entries=entries, maxConnections=2) as room:
        assert "runs lazy" in str(room.config.problems[0])
        await room.ready()
        assert [status.lifecycle for status in room.status()] == ["keep-alive", "lazy", "lazy"]
        await room.call("s1_echo")
        await room.call("s2_echo")

        assert states(room) == "connected idle connected"


@in_virtual_time
async def test_a_keep_alive_server_that_stops_makes_no_room_for_others() -> None:
    servers = {"s0": FakeServer(stop_latency=5.0), "s1": FakeServer(), "s2": FakeServer()}
    entries = {"s0": {"lifecycle": "keep-alive"}}
    async with (
        open_room(servers, entries=entries, maxConnections=2) as room,
        anyio.create_task_group() as tasks,
    ):
        await room.connect("s0")
        await room.call("s1_echo")
        tasks.start_soon(room.restart, "s0")
        await settle()
        assert room.status()[0].state is State.DRAINING

        await room.call("s2_echo")

        assert anyio.current_time() == pytest.approx(0.0, abs=0.1), "in the place of `s1`, and at once"
        assert [status.state for status in room.status()[:2]] == [State.DRAINING, State.IDLE]


@in_virtual_time
async def test_evictions_are_told_with_their_cause() -> None:
    servers = _servers(2)
    async with open_room(servers, maxConnections=1) as room:
        events = record_events(room, Transition)
        await room.call("s0_echo")
        await room.call("s1_echo")

        causes = [event.cause for event in events if event.after is State.DRAINING]
        assert causes == [Cause.EVICTED]


@in_virtual_time
async def test_each_place_a_start_comes_to_is_told() -> None:
    servers = _servers(2, call_latency=5.0)
    async with open_room(servers, maxConnections=1) as room, Outcomes() as calls:
        events = record_events(room, StartMoved)
        calls.start(room, "s0_echo")
        await settle()
        late = calls.start(room, "s1_echo")
        while late.at is None:
            await anyio.sleep(1)

        told = [(event.at, event.detail) for event in events if str(event.address) == "s1"]
        assert told == [(0.0, "slot"), (5.0, "permit"), (5.0, "starting"), (5.0, "live")]


@in_virtual_time
async def test_a_discovery_that_is_called_while_it_waits_for_a_slot_passes_the_other_discoveries() -> None:
    servers = _servers(4, call_latency=5.0)
    async with open_room(servers, maxConnections=1) as room, Outcomes() as calls:
        calls.start(room, "s0_echo")
        await anyio.sleep(1.0)
        assert room.refresh() == ["s1", "s2", "s3"]
        await settle()
        calls.start(room, "s3_echo")
        await anyio.sleep(6)

        assert [server.starts for server in servers.values()] == [1, 0, 0, 1]


@on_one_loop
@in_real_time
async def test_sixty_calls_over_ten_real_servers_and_three_slots(tmp_path: Path) -> None:
    """Real processes: never over the bound, every call one outcome, nobody starves."""
    folder = tmp_path
    config = {
        "mcpServers": {f"s{n}": faulty(folder, f"s{n}") for n in range(10)},
        "settings": {"maxConnections": 3, "bootstrap": False},
    }
    async with Greenroom.open(config, cache_path=":memory:") as room:
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            result = await room.call(f"s{number % 10}_echo", {"text": str(number)})
            assert result.text == str(number)
            live = sum(status.pid is not None for status in room.status())
            most = max(most, live)

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(one, number)
        assert most <= 3
    report = room.drain_report
    assert report is not None
    assert (report.accepted, report.completed) == (60, 60)
    assert named_after(folder) == set()


def test_serve_takes_the_bound_as_a_flag(tmp_path: Path) -> None:
    folder = tmp_path
    with serve(folder, {n: faulty(folder, n) for n in "abc"}, "--max-connections", "1") as gateway:
        gateway.initialize()
        for name in "abc":
            assert not gateway.mcp(tool=f"{name}_echo", args={"text": "x"}).get("isError")
        states = [row["status"] for row in gateway.mcp()["_meta"]["greenroom/details"]["servers"]]
        assert states.count("connected") == 1
        gateway.end()


@in_virtual_time
async def test_looking_for_a_name_at_two_servers_does_not_hold_the_one_slot_twice() -> None:
    servers = {"a": FakeServer(), "a_b": FakeServer()}
    async with open_room(servers, maxConnections=1) as room:
        with pytest.raises(UnknownTool):
            await room.call("a_b_nothing")
        assert anyio.current_time() < 1.0
        assert [server.starts for server in servers.values()] == [1, 1]


@in_virtual_time
async def test_a_connect_by_name_while_a_failed_attempt_is_cleared_away_means_the_next() -> None:
    server = FakeServer(refuse_initialize="not now", stop_latency=3.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        early: list[CallError] = []

        async def connect() -> None:
            try:
                await room.connect("a")
            except CallError as error:
                early.append(error)

        tasks.start_soon(connect)
        await anyio.sleep(1)
        assert room.status()[0].state is State.DRAINING
        server.refuse_initialize = None

        await room.connect("a")

        assert room.status()[0].state is State.CONNECTED
        assert (server.starts, [error.code for error in early]) == (2, ["connect_failed"])


@pytest.mark.parametrize("seed", range(6))
@on_one_loop
@in_virtual_time
async def test_slots_and_permits_are_conserved_whatever_leaves_and_whenever(seed: int) -> None:
    """Calls that cancel, crashes, reloads and sessions that end, at random moments; afterwards nothing is held."""
    chance = random.Random(seed)
    servers = _servers(6, start_latency=0.3, call_latency=0.5, stop_latency=0.2)

    def config(**changes: object) -> dict[str, Any]:
        entries: dict[str, dict[str, Any]] = {name: {"command": "fake"} for name in servers}
        entries["s4"]["isolation"] = "per_session"
        entries["s5"]["isolation"] = "per_call"
        for name in changes:
            key, value = chance.choice([("args", [str(chance.random())]), ("lifecycle", "keep-alive")])
            entries[name][key] = value
        settings = {"maxConnections": 3, "maxSessionConnections": 2, "restartPolicy": "on_demand"}
        return {"mcpServers": entries, "settings": settings}

    room = Greenroom.open(
        config(), cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False
    )
    async with room:

        async def caller(number: int) -> None:
            for _ in range(12):
                with anyio.move_on_after(chance.choice([0.1, 0.3, 0.31, 0.8, 1.0, 30.0])):
                    with suppress(CallError):
                        if chance.random() < 0.3:
                            async with room.session(f"{number}") as session:
                                await session.call("s4_echo")
                        else:
                            await room.call(f"s{chance.choice('01235')}_echo")
                await anyio.sleep(chance.random())

        async def trouble() -> None:
            for _ in range(10):
                await anyio.sleep(chance.random() * 2)
                chance.choice(list(servers.values())).crash()
                await room.reload(config(**{chance.choice(["s0", "s1"]): True}))
                assert (
                    _live(servers) - servers["s4"].live <= 3
                )  # children of sessions have slots of their own
                assert servers["s4"].live <= 2

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trouble)
            for number in range(5):
                tasks.start_soon(caller, number)
        await room.reload(config())
        await anyio.sleep(100)

        inside = RoomInside(room)
        assert {place for place in Place if inside.count(place)} <= {Place.LIVE}
        assert inside.count(Place.LIVE) == _live(servers)
        assert inside.free_for_all == 3
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert _live(servers) == 0


@in_virtual_time
async def test_a_lease_keeps_a_server_from_being_evicted_after_its_last_call() -> None:
    servers = {"a": FakeServer(call_latency=2.0), "b": FakeServer()}
    async with open_room(servers, maxConnections=1) as room:
        await room.connect("a")
        release = RoomInside(room).machinery.servers.actor("a").lease()
        async with Outcomes() as calls:
            calls.start(room, "a_echo")
            await teach(room, "b")
            waits = calls.start(room, "b_echo")
            await anyio.sleep(5.0)
            assert (servers["a"].live, waits.outcome) == (1, None)
            release()
        assert waits.outcome == "{}"
        assert servers["a"].live == 0
