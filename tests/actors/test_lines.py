"""Lines in and out of descriptors: however they are cut, within bounds, towards a slow or silent other side."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.profiles import examples
from tests.support.rows import for_each
from tests.support.stdio import Call, drained

from greenroom.actors.backend import current_backend
from greenroom.actors.transports.lines import LineSplitter, LineWriter, PendingLines, WriteRules
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.incoming import decode_line, decode_result
from greenroom.protocol.safe_text import repair_utf8


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.lists(st.integers(0)),
)
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    limit, dropped = 8, list[bytes]()
    splitter = LineSplitter(limit, lambda head, _bound: dropped.append(head))
    data = b"".join(line + b"\n" for line in lines)
    found = [line for chunk in _chunks(data, cuts) for line in splitter.feed(chunk)]
    assert found == [line for line in lines if len(line) <= limit]
    assert len(dropped) == sum(len(line) > limit for line in lines)


@for_each("cut", [1, 5, 8, 9, 40])
def test_a_line_of_just_the_bound_is_one_and_of_a_longer_one_only_its_head_is_told(cut: int) -> None:
    told: list[tuple[bytes, str]] = []
    ends: list[tuple[bytes, bytes, str]] = []
    splitter = LineSplitter(
        8, lambda head, bound: told.append((head, bound)), on_overlong_end=lambda *said: ends.append(said)
    )
    data = b"12345678\n123456789\nok\n" + b"x" * 300 + b"end\nlast\n"
    found = [line for at in range(0, len(data), cut) for line in splitter.feed(data[at : at + cut])]
    assert found == [b"12345678", b"ok", b"last"]
    assert [bound for _, bound in told] == ["8 bytes a line"] * 2
    for head, begins in zip(sorted(head for head, _ in told), (b"123456789", b"x" * 256), strict=True):
        assert begins.startswith(head)
        assert len(head) > 8
    assert sorted(end for _, end, _ in ends) == [b"123456789", b"x" * 253 + b"end"]
    assert sorted(told) == sorted((head, bound) for head, _, bound in ends)


def test_an_endless_line_is_told_of_at_once_and_not_kept() -> None:
    dropped: list[bytes] = []
    splitter = LineSplitter(1000, lambda head, _bound: dropped.append(head))
    for _ in range(100):
        assert splitter.feed(b"a" * 100) == []
    assert dropped == [b"a" * 256]
    assert splitter.feed(b"aa\nnext\n") == [b"next"]


def test_a_fat_line_is_its_receivers_own_and_not_copied() -> None:
    splitter = LineSplitter(4 * LARGE_MESSAGE, _never)
    assert splitter.feed(b"a" * LARGE_MESSAGE) == []
    fat, thin = splitter.feed(b"b\nthin\nres")
    assert (type(fat), fat, thin) == (bytearray, b"a" * LARGE_MESSAGE + b"b", b"thin")
    (rest,) = splitter.feed(b"t\n")
    assert (type(rest), rest, len(fat)) == (bytes, b"rest", LARGE_MESSAGE + 1)


@pytest.mark.parametrize("size", [10, 2 * LARGE_MESSAGE])
def test_bad_utf8_in_an_answer_is_repaired_however_fat_it_is(size: int) -> None:
    splitter = LineSplitter(4 * LARGE_MESSAGE, _never)
    splitter.feed(b'{"id":1,"result":{"text":"\xff%b' % (b"x" * size))
    (line,) = splitter.feed(b'"}}\n')
    (message,) = decode_line(line if len(line) >= LARGE_MESSAGE else repair_utf8(line))
    assert decode_result(bytes(message.result)) == {"text": "\ufffd" + "x" * size}


def _never(head: bytes, _bound: str) -> None:
    raise AssertionError(f"over the bound: {head!r}")


def test_a_large_line_is_one_and_what_was_cleared_once_it_was_decoded_is_not_taken() -> None:
    left, began, taken = PendingLines(), list[bytes](), list[bytes]()

    def decode(line: bytearray) -> Any:
        began.append(bytes(line))
        return lambda: taken.append(bytes(line))

    for name in (b"one", b"two"):
        left.put([bytearray(name), b"after"])
        assert left.take(_never_taken, decode) == 0
        left.clear()
        assert not left
    left.put([bytearray(b"three"), bytearray(b"four"), b"after"])
    counts = [left.take(_never_taken, decode) for _ in range(4)]
    assert counts == [0, 1, 0, 1]
    assert (began, taken) == ([b"one", b"two", b"three", b"four"], [b"three", b"four"])
    assert left == [b"after"]


def _never_taken(line: bytes | bytearray) -> None:
    raise AssertionError(f"its turn has not come: {line!r}")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


class NoLoop:
    """A loop in which nobody waits for the writer."""

    def waiter(self) -> NoLoop:
        return self

    def set(self) -> None:
        pass


class Outbox:
    """A line writer with no loop around it; what is held waits as if something had been written just before."""

    def __init__(self, fd: int, size: int, **rules: Any) -> None:
        no_loop: Any = NoLoop()
        self.broken: list[None] = []
        self.writer = LineWriter(
            no_loop, fd, WriteRules(size, **rules), on_broken=lambda: self.broken.append(None)
        )

    def put(self, line: bytes, call: Call | None = None, *, hold: bool = False) -> bool:
        self.writer.gathering = hold
        return self.writer.send(line, call)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["call", "note"]), st.sampled_from([1, 4, 5, 6, 10, 65_536, 70_000])),
    st.tuples(st.sampled_from(["withdraw", "flush", "read"]), st.integers(0, 9)),
)


@examples(1_000)
@given(st.lists(STEPS, max_size=25), st.booleans())
def test_each_line_is_written_whole_in_its_turn_and_waits_within_the_bounds(
    steps: list[tuple[str, int]], gathers_all: bool
) -> None:
    """A call was sent when its first byte was accepted, and can be withdrawn until then."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    outbox = Outbox(write, 10, short=4, others=3, gathers_all=gathers_all)
    writer, taken, got = outbox.writer, list[tuple[bytes, Call | None]](), b""
    try:
        for number, (what, size) in enumerate(steps):
            ends = list(accumulate(len(line) for line, _ in taken))
            written = (ends or [0])[-1] - writer.waiting
            queued = sum(end > written for end in ends)
            match what:
                case "call" | "note":
                    line, call = b"%c" % (97 + number % 26) * size, Call("x") if what == "call" else None
                    fits = not queued or writer.waiting + size <= 10 or size <= 4
                    assert writer.send(line, call) is (fits and (call is not None or queued < 3))
                    taken += [(line, call)] if fits and (call is not None or queued < 3) else []
                case "withdraw" if taken:
                    place = size % len(taken)
                    line, call = taken[place]
                    if call is not None:
                        can = ends[place] - len(line) >= written
                        assert writer.withdraw(call) is can
                        del taken[place : place + can]
                case "flush":
                    writer.flush()
                case _:
                    got += drained(read)
            written = sum(len(line) for line, _ in taken) - writer.waiting
            start = 0
            for line, call in taken:
                assert call is None or call.sent_at == [Reach.SENT] * (start < written)
                start += len(line)
        while writer.waiting:
            got += drained(read)
            writer.flush()
        assert got + drained(read) == b"".join(line for line, _ in taken)
    finally:
        os.close(read)
        os.close(write)


