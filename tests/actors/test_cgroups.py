"""A server gets a cgroup of its own where we may make one: then nothing that it starts survives it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import in_real_time
from tests.support.stdio import RUN, definition_of, gone_within, linked, lives, until

from greenroom.actors.backend import current_backend
from greenroom.actors.transports import _guard_program
from greenroom.actors.transports.guard import Guard

# At a word it starts a process that leaves its group, its parent and its environment, and tells its id.
ESCAPES = """
import os, sys, time
sys.stdin.readline()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def _starts(program: str) -> subprocess.Popen[bytes]:
    args = [sys.executable, "-I", "-S", "-c", program]
    pipe = subprocess.PIPE
    return subprocess.Popen(args, stdin=pipe, stdout=pipe, env={}, start_new_session=True)


def _may_make_one() -> bool:
    """Whether this machine lets us: many do not, and nothing else may then be different."""
    home = _guard_program.own_cgroup()
    if home is None:
        return False
    folder, child = f"{home}/greenroom-{os.getpid()}-probe", _starts(ESCAPES)
    try:
        os.mkdir(folder)
        _guard_program.write(f"{folder}/cgroup.procs", child.pid)
        return os.path.exists(f"{folder}/cgroup.kill")
    except OSError:
        return False
    finally:
        child.kill()
        child.communicate()
        _guard_program.remove_cgroup(folder)


def _is_enclosed(pid: int) -> bool:
    with suppress(OSError):
        return "/greenroom-" in Path(f"/proc/{pid}/cgroup").read_text()
    return False


def _folders(run_id: str) -> bool:
    home = _guard_program.own_cgroup()
    return home is not None and os.path.isdir(f"{home}/greenroom-{run_id}")


@in_real_time
async def test_what_left_its_group_its_parent_and_its_environment_ends_with_its_server() -> None:
    may = _may_make_one()
    run_id = f"{os.getpid()}-escape"
    guard = Guard(current_backend(), run_id)
    with _starts(ESCAPES) as server, _starts(ESCAPES) as other:
        assert server.stdin is not None
        assert server.stdout is not None
        for one in (server, other):
            guard.add(one.pid)
            guard.enclose(one.pid)
        assert not may or await until(lambda: all(_is_enclosed(one.pid) for one in (server, other)))
        server.stdin.write(b"go\n")
        server.stdin.flush()
        escaped = int(server.stdout.readline())
        server.kill()
        guard.remove(server.pid)
        server.wait()
        assert await guard.sweep("NOBODY=1", 60.0) == 0
        assert await until(lambda: not lives(escaped)) if may else lives(escaped)
        assert other.poll() is None
        assert _folders(run_id) is may
        guard.close()
        assert await until(lambda: other.poll() is not None)
        await gone_within(0.0, [escaped])
    assert not _folders(run_id)


@in_real_time
async def test_a_server_is_enclosed_when_it_starts_and_leaves_no_cgroup() -> None:
    may = _may_make_one()
    async with linked(definition_of("echo.py")) as link:
        pid = link.connection.pid
        assert pid is not None
        assert not may or await until(lambda: _is_enclosed(pid))
        await link.initialize()
    assert not _folders(RUN)


def test_cgroups_of_rooms_that_are_gone_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    dead.wait()
    (tmp_path / f"greenroom-{dead.pid}-ab" / "12").mkdir(parents=True)
    kept = [f"greenroom-{os.getpid()}-ab", "greenroom-", "greenroom-notes-x", "another"]
    for name in kept:
        (tmp_path / name).mkdir()
    _guard_program.remove_left_over(str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(kept)


def test_where_there_is_no_cgroup_to_make_nothing_is_left_and_nothing_fails(tmp_path: Path) -> None:
    """An older kernel: a cgroup without `cgroup.kill`. A full tree: no folder can be made."""
    (tmp_path / "full").write_text("")
    for home in (None, str(tmp_path), str(tmp_path / "full")):
        cgroups = _guard_program.Cgroups(home, "1-x", os.getpid())
        cgroups.follow([(b"=", os.getpid()), (b"=", 1 << 22), (b"-", 1 << 22)])
        while cgroups.patience() == 0:
            cgroups.work()
        cgroups.follow([(b"-", os.getpid())])
        cgroups.end_all()
        cgroups.wait_ended()
    assert [each.name for each in tmp_path.iterdir()] == ["full"]


def test_a_process_of_somebody_else_is_not_moved_and_costs_no_descriptor(tmp_path: Path) -> None:
    """It may have got the id of a server that has ended."""
    other = _starts("import sys; sys.stdin.read()")
    try:
        folder = tmp_path / "greenroom-1-x" / f"{other.pid}"
        folder.mkdir(parents=True)
        (folder / "cgroup.kill").write_text("")
        cgroups, before = _guard_program.Cgroups(str(tmp_path), "1-x", other.pid), _process_descriptors()
        for _ in range(3):
            cgroups.follow([(b"=", other.pid)])
            cgroups.work()
        assert cgroups.patience() is None
        assert _process_descriptors() == before
        assert [each.name for each in folder.iterdir()] == ["cgroup.kill"]
    finally:
        other.kill()
        other.communicate()


def _process_descriptors() -> int:
    """How many of our descriptors stand for a process."""
    held = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them has been closed
            held += "pidfd" in os.readlink(each)
    return held


@pytest.mark.parametrize(
    ("user", "has_systemd", "delegated", "may"),
    [(0, True, False, False), (0, True, True, True), (0, False, False, True), (1000, True, False, True)],
)
def test_root_makes_none_in_what_belongs_to_systemd(
    monkeypatch: pytest.MonkeyPatch, user: int, has_systemd: bool, delegated: bool, may: bool
) -> None:
    def getxattr(path: str, _name: str) -> bytes:
        if delegated and path == "/top/ours":
            return b"1"
        raise OSError(61, "No data available")

    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getxattr", getxattr, raising=False)
    monkeypatch.setattr(os.path, "isdir", lambda _path: has_systemd)
    assert _guard_program.is_delegated("/top/ours/below", "/top") is may
