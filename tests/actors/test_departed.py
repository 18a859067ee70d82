"""T44: what left its group with its environment emptied: nothing says whose it is, and it is ended all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import in_real_time, run
from tests.support.gateway import FAULTY, gone_within, serve
from tests.support.loops import on_trio
from tests.support.stdio import definition_of, linked, lives, logged, unmarked, until

from greenroom.actors.backend import current_backend
from greenroom.actors.transports import guard as _guard
from greenroom.actors.transports.orphans import Stray, strays, to_end

ROOT = Path(__file__).resolve().parents[2]

# A process that is ours alone, as `serve` is, and looks at its orphans more often.
OWNER = """
import sys, anyio
sys.path.insert(0, {root!r})
from greenroom.actors.transports import guard as _guard, orphans as _reaper
from tests.support.stdio import definition_of, linked, unmarked
_guard.LOOK = 0.05
tell = _guard.Guard._guard
def told(guard, group):
    tell(guard, group)
    with open({log!r}, "a") as log:
        log.write(f"told {{group}}\\n")
_guard.Guard._guard = told
_reaper.want_orphans()
async def main():
    definition = unmarked(definition_of("faulty.py", "--fork", "double", "--log", {log!r}))
    async with linked(definition) as stage, anyio.create_task_group() as tasks:
        tasks.start_soon(stage.guard.watch)
        await stage.initialize()
        await anyio.sleep_forever()
anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize("stop", [True, False])
@in_real_time
async def test_t44_what_left_its_group_without_a_mark_goes_with_its_server(
    tmp_path: Path, stop: bool
) -> None:
    log = tmp_path / "log"
    definition = unmarked(definition_of("faulty.py", "--fork", "setsid", "--log", str(log)))
    async with linked(definition, stop=stop) as link:
        await link.initialize()
        (child,) = await logged(log, "child", 1)
        assert os.getsid(child) == child
    assert not gone_within({child})


def test_t44_an_orphan_without_a_mark_goes_with_the_gateway(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    args = ["-i", sys.executable, "-S", os.fspath(FAULTY), "--fork", "double", "--log", os.fspath(log)]
    with serve(tmp_path, {"one": {"command": "env", "args": args}}) as gateway:
        gateway.initialize()
        gateway.mcp(connect="one")

        async def orphan() -> int:
            (pid,) = await logged(log, "child", 1)
            return pid

        pid = run("trio", orphan)
        try:
            assert lives(pid)
            assert gateway.end() == 0
            assert not gone_within({pid})
        finally:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


def _owner(backend: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(root=str(ROOT), log=str(log), backend=backend)]
    )


@on_trio
@in_real_time
async def test_t44_a_dead_orphan_is_reaped_and_a_living_one_dies_with_us(
    backend: str, tmp_path: Path
) -> None:
    for end in ("orphan", "owner"):
        log = tmp_path / end
        owner = _owner(backend, log)
        try:
            (pid,) = await logged(log, "child", 1)
            (server,) = await logged(log, "start", 1)  # before anything is killed
            assert await until(lambda pid=pid, owner=owner: _parent(pid) == owner.pid)
            found = str(os.getpgid(pid))
            assert await until(lambda log=log, found=found: f"told {found}\n" in log.read_text())
            if end == "orphan":
                os.kill(pid, signal.SIGKILL)
                assert await until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        finally:
            owner.kill()
            owner.wait()
        assert not gone_within({pid, server})


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def test_an_orphan_is_ended_only_when_no_server_that_could_be_its_own_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = Stray(1, 1, 50, False), Stray(2, 2, 150, False)
    assert to_end([old, new], []) == [old, new]
    assert to_end([old, new], [100]) == [old]
    assert to_end([old, new], [100, 20]) == []
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert to_end([old, new], []) == [], "process 1 of a container is given everybody's"


@in_real_time
async def test_a_group_is_guarded_until_its_last_orphan_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Stray] = []
    said: list[bytes] = []
    ended: list[int] = []
    monkeypatch.setattr(_guard, "has_orphans", lambda: True)
    monkeypatch.setattr(_guard, "strays", lambda _started: list(found))
    monkeypatch.setattr(Stray, "reap", lambda one: ended.append(-one.pid))
    monkeypatch.setattr(Stray, "end", lambda one: ended.append(one.pid))
    guard = _guard.Guard(current_backend(), "nobody")
    monkeypatch.setattr(guard, "_say", said.append)
    guard._births[7] = 10  # a server that runs, older than any of them
    found.extend((Stray(1, 50, 20, False), Stray(2, 50, 20, False), Stray(3, 7, 20, False)))
    assert not guard._tend()
    assert (said, ended) == ([b"+50\n", b"+7\n"], [])
    for dead in (1, 2, 3):
        found[dead - 1] = Stray(dead, found[dead - 1].group, 20, True)
        said.clear()
        assert not guard._tend()
        found[dead - 1] = Stray(9, 7, 20, True)  # reaped; another that is dead takes its place
        assert said == ([b"-50\n"] if dead == 2 else [])
    assert [pid for pid in ended if pid != -9] == [-1, -2, -3]
    found[:] = [Stray(4, 60, 5, False)]
    said.clear()
    assert guard._tend(), "older than the server, so it is nobody's"
    assert (said, ended[-1]) == ([b"+60\n"], 4)
    found[:] = [Stray(5, 70, 20, False)]
    assert not guard._tend(), "it may be the server's"
    guard.add(7)
    guard.remove(7)
    assert 7 not in guard._births, "it does not own what is found from now on"
    assert guard._tend(), "whose it may have been has ended"
    assert ended[-1] == 5


def test_a_child_of_our_own_session_is_no_orphan() -> None:
    code = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    ours, left, started = (subprocess.Popen(code, start_new_session=new) for new in (False, True, True))
    try:
        found = {one.pid: one for one in strays([started.pid])}
        assert ours.pid not in found
        assert started.pid not in found
        assert (found[left.pid].group, found[left.pid].is_dead) == (left.pid, False)
        left.kill()
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
        assert {one.pid: one.is_dead for one in strays([started.pid])}[left.pid]
    finally:
        for child in (ours, left, started):
            child.kill()
            child.wait()


@in_real_time
async def test_while_no_guard_can_be_started_what_it_is_told_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(11, "no more processes")

    told: list[str] = []
    guard = _guard.Guard(current_backend(), "nobody", told.append)
    monkeypatch.setattr(_guard, "_spawn", refuse)
    for group in range(1 << 22, (1 << 22) + 50):
        guard.add(group)
    guard.remove(1 << 22)
    assert (len(guard._unsaid), len(guard._groups)) == (0, 49)
    assert len(told) == 1


@in_real_time
async def test_t44_a_group_that_may_not_be_killed_is_said_and_is_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    really = os.killpg

    def refuse(group: int, number: int) -> None:
        if number == 0:
            raise PermissionError(1, "Operation not permitted")
        really(group, number)

    async with linked(definition_of("echo.py"), stop=False) as link:
        link.guard.tell = told.append
        monkeypatch.setattr(os, "killpg", refuse)
        await link.connection.stop(0.5)
        monkeypatch.undo()
    assert len(told) == 1
    assert "another user's" in told[0]
