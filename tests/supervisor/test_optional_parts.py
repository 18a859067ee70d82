"""T39: what no call needs may fail, alone: it is said once, tried again, and nobody else notices."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support import in_real_time, in_virtual_time, run
from tests.support.gateway import FAULTY, Gateway, logged_pids, serve
from tests.support.stdio import definition_of, linked, lives, until

from greenroom.actors import workers
from greenroom.actors.backend import current_backend
from greenroom.actors.transports import guard as _guard
from greenroom.actors.transports.guard import Guard
from greenroom.actors.workers import Part, in_words
from greenroom.config import file_watcher
from greenroom.gateway.doors import control_server
from greenroom.gateway.event_log import EventsFile
from greenroom.protocol.errors import UsageError
from greenroom.protocol.events import Note, NoteCode

SERVER = {"one": {"command": sys.executable, "args": ["-S", os.fspath(FAULTY)]}}


def note(number: int) -> Note:
    return Note(number, 1.0, code=NoteCode.ODD, words=f"{number}")


def answers(gateway: Gateway) -> None:
    result = gateway.mcp(tool="one_echo", args="{}")
    assert "error" not in json.dumps(result).lower(), result


def said(folder: Path, what: str) -> list[str]:
    return [line for line in (folder / "stderr.txt").read_text().splitlines() if what in line]


async def is_said(folder: Path, what: str) -> None:
    assert await until(lambda: bool(said(folder, what)))


@contextmanager
def no_more_descriptors(pid: int = 0) -> Generator[None]:
    """The process has those it has, and gets no other."""
    used = {int(name) for name in os.listdir(f"/proc/{pid or 'self'}/fd")}
    if not pid:
        used = {number for number in used if _is_open(number)}  # without the listing's own
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def at_rest(pid: int, looks: int = 15) -> None:
    """Wait until its descriptors stay what they are: one that is about to be closed would leave room for another."""
    before, same = dict[str, str](), 0
    for _ in range(3000):
        now = _descriptors(pid)
        before, same = now, same + 1 if now == before else 0
        if same == looks:
            return
        time.sleep(0.02)
    raise AssertionError(f"its descriptors change all the time: {before}")


def _descriptors(pid: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return found


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


# ---- the one mechanism -----------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_part_that_fails_is_said_once_and_tried_again_ever_more_rarely() -> None:
    told: list[str] = []
    tries: list[float] = []
    part = Part("it", told.append, "Nobody minds.")

    async def work() -> None:
        tries.append(anyio.current_time())
        if len(tries) == 9:
            part.works()
            return
        raise OSError(28, "No space left on device", "/x")

    await part.keep(work)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert told == [
        "it: No space left on device (/x). Nobody minds. It is tried again.",
        "it: works again",
    ]


@in_virtual_time
async def test_a_part_has_worked_since_it_first_said_so_and_for_longer_than_the_longest_pause() -> None:
    told: list[str] = []
    part = Part("it", told.append)
    part.works()
    assert (part.is_due, told) == (True, [])
    await anyio.sleep(100)
    assert [part.failed("a"), part.failed("a")] == [1, 2]
    assert (part.next_try, part.is_due) == (102, False)
    await anyio.sleep(2)
    assert part.is_due
    part.works()
    await anyio.sleep(40)
    part.works()  # is no new beginning of its good time
    await anyio.sleep(20)
    assert part.failed("a") == 4, "sixty seconds are not longer than sixty"
    part.works()
    await anyio.sleep(40)
    part.works()
    await anyio.sleep(21)
    assert [part.failed("a"), part.failed("a")] == [1, 2], "one good time is one new beginning"
    await anyio.sleep(61)
    assert part.failed("a") == 4, "silence is not work"
    assert told == ["it: a. It is tried again.", "it: works again"] * 2 + ["it: a. It is tried again."]
    assert part.failed("b") == 8
    assert part.failed(OSError(28, "No space", "/x")) == 16
    assert part.failed(OSError(28, "No space", "/y")) == 32
    assert told[5:] == ["it: b. It is tried again.", "it: No space (/x). It is tried again."]


@in_real_time
async def test_t40_a_command_that_breaks_is_told_without_what_it_was_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    async def breaks(*_: object) -> None:
        raise UnicodeEncodeError("ascii", "secret-token\udcff", 12, 13, "ordinal not in range")

    monkeypatch.setattr(control_server, "_serve_client", breaks)
    ours, theirs = socket.socketpair()
    with theirs:
        async with anyio.create_task_group() as group:
            part = Part("the control socket", told.append)
            await control_server._serve_line(ours, {}, control_server.Lines(group), part)
    assert "UnicodeEncodeError" in told[0]
    assert "secret-token" not in told[0]


def test_the_reason_is_one_line_and_says_whose_it_is() -> None:
    assert in_words(UsageError("do\nthis.")) == "do this"
    assert in_words(OSError(24, "Too many open files")) == "Too many open files"
    assert in_words(ExceptionGroup("", [ZeroDivisionError("oh")])).endswith(
        "report it: ZeroDivisionError: oh"
    )
    assert in_words(OSError("odd")) == "odd"
    assert in_words(OSError(2, "No such file", "/x")) == "No such file (/x)"
    assert in_words(" a\n text. ") == "a text"


# ---- the events file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "unread"])
def test_t39_an_events_file_that_takes_nothing_stops_nobody(tmp_path: Path, kind: str) -> None:
    place = Path("/dev/full") if kind == "full" else tmp_path / "fifo"
    if kind == "unread":
        os.mkfifo(place)
    with serve(tmp_path, SERVER, "--events", os.fspath(place)) as gateway:
        gateway.initialize()
        for _ in range(3):
            answers(gateway)
        assert gateway.end() == 0
    (line,) = said(tmp_path, "the events file")
    reason = "No space left on device" if kind == "full" else "No such device or address"
    assert f"the events file {place}: {reason}" in line


def test_t39_what_an_events_file_missed_stands_in_it_when_it_can_be_written_again(tmp_path: Path) -> None:
    told: list[str] = []
    now = [0.0]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = EventsFile(fifo, Part("it", told.append, now=lambda: now[0]))
    file(note(1))
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        file(note(2))  # too soon to be tried again
        now[0] = 2.0
        file(note(3))
        records = [json.loads(line) for line in os.read(reader, 9999).splitlines()]
        assert records[0] == {"kind": "lagged", "missed": 2}
        assert records[1]["detail"] == "3"
        # A pipe that is read too slowly holds nobody up, and the gap is told when there is room again.
        for number in range(40_000):
            file(note(number))
        gaps: list[Any] = []
        rest = b""
        while not gaps:
            rest += os.read(reader, 1 << 16)
            file(note(-1))
            *lines, rest = rest.split(b"\n")
            gaps = [record for record in map(json.loads, lines) if record["kind"] == "lagged"]
        assert gaps[0]["missed"] > 10_000
    finally:
        os.close(reader)
    file(note(4))
    file.close()
    assert [line.partition(" (")[0].partition(".")[0] for line in told] == [
        "it: No such device or address",
        "it: works again",
        "it: Broken pipe",
    ]


# ---- the control socket ----------------------------------------------------------------------------------------------


def hello(folder: Path, within: float = 60.0) -> bool:
    """Whether the gateway's control socket answers."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(within)
        try:
            (place,) = (folder / "cache" / "greenroom" / "run").iterdir()
            os.chdir(place.parent)
            line.connect(place.name)
            line.sendall(b'{"method": "hello"}\n')
            return bool(line.recv(1))
        except (OSError, ValueError):
            return False


