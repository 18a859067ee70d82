"""Who waits for a connection: who is told of a failure, and who goes on waiting."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom import CallError, State
from greenroom.testing.fake_servers import HANG, FakeServer
from greenroom.testing.room_inside import RoomInside


async def outcome_of(asked: Awaitable[Any]) -> tuple[str, float]:
    """How it ended, and when."""
    try:
        await asked
    except CallError as error:
        return error.code, anyio.current_time()
    return "connected", anyio.current_time()


@in_virtual_time
async def test_who_connects_while_a_failed_attempt_is_cleared_away_waits_for_the_next_one() -> None:
    server = FakeServer(initialize_latency=1.0, refuse_initialize="not now", stop_latency=3.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        outcomes = dict[str, tuple[str, float]]()

        async def connect(name: str) -> None:
            outcomes[name] = await outcome_of(room.connect("a"))

        tasks.start_soon(connect, "before")
        await anyio.sleep(2.0)
        assert room.status()[0].state is State.DRAINING
        server.refuse_initialize = None
        tasks.start_soon(connect, "after")
        await anyio.sleep(10.0)
        assert outcomes == {"before": ("connect_failed", 4.0), "after": ("connected", 5.0)}
        assert server.starts == 2


@in_virtual_time
async def test_who_has_waited_long_enough_for_a_slot_is_told_and_the_others_wait_on() -> None:
    servers = {"a": FakeServer(call_latency=HANG), "b": FakeServer()}
    async with open_room(servers, maxConnections=1, acquireTimeoutMs=5_000) as room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome_of, room.call("a_echo"))
            await anyio.sleep(1.0)
            ends = list[float]()

            async def connect() -> None:
                with pytest.raises(CallError):
                    await room.connect("b")
                ends.append(anyio.current_time())

            for _ in range(3):
                tasks.start_soon(connect)
                await anyio.sleep(1.0)
            await anyio.sleep(20.0)
            assert ends == [6.0, 7.0, 8.0]
            tasks.cancel_scope.cancel()


@in_virtual_time
async def test_who_waits_for_a_server_that_is_taken_down_does_not_bring_it_back() -> None:
    server = FakeServer(stop_latency=3.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        tasks.start_soon(outcome_of, room.restart("a"))
        await anyio.sleep(1.0)
        outcomes = list[str]()

        async def connect() -> None:
            outcomes.append((await outcome_of(room.connect("a")))[0])

        tasks.start_soon(connect)  # for the incarnation after this one
        await anyio.sleep(1.0)
        await room.drain("a")
        await anyio.sleep(10.0)
        assert (outcomes, server.starts, server.live) == (["server_not_connected"], 1, 0)
        await room.connect("a")  # but who asks by name now does
        assert server.live == 1


@in_virtual_time
async def test_who_leaves_is_not_told_also_when_one_before_it_makes_it_leave() -> None:
    async with open_room({"a": FakeServer(refuse_start="no")}) as room:
        actor, told = RoomInside(room).machinery.servers.actor("a"), list[str]()

        def hear(_error: CallError | None) -> None:
            told.append("first")
            leave()

        actor.on_connected(hear)
        leave = actor.on_connected(lambda _error: told.append("second"))
        with pytest.raises(CallError):
            await room.connect("a")
        leave()
        assert told == ["first"]