def test_who_ends_its_connection_itself_is_not_told_that_it_broke(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30, gathers_all=True)
    outbox.put(b"last", hold=True)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, read)  # the other end has gone
    os.close(nowhere)
    outbox.writer.close()
    assert (outbox.broken, outbox.writer.is_over, outbox.writer.waiting) == ([], True, 0)


def test_only_what_is_gathered_waits_for_others(pipe: tuple[int, int]) -> None:
    read, write = pipe
    for gathers_all, waits in ((True, b""), (False, b"note")):
        outbox = Outbox(write, 1 << 30, gathers_all=gathers_all)
        outbox.writer.send(b"note")
        assert drained(read) == b"note"
        assert outbox.writer.gathering is gathers_all
        outbox.put(b"note", hold=True)
        assert drained(read) == waits
        outbox.writer.flush()
        drained(read)
        outbox.writer.gathering = False
        outbox.writer.send(b"call", Call("tools/call"))
        assert outbox.writer.gathering
        outbox.writer.send(b"note")  # and requests go on waiting for others after it
        outbox.writer.send(b"call", Call("tools/call"))
        assert drained(read) == (b"call" if gathers_all else b"callnote")


def test_what_is_closed_says_what_it_can_and_what_breaks_tells_of_it_once(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30, gathers_all=True)
    outbox.put(b"last", hold=True)
    outbox.writer.close()
    outbox.writer.close()
    assert outbox.put(b"late")
    assert (drained(read), outbox.writer.is_over, outbox.writer.waiting) == (b"last", True, 0)
    assert (outbox.broken, outbox.writer.fault) == ([], None)
    for hold in (True, False):
        gone, out = os.pipe()
        os.close(gone)
        os.set_blocking(out, False)
        outbox = Outbox(out, 1 << 30, gathers_all=True)
        call = Call("tools/call")
        assert outbox.put(b"call", call, hold=hold)
        outbox.writer.flush()
        assert outbox.put(b"late", hold=hold)
        outbox.writer.flush()
        assert (outbox.broken, outbox.writer.is_over, outbox.writer.waiting) == ([None], True, 0)
        assert isinstance(outbox.writer.fault, BrokenPipeError)
        assert call.reach is Reach.NOT_SENT
        os.close(out)


