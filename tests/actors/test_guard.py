"""The guard: what is ours dies with us, whatever way we go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.support import in_real_time
from tests.support.loops import on_trio
from tests.support.patience import PATIENCE
from tests.support.stdio import definition_of, gone_within, linked, lives, logged, until

from greenroom import Greenroom
from greenroom.actors.backend import current_backend
from greenroom.actors.transports import _guard_program
from greenroom.actors.transports import guard as _guard
from greenroom.actors.transports.guard import Guard, guard_command
from greenroom.errors import ConnectFailed

OURS = f"a{os.getpid()}"
ROOT = Path(__file__).resolve().parents[2]
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def _sleeper(**environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEPER, env=environ, start_new_session=True)


def _has_begun(process: subprocess.Popen[bytes]) -> bool:
    return b"TAG=" in _environ(process.pid)


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _owner(backend: str, log: Path, program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program.format(root=str(ROOT), log=str(log), backend=backend)]
    )


# An owner for SIGKILL: it connects a child per faulty option and then only lives.
OWNER = """
import sys, anyio
sys.path.insert(0, {root!r})
from tests.support.stdio import definition_of, linked
async def main():
    async with anyio.create_task_group() as tasks:
        for kind in ("group", "setsid", "double"):
            tasks.start_soon(one, kind)
async def one(kind):
    faults = ("--ignore-eof", "--ignore-term", "--fork", kind, "--log", {log!r})
    async with linked(definition_of("faulty.py", *faults)) as stage:
        await stage.initialize()
        await anyio.sleep_forever()
