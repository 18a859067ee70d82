"""The event stream: in order, without gaps, and never slowed by a reader."""

from __future__ import annotations

from typing import Any

import anyio
from tests.support import in_virtual_time

from greenroom.actors.backend import current_backend
from greenroom.actors.event_stream import EventStream, Subscription
from greenroom.events import Event, Kind, Lagged
from greenroom.protocol.address import Address
from greenroom.protocol.events import CallAccepted, CallSent, Note, NoteCode

CALL: dict[str, Any] = {"call": 1, "method": "tools/call", "tool": "echo", "client": None}


async def take(reader: Subscription, count: int) -> list[Event | Lagged]:
    return [await anext(reader) for _ in range(count)]


def details(events: list[Event | Lagged]) -> list[object]:
    return [event.missed if isinstance(event, Lagged) else event.detail for event in events]


@in_virtual_time
async def test_a_reader_gets_every_event_of_its_kinds_from_now_on_in_order() -> None:
    stream = EventStream(current_backend())
    stream.emit(Note, code=NoteCode.ODD, words="too early")
    async with stream.subscribe() as everything, stream.subscribe([Kind.CALL, Kind.CALL]) as calls:
        stream.emit(Note, code=NoteCode.ODD, words="note")
        stream.emit(CallAccepted, **CALL)
        assert details(await take(everything, 2)) == ["note", "accepted"]
        (event,) = await take(calls, 1)
        assert isinstance(event, Event)
        assert (event.detail, event.seq) == ("accepted", 3)
        with anyio.move_on_after(1.0) as waiting:
            await anext(calls)
        assert waiting.cancelled_caught, "whoever names a kind twice gets its events once"
    assert not stream.wants(Kind.CALL)
    assert not stream.wants(Kind.NOTE)


@in_virtual_time
async def test_a_waiting_reader_is_woken_and_the_end_ends_it_after_what_it_has() -> None:
    got: list[object] = []
    stream = EventStream(current_backend())

    async def read() -> None:
        async with stream.subscribe() as events:
            async for event in events:
                got.extend(details([event]))

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(read)
        await anyio.sleep(1.0)
        stream.emit(Note, code=NoteCode.ODD, words="one")
        await anyio.sleep(1.0)
        stream.emit(Note, code=NoteCode.ODD, words="last")
        stream.close()
    assert sorted(map(str, got)) == ["last", "last", "one", "one"]


@in_virtual_time
async def test_a_slow_reader_loses_its_oldest_and_is_told_how_many() -> None:
    stream = EventStream(current_backend())
    async with stream.subscribe(buffer=3) as slow, stream.subscribe() as quick:
        for n in range(10):
            stream.emit(Note, code=NoteCode.ODD, words=str(n))
        assert details(await take(slow, 4)) == [7, "7", "8", "9"]
        assert len(await take(quick, 10)) == 10
        stream.emit(Note, code=NoteCode.ODD, words="next")
        assert details(await take(slow, 1)) == ["next"]


@in_virtual_time
async def test_a_reader_cancelled_while_waiting_loses_nothing() -> None:
    stream = EventStream(current_backend())
    async with stream.subscribe() as events:
        with anyio.move_on_after(1.0):
            await anext(events)
        stream.emit(Note, code=NoteCode.ODD, words="kept")
        assert details(await take(events, 1)) == ["kept"]


@in_virtual_time
async def test_a_listener_is_called_in_the_step_and_one_that_raises_is_taken_off() -> None:
    stream = EventStream(current_backend())
    heard, notes = list[str](), list[str]()

    def deaf(_: Event) -> None:
        raise ZeroDivisionError

    stream.listen(deaf, [Kind.CALL])
    stream.listen(lambda event: heard.append(event.detail), [Kind.CALL])
    stream.listen(lambda event: notes.append(event.detail), [Kind.NOTE])
    stream.emit(CallAccepted, **CALL)
    stream.emit(CallSent, **CALL)
    assert heard == ["accepted", "sent"]
    [note] = notes
    assert note.startswith("a reader of events raised, and gets no more events\nTraceback")
    assert "ZeroDivisionError" in note


@in_virtual_time
async def test_the_least_buffer_holds_one() -> None:
    stream = EventStream(current_backend())
    async with stream.subscribe(buffer=0) as events:
        stream.emit(Note, code=NoteCode.ODD, words="1")
        stream.emit(Note, code=NoteCode.ODD, words="2")
        assert details(await take(events, 2)) == [1, "2"]


@in_virtual_time
async def test_a_reader_that_is_closed_while_it_waits_ends() -> None:
    stream = EventStream(current_backend())
    reader, ended = stream.subscribe(), list[float]()

    async def read() -> None:
        async for _ in reader:
            raise AssertionError("nothing was emitted")
        ended.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(2.0)
        reader.close()
    assert ended == [2.0]
    stream.emit(Note, code=NoteCode.ODD, words="nobody reads this")
    assert not any(map(stream.wants, Kind))


@in_virtual_time
async def test_every_reader_gets_words_without_secrets_and_all_else_as_it_is() -> None:
    stream = EventStream(current_backend())
    asked: list[tuple[Address | None, str]] = []

    def hide(address: Address | None, text: str) -> str:
        asked.append((address, text))
        return text.replace("hunter2", "***")

    stream.hide = hide
    heard: list[Event] = []
    stream.listen(heard.append)
    async with stream.subscribe([Kind.NOTE]) as read:
        for words in ("the password is hunter2", "nothing", ""):
            stream.emit(Note, Address("s"), 3, code=NoteCode.BUG, words=words)
        events = [await anext(read) for _ in range(3)]
    assert events == heard
    notes = [event for event in events if isinstance(event, Note)]
    assert [(note.words, note.code, note.address, note.incarnation) for note in notes] == [
        (words, NoteCode.BUG, Address("s"), 3) for words in ("the password is ***", "nothing", "")
    ]
    assert [event.seq for event in heard] == [1, 2, 3]
    assert asked == [(Address("s"), "the password is hunter2"), (Address("s"), "nothing")]
