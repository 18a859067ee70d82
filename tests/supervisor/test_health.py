"""Health of keep-alive servers: passive first, suspicion, then confirmation; slow is not dead."""

from __future__ import annotations

import math

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.health import HealthModel
from tests.support import in_virtual_time
from tests.support.rooms import open_room, record_events

from greenroom.actors.health import Health, HealthFinding
from greenroom.actors.peer import Exchange
from greenroom.protocol.events import Transition
from greenroom.protocol.lifecycle import Cause, State
from greenroom.testing.fake_servers import HANG, FakeServer

KEEP = {"a": {"lifecycle": "keep-alive"}}


def test_a_server_that_was_heard_lately_is_not_asked() -> None:
    assert Health().look(100, last_heard=80, interval=30) == (Health(), HealthFinding.WELL, 110)


def test_silence_is_a_check_then_a_suspicion_then_a_loss() -> None:
    health, finding, again = Health().look(30, last_heard=0, interval=30)
    assert (finding, again) == (HealthFinding.ASK, 60)
    health, finding, again = health.look(60, last_heard=0, interval=30)
    assert (health.misses, finding, again) == (1, HealthFinding.ASK, 90)
    assert health.look(90, last_heard=0, interval=30) == (Health(), HealthFinding.LOST, math.inf)


def test_any_answer_clears_the_suspicion() -> None:
    suspected = Health(asked_at=60, misses=1)
    assert suspected.look(90, last_heard=61, interval=30) == (Health(), HealthFinding.WELL, 91)


MOMENTS = st.integers(0, 400).map(lambda quarters: quarters / 4)  # exact: ties and bounds are hit


@given(
    start=st.sampled_from([0.0, 1e9, 2.0**48]),
    interval=st.sampled_from([0.25, 1.0, 30.0, 1e9]),
    steps=histories(st.tuples(MOMENTS | st.none(), st.lists(MOMENTS, max_size=3)), longest=30),
)
def test_health_is_that_of_the_design(
    start: float, interval: float, steps: list[tuple[float | None, list[float]]]
) -> None:
    """Looked at when it asked to be, or early, or late, or twice in a tick; heard at any moment up to then."""
    health, model, now, again = Health(), HealthModel(interval), start, start
    heard = [start]
    for pause, heard_before in steps:
        now = again if pause is None else now + pause
        heard += [max(start, now - before) for before in heard_before]
        health, finding, again = health.look(now, max(heard), interval)
        assert (finding.value, None if again == math.inf else again) == model.look(now, heard)
        if finding is HealthFinding.LOST:
            assert now - max(heard) >= 0
            return


@in_virtual_time
async def test_a_hung_keep_alive_server_is_replaced_within_four_intervals() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        events = record_events(room, Transition)
        await room.ready()
        server.deaf = True
        begun = anyio.current_time()
        while server.starts == 1:
            await anyio.sleep(1)
        assert 60 <= anyio.current_time() - begun <= 121
        assert [e.cause for e in events if e.after is State.DRAINING] == [Cause.LOST]
        server.deaf = False
        await anyio.sleep(100)
        assert room.status()[0].state is State.CONNECTED


@in_virtual_time
async def test_t25_a_slow_server_is_not_replaced() -> None:
    """It answers each check only after 40 seconds, and once every call takes ten minutes."""
    server = FakeServer(ping_latency=40.0)
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        await room.ready()
        await anyio.sleep(1000)
        assert server.starts == 1
        server.call_latency = 590.0
        server.ping_latency = math.inf
        await room.call("a_echo", timeout=600)
        assert server.starts == 1


@in_virtual_time
async def test_lazy_servers_are_never_asked() -> None:
    server = FakeServer()
    async with open_room({"a": server}, healthIntervalMs=1000, idleTimeout=0) as room:
        await room.call("a_echo")
        server.deaf = True
        await anyio.sleep(1000)
        assert room.status()[0].state is State.CONNECTED
        assert server.pings == 0


@in_virtual_time
async def test_an_answer_in_the_tick_of_the_check_is_an_answer() -> None:
    assert Health(asked_at=60).look(90, last_heard=60, interval=30) == (Health(90), HealthFinding.ASK, 120)
    server = FakeServer()
    async with open_room({"a": server}, entries=KEEP) as room:
        await room.ready()
        await anyio.sleep(50_000)
        assert server.starts == 1


@in_virtual_time
async def test_a_check_without_an_answer_is_taken_back_before_the_next() -> None:
    """Of a server that says other things all the while."""
    server = FakeServer(ping_latency=HANG)
    entries = {"a": {"lifecycle": "keep-alive"}}
    async with open_room({"a": server}, entries=entries, healthIntervalMs=1_000) as room:
        await room.connect("a")
        (connection,) = server.connections
        for _ in range(20):
            await anyio.sleep(1.5)
            connection.last_heard = anyio.current_time()
        assert server.pings > 3
        assert len(connection._open) <= 1
        assert (server.starts, server.live) == (1, 1)


@in_virtual_time
async def test_another_interval_begins_a_new_count() -> None:
    """What was suspected under the old interval is not held against it under the new one."""
    server = FakeServer()
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        await room.ready()
        server.deaf = True
        await anyio.sleep(75.0)  # asked at 30 and, suspected, again at 60
        config = {
            "mcpServers": {"a": {"command": "fake", **KEEP["a"]}},
            "settings": {"healthIntervalMs": 10_000},
        }
        await room.reload(config)
        asked = server.pings
        await anyio.sleep(15.0)
        assert (server.starts, server.pings - asked) == (1, 1)
        await anyio.sleep(10.0)
        assert (server.starts, server.pings - asked) == (1, 2)
        server.deaf = False
        await anyio.sleep(10.0)
        assert server.starts == 2


@in_virtual_time
async def test_however_often_the_settings_change_it_is_asked_once_an_interval() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        await room.ready()
        servers = {"a": {"command": "fake", **KEEP["a"]}}
        for seconds in (40, 30, 20, 10):
            await room.reload({"mcpServers": servers, "settings": {"healthIntervalMs": seconds * 1000}})
        await anyio.sleep(1_000.5)
        assert server.pings == 100
        assert server.starts == 1


@in_virtual_time
async def test_calls_in_flight_clear_a_suspicion() -> None:
    """It said nothing for two intervals, then it was called: afterwards it is asked from the beginning again."""
    server = FakeServer()
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        await room.ready()
        server.deaf = True
        await anyio.sleep(75.0)  # suspected since 60
        server.call_latency = HANG
        with anyio.move_on_after(20.0):  # in flight at 90
            await room.call("a_echo")
        await anyio.sleep(52.0)  # at 120 it is asked, and nothing comes of it
        assert server.starts == 1
        await anyio.sleep(60.0)
        assert server.starts == 2


@pytest.mark.parametrize(("version", "check"), [("2025-11-25", "ping"), ("2026-07-28", "server/discover")])
@in_virtual_time
async def test_each_era_is_asked_what_it_can_answer(version: str, check: str) -> None:
    server, asked = FakeServer(), list[str]()
    async with open_room({"a": server}, entries=KEEP, healthIntervalMs=30_000) as room:
        await room.ready()
        (connection,) = server.connections
        connection.protocol_version = version
        request = connection.request

        def note(exchange: Exchange) -> None:
            asked.append(exchange.method)
            request(exchange)

        connection.request = note
        await anyio.sleep(95.0)
        assert asked == [check] * 3