anyio.run(main, backend={backend!r})
"""


@on_trio
@in_real_time
async def test_t32_a_killed_owner_takes_everything_with_it(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = _owner(backend, log, OWNER)
    try:
        pids = await logged(log, "start", 3) + await logged(log, "child", 3)
        assert all(map(lives, pids))
    finally:
        owner.kill()
        owner.wait()
    assert await gone_within(PATIENCE, pids)


@in_real_time
async def test_a_sweep_kills_what_carries_the_tag_and_nothing_else() -> None:
    guard = Guard(current_backend(), "sweeps")
    # The process sees all others there are, those of another worker's tests, too.
    mine = _sleeper(TAG=f"{OURS}:b#1")
    other = _sleeper(TAG=f"{OURS}:b#12", MORE=f"TAG={OURS}:b#1")
    try:
        guard.start()
        assert await until(lambda: all(map(_has_begun, (mine, other))))
        assert await guard.sweep(f"TAG={OURS}:b#1", PATIENCE) == 1
        assert mine.wait(PATIENCE) == -signal.SIGKILL
        assert other.poll() is None
        assert await guard.sweep(f"TAG={OURS}:b#1", PATIENCE) == 0
    finally:
        guard.close()
        for each in (mine, other):
            each.kill()
            each.wait()


@in_real_time
async def test_sweeps_asked_for_at_once_are_each_answered() -> None:
    guard = Guard(current_backend(), "many")
    answers: list[int] = []

    async def one(at: int) -> None:
        answers.append(await guard.sweep(f"NOBODY={at}", PATIENCE))

    try:
        async with anyio.create_task_group() as tasks:
            for at in range(40):
                tasks.start_soon(one, at)
    finally:
        guard.close()
    assert answers == [0] * 40


@in_real_time
async def test_a_watched_guard_is_restarted_at_once() -> None:
    guard, child = Guard(current_backend(), "watch"), _sleeper()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.watch)
            guard.add(child.pid)
            first = guard.pid
            assert first is not None
            await anyio.lowlevel.checkpoint()
            os.kill(first, signal.SIGKILL)
            assert await until(lambda: guard.pid not in (None, first))
            tasks.cancel_scope.cancel()
        guard.close()
        assert child.wait(PATIENCE) == -signal.SIGKILL, (
            "the new one knows what there is, though nobody spoke to it"
        )
    finally:
        guard.close()
        child.kill()
        child.wait()


@in_real_time
async def test_a_removed_group_is_left_alone() -> None:
    guard = Guard(current_backend(), "removed")
    child = _sleeper()
    try:
        guard.add(child.pid)
        guard.remove(child.pid)
        guard.close()
        assert child.poll() is None
    finally:
        guard.close()
        child.kill()
        child.wait()


@in_real_time
async def test_the_guard_outlives_the_signals_that_end_its_owner() -> None:
    async with linked(definition_of("echo.py")) as link:
        await link.guard.sweep("NOBODY=1", PATIENCE)  # it is up
        pid = link.guard.pid
        assert pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert await link.guard.sweep("NOBODY=1", PATIENCE) == 0
        assert link.guard.pid == pid


@on_trio
@in_real_time
async def test_a_server_is_not_started_without_a_guard_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"mcpServers": {"s": {"command": sys.executable, "args": ["-c", ""]}}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(ConnectFailed, match="guard process cannot run"):
            await room.connect("s")


@in_real_time
async def test_a_dead_guard_is_restarted_and_told_again_and_not_of_what_was_removed() -> None:
    guard = Guard(current_backend(), "told again")
    gone, stays = _sleeper(), _sleeper()
    try:
        for child in (gone, stays):
            guard.add(child.pid)
        guard.remove(gone.pid)
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await guard.sweep("NOBODY=1", PATIENCE) == 0
        assert guard.pid not in (None, first)
        guard.close()  # with a group still on its list: that is what it must remember
        assert stays.wait(PATIENCE) == -signal.SIGKILL
        assert gone.poll() is None
    finally:
        guard.close()
        for child in (gone, stays):
            child.kill()
            child.wait()


# ---- the deadline ---------------------------------------------------------------------------------------------------


def _ended(child: subprocess.Popen[bytes]) -> bool:
    return child.wait(PATIENCE) == -signal.SIGKILL


@in_real_time
async def test_the_guard_ends_all_children_at_its_deadline_and_those_that_come_later() -> None:
    guard = Guard(current_backend(), f"{OURS}-deadline")
    children = [_sleeper(), _sleeper(TAG="no group of ours", GREENROOM_ROOM=f"{OURS}-deadline")]
    try:
        guard.add(children[0].pid)
        guard.end_children_at(time.monotonic() + 1_000_000_000)
        assert await guard.sweep(f"TAG={OURS}:nobody", PATIENCE) == 0
        assert await until(lambda: _has_begun(children[1]))
        assert (guard.is_time_over, [child.poll() for child in children]) == (False, [None, None])
        guard.end_children_at(time.monotonic() + 0.05)
        assert all(map(_ended, children))
        assert guard.is_time_over
        children.append(late := _sleeper())
        guard.add(late.pid)
        assert _ended(late)
        for later in (time.monotonic() + 600, None):
            guard.end_children_at(time.monotonic())
            guard.end_children_at(later)
            children.append(another := _sleeper())
            guard.add(another.pid)
            for _ in range(3):
                assert await guard.sweep(f"TAG={OURS}:nobody", PATIENCE) == 0
            assert another.poll() is None
    finally:
        guard.close()
        for child in children:
            child.kill()
            child.wait()


@in_real_time
async def test_a_restarted_guard_is_told_its_deadline_again() -> None:
    guard = Guard(current_backend(), "deadline again")
    guard.end_children_at(time.monotonic())
    assert guard.pid is None, "there is nothing to end yet"
    guard.start()
    assert await guard.sweep("NOBODY=1", PATIENCE) == 0
    first = guard.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await until(lambda: not lives(first))
    child = _sleeper()
    try:
        guard.add(child.pid)
        assert _ended(child)
    finally:
        guard.close()
        child.kill()
        child.wait()


# It runs its children for two seconds and no longer, unless it says so again.
LEASEHOLDER = """
import sys, time, anyio
sys.path.insert(0, {root!r})
from tests.support.stdio import definition_of, linked
async def main():
    async with anyio.create_task_group() as tasks:
        for kind in ("group", "setsid", "double"):
            tasks.start_soon(one, kind)