def test_t39_a_gateway_without_descriptors_serves_its_client_and_finds_its_control_socket_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back again: sockets are reached by short names here
    with serve(tmp_path, SERVER) as gateway:
        gateway.initialize()
        answers(gateway)
        assert hello(tmp_path)
        answers(gateway)
        at_rest(gateway.process.pid)
        with no_more_descriptors(gateway.process.pid):
            assert not hello(tmp_path, 0.5)
            assert not hello(tmp_path, 0.5)
            answers(gateway)
            run("trio", is_said, tmp_path, "the control socket")

        async def comes_back() -> None:
            assert await until(lambda: hello(tmp_path, 1.0))

        run("trio", comes_back)
        answers(gateway)
        assert gateway.end() == 0
    problem, again = said(tmp_path, "the control socket")
    assert "the control socket: Too many open files" in problem
    assert again.endswith("the control socket: works again")


# ---- what watches the configuration ----------------------------------------------------------------------------------


@in_real_time
async def test_t39_without_inotify_instances_it_looks_by_the_clock_says_so_once_and_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "LOOK_AGAIN", 0.0)
    told: list[str] = []
    part = Part("hearing", told.append)
    file_watcher._inotify()  # imported
    with no_more_descriptors():
        for _ in range(2):
            with file_watcher.hung_at([tmp_path / "x"], part) as bell, anyio.fail_after(60):
                await bell.rung()
    with file_watcher.hung_at([tmp_path / "x"], part) as bell, anyio.fail_after(60):
        (tmp_path / "x").touch()
        await bell.rung()
    assert len(told) == 2, told
    problem, again = told
    assert problem.startswith("hearing: Too many open files")
    assert again == "hearing: works again"