@in_real_time
async def test_relief_comes_at_its_mark_and_the_end_when_all_is_written() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    writer = LineWriter(current_backend(), write, WriteRules(1 << 30, gathers_all=True), congested=100_000)
    came: list[tuple[str, bool]] = []

    async def wait(name: str, what: Callable[[], Awaitable[None]]) -> None:
        await what()
        came.append((name, writer.congested))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await writer.relieved()
            await writer.flushed()  # nothing waits: at once
            writer.send(b"x" * 300_000)
            tasks.start_soon(wait, "relieved", writer.relieved)
            tasks.start_soon(wait, "flushed", writer.flushed)
            await anyio.wait_all_tasks_blocked()
            assert (came, writer.congested) == ([], True)
            with anyio.fail_after(PATIENCE):
                while not came:  # in small pieces: it is told long before all is written
                    with suppress(BlockingIOError):
                        os.read(read, 4096)
                    await anyio.lowlevel.checkpoint()
                assert came == [("relieved", False)]
                while writer.waiting:
                    drained(read)
                    await anyio.lowlevel.checkpoint()
                await writer.flushed()
                await anyio.wait_all_tasks_blocked()
            assert came == [("relieved", False), ("flushed", False)]
            writer.send(b"x" * 300_000)
            tasks.start_soon(wait, "over", writer.relieved)
            tasks.start_soon(wait, "over", writer.flushed)
            await anyio.wait_all_tasks_blocked()
            writer.close()
            await anyio.wait_all_tasks_blocked()
            assert came[2:] == [("over", False)] * 2
            tasks.cancel_scope.cancel()
    finally:
        os.close(read)
        os.close(write)


@in_real_time
async def test_after_a_pass_that_wrote_what_waited_the_next_line_does_not_wait() -> None:
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    try:
        writer = LineWriter(current_backend(), write, WriteRules(1 << 30, gathers_all=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                writer.send(b"a")
                assert drained(read) == b"a", "the first is written at once"
                writer.send(b"b")
                writer.send(b"c")
                assert drained(read) == b"", "the others wait for each other"
                await anyio.wait_all_tasks_blocked()
                assert drained(read) == b"bc"
            tasks.cancel_scope.cancel()
    finally:
        os.close(read)
        os.close(write)


@in_real_time
async def test_a_request_that_is_taken_back_relieves_whoever_waits_for_less() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        writer = LineWriter(current_backend(), write, WriteRules(1 << 30), congested=150_000)
        queued = Call("tools/call")
        writer.send(b"a" * 100_000, Call("tools/call"))
        writer.send(b"b" * 150_000, queued)
        assert writer.congested
        async with anyio.create_task_group() as tasks:
            came = anyio.Event()

            async def wait() -> None:
                await writer.relieved()
                came.set()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not came.is_set()
            assert writer.withdraw(queued)
            await anyio.wait_all_tasks_blocked()
            assert came.is_set()
            tasks.cancel_scope.cancel()
        assert not writer.congested
    finally:
        os.close(read)
        os.close(write)
