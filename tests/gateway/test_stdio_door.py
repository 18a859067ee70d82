"""The stdio door on real pipes: whole lines, slow clients, clients that leave."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.support import in_real_time, run
from tests.support.bodies import body_of
from tests.support.patience import PATIENCE
from tests.support.stdio import until

from greenroom.actors.backend import current_backend
from greenroom.actors.transports.lines import FEW_LINES, LINES_A_TURN
from greenroom.gateway.doors.stdio_door import StdioDoor, taken_over_stdio
from greenroom.protocol.bounds import LARGE_MESSAGE


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            try:
                os.close(fd)
            except OSError:
                continue


Body = Callable[[StdioDoor, int, int], Awaitable[None]]


def with_door(body: Body, backend: str) -> None:
    """Run `body(door, to_it, from_it)` with the door's pump out running."""

    async def main() -> None:
        with pipe() as (stdin, to_it), pipe() as (from_it, stdout):
            door = StdioDoor(current_backend(), stdin, stdout, max_line=1 << 20)
            with door.opened():
                async with anyio.create_task_group() as group:
                    group.start_soon(door.write)
                    await body(door, to_it, from_it)
                    group.cancel_scope.cancel()

    run(backend, main)


async def settle() -> None:
    """Give the loop a few turns: a readable descriptor is no task that could be waited for."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


def read_all(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(fd, 1 << 20)
    return data


@body_of(with_door)
async def test_lines_come_in_until_the_client_closes(door: StdioDoor, to_it: int, from_it: int, /) -> None:
    got: list[bytes | bytearray] = []
    os.write(to_it, b"one\n\n  \r\ntw")
    os.write(to_it, b"o\nnever finished")
    os.close(to_it)
    await door.read(got.append)
    assert got == [b"one", b"two"]


@body_of(with_door)
async def test_a_line_over_the_bound_is_answered_and_the_next_is_served(
    door: StdioDoor, to_it: int, from_it: int, /
) -> None:
    got: list[bytes | bytearray] = []

    def write() -> None:
        for _ in range(20):
            os.write(to_it, b"x" * 65536)
        os.write(to_it, b"\nping\n")
        os.close(to_it)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, write)
        await door.read(got.append)
    assert got == [b"ping"]
    assert b"A message over 1,048,576 bytes a line was dropped unread." in os.read(from_it, 4096)


@body_of(with_door)
async def test_t15_a_client_that_stops_reading_stops_being_read(
    door: StdioDoor, to_it: int, from_it: int, /
) -> None:
    """Each request makes an answer of 64 KiB that nobody reads: the door stops taking requests near its low mark."""
    taken = 0
    answer = b"y" * 65535 + b"\n"

    def receive(_line: bytes | bytearray) -> None:
        nonlocal taken
        taken += 1
        door.send(answer)

    os.set_blocking(to_it, False)
    written = 0
    async with anyio.create_task_group() as group:
        group.start_soon(door.read, receive)
        while True:  # one request at a time, until the door takes no more
            os.write(to_it, b"ask\n")
            written += 1
            await settle()
            if taken < written:
                break
        assert 16 <= taken <= 40
        data = await anyio.to_thread.run_sync(read_all, from_it, written * len(answer))
        await settle()
        assert taken == written
        assert data == answer * written
        group.cancel_scope.cancel()


@body_of(with_door)
async def test_order_is_kept_across_partial_writes(door: StdioDoor, to_it: int, from_it: int, /) -> None:
    lines = [b"%d" % number * (number % 700 + 1) + b"\n" for number in range(3000)]
    for line in lines:
        door.send(line)
    whole = b"".join(lines)
    assert await anyio.to_thread.run_sync(read_all, from_it, len(whole)) == whole
    await door.flush(60.0)


@body_of(with_door)
async def test_a_client_that_closes_its_reading_end_is_gone(
    door: StdioDoor, to_it: int, from_it: int, /
) -> None:
    os.close(from_it)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(door.read, lambda _line: None)
            await anyio.wait_all_tasks_blocked()
            assert door.send(b"hello\n")
    assert door.send(b"x" * 10_000_000)
    await door.flush(60.0)


@in_real_time
async def test_a_line_that_is_too_long_is_refused_by_who_reads_or_by_the_door(tmp_path: Any) -> None:
    long = b'{"id":5,"x":"' + b"x" * 200 + b'"}'
    (tmp_path / "in").write_bytes(long + b"\nnext\n")
    for own in (True, False):
        got: list[bytes | bytearray] = []
        refused: list[tuple[bytes, str]] = []
        sent: list[bytes] = []

        def refuse(head: bytes, text: str, refused: list[tuple[bytes, str]] = refused) -> None:
            refused.append((head, text))

        def send(line: bytes, sent: list[bytes] = sent) -> bool:
            sent.append(line)
            return True

        with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
            door: Any = StdioDoor(current_backend(), source.fileno(), sink.fileno(), max_line=100)
            door.send = send
            with door.opened():
                await door.read(got.append, refuse if own else None)
        assert got == [b"next"]
        assert (len(refused), len(sent)) == ((1, 0) if own else (0, 1))
        for head, text in refused:
            assert long.startswith(head)
            assert text == "A message over 100 bytes a line was dropped unread."
        for line in sent:
            error = json.loads(line)
            assert (error["id"], error["error"]["code"]) == (5, -32600)


@in_real_time
async def test_a_file_as_standard_input_is_read_to_its_end(tmp_path: Any) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    got: list[bytes | bytearray] = []
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        door = StdioDoor(current_backend(), source.fileno(), sink.fileno(), max_line=100)
        with door.opened():
            await door.read(got.append)
    assert got == [b"one", b"two"]


@in_real_time
async def test_a_socket_serves_as_both_ends_and_is_given_back_blocking() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        door = StdioDoor(current_backend(), ours.fileno(), ours.fileno(), max_line=100)
        with door.opened():
            assert not os.get_blocking(ours.fileno())
            theirs.sendall(b"hi\n")
            theirs.shutdown(socket.SHUT_WR)

            def answer(line: bytes | bytearray) -> None:
                door.send(b"%b!\n" % line)

            await door.read(answer)
        assert theirs.recv(10) == b"hi!\n"
        assert os.get_blocking(ours.fileno())


@in_real_time
async def test_a_descriptor_that_did_not_block_is_given_back_so() -> None:
    with pipe() as (readable, writable):
        os.set_blocking(readable, False)
        door = StdioDoor(current_backend(), readable, writable, max_line=100)
        with door.opened():
            assert [os.get_blocking(fd) for fd in (readable, writable)] == [False, False]
        assert [os.get_blocking(fd) for fd in (readable, writable)] == [False, True]


def test_stray_prints_cannot_reach_the_protocol() -> None:
    """In a process of its own: standard descriptors are moved."""
    import subprocess

    script = (
        "import os, sys\n"
        "from greenroom.gateway.doors.stdio_door import taken_over_stdio\n"
        "before = sorted(os.listdir('/proc/self/fd'))\n"
        "with taken_over_stdio() as (stdin, stdout):\n"
        "    assert len(os.listdir('/proc/self/fd')) == len(before) + 2\n"
        "    print('stray', flush=True); os.system('echo stray child')\n"
        "    os.write(stdout, os.read(stdin, 100)); assert sys.stdin.read() == ''\n"
        "    print('kept', end='')\n"
        "assert sorted(os.listdir('/proc/self/fd')) == before\n"
        "print('back')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=b"protocol\n", capture_output=True, check=True
    )
    assert done.stdout == b"protocol\nback\n"
    assert done.stderr == b"stray\nstray child\nkept"
    assert taken_over_stdio is not None


@body_of(with_door)
async def test_flushing_waits_for_the_client_and_not_for_ever(
    door: StdioDoor, to_it: int, from_it: int, /
) -> None:
    door.send(b"z" * 200_000 + b"\n")
    began = anyio.current_time()
    await door.flush(0.05)
    assert anyio.current_time() - began >= 0.05
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, read_all, from_it, 200_001)
        with anyio.fail_after(PATIENCE):
            await door.flush(60)


@in_real_time
async def test_the_first_answer_to_what_was_just_read_goes_out_in_the_same_step() -> None:
    """No pump runs here: what is gathered would stay."""
    with pipe() as (stdin, to_it), pipe() as (from_it, stdout):
        door = StdioDoor(current_backend(), stdin, stdout, max_line=1 << 20)

        def receive(line: bytes | bytearray) -> None:
            door.send(b"%b answered\n" % line)

        with door.opened():
            os.set_blocking(from_it, False)
            async with anyio.create_task_group() as group:
                group.start_soon(door.read, receive)
                for word in (b"one", b"two"):
                    os.write(to_it, word + b"\n")
                    await settle()
                group.cancel_scope.cancel()
            assert os.read(from_it, 100) == b"one answered\ntwo answered\n"


def test_the_mark_that_some_clients_begin_with_is_no_part_of_their_first_message(backend: str) -> None:
    async def body(door: StdioDoor, to_it: int, _from_it: int) -> None:
        got: list[bytes | bytearray] = []
        os.write(to_it, b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nthree\n")
        os.close(to_it)
        await door.read(got.append)
        assert got == [b"one", b"\xef\xbb\xbftwo", b"three"]

    with_door(body, backend)

    async def alone(door: StdioDoor, to_it: int, _from_it: int) -> None:
        got: list[bytes | bytearray] = []
        os.write(to_it, b"\xef\xbb\xbf\none\n")
        os.close(to_it)
        await door.read(got.append)
        assert got == [b"one"], "a mark alone is no message"

    with_door(alone, backend)


@pytest.mark.parametrize("closes", [True, False])
@body_of(with_door)
async def test_of_lines_that_came_together_no_more_are_taken_than_the_client_reads_answers(
    door: StdioDoor, to_it: int, from_it: int, /, closes: bool
) -> None:
    """Also from one that says nothing more, and stays."""
    got: list[bytes | bytearray] = []
    answer = b"x" * 40_000 + b"\n"

    def receive(line: bytes | bytearray) -> None:
        got.append(line)
        door.send(answer)

    lines = 2 * LINES_A_TURN + 50
    os.write(to_it, b"a\n" * lines)
    if closes:
        os.close(to_it)
    async with anyio.create_task_group() as group:
        group.start_soon(door.read, receive)
        await anyio.wait_all_tasks_blocked()
        await settle()
        assert 0 < len(got) <= LINES_A_TURN
        read = 0
        with anyio.fail_after(PATIENCE):
            while read < lines * len(answer):
                read += len(await anyio.to_thread.run_sync(os.read, from_it, 1 << 20))
        assert await until(lambda: len(got) == lines)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("number", "is_fault"),
    [
        (errno.EPIPE, False),
        (errno.ECONNRESET, False),
        (errno.EIO, False),
        (errno.ENOSPC, True),
        (errno.EISDIR, True),
    ],
)
@body_of(with_door)
async def test_a_client_that_left_is_no_fault_of_a_descriptor(
    door: StdioDoor, to_it: int, from_it: int, /, number: int, is_fault: bool
) -> None:
    assert door.fault is None
    error = OSError(number, os.strerror(number))
    door._writer.fault = error
    words = door.fault or ""
    assert words.startswith(f"Standard output cannot be written ({error.strerror}).") is is_fault
    door._writer.fault, door._unreadable = None, error
    words = door.fault or ""
    assert words.startswith(f"Standard input cannot be read ({error.strerror}).") is is_fault
    assert bool(words) is is_fault


@pytest.mark.parametrize("apart", [True, False])
@in_real_time
async def test_a_long_line_is_taken_in_its_place(apart: bool) -> None:
    long, got = b"x" * LARGE_MESSAGE, list[bytes | bytearray]()

    async def receive_large(line: bytearray) -> None:
        got.append(b"%d bytes" % len(line))
        await anyio.lowlevel.checkpoint()
        got.append(b"all of them")

    with pipe() as (stdin, to_it), pipe() as (_from_it, stdout):
        door = StdioDoor(current_backend(), stdin, stdout, max_line=4 << 20)
        with door.opened():
            async with anyio.create_task_group() as group:
                group.start_soon(door.read, got.append, None, receive_large if apart else None)
                data = b"before\n%b\nafter\nlast\n" % long
                await anyio.to_thread.run_sync(os.write, to_it, data)
                assert await until(lambda: got[-1:] == [b"last"])
                group.cancel_scope.cancel()
    taken = [b"%d bytes" % len(long), b"all of them"] if apart else [long]
    assert got == [b"before", *taken, b"after", b"last"]


@in_real_time
async def test_a_long_line_is_not_held_while_the_client_is_idle() -> None:
    got = list[bytearray]()

    async def receive_large(line: bytearray) -> None:
        got.append(line)

    with pipe() as (stdin, to_it), pipe() as (_from_it, stdout):
        door = StdioDoor(current_backend(), stdin, stdout, max_line=4 << 20)
        with door.opened():
            async with anyio.create_task_group() as group:
                group.start_soon(door.read, lambda _line: None, None, receive_large)
                await anyio.to_thread.run_sync(os.write, to_it, b"x" * LARGE_MESSAGE + b"\n")
                assert await until(lambda: bool(got))
                await anyio.wait_all_tasks_blocked()
                holders = sys.getrefcount(got[0])
                assert holders == 2, "the list, and the argument here"
                group.cancel_scope.cancel()


@in_real_time
async def test_what_cannot_be_read_ends_the_door_and_says_why(tmp_path: Any) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with (tmp_path / "out").open("wb") as sink:
            door = StdioDoor(current_backend(), folder, sink.fileno(), max_line=100)
            with door.opened():
                await door.read(lambda _line: None)
            assert (door.fault or "").startswith("Standard input cannot be read (Is a directory).")
    finally:
        os.close(folder)


@body_of(with_door)
async def test_a_client_that_has_said_nothing_yet_has_not_left(
    door: StdioDoor, to_it: int, from_it: int, /
) -> None:
    """A loop may say that there is something to read where somebody else has read it."""
    got: list[bytes | bytearray] = []
    async with anyio.create_task_group() as group:
        group.start_soon(door.read, got.append)
        await anyio.wait_all_tasks_blocked()
        assert door._on_readable() is True
        os.write(to_it, b"one\n")
        assert await until(lambda: got == [b"one"])
        os.close(to_it)
    assert (got, door.fault) == ([b"one"], None)


@pytest.mark.parametrize(
    "lines", [FEW_LINES, FEW_LINES + 1, LINES_A_TURN, LINES_A_TURN + 1, 3 * LINES_A_TURN]
)
@body_of(with_door)
async def test_of_however_many_lines_each_that_says_something_is_taken_once(
    door: StdioDoor, to_it: int, from_it: int, /, lines: int
) -> None:
    said = [b"%d" % number if number % 3 else b" \r" for number in range(lines)]
    got: list[bytes | bytearray] = []
    os.write(to_it, b"\n".join((*said, b"")))
    os.close(to_it)
    await door.read(got.append)
    assert got == [line for line in said if line.strip()]


@in_real_time
async def test_a_terminal_is_waited_for() -> None:
    person, terminal = os.openpty()
    with pipe() as (_from_it, stdout):
        try:
            door, got = (
                StdioDoor(current_backend(), terminal, stdout, max_line=100),
                list[bytes | bytearray](),
            )
            with door.opened():
                async with anyio.create_task_group() as group:
                    group.start_soon(door.read, got.append)
                    await anyio.sleep(0.01)
                    await anyio.sleep(0.01)
                    os.write(person, b"hello\n")
                    assert await until(lambda: got == [b"hello"])
                    group.cancel_scope.cancel()
        finally:
            os.close(person)
            os.close(terminal)
