"""The parts of the line protocol that need no child."""

from __future__ import annotations

import os
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run
from tests.support.stdio import Call

from greenroom.actors import _call
from greenroom.actors._notes import Notes
from greenroom.actors._stdio._lines import FAT, LineSplitter
from greenroom.actors._stdio._outbox import Outbox
from greenroom.actors._stdio._stderr import StderrRing
from greenroom.actors._wire import decode_line, decode_result
from greenroom.protocol.errors import Reach
from greenroom.protocol.halves import repair_utf8


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.lists(st.integers(0)),
)
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    limit, dropped = 8, list[bytes]()
    splitter = LineSplitter(limit, dropped.append)
    data = b"".join(line + b"\n" for line in lines)
    found = [line for chunk in _chunks(data, cuts) for line in splitter.feed(chunk)]
    assert found == [line for line in lines if len(line) <= limit]
    assert len(dropped) == sum(len(line) > limit for line in lines)


def test_an_endless_line_is_told_of_at_once_and_not_kept() -> None:
    dropped: list[bytes] = []
    splitter = LineSplitter(1000, dropped.append)
    for _ in range(100):
        assert splitter.feed(b"a" * 100) == []
    assert dropped == [b"a" * 256]
    assert splitter.feed(b"aa\nnext\n") == [b"next"]


def test_a_fat_line_is_its_receivers_own_and_not_copied() -> None:
    splitter = LineSplitter(4 * FAT, _never)
    assert splitter.feed(b"a" * FAT) == []
    fat, thin = splitter.feed(b"b\nthin\nres")
    assert (type(fat), fat, thin) == (bytearray, b"a" * FAT + b"b", b"thin")
    (rest,) = splitter.feed(b"t\n")
    assert (type(rest), rest, len(fat)) == (bytes, b"rest", FAT + 1)


@pytest.mark.parametrize("size", [10, 2 * FAT])
def test_bad_utf8_in_an_answer_is_repaired_however_fat_it_is(size: int) -> None:
    splitter = LineSplitter(4 * FAT, _never)
    splitter.feed(b'{"id":1,"result":{"text":"\xff%b' % (b"x" * size))
    (line,) = splitter.feed(b'"}}\n')
    (message,) = decode_line(repair_utf8(line))
    assert decode_result(bytes(message.result)) == {"text": "\ufffd" + "x" * size}


def test_whoever_was_answered_meanwhile_comes_before_the_caller_of_a_fat_result(backend: str) -> None:
    async def main() -> None:
        order, meanwhile = list[str](), anyio.Event()
        call = _call.Call("tools/call", {})
        call.finish(_call.Tally(), result=b"x" * FAT)

        async def caller() -> None:
            meanwhile.set()  # as an answer that came in while the fat one was read
            await call.wait()
            order.append("fat")

        async def other() -> None:
            await meanwhile.wait()
            order.append("other")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(caller)
        assert order == ["other", "fat"]

    run(backend, main)


def _never(head: bytes) -> None:
    raise AssertionError(f"over the bound: {head!r}")


def test_notes_are_said_in_full_first_and_then_by_their_count() -> None:
    said: list[str] = []
    notes = Notes(said.append)
    for at in range(1000):
        notes.add("junk", str(at))
    assert said == [
        *(f"junk: {at}" for at in range(3)),
        *(f"junk: {count} times so far" for count in ("10", "100", "1,000")),
    ]


def test_the_stderr_ring_quotes_the_last_lines_printable() -> None:
    ring = StderrRing(64)
    ring.feed(b"old\n" * 1000)
    ring.feed("\x1b[31mred\x1b[0m\n\n  two  \r\nthr\xffee\n".encode("latin-1"))
    assert ring.tail() == ("red", "two", "thr\ufffdee")
    assert StderrRing(8).tail() == ()


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def _drain(read: int) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(read, 1 << 20)
        except BlockingIOError:
            return data


def test_a_message_is_sent_when_its_first_byte_is_accepted_and_then_completed(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30)
    calls = [Call(str(at)) for at in range(4)]
    sizes = [10, 100_000, 20, 100_000]
    for call, size in zip(calls, sizes, strict=True):
        outbox.put(b"x" * (size - 1) + b"\n", call)
    assert [call.reach for call in calls] == [Reach.SENT, Reach.SENT, Reach.NOT_SENT, Reach.NOT_SENT]
    got = b""
    while outbox.backlog:
        got += _drain(read)
        outbox.flush()
    got += _drain(read)
    assert [len(line) + 1 for line in got.split(b"\n")[:-1]] == sizes
    assert all(call.sent_at == [Reach.SENT] for call in calls)


def test_a_queued_message_can_be_withdrawn_and_a_begun_one_cannot(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30)
    begun, queued = Call("begun"), Call("queued")
    outbox.put(b"a" * 100_000, begun)
    outbox.put(b"b" * 10, queued)
    assert not outbox.withdraw(begun)
    assert outbox.withdraw(queued)
    got = _drain(read)
    outbox.flush()
    assert got + _drain(read) == b"a" * 100_000
    assert not outbox.backlog


def test_what_is_held_is_written_together_at_the_next_flush(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30)
    calls = [Call(str(at)) for at in range(3)]
    for call in calls:
        outbox.put(b"line\n", call, hold=True)
    assert [call.reach for call in calls] == [Reach.NOT_SENT] * 3
    assert outbox.withdraw(calls[1])
    outbox.flush()
    assert not outbox.backlog
    assert _drain(read) == b"line\n" * 2
    assert [call.reach for call in calls] == [Reach.SENT, Reach.NOT_SENT, Reach.SENT]


def test_the_queue_is_bounded_but_takes_any_one_message(pipe: tuple[int, int]) -> None:
    _, write = pipe
    outbox = Outbox(write, 1000)
    assert outbox.put(b"a" * 200_000) is not None
    with pytest.raises(BufferError):
        outbox.put(b"b")