async def one(kind):
    faults = ("--ignore-eof", "--ignore-term", "--fork", kind, "--log", {log!r})
    async with linked(definition_of("faulty.py", *faults)) as stage:
        await stage.initialize()
        while True:
            stage.guard.end_children_at(time.monotonic() + 2.0)
            await anyio.sleep(0.2)
anyio.run(main, backend={backend!r})
"""


@on_trio
@in_real_time
async def test_a_stopped_owner_keeps_no_child_beyond_its_deadline(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = _owner(backend, log, LEASEHOLDER)
    try:
        pids = await logged(log, "start", 3) + await logged(log, "child", 3)
        assert all(map(lives, pids))
        owner.send_signal(signal.SIGSTOP)
        assert await gone_within(PATIENCE, pids)
        assert owner.poll() is None
    finally:
        owner.kill()
        owner.wait()


# ---- its own program -----------------------------------------------------------------------------------------------


def test_its_start_imports_nothing_that_takes_time() -> None:
    load = (
        f"exec(compile(open({_guard_program.__file__!r}).read(), 'guard', 'exec'), {{'__name__': 'guard'}})"
    )
    see = (
        "import sys; print([name for name in ('collections', 'enum', 're', 'socket') if name in sys.modules])"
    )
    said = subprocess.run([*SLEEPER[:3], "-c", f"{load}; {see}"], capture_output=True, check=True, text=True)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize("owner", ["is gone", "has left"])
def test_after_a_killed_owner_the_guard_looks_for_longer(owner: str) -> None:
    """Its children may be forking just then."""
    nobody = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    nobody.wait()
    pid = nobody.pid if owner == "is gone" else os.getpid()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guard = subprocess.Popen(
            guard_command("TAG=nobody", str(pid)),
            stdin=theirs.fileno(),
            env={},
            start_new_session=True,
        )
        theirs.close()
        answer, said = os.pipe()
        socket.send_fds(ours, [b"?TAG=1\n"], [said])
        os.close(said)
        assert os.read(answer, 8) == b"0"  # it is up
        os.close(answer)
        began = time.monotonic()
        ours.close()
        assert guard.wait(PATIENCE) == 0
        assert owner == "has left" or time.monotonic() - began >= _guard_program.QUIET * _guard_program.PAUSE


@pytest.mark.parametrize(
    ("found", "owner_is_gone", "looks"),
    [([], False, 1), ([1, 1], False, 3), ([], True, 3), ([0, 1], True, 5)],
)
def test_the_last_sweep_goes_on_until_nothing_was_found(
    monkeypatch: pytest.MonkeyPatch, found: list[int], owner_is_gone: bool, looks: int
) -> None:
    seen: list[set[bytes]] = []

    def sweep(tags: set[bytes]) -> dict[bytes, int]:
        seen.append(tags)
        return {b"TAG": 1} if found and found.pop(0) else {}

    monkeypatch.setattr(_guard_program, "sweep", sweep)
    monkeypatch.setattr(_guard_program, "PAUSE", 0.0)
    child = _sleeper()
    try:
        _guard_program.last_sweep({1 << 22, child.pid}, b"TAG", owner_is_gone=owner_is_gone)
        assert child.wait(PATIENCE) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
    assert seen == [{b"TAG"}] * looks


def test_a_lifeline_is_read_whole_lines_at_a_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lifeline = _guard_program.Lifeline(theirs)
        ours.send(b"+12\n+3")
        assert lifeline.listen()
        assert lifeline.groups == {12}
        ours.send(b"45\n-12\n-99\n")
        assert lifeline.listen()
        assert lifeline.groups == {345}
        for tag in (b"?A\n", b"?B\n", b"?A\n"):
            socket.send_fds(ours, [tag], [ours.fileno()])
        assert lifeline.listen()
        requests = lifeline.take_requests()
        assert {tag: len(fds) for tag, fds in requests.items()} == {b"A": 2, b"B": 1}
        assert lifeline.take_requests() == {}
        for fds in requests.values():
            for fd in fds:
                os.close(fd)
        ours.close()
        assert not lifeline.listen()


@in_real_time
async def test_the_guard_stands_alone_and_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweep can hit it, no terminal, and no folder is held by it."""
    monkeypatch.setenv("GREENROOM_ROOM", "one-around-us")
    guard = Guard(current_backend(), "alone")
    assert guard.pid is None
    guard.start()
    try:
        pid = guard.pid
        assert pid is not None
        assert await guard.sweep(f"TAG={OURS}:nobody", PATIENCE) == 0  # it has begun
        assert _environ(pid) == b""
        assert (os.getsid(pid), os.readlink(f"/proc/{pid}/cwd")) == (pid, "/")
        guard.start()
        guard.add(pid_of_nobody := 2**22 + 1)
        guard.remove(pid_of_nobody)
        assert guard.pid == pid
    finally:
        guard.close()
    assert guard.pid is None
    assert not lives(pid)