# ---- the guard -------------------------------------------------------------------------------------------------------


@in_real_time
async def test_t39_a_guard_that_cannot_be_started_again_ends_nobody_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "FIRST_PAUSE", 0.02)
    told: list[str] = []
    make = _guard._spawn

    def refuse(*_: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    guard = Guard(current_backend(), "no processes", told.append)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.watch)
            guard.start()
            first = guard.pid
            assert first is not None
            monkeypatch.setattr(_guard, "_spawn", refuse)
            os.kill(first, signal.SIGKILL)
            assert await until(lambda: bool(told))
            guard.add(1 << 22)  # a child that had just been started
            guard.remove(1 << 22)
            assert await guard.sweep("NOBODY=1", 60.0) == 0
            guard.sweep_soon("NOBODY=1")
            with pytest.raises(BlockingIOError):
                guard.start()  # and no other is started
            monkeypatch.setattr(_guard, "_spawn", make)
            assert await until(lambda: guard.pid not in (None, first))
            tasks.cancel_scope.cancel()
    finally:
        guard.close()
    why = "Resource temporarily unavailable. Until then servers would outlive a SIGKILL of Greenroom."
    assert told == [f"the guard process: {why} It is tried again."]


@in_real_time
async def test_t39_a_guard_that_ends_as_soon_as_it_is_started_is_not_started_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.setattr(_guard, "_PROGRAM", tmp_path / "nothing.py")
    guard = Guard(current_backend(), "ends", told.append)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.watch)
            guard.start()
            assert await until(lambda: bool(told))
            tasks.cancel_scope.cancel()
    finally:
        guard.close()
    assert "it ends as soon as it is started" in told[0]


def test_t39_a_room_goes_on_while_its_guard_cannot_run(tmp_path: Path) -> None:
    """The whole way: a gateway whose guard is killed answers, and has a guard again."""
    with serve(tmp_path, SERVER) as gateway:
        gateway.initialize()
        answers(gateway)
        guards = _guards_of(gateway.process.pid)
        assert len(guards) == 1
        at_rest(gateway.process.pid)
        with no_more_descriptors(gateway.process.pid):  # no pair of sockets, so no guard either
            os.kill(guards[0], signal.SIGKILL)
            run("trio", is_said, tmp_path, "the guard process")
            answers(gateway)

        async def is_back() -> None:
            assert await until(lambda: len(_guards_of(gateway.process.pid)) == 1)

        run("trio", is_back)
        answers(gateway)
        assert gateway.end() == 0
    assert logged_pids(tmp_path) == set()


def _guards_of(pid: int) -> list[int]:
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has gone meanwhile
            if b"_guard_program.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


# ---- a stopped guard -------------------------------------------------------------------------------------------------


@in_real_time
async def test_t44_a_stopped_guard_is_noticed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_guard, "_LOOK", 0.02)
    told: list[str] = []
    guard = Guard(current_backend(), "stopped", told.append)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.watch)
            guard.start()
            first = guard.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            assert await until(lambda: guard.pid not in (None, first))
            assert not lives(first)
            assert await guard.sweep("NOBODY=1", 60.0) == 0
            tasks.cancel_scope.cancel()
    finally:
        guard.close()
    assert told == ["the guard process had been stopped (SIGSTOP), and is replaced"]


@in_real_time
async def test_t44_nothing_is_started_under_a_stopped_guard() -> None:
    async with linked(definition_of("echo.py")) as link:
        first = link.guard.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert await until(lambda: _guard._is_stopped(first))
        link.guard.start()
        assert link.guard.pid != first
        assert not lives(first)


@in_virtual_time
async def test_a_part_that_fails_in_the_step_in_which_it_is_ended_just_ends() -> None:
    lines: list[str] = []

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.lowlevel.checkpoint()
            ending.cancel_scope.cancel()
            raise UsageError("it answered what cannot be read")

    async with anyio.create_task_group() as ending:
        ending.start_soon(Part("a part", lines.append).keep, work)
    assert not any("bug" in line for line in lines), (
        "it ends without an error, and may say what it failed with"
    )
