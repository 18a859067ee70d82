"""The parts of the line protocol that need no child."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, in_virtual_time
from tests.support.loops import on_one_loop
from tests.support.profiles import examples
from tests.support.stdio import Call, Recorder

from greenroom.actors import call as _call
from greenroom.actors.backend import AGAIN, PAUSE, current_backend
from greenroom.actors.exchanges import Exchange, Notes
from greenroom.actors.transports import child_process, line_peer
from greenroom.actors.transports.child_process import group_lives, signal_name, start_child
from greenroom.actors.transports.line_peer import FloodGuard, LinePeer
from greenroom.actors.transports.lines import LINES_A_TURN, LinesLeft, LineSplitter, LineWriter, WriteRules
from greenroom.actors.transports.stdio import (
    StderrRing,
    child_environment,
    untagged_environment,
)
from greenroom.config.model import ServerDefinition
from greenroom.config.secrets import Hidden, Secrets
from greenroom.protocol.bounds import (
    ERROR_BYTES,
    JUNK_LINES,
    LARGE_MESSAGE,
    NOTICE_BYTES,
    SERVER_REQUEST_BYTES,
    UNASKED_LINES,
)
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.incoming import decode_line, decode_result
from greenroom.protocol.jsonrpc.terms import INVALID_PARAMS, RpcError
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


@in_real_time
async def test_whoever_was_answered_meanwhile_comes_before_the_caller_of_a_fat_result() -> None:
    order, meanwhile = list[str](), anyio.Event()
    call = _call.Call("tools/call", {})
    call.finish(_call.Tally(), result=b"x" * LARGE_MESSAGE)

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


def _never(head: bytes, _bound: str) -> None:
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


def test_the_stderr_ring_keeps_its_size_however_it_is_fed() -> None:
    ring = StderrRing(7)
    for chunk in (b"ab\n", b"cd\n", b"ef\n"):
        ring.feed(chunk)
    assert ring.tail() == ("cd", "ef")
    ring.feed(b"a\nb\nc\nd\n")
    assert ring.tail() == ("b", "c", "d")
    assert StderrRing(500).tail() == ()
    long = StderrRing(1000)
    long.feed(b"x" * 400 + b"y" * 500)
    assert long.tail() == ("x" * 400,)
    assert (long.last_line(), StderrRing(1).last_line()) == ("x" * 400, "")


def test_the_stderr_ring_counts_all_that_came_and_knows_the_last_line_that_says_something() -> None:
    ring = StderrRing(8)
    for chunk in (b"0123456789", b"", b"ab  \n\n \n"):
        ring.feed(chunk)
    assert (ring.total, ring.tail(), ring.last_line()) == (18, (), ""), (
        "a line that lost its head is left out"
    )
    ring.feed(b"cd  \n\n")
    assert (ring.total, ring.tail(), ring.last_line()) == (24, ("cd",), "cd")
    whole = StderrRing(4)
    whole.feed(b"abcd")
    assert whole.tail() == ("abcd",)


def test_what_nobody_asked_for_has_a_budget_that_refills_up_to_a_bound() -> None:
    most, second = int(line_peer._MOST_UNASKED), UNASKED_LINES
    guard = FloodGuard(100, 50.0)
    assert guard.may_say(most - 1, 50.0)
    assert not guard.may_say(1, 50.0), "the last line is one too many"
    assert not guard.may_say(second, 50.5), "what was said over the budget is owed"
    assert not guard.may_say(0, 51.0)
    assert guard.may_say(1, 51.1)
    assert guard.may_say(most - 1, 9_000.0)
    assert not guard.may_say(1, 9_000.0), "however long it was silent, it has no more than that"


@pytest.mark.parametrize(("max_line", "most"), [(100, 1 << 20), (1 << 20, 2 << 20)])
def test_nothing_but_junk_is_shut_off_at_its_bound_in_lines_or_bytes(max_line: int, most: int) -> None:
    guard = FloodGuard(max_line, 0.0)
    assert guard.count_junk(JUNK_LINES - 1, JUNK_LINES - 1) == ""
    guard.unheard = 7
    assert guard.count_junk(5, 4) == "", "a message is among them"
    assert (guard.junk, guard.unheard, guard.is_shut) == (0, 0, False)
    assert guard.count_junk(JUNK_LINES - 1, JUNK_LINES - 1) == ""
    assert not guard.is_shut
    assert guard.count_junk(1, 1) == f"{JUNK_LINES:,} lines"
    assert guard.is_shut
    guard = FloodGuard(max_line, 0.0)
    guard.unheard = most
    assert guard.count_junk(1, 1) == ""
    guard.unheard += 1
    assert guard.count_junk(0, 0) == f"{most + 1:,} bytes", "of a line that does not end"
    assert guard.is_shut


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


class Outbox:
    """A line writer with no loop around it; what is held waits as if something had been written just before."""

    def __init__(self, fd: int, size: int, **rules: Any) -> None:
        no_loop: Any = SimpleNamespace(waiter=lambda: SimpleNamespace(set=lambda: None))
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
                    got += _drain(read)
            written = sum(len(line) for line, _ in taken) - writer.waiting
            start = 0
            for line, call in taken:
                assert call is None or call.sent_at == [Reach.SENT] * (start < written)
                start += len(line)
        while writer.waiting:
            got += _drain(read)
            writer.flush()
        assert got + _drain(read) == b"".join(line for line, _ in taken)
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
        assert _drain(read) == b"note"
        assert outbox.writer.gathering is gathers_all
        outbox.put(b"note", hold=True)
        assert _drain(read) == waits
        outbox.writer.flush()
        _drain(read)
        outbox.writer.gathering = False
        outbox.writer.send(b"call", Call("tools/call"))
        assert outbox.writer.gathering
        outbox.writer.send(b"note")  # and requests go on waiting for others after it
        outbox.writer.send(b"call", Call("tools/call"))
        assert _drain(read) == (b"call" if gathers_all else b"callnote")


def test_a_writer_is_busy_and_congested_over_its_marks_only(pipe: tuple[int, int]) -> None:
    outbox = Outbox(pipe[1], 1 << 30, gathers_all=True)
    for mark, more in ((1 << 16, "busy"), (1 << 20, "congested")):
        outbox.put(b"x" * (mark - outbox.writer.waiting), hold=True)
        assert not getattr(outbox.writer, more)
        outbox.put(b"x", hold=True)
        assert getattr(outbox.writer, more)


def test_what_is_closed_says_what_it_can_and_what_breaks_tells_of_it_once(pipe: tuple[int, int]) -> None:
    read, write = pipe
    outbox = Outbox(write, 1 << 30, gathers_all=True)
    outbox.put(b"last", hold=True)
    outbox.writer.close()
    outbox.writer.close()
    assert outbox.put(b"late")
    assert (_drain(read), outbox.writer.is_over, outbox.writer.waiting) == (b"last", True, 0)
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
            with anyio.fail_after(60):
                while not came:  # in small pieces: it is told long before all is written
                    with suppress(BlockingIOError):
                        os.read(read, 4096)
                    await anyio.lowlevel.checkpoint()
                assert came == [("relieved", False)]
                while writer.waiting:
                    _drain(read)
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
                assert _drain(read) == b"a", "the first is written at once"
                writer.send(b"b")
                writer.send(b"c")
                assert _drain(read) == b"", "the others wait for each other"
                await anyio.wait_all_tasks_blocked()
                assert _drain(read) == b"bc"
            tasks.cancel_scope.cancel()
    finally:
        os.close(read)
        os.close(write)


# ---- the peer over two descriptors ---------------------------------------------------------------------------------


class Line:
    """A line peer whose other side is this test: `said` is what it wrote, `tell` what it hears."""

    def __init__(self, max_line: int = 1 << 20) -> None:
        self.hooks = Recorder()
        self.over: list[str] = []
        self._in, self._tell = os.pipe()
        self._said, self._out = os.pipe()
        for fd in (self._in, self._out, self._said):
            os.set_blocking(fd, False)
        self.peer = LinePeer(
            current_backend(),
            self.hooks,
            read_fd=self._in,
            write_fd=self._out,
            max_line=max_line,
            on_over=self.over.append,
        )

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._in, self._tell, self._said, self._out):
            os.close(fd)

    def tell(self, *lines: bytes) -> None:
        os.write(self._tell, b"".join(line + b"\n" for line in lines))
        self.peer.read()

    @property
    def said(self) -> list[Any]:
        return [json.loads(line) for line in _drain(self._said).splitlines()]


RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{}}'


@on_one_loop
@in_real_time
async def test_nothing_more_is_taken_of_one_that_was_shut_for_its_junk() -> None:
    with Line() as line:
        while not line.over:
            line.tell(*[b"x"] * 7000)
            while line.peer.read() is AGAIN:
                pass
        junk = line.peer.junk
        assert JUNK_LINES <= junk < JUNK_LINES + LINES_A_TURN  # they are counted turn by turn
        assert line.over == [f"wrote {junk:,} lines to stdout without one message of the protocol among them"]
        os.write(line._tell, RESULT % 1)
        await line.peer.read_last()
        assert line.peer.read() is False
        assert line.peer.junk == junk
        assert len(line.over) == 1


@pytest.mark.parametrize(
    ("said", "is_counted"),
    [
        (RESULT % 1, False),
        (b'{"jsonrpc":"2.0","method":"x"}', False),
        (b'{"jsonrpc":"2.0","id":"q","method":"ping"}', False),
        (b"junk", True),
        (b'{"jsonrpc":"2.0","id":99,"result":{}}', True),
    ],
)
@in_real_time
async def test_after_any_message_the_junk_that_came_before_is_forgotten(
    said: bytes, is_counted: bool
) -> None:
    with Line() as line:
        line.peer.request(Call("tools/call"))
        line.tell(b"junk", b"more")
        guard = line.peer._flood
        assert (guard.junk, guard.unheard) == (2, len(b"junk\nmore\n"))
        line.tell(said)
        now = (guard.junk, guard.unheard)
        assert now == ((3, len(b"junk\nmore\n") + len(said) + 1) if is_counted else (0, 0))


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


class LastCall(Call):
    """Its owner wants to hear nothing after it."""

    peer: LinePeer

    def exchange_ended(self, _exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self.peer.silence()


@in_real_time
async def test_a_silent_peer_hears_nothing_more_of_a_batch_it_is_reading() -> None:
    with Line() as line:
        first, second = LastCall("ping"), Call("ping")
        first.peer = line.peer
        line.peer.protocol_version = "2025-03-26"
        line.peer.request(first)
        line.peer.request(second)
        note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
        asked = b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}'
        line.tell(b"[%b,%b,%b,%b]" % (RESULT % 1, RESULT % 2, note, asked), b"junk", RESULT % 2)
        assert second.ends == []
        assert (line.hooks.notifications, line.hooks.requests, line.hooks.notes) == ([], [], [])
        line.said.clear()
        line.peer.notify("notifications/late")
        line.peer.reply(7, {})
        assert line.said == []


LARGE_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{"text":"%b"}}'


@in_real_time
async def test_a_large_line_has_turns_of_its_own_before_the_lines_behind_it() -> None:
    with Line(max_line=4 * LARGE_MESSAGE) as line:
        large, small = Call("tools/call"), Call("tools/call")
        line.peer.request(large)
        line.peer.request(small)
        line.peer._writer.flush()
        answer = LARGE_RESULT % (1, b"\xff" + b"x" * 2 * LARGE_MESSAGE)
        for start in range(0, len(answer), 50_000):
            os.write(line._tell, answer[start : start + 50_000])
            assert line.peer.read() is True
        os.write(line._tell, b"\n%b\n" % (RESULT % 2))
        turns = [(line.peer.read(), len(large.ends), len(small.ends)) for _ in range(4)]
        assert turns == [(AGAIN, 0, 0), (AGAIN, 0, 0), (AGAIN, 1, 0), (True, 1, 1)]
        assert large.ends == [(b'{"text":"\xef\xbf\xbd%b"}' % (b"x" * 2 * LARGE_MESSAGE), None)]
        assert len(line.hooks.notes) == 1


@pytest.mark.parametrize("cut", [0, 1])
@in_real_time
async def test_a_large_line_that_is_no_message_or_comes_too_late_is_nobodys(cut: int) -> None:
    with Line(max_line=4 * LARGE_MESSAGE) as line:
        call = Call("tools/call")
        line.peer.request(call)
        answer = LARGE_RESULT % (1, b"x" * LARGE_MESSAGE)
        answer = answer[: len(answer) - cut]
        for start in range(0, len(answer), 50_000):
            os.write(line._tell, answer[start : start + 50_000])
            line.peer.read()
        os.write(line._tell, b"\n")
        assert line.peer.read() is AGAIN
        if cut:
            while line.peer.read() is AGAIN:
                pass
            ((result, error),) = call.ends
            assert result is None
            assert error is not None
            assert "truncated" in error.message
        else:
            line.peer.silence()
            assert line.peer.read() is True
            assert call.ends == []


@in_real_time
async def test_what_is_refused_ends_although_the_other_side_never_reads() -> None:
    with Line(max_line=100_000) as line:
        taken, refused = (Call("x", {"ballast": "b" * 90_000}) for _ in range(2))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.peer.write_forever)
            line.peer.request(taken)
            await anyio.wait_all_tasks_blocked()
            line.peer.request(refused)
            with anyio.fail_after(60):
                while not refused.ends:
                    await anyio.lowlevel.checkpoint()
            assert taken.ends == []
            tasks.cancel_scope.cancel()


@in_real_time
async def test_a_writer_that_waits_for_a_full_pipe_ends_when_it_is_over() -> None:
    with Line(max_line=1 << 20) as line, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            line.peer.request(Call("x", {"ballast": "b" * 900_000}))
            tasks.start_soon(line.peer.write_forever)
            await anyio.wait_all_tasks_blocked()
            line.peer.silence()


@in_real_time
async def test_what_was_refused_is_not_ended_by_a_peer_that_is_over() -> None:
    with Line(max_line=100_000) as line:
        calls = [Call("x", {"ballast": "b" * 90_000}) for _ in range(3)]
        for call in calls:
            line.peer.request(call)
        assert calls[0].reach is Reach.SENT
        line.peer.silence()
        await line.peer.write_forever()
        line.peer._end_refused()
        assert [call.ends for call in calls] == [[], [], []]  # left to their owner


@in_real_time
async def test_the_writer_of_a_peer_that_falls_silent_ends() -> None:
    with Line() as line, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.peer.write_forever)
            await anyio.wait_all_tasks_blocked()
            line.peer.silence()


@in_real_time
async def test_callers_that_come_together_share_a_write_and_a_notification_does_not_wait() -> None:
    with Line() as line:
        first, second, third = (Call("ping") for _ in range(3))
        line.peer.request(first)
        line.peer.request(second)
        assert (first.reach, second.reach) == (Reach.SENT, Reach.NOT_SENT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.peer.write_forever)
            await anyio.wait_all_tasks_blocked()
            assert second.reach is Reach.SENT
            tasks.cancel_scope.cancel()
        line.tell(RESULT % 1)
        line.peer.request(third)  # something was heard: at once again
        assert third.reach is Reach.SENT
        assert [message["id"] for message in line.said] == [1, 2, 3]


@in_real_time
async def test_the_end_of_its_stream_and_a_broken_pipe_are_told_in_words() -> None:
    with Line() as line:
        before = line.peer.last_heard
        await anyio.sleep(0.002)
        line.tell(b"")
        assert line.peer.last_heard > before
        os.close(line._tell)
        line._tell = os.dup(0)
        assert line.peer.read() is False
        os.close(line._said)
        line._said = os.dup(0)
        line.peer.notify("notifications/x")
        assert line.over == ["closed its stdout", "closed its stdin"]


@in_real_time
async def test_progress_is_asked_for_by_whoever_wants_it() -> None:
    with Line() as line:
        assert not line.peer.has_spoken
        for wants in (True, False):
            line.peer.request(Call("tools/call", {"name": "t"}, wants_progress=wants))
            line.tell(b"")
        assert [message["params"].get("_meta") for message in line.said] == [{"progressToken": 1}, None]
        assert line.peer.has_spoken


@pytest.mark.parametrize("over", [0, 1])
@in_real_time
async def test_what_a_server_says_is_bounded_beside_its_results(over: int) -> None:
    """Each is looked through, or told to a client, in one go."""
    with Line() as line:
        call = Call("tools/call")
        line.peer.request(call)
        line.peer._writer.flush()
        _ = line.said

        def filled(text: bytes, size: int) -> bytes:
            return text % (b"x" * (size + over - len(text) + 2))

        said = filled(b'{"data":"%b"}', NOTICE_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","method":"notifications/message","params":%b}' % said)
        assert len(line.hooks.notifications) == 1 - over
        assert len(line.hooks.notes) == over
        asked = filled(b'{"data":"%b"}', SERVER_REQUEST_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":%b}' % asked)
        assert len(line.hooks.requests) == 1 - over
        line.peer._writer.flush()
        assert [answer["error"]["code"] for answer in line.said] == [INVALID_PARAMS] * over
        error = filled(b'{"code":5,"message":"why","data":"%b"}', ERROR_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)
        ((_, found),) = call.ends
        assert found is not None
        assert found.fault is bool(over)
        assert "why" in found.message
        assert len(found.message) < 2_000


@pytest.mark.parametrize("left", range(4, 24, 3))
@in_real_time
async def test_a_secret_is_found_where_a_long_error_was_cut_in_it(left: int) -> None:
    with Line() as line:
        call = Call("tools/call")
        line.peer.request(call)
        line.peer._writer.flush()
        secret = "Zq9supersecretvalue1234"
        head = '{"code":5,"message":"'
        said = head + "x" * (1_000 - len(head) - left) + secret + "y" * ERROR_BYTES + '"}'
        line.peer.take_line(b'{"jsonrpc":"2.0","id":1,"error":%b}' % said.encode())
        ((_, found),) = call.ends
        assert found is not None
        assert secret[:4] in found.message
        assert secret[:4] not in Secrets([Hidden("TOKEN", secret)]).without(found.message)


# ---- lines, once more -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 40])
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


@pytest.mark.parametrize(("size", "kind"), [(LARGE_MESSAGE - 1, bytes), (LARGE_MESSAGE, bytearray)])
def test_only_a_large_line_is_its_receivers_own(size: int, kind: type) -> None:
    taken: list[Any] = []
    splitter = LineSplitter(4 * LARGE_MESSAGE, _never, taken.extend)
    splitter.feed(b"x" * (size - 1))
    found = splitter.feed(b"y\nnext\n")
    lines = taken if kind is bytearray else found
    assert [len(line) for line in lines] == [size, 4]
    assert type(lines[0]) is kind
    assert (found if kind is bytearray else taken) == []


def test_what_has_come_of_a_line_is_known_until_it_is_dropped() -> None:
    splitter = LineSplitter(400, lambda head, _bound: None)
    assert splitter.held == bytearray()
    splitter.feed(b"x" * 300)
    assert splitter.held == bytearray(b"x" * 300)
    splitter.feed(b"x" * 101)
    assert splitter.held is None
    assert splitter.feed(b"more\nnext\n") == [b"next"]
    assert splitter.held == bytearray()


def test_a_large_line_is_one_and_what_was_cleared_once_it_was_decoded_is_not_taken() -> None:
    left, began, taken = LinesLeft(), list[bytes](), list[bytes]()

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


# ---- the peer over two descriptors, once more -----------------------------------------------------------------------


@in_real_time
async def test_what_a_server_does_not_read_of_our_replies_is_bounded_and_noted() -> None:
    with Line(max_line=1 << 22) as line:
        line.peer.request(Call("x", {"ballast": "b" * 200_000}))  # fills the pipe
        for number in range(1_023):
            line.peer.reply(number, {})
        assert line.hooks.notes == []
        for number in range(2):
            line.peer.reply(number, {})
        assert line.hooks.notes[-1] == (
            "a message was dropped: it does not read its stdin: 1,024 messages are queued already"
        )


@in_virtual_time
async def test_junk_counts_against_the_budget_of_what_nobody_asked_for() -> None:
    with Line() as line:
        note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
        turns: list[Any] = []
        for _ in range(140):  # far fewer notifications than may come at once
            os.write(line._tell, (b"x\n" * 50 + note + b"\n") * 2)
            more = line.peer.read()
            while more is AGAIN:
                more = line.peer.read()
            turns.append(more)
        assert turns.index(PAUSE) == 12_000 // 102
        assert line.over == []


@in_real_time
async def test_a_write_that_fails_otherwise_is_told_with_what_the_system_says() -> None:
    with Line() as line:
        line.peer._writer.fault = OSError(5, "Input/output error")
        line.peer._broken()
        assert line.over == ["write failed: Input/output error"]


@in_real_time
async def test_a_long_line_is_read_from_what_is_no_pipe_too() -> None:
    ours, theirs = socket.socketpair()
    with Line(max_line=4 << 20) as line, ours, theirs:
        ours.setblocking(False)
        line.peer._read_fd = ours.fileno()
        for _ in range(40):
            theirs.sendall(b"x" * 20_000)
            assert line.peer.read() is True
        held = line.peer._lines.held
        assert held is not None
        assert len(held) == 800_000
        assert line.peer._at_once == 1 << 18


@in_real_time
async def test_what_was_gathered_is_sent_before_a_peer_falls_silent() -> None:
    with Line() as line:
        first, second = Call("ping"), Call("ping")
        line.peer.request(first)
        line.peer.request(second)
        assert second.reach is Reach.NOT_SENT
        line.peer.silence()
        assert [message["id"] for message in line.said] == [1, 2]
        assert (second.reach, second.ends) == (Reach.SENT, [])


# ---- the connection: the steps of its end, with a leader that is only played ----------------------------------------


# ---- what a child may see -------------------------------------------------------------------------------------------

OURS = {
    "HOME": "/h",
    "PATH": "/bin",
    "LC_TIME": "C",
    "LC_ALL": "() { :; }",
    "TZ": "() { :; }",
    "HTTPS_PROXY": "p",
    "https_proxy": "q",
    "no_proxy": "r",
    "SSL_CERT_FILE": "c",
    "ssl_cert_file": "d",
    "AWS_KEY": "k",
    "AWS_REGION": "r",
    "GITHUB_TOKEN": "t",
    "SSH_AUTH_SOCK": "s",
    "XLC_TIME": "x",
}
MINIMAL = {"HOME", "PATH", "LC_TIME", "HTTPS_PROXY", "https_proxy", "no_proxy", "SSL_CERT_FILE"}


@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        (None, set[str]()),
        (False, set[str]()),
        ((), set[str]()),
        (("AWS_*",), {"AWS_KEY", "AWS_REGION"}),
        (("GITHUB_TOKEN", "TZ", "NOPE"), {"GITHUB_TOKEN", "TZ"}),
        (True, OURS.keys() - MINIMAL),
    ],
)
def test_a_child_sees_what_programs_need_and_what_its_definition_names(
    wanted: Any, more: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(OURS))
    definition = ServerDefinition("s", command="x", inherit_env=wanted, env={"PATH": "/own", "NEW": ""})
    seen = untagged_environment(definition)
    expected = {name: OURS[name] for name in MINIMAL | more}
    assert seen == {**expected, "PATH": "/own", "NEW": ""}


@pytest.mark.parametrize(("ours", "theirs"), [({}, "1"), ({"GREENROOM_DEPTH": "2"}, "3")])
def test_a_child_knows_how_deep_it_is_whatever_its_definition_says(
    ours: dict[str, str], theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", ours)
    forged = {"GREENROOM_DEPTH": "0", "GREENROOM_ROOM": "forged", "GREENROOM_INCARNATION": "forged"}
    definition = ServerDefinition("s", command="x", env=forged)
    assert child_environment(definition, "GREENROOM_INCARNATION=r:s#1", "r") == {
        "GREENROOM_DEPTH": theirs,
        "GREENROOM_ROOM": "r",
        "GREENROOM_INCARNATION": "r:s#1",
    }


# ---- the child and its group ----------------------------------------------------------------------------------------


def test_a_child_leads_its_own_session_where_and_with_what_it_was_told(tmp_path: Path) -> None:
    script = 'pwd; printf "%s" "$ONLY"; exec sleep 600'
    definition = ServerDefinition("s", command="/bin/sh", args=("-c", script), cwd=os.fspath(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    child = start_child(definition, {"ONLY": "this", "PATH": os.defpath})
    try:
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
        assert [os.get_blocking(pipe.fileno()) for pipe in (child.stdin, child.stdout, child.stderr)] == [
            False
        ] * 3
        found, deadline = b"", time.monotonic() + 60
        while not found.endswith(b"this") and time.monotonic() < deadline:
            found += child.stdout.read() or b""
        assert found.decode() == f"{os.path.realpath(tmp_path)}\nthis"
        assert (child.exit_code, child.is_dead, group_lives(child.pid)) == (None, False, True)
        child.signal_group(signal.SIGTERM)
        child.block_until_dead(60)
        assert (child.exit_code, child.is_dead, child.is_reaped) == (-signal.SIGTERM, True, False)
        assert not group_lives(child.pid), "only a zombie is left of it"
        child.reap()
        assert (child.exit_code, child.is_dead, child.is_reaped) == (-signal.SIGTERM, True, True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: pytest.fail("its number may be anybody's"))
            child.signal_group(signal.SIGKILL)
    finally:
        child.signal_group(signal.SIGKILL)
        child.block_until_dead(60)
        child.reap()
        child.close()
        child.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_in_a_forked_process_a_child_is_nobodys_and_its_pipes_lead_nowhere() -> None:
    child = start_child(ServerDefinition("s", command="/bin/sh", args=("-c", "exec sleep 600")), {})
    pid, pidfd = child.pid, child._pidfd
    try:
        child.stdin.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: pytest.fail("it is the parent's"))
            child.disown()
            assert child.is_reaped
            child.signal_group(signal.SIGKILL)
        kept = [pidfd, child.stdout.fileno(), child.stderr.fileno()]
        assert {os.readlink(f"/proc/self/fd/{fd}") for fd in kept if fd is not None} == {os.devnull}
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        child.close()


@pytest.mark.parametrize(("error", "alive"), [(ProcessLookupError, False), (PermissionError, True)])
def test_a_group_that_may_not_be_asked_is_somebodys(
    error: type[OSError], alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killpg(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "killpg", killpg)
    assert group_lives(4711) is alive


@pytest.mark.parametrize(
    ("stats", "alive"),
    [
        ({}, False),
        ({"7": b"7 (a) b) S 1 4711 1"}, True),
        ({"7": b"7 (x) Z 1 4711 1", "8": b"8 (x) X 1 4711 1"}, False),
        ({"7": b"7 (x) S 1 4712 1", "8": b"8 (x) R 4711 1 1"}, False),
        ({"7": b"7 (x) Z 1 4711 1", "8": b"8 (x) D 1 4711 1"}, True),
        ({"7": b"half"}, False),
    ],
)
def test_a_group_lives_as_long_as_one_of_it_is_no_zombie(
    stats: dict[str, bytes], alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: str, _mode: str) -> Any:
        name = path.split("/")[2]
        if name == "gone":
            raise FileNotFoundError
        return io.BytesIO(stats[name])

    monkeypatch.setattr(os, "killpg", lambda *_: None)
    monkeypatch.setattr(os, "listdir", lambda _path: ["self", "gone", *stats])
    monkeypatch.setattr(child_process, "open", opened, raising=False)
    assert group_lives(4711) is alive


def test_a_signal_is_named_as_far_as_it_has_a_name() -> None:
    assert (signal_name(9), signal_name(15), signal_name(1000)) == ("SIGKILL", "SIGTERM", "signal 1000")


def test_a_tree_works_while_one_in_it_uses_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        7: b"7 (a) b) S 1 1 1 0 -1 4194304 100 0 0 0 %d %d 90 91 20 0 1 0 1000 10 10",
        8: b"8 (x) R 7 1 1 0 -1 4194304 100 0 0 0 3 4 90 91 20 0 1 0 1000 10 10",
    }
    children = {7: [8, 9], 8: [7]}
    times = [(1, 2)]

    def opened(path: str, _mode: str) -> Any:
        pid = int(path.split("/")[2])
        if pid == 9:
            raise FileNotFoundError
        return io.BytesIO(stats[pid] % times[0] if pid == 7 else stats[pid])

    monkeypatch.setattr(child_process, "open", opened, raising=False)
    monkeypatch.setattr(child_process, "children_of", lambda pid: children[pid])
    assert child_process.tree_signs(7) == {7: b"1 2", 8: b"3 4"}
    for times[0] in ((2, 2), (1, 3)):
        assert child_process.tree_signs(7) != {7: b"1 2", 8: b"3 4"}
    monkeypatch.setattr(os.path, "exists", lambda _path: False)
    assert child_process.tree_signs(7) != child_process.tree_signs(7), "it may work"
