"""A server that has moved, as its connector says, has not failed: what had not reached it goes to where it is now."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room, record_events

from greenroom.actors.peer import LostReason
from greenroom.errors import CallTimeout, ServerLost
from greenroom.protocol.errors import Reach
from greenroom.protocol.events import BreakerDecision
from greenroom.protocol.lifecycle import Reason
from greenroom.testing.fake_servers import FakeServer, tool

MOVED = LostReason('its host "a" is gone', loss=Reason.MOVED)


def move(server: FakeServer) -> None:
    for connection in tuple(server.connections):
        connection.lose(MOVED)


@in_virtual_time
async def test_a_server_may_move_as_often_as_it_likes_and_never_restarts_too_often() -> None:
    server = FakeServer()
    async with open_room(
        {"a": server}, failureThreshold=1, restartIntensity=1, restartPolicy="never"
    ) as room:
        decisions = record_events(room, BreakerDecision)
        for number in range(1, 8):
            assert (await room.call("a_echo", {"n": number})).text
            assert server.starts == number
            move(server)
            await anyio.sleep(0.1)
        assert decisions == []


@in_virtual_time
async def test_a_call_that_was_not_sent_follows_it_and_one_that_was_sent_does_not() -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}, restartPolicy="never") as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        texts: list[str] = []

        async def ask() -> None:
            texts.append((await room.call("a_echo", {"n": 1})).text)

        async def lose() -> None:
            with pytest.raises(ServerLost) as lost:
                await room.call("a_echo", {"n": 0})
            assert lost.value.reach is Reach.SENT

        tasks.start_soon(lose)
        await anyio.sleep(1)
        server.blocked = True
        tasks.start_soon(ask)
        for _ in range(4):
            await anyio.sleep(1)
            move(server)
        server.blocked = False
        await anyio.sleep(6)
        assert len(texts) == 1


@in_virtual_time
async def test_a_call_follows_no_longer_than_it_may_wait() -> None:
    server = FakeServer()
    async with open_room({"a": server}, queueTimeoutMs=5_000) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        server.blocked = True

        async def keep_moving() -> None:
            while True:
                await anyio.sleep(0.5)
                move(server)

        tasks.start_soon(keep_moving)
        with anyio.fail_after(6), pytest.raises(CallTimeout) as waited:
            await room.call("a_echo", {})
        assert waited.value.reach is Reach.NOT_SENT
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_it_may_move_while_it_is_connected_to() -> None:
    server = FakeServer(initialize_latency=2.0)
    async with open_room({"a": server}, failureThreshold=1) as room, anyio.create_task_group() as tasks:
        decisions = record_events(room, BreakerDecision)
        done: list[Any] = []

        async def connect() -> None:
            await room.connect("a")
            done.append("connected")

        tasks.start_soon(connect)
        for starts in (1, 2, 3):
            await anyio.sleep(1)
            assert (server.starts, done) == (starts, [])
            move(server)
        await anyio.sleep(3)
        assert (server.starts, done, decisions) == (4, ["connected"], [])


@in_virtual_time
async def test_the_server_of_one_call_is_connected_to_again_while_the_call_waits() -> None:
    server = FakeServer(tools=[tool("echo")], initialize_latency=2.0)
    entries = {"a": {"isolation": "per_call"}}
    async with open_room({"a": server}, entries=entries) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        before = server.starts
        texts: list[str] = []

        async def ask() -> None:
            texts.append((await room.call("a_echo", {"n": 1})).text)

        tasks.start_soon(ask)
        await anyio.sleep(1)
        assert server.starts == before + 1
        move(server)
        await anyio.sleep(4)
        assert (len(texts), server.starts, server.live) == (1, before + 2, 0)
