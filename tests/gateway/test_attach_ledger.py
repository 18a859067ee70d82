"""The inbox of an attached client's ledger: what was read from the client is there, whenever its room is killed."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.test_attach_parts import NOTHING, ledger, left_in

from greenroom.gateway.doors import attach_ledger
from greenroom.gateway.doors.attach_ledger import SIZE, Ledger, Left, new_memory


def copied(memory: int) -> int:
    """What the next room would be given if this one were killed now."""
    copy = new_memory()
    os.pwrite(copy, os.pread(memory, SIZE, 0), 0)
    return copy


def left_now(memory: int) -> Left:
    copy = copied(memory)
    try:
        return left_in(copy)
    finally:
        os.close(copy)


@contextmanager
def reads_seen(look: Callable[[], None]) -> Generator[None]:
    """`look()` whenever the system has read for a ledger, before the ledger notes anything."""
    real = os.readv

    def readv(fd: int, places: Any) -> int:
        count = real(fd, places)
        look()
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attach_ledger.os, "readv", readv)
        yield


PIECES = [b"a", b"one\n", b"\n", b" \t\n", b"longer" * 20, b"\xff\r\n"]
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join)


class Watched(mmap.mmap):
    """Memory that is looked at after each change of it."""

    look: Callable[[], None] | None = None

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        if self.look is not None:
            self.look()


@given(
    st.lists(st.tuples(WRITTEN, st.integers(1, 400), st.integers(0, 5)), max_size=25),
    st.sampled_from([600, 2_000, 1 << 18]),
)
def test_at_no_moment_is_a_line_lost_that_was_written(
    steps: list[tuple[bytes, int, int]], inbox: int
) -> None:
    """A client writes bytes, the room reads some of them and handles some of the lines. At each moment what is not
    handled is in the inbox or still in the pipe, and nowhere twice."""
    theirs, stdin = os.pipe()
    os.set_blocking(theirs, False)
    written, handled, waiting, held = b"", 0, list[bytes](), bytearray()

    def state(read: int, handled: int) -> tuple[list[bytes], bytes]:
        whole = written[:read].split(b"\n")
        lines = [line for line in whole[:-1] if line and not line.isspace()]
        return lines[handled:], whole[-1]

    def check(*states: tuple[list[bytes], bytes]) -> None:
        left = left_now(memory)
        assert (left.lines, left.fragment) in states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attach_ledger, "_INBOX", inbox)
        patch.setattr(attach_ledger, "mmap", SimpleNamespace(mmap=Watched))
        with ledger() as (kept, memory):
            watched: Any = kept._memory
            read = 0
            for data, most, count in steps:
                os.write(stdin, data)
                written += data
                if not waiting and len(held) + most <= inbox:
                    there = min(most, len(written) - read)
                    before, after = state(read, handled), state(read + there, handled)
                    # What has come of a line is moved when the inbox is full.
                    moved = [([], b"")] if kept._end + most > inbox else []
                    watched.look = lambda: check(before, after, *moved)  # noqa: B023
                    with reads_seen(lambda: check(after)):  # noqa: B023
                        try:
                            came = kept.read(theirs, most, held)
                        except BlockingIOError:
                            came = b""
                    assert came == written[read : read + there]
                    read += there
                    assert kept._end <= inbox
                    *lines, rest = (bytes(held) + came).split(b"\n")
                    held = bytearray(rest)
                    waiting = [line for line in lines if line and not line.isspace()]
                    check(state(read, handled))
                for _ in range(min(count, len(waiting))):
                    waiting.pop(0)
                    states = state(read, handled), state(read, handled + 1)
                    watched.look = lambda: check(*states)  # noqa: B023
                    kept.handled()
                    handled += 1
                    check(states[1])
            watched.look = None
    os.close(theirs)
    os.close(stdin)


def test_the_inbox_is_not_written_beyond_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a line is never whole when it is read."""
    monkeypatch.setattr(attach_ledger, "_INBOX", 600)
    theirs, stdin = os.pipe()
    with ledger() as (kept, memory):
        held = b""
        for number in range(300):
            os.write(stdin, b"x\n%03d" % number)
            assert kept.read(theirs, 100, held) == b"x\n%03d" % number
            assert kept._end <= 600
            kept.handled()
            held = b"%03d" % number
            assert left_now(memory) == Left([], [], held, None, False, False)
    os.close(theirs)
    os.close(stdin)


