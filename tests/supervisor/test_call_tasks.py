"""`start_task`: a call that goes on, whoever waits for it."""

from __future__ import annotations

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room
from tests.support.task_servers import TaskServer, said

from greenroom.errors import CallCancelled, Reach, RoomClosed, ServerLost, UnknownTool
from greenroom.testing.fake_servers import FakeCall, FakeServer


async def slow(call: FakeCall) -> str:
    call.progress(1, message="half")
    await anyio.sleep(10)
    return "done"


@in_virtual_time
async def test_a_task_goes_on_when_whoever_waits_is_cancelled_and_tells_how_it_is() -> None:
    server = FakeServer(handler=slow)
    async with open_room({"a": server}) as room:
        task = await room.start_task("a_echo", {"n": 1})
        with anyio.move_on_after(1) as scope:
            await task.result()
        assert scope.cancelled_caught
        assert (task.status, task.message) == ("working", "half")
        texts: list[str] = []

        async def read() -> None:
            texts.append((await task.result()).text)

        async with anyio.create_task_group() as readers:
            readers.start_soon(read)
            readers.start_soon(read)
        assert (texts, task.status) == (["done", "done"], "completed")
        assert repr(task) == "<CallTask 'a_echo', completed>"
        task.cancel()
        assert (task.status, server.cancelled) == ("completed", 0)


@in_virtual_time
async def test_a_task_is_cancelled_fails_or_is_not_accepted_as_a_call() -> None:
    server = FakeServer(handler=slow)
    async with open_room({"a": server}) as room:
        cancelled = await room.start_task("a_echo")
        await anyio.sleep(1)
        cancelled.cancel()
        assert (cancelled.status, server.cancelled) == ("cancelled", 1)
        with pytest.raises(CallCancelled, match="may have run") as raised:
            await cancelled.result()
        assert raised.value.reach is Reach.SENT
        lost = await room.start_task("a_echo")
        await anyio.sleep(1)
        server.crash()
        await anyio.sleep(1)
        assert lost.status == "failed"
        assert repr(lost) == "<CallTask 'a_echo', failed: call_failed, sent>"
        with pytest.raises(ServerLost):
            await lost.result()
        waiting = await room.start_task("a_echo")
        waiting.cancel()
        with pytest.raises(CallCancelled, match="the call was not sent") as raised:
            await waiting.result()
        assert raised.value.reach is Reach.NOT_SENT, "its server was not back yet"
        with pytest.raises(UnknownTool):
            await room.start_task("a_nothing")
    with pytest.raises(RoomClosed):
        await room.start_task("a_echo")


@in_virtual_time
async def test_the_task_of_a_server_is_the_room_s_task_too() -> None:
    server = TaskServer(modern=True)
    async with open_room({"a": server.fake}) as room:
        task = await room.start_task("a_slow")
        await anyio.sleep(0.5)
        server.say("half")
        await anyio.sleep(1)
        assert (task.status, task.message) == ("working", "half")
        server.finish(said("done"))
        assert (await task.result()).text == "done"
        other = await room.start_task("a_slow")
        await anyio.sleep(1.5)
        other.cancel()
        await anyio.sleep(0.1)
        assert server.asked("tasks/cancel") == [{"taskId": "t2"}]