@in_real_time
async def test_a_closed_guard_is_not_started_again_and_asks_nobody() -> None:
    said: list[str] = []
    guard = Guard(current_backend(), "closed", said.append)
    guard.start()
    guard.close()
    guard.close()
    with pytest.raises(ChildProcessError, match="its room is closed"):
        guard.start()
    guard.add(2**22 + 1)
    guard.remove(2**22 + 1)
    guard.sweep_soon("TAG=x")
    assert await guard.sweep("TAG=x", PATIENCE) == 0
    with anyio.fail_after(PATIENCE):
        await guard.watch()
    assert (guard.pid, said) == (None, [])


@in_real_time
async def test_a_sweep_without_descriptors_is_given_up_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    said: list[str] = []
    guard = Guard(current_backend(), "poor", said.append)
    guard.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", none_left)
            for _ in range(2):
                with anyio.fail_after(PATIENCE):
                    assert await guard.sweep("TAG=x", 60.0) == 0
        assert len(said) == 1
        assert said[0].startswith("the guard process: Too many open files.")
        assert await guard.sweep(f"TAG={OURS}:nobody", 60.0) == 0
    finally:
        guard.close()


@in_real_time
async def test_nothing_overtakes_what_the_guard_was_to_be_told() -> None:
    guard = Guard(current_backend(), "busy")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        guard._lifeline = ours
        guard._unsaid.extend([b"+1\n", b"+2\n"])
        assert not guard._begin_request(b"?x\n", theirs.fileno())
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
        guard._flush()
        assert (theirs.recv(10), list(guard._unsaid)) == (b"+1\n+2\n", [])
        while guard._send(b"x" * 1_000):
            pass
        guard._unsaid.append(b"-1\n")
        guard._flush()
        assert list(guard._unsaid) == [b"-1\n"], "it is too busy: it hears this first when it has time"
        guard._lifeline = None
        assert not guard._send(b"x\n")


def test_a_stopped_process_is_seen_as_often_as_one_looks() -> None:
    process = _sleeper()
    try:
        assert not _guard._is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + PATIENCE
        while not _guard._is_stopped(process.pid):
            assert time.monotonic() < end
            time.sleep(0.001)
        assert _guard._is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert not _guard._is_stopped(process.pid)


@in_real_time
async def test_t39_a_guard_that_ends_as_soon_as_it_is_started_is_not_started_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "executable", "/bin/true")
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


@in_real_time
async def test_t44_a_stopped_guard_is_noticed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_guard, "LOOK", 0.02)
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
        assert await until(lambda: b") T " in Path(f"/proc/{first}/stat").read_bytes())
        link.guard.start()
        assert link.guard.pid != first
        assert not lives(first)