def test_the_next_room_begins_with_an_empty_inbox() -> None:
    theirs, stdin = os.pipe()
    with ledger() as (kept, memory):
        os.write(stdin, b"a long line of the room before\n")
        kept.read(theirs, 1 << 16, b"")
        after = Ledger(os.dup(memory))
        assert after.left.lines == [b"a long line of the room before"]
        seen: list[Left] = []
        os.write(stdin, b"short\n")
        with reads_seen(lambda: seen.append(left_now(memory))):
            after.read(theirs, 1 << 16, b"")
        after.close()
        assert seen == [Left([], [b"short"], b"", None, False, False)]
    os.close(theirs)
    os.close(stdin)


def test_a_zero_that_a_client_sends_ends_nothing() -> None:
    theirs, stdin = os.pipe()
    with ledger() as (kept, memory):
        os.write(stdin, b"a\0b\nc")
        assert kept.read(theirs, 1 << 16, b"") == b"a\0b\nc"
        assert left_now(memory) == Left([], [b"a\0b"], b"c", None, False, False)
    os.close(theirs)
    os.close(stdin)


def test_what_is_read_into_is_in_memory_before() -> None:
    """Else a room that is killed while the system fetches it would have a part of a read twice."""
    theirs, stdin = os.pipe()
    with ledger() as (kept, memory):
        os.write(stdin, b"x" * 30_000)
        with reads_seen(lambda: None):
            kept.read(theirs, 1 << 16, b"")
            assert kept._touched == 30_000
            os.write(stdin, b"y" * 10)
            kept.read(theirs, 1 << 16, b"x" * 30_000)
        assert (kept._end, kept._touched) == (30_010, 30_010)
        os.close(stdin)
        assert kept.read(theirs, 1 << 16, b"x") == b""
        assert len(left_now(memory).fragment) == 30_010
    os.close(theirs)


def test_a_line_that_is_longer_than_the_inbox_is_read_as_well() -> None:
    theirs, stdin = os.pipe()
    with ledger() as (kept, memory):
        held = bytearray(b'{"id": 7,' + b"x" * 250_000)
        os.write(stdin, b"y" * 100)
        assert kept.read(theirs, 1 << 16, held) == b"y" * 100
        assert (kept.is_over, left_now(memory).fragment) == (False, bytes(held) + b"y" * 100)
        os.write(stdin, b"y" * 20_000)
        assert kept.read(theirs, 1 << 16, held) == b"y" * 20_000
        assert kept.is_over
        assert left_now(memory).head == bytes(held[:1024])
        os.write(stdin, b"next\nthe")
        assert kept.read(theirs, 1 << 16, None) == b"next\nthe"
        kept.cut_in(b"the")
        os.write(stdin, b" last\n")
        assert kept.read(theirs, 1 << 16, b"the") == b" last\n"
        assert left_now(memory) == Left([], [b"the last"], b"", None, False, False)
    os.close(stdin)
    os.close(theirs)


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_a_client_may_have_something_else_than_a_pipe(kind: str, tmp_path: Path) -> None:
    with ledger() as (kept, memory):
        if kind == "file":
            path = tmp_path / "lines"
            path.write_bytes(b"one\ntwo\n")
            fd = os.open(path, os.O_RDONLY)
        else:
            ours, theirs = socket.socketpair()
            ours.send(b"one\ntwo\n")
            ours.close()
            fd = theirs.detach()
        assert kept.read(fd, 1 << 16, b"") == b"one\ntwo\n"
        assert left_now(memory).lines == [b"one", b"two"]
        assert kept.read(fd, 1 << 16, b"") == b""
        assert left_now(memory) == NOTHING
        os.close(fd)
