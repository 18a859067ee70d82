"""Sessions at the HTTP door whose client has gone without DELETE end when a slot is wanted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import PER_SESSION, asking_room
from tests.gateway.test_http_door import ACCEPT_BOTH, echo, text_of
from tests.support import in_virtual_time, run
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, http_door, request
from tests.support.loops import on_asyncio
from tests.support.rooms import teach

from greenroom.gateway.doors.http_sessions import WANTED, GivingWay, who_gives_way
from greenroom.gateway.event_log import follow
from greenroom.protocol.address import Address
from greenroom.protocol.events import Lagged, Note, NoteCode, Place, StartMoved
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.room import port_of

Body = Callable[[Opened, AskingServer], Awaitable[None]]


@asynccontextmanager
async def gives_way(room: Any, opened: Opened, patience: float) -> AsyncGenerator[None]:
    giving = GivingWay(port_of(room), patience, 0.01)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(follow, room, [giving.hear], kinds=WANTED))
        tasks.start_soon(giving.run, opened.door.sessions)
        yield
        tasks.cancel_scope.cancel()


def with_two_slots(body: Body, patience: float = 0.0) -> None:
    """Two slots, of which the sessions of one server have one."""

    async def main() -> None:
        own = AskingServer({"echo": echo})
        with anyio.fail_after(PATIENCE):
            async with asking_room({"own": own}, {"own": PER_SESSION}, maxConnections=2) as room:
                await teach(room, "own")
                async with http_door(room) as opened, gives_way(room, opened, patience):
                    await body(opened, own)

    run("asyncio", main)


@body_of(with_two_slots)
async def test_a_session_without_a_word_gives_way_to_one_that_calls_and_its_client_is_told(
    opened: Opened, server: AskingServer, /
) -> None:
    people = [await opened.session() for _ in range(4)]
    for person in people:  # none of them says DELETE
        assert text_of(await person.call("own_echo", text="hi")) == "hi"
        assert len(server.live) == 1
    assert server.starts == 4
    assert [(await person.post(request("ping"))).status_code for person in people] == [404, 404, 404, 200]


@body_of(with_two_slots)
async def test_a_session_whose_client_listens_does_not_give_way_until_it_leaves(
    opened: Opened, server: AskingServer, /
) -> None:
    ann, ben = await opened.session(), await opened.session()
    await ann.call("own_echo")
    answers: list[Any] = []

    async def call() -> None:
        answers.append(text_of(await ben.call("own_echo", text="at last")))

    async with anyio.create_task_group() as tasks:
        headers = {"accept": ACCEPT_BOTH, **ann.real_headers()}
        async with opened.http.stream("GET", "/mcp", headers=headers) as stream:
            assert stream.status_code == 200
            tasks.start_soon(call)
            await anyio.sleep(0.2)
            assert (answers, server.starts) == ([], 1)
            assert (await ann.post(request("ping"))).status_code == 200
    assert (answers, server.starts) == (["at last"], 2)
    assert (await ann.post(request("ping"))).status_code == 404


@body_of(with_two_slots, patience=3600.0)
async def test_one_that_has_just_spoken_keeps_its_slot(opened: Opened, server: AskingServer, /) -> None:
    ann, ben = await opened.session(), await opened.session()
    await ann.call("own_echo")
    with anyio.move_on_after(0.2):
        await ben.call("own_echo")
    assert (await ann.post(request("ping"))).status_code == 200
    assert server.starts == 1


@body_of(with_two_slots, patience=3600.0)
async def test_who_speaks_is_no_longer_the_one_that_has_been_silent_for_longest(
    opened: Opened, server: AskingServer, /
) -> None:
    ann, _ben = await opened.session(), await opened.session()
    await ann.post(request("ping"))
    silent = opened.door.sessions.silent(anyio.current_time())
    assert [name for name, _ in silent] == ["http-2", "http-1"]


def row(server: str, scope: str = "shared", state: State = State.CONNECTED, **more: Any) -> ServerStatus:
    return ServerStatus(server, scope, state=state, **more)


WAITS: Any = {"state": State.IDLE, "waiting_for": "slot"}
ENDING = row("a", "session:w", State.DRAINING)


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        ([row("a", "session:x"), row("a", "session:y")], []),
        ([row("a", "session:x"), row("a", "session:y"), row("b", **WAITS)], ["x"]),
        ([row("a", "session:y"), row("b", **WAITS)], ["y"]),
        ([row("a", "session:x", in_flight=1), row("a", "session:y"), row("b", **WAITS)], ["y"]),
        ([row("a", "session:x", queued=1), row("a", "session:y"), row("b", **WAITS)], ["y"]),
        ([row("a", "session:talks"), row("b", **WAITS)], []),
        ([row("b", "session:x"), row("a", "session:y"), row("a", "session:z", **WAITS)], ["y"]),
        ([row("a", "session:x"), row("a", "session:w", State.DRAINING), row("b", **WAITS)], []),
        ([row("a", "session:x"), row("a", "session:y"), *[row("b", "session:z", **WAITS)] * 3], ["x", "y"]),
        # One child that is ending is a place for one of those that wait, not for all of them.
        ([row("a", "session:x"), ENDING, *[row("a", "session:z", **WAITS)] * 2], ["x"]),
        ([row("a", "session:x"), ENDING, row("b", **WAITS), row("c", **WAITS)], ["x"]),
        # A place that one of them takes is no place for the next, whichever server's child was ending.
        (
            [
                *(row("b", "session:x"), ENDING, row("b", "session:v", State.DRAINING)),
                *(row("a", "session:z", **WAITS), row("c", **WAITS), row("b", "session:z", **WAITS)),
            ],
            ["x"],
        ),
        # Only what is connected and rests has a slot to give.
        *(
            ([row("a", "session:x", state), row("b", **WAITS)], [])
            for state in State
            if state not in (State.CONNECTED, State.DRAINING)
        ),
        # A shared server is no session of anybody: the longest silent goes.
        ([row("a", "session:x"), row("b", "session:y"), row("b", **WAITS)], ["x"]),
    ],
)
def test_one_gives_way_for_each_that_waits_and_the_longest_silent_first(
    rows: list[ServerStatus], gone: list[str]
) -> None:
    assert who_gives_way(rows, ["x", "y"]) == gone


_AnyRoom: Any = object  # for type checkers


class Watched(_AnyRoom):
    """A room whose rows are given, and when somebody looked at them; and its sessions, of which `x` may go."""

    def __init__(self) -> None:
        self.rows: list[ServerStatus] = []
        self.looked: list[float] = []
        self.since: list[float] = []
        self.gone: list[str] = []

    async def surveyed(self) -> list[ServerStatus]:
        self.looked.append(anyio.current_time())
        return self.rows

    def silent(self, since: float) -> Iterator[tuple[str, Callable[[], None]]]:
        self.since.append(since)
        yield "x", partial(self.gone.append, "x")


@on_asyncio
@in_virtual_time
async def test_the_room_is_looked_at_only_while_something_waits_for_a_slot() -> None:
    room = Watched()
    giving = GivingWay(room, 60.0, 5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(giving.run, room)
        await anyio.sleep(100.0)
        assert room.looked == []
        giving.hear(moved(Place.SLOT))
        await anyio.sleep(100.0)
        assert (room.looked, room.since) == ([100.0], []), "nothing waits any more"
        room.rows = [row("a", "session:y"), row("b", **WAITS)]
        giving.hear(moved(Place.SLOT))
        await anyio.sleep(7.0)
        giving.hear(moved(Place.SLOT))
        await anyio.sleep(4.0)
        assert room.looked == [100.0, 200.0, 205.0, 207.0]
        assert room.since == [140.0, 145.0, 147.0]
        assert room.gone == []
        room.rows = [row("a", "session:x"), row("b", **WAITS)]
        await anyio.sleep(2.0)
        assert room.gone == ["x"]
        room.rows = []
        await anyio.sleep(100.0)
        assert room.looked[4:] == [212.0, 217.0]
        tasks.cancel_scope.cancel()


def moved(place: Place) -> StartMoved:
    return StartMoved(seq=1, at=0.0, address=Address("a"), place=place)


@on_asyncio
@in_virtual_time
async def test_only_a_wait_for_a_slot_is_looked_into_and_what_was_missed_may_be_one() -> None:
    for event, wanted in (
        *((moved(place), place is Place.SLOT) for place in Place),
        (Lagged(1), True),
        (Note(seq=1, at=0.0, code=NoteCode.ODD, words="x"), False),
    ):
        giving = GivingWay(Watched(), 60.0, 5.0)
        giving.hear(event)
        assert giving._wanted.is_set() is wanted, event
