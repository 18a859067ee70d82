"""The last events and calls that a room keeps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom.errors import CallError
from greenroom.events import CallAccepted, CallEnded, CallEvent, CallSent, Event
from greenroom.protocol.bounds import RECENT_BYTES, RECENT_CALLS, RECENT_CONTENT
from greenroom.protocol.errors import RpcRefusal
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeCall, FakeServer


def _without_numbers(events: list[Event]) -> list[tuple[object, ...]]:
    return [
        (
            type(event),
            round(event.at, 6),
            event.address,
            event.incarnation,
            event.call,
            event.tool,
            event.client,
        )
        + ((event.outcome, event.reach, event.waited, event.taken) if isinstance(event, CallEnded) else ())
        for event in events
        if isinstance(event, CallEvent)
    ]


@in_virtual_time
async def test_calls_are_told_as_the_stream_told_them_and_the_oldest_are_forgotten() -> None:
    room = open_room({"a": FakeServer(call_latency=1.0)}, maxInFlight=2)
    port = port_of(room)
    port.services.keep_recent()
    async with room, room.session("ann") as ann, room.events() as stream:
        told: list[Event] = []
        everything: list[Event] = []
        lately: list[Event] = []

        async def listen() -> None:
            async for event in stream:
                assert isinstance(event, Event)
                told.append(event)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await room.connect("a")
            async with anyio.create_task_group() as calling:
                for _ in range(3):
                    calling.start_soon(ann.call, "a_echo")
            began = anyio.current_time()
            tasks.start_soon(room.call, "a_echo")
            await anyio.sleep(0.5)
            everything, lately = (
                port.services.recent(1e9)(),
                port.services.recent(anyio.current_time() - began)(),
            )
            tasks.cancel_scope.cancel()
    found = _without_numbers(everything)
    assert sorted(map(str, found)) == sorted(map(str, _without_numbers(told)))
    assert [row[1] for row in found] == sorted(row[1] for row in found)  # type: ignore[type-var]
    assert {type(event) for event in lately if isinstance(event, CallEvent)} >= {CallAccepted, CallSent}
    assert [event.call for event in lately if isinstance(event, CallAccepted)][-1] == 4
    kinds = {type(event) for event in told} - {type(event) for event in everything}
    assert {kind.__name__ for kind in kinds} <= {"CatalogueChanged"}


@in_virtual_time
async def test_a_gateway_keeps_no_more_calls_than_the_bound() -> None:
    room = open_room({"a": FakeServer()})
    port = port_of(room)
    port.services.keep_recent()
    async with room:
        await room.connect("a")
        for _ in range(RECENT_CALLS + 10):
            await room.call("a_echo")
        numbers = {event.call for event in port.services.recent(1e9)() if isinstance(event, CallEnded)}
    assert numbers == set(range(11, RECENT_CALLS + 11))


@in_virtual_time
async def test_what_a_tool_calls_an_error_is_known_though_nobody_listened() -> None:
    """Of small results, of those that are too large to be kept, and of those that are forgotten."""

    def answer(call: FakeCall) -> dict[str, Any]:
        text = "x" * int(call["size"])
        return {"content": [{"type": "text", "text": text}], "isError": call["fails"]}

    room = open_room({"a": FakeServer(handler=answer)})
    port = port_of(room)
    port.services.keep_recent()
    sizes = [1, RECENT_CONTENT + 1, *[RECENT_CONTENT // 2] * (4 * RECENT_BYTES // RECENT_CONTENT)]
    wanted: dict[int, bool] = {}
    async with room:
        for size in sizes:
            for fails in (True, False):
                await room.call("a_echo", {"size": size, "fails": fails})
                wanted[len(wanted) + 1] = fails
        ended = [event for event in port.services.recent(1e9)() if isinstance(event, CallEnded)]
        kept = [call for call in port.services.last_minutes().calls if call.line]
    assert {event.call: event.is_error for event in ended} == wanted
    assert len(kept) < len(ended), "the first ones are forgotten"


@in_virtual_time
async def test_how_a_call_has_ended_is_known_when_its_contents_are_forgotten() -> None:
    def answer(call: FakeCall) -> dict[str, Any]:
        if call["fails"]:
            raise RpcRefusal(-32000, "not today")
        return {"content": [{"type": "text", "text": "x" * (RECENT_CONTENT // 2)}]}

    room = open_room({"a": FakeServer(handler=answer)})
    port = port_of(room)
    port.services.keep_recent()
    async with room:
        with pytest.raises(CallError) as failed:
            await room.call("a_echo", {"fails": True})
        for _ in range(4 * RECENT_BYTES // RECENT_CONTENT):
            await room.call("a_echo", {"fails": False})
        ended = [event for event in port.services.recent(1e9)() if isinstance(event, CallEnded)]
        numbers = {call.number for call in port.services.last_minutes().calls if call.line}
    assert 1 not in numbers, "the first one is forgotten"
    assert {event.outcome for event in ended if event.call > 1} == {"result"}
    assert {event.outcome for event in ended if event.call == 1} == {failed.value.code}
