"""After every test: no process, no descriptor is left.

A test that leaves something behind fails by itself, and what it left is ended, so the next one starts clean.

* Children are read from `/proc/<pid>/task/*/children`, recursively. A zombie counts: it should have been reaped.
* A process that left our tree (setsid and double fork) is found by what the room puts into every child's environment.
  It counts only if it is an orphan, was born during the test, and works in this checkout or in this session's temporary
  folder. We must never find somebody else's room on the same machine, because what is found is killed. Workers of
  pytest-xdist share the checkout, so each gets its own `TMPDIR`, and a process in the checkout belongs to the worker
  whose `TMPDIR` it has. The scan reads every process that was made since the test began, so it is made only when the
  test has reaped a child, which page faults show.
* Processes that serve all tests of a session are kept (`KEPT_PROCESSES`). What they started for a test ends with it.
* This process receives no orphans for longer than the test that asked for them.
* Descriptors are compared by number and file. Garbage is collected before a difference counts.

Linux only: elsewhere nothing is watched.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import uvloop

from .patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PROC = Path("/proc")
TAG = b"GREENROOM_ROOM="
ADOPTERS = (b"systemd", b"init")  # besides process 1: who becomes the parent of an orphan
HARMLESS = ("/dev/urandom",)  # opened once by the interpreter, kept
KEPT_PROCESSES: set[int] = set()
KEPT_DESCRIPTORS: set[int] = set()
TICK = os.sysconf("SC_CLK_TCK")

Descriptor = tuple[int, int, int]  # its number; the device and the inode of what it is open to


@attrs.frozen
class Snapshot:
    """What this process had at one moment."""

    children: frozenset[int]
    descriptors: set[Descriptor]
    reaped_faults: int
    at: float  # seconds since boot
    newest: int  # the id of the process, or thread, that was made last
    homes: tuple[str, ...]  # where a process of ours works
    mark: bytes = b""  # what one that works in the checkout has in its environment, too


def pytest_configure(config: pytest.Config) -> None:
    uvloop.new_event_loop().close()  # from its first loop on, uvloop keeps a pipe for the signals of the process
    if hasattr(config, "workerinput"):
        own = tempfile.mkdtemp(prefix="gr-")
        os.chmod(own, 0o711)  # as of /tmp: another user may walk through it
        os.environ["TMPDIR"] = tempfile.tempdir = own
        config.add_cleanup(partial(shutil.rmtree, own, ignore_errors=True))


_BEFORE = pytest.StashKey[Snapshot]()


# These are hooks and no fixture, here and in the other checks of every test: a fixture that every test has costs more
# than many a test.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if sys.platform == "linux":
        temporary = getattr(item.config, "_tmp_path_factory")  # noqa: B009 (of no public name)
        item.stash[_BEFORE] = snapshot(temporary.getbasetemp())
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that leaves processes or descriptors behind, and ends them."""
    try:
        yield
    except BaseException as error:
        if left := _ended_leaks(item):
            if isinstance(error, pytest.fail.Exception):  # it may be shown without its notes
                pytest.fail(f"{error.msg}; {left}", pytrace=False)
            error.add_note(left)
        raise
    if left := _ended_leaks(item):
        pytest.fail(left, pytrace=False)


def _ended_leaks(item: pytest.Item) -> str:
    if sys.platform != "linux":
        return ""
    _adopt_no_orphans()
    before = item.stash.get(_BEFORE, None)  # None: the look before the test failed
    left = leaks_since(before) if before is not None else []
    return f"{item.name} left behind: {'; '.join(left)}" if left else ""


def _adopt_no_orphans() -> None:
    """A test that ran `serve` in this process asked for the orphans below it. No later test may get them."""
    reaper = sys.modules.get("greenroom.actors.transports.orphans")
    if reaper is not None and (reaper._ReaperState.is_wanted or reaper._ReaperState.is_on):
        if reaper._ReaperState.is_on:
            ctypes.CDLL(None).prctl(reaper._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        reaper._ReaperState.is_wanted = reaper._ReaperState.is_on = False


def snapshot(*homes: Path) -> Snapshot:
    """What there is now. `homes`: folders, besides this checkout, in which only tests of this session work."""
    return Snapshot(
        children=frozenset(_descendants(os.getpid())),
        descriptors=_descriptors(),
        reaped_faults=resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt,
        at=time.clock_gettime(time.CLOCK_BOOTTIME),
        newest=_newest(),
        homes=tuple(os.fspath(home) for home in (ROOT, *homes)),
        mark=f"TMPDIR={tempfile.gettempdir()}".encode() if "PYTEST_XDIST_WORKER" in os.environ else b"",
    )


def leaks_since(before: Snapshot) -> list[str]:
    """What there is now and was not before, in words. New processes are killed and reaped."""
    _let_kept_ones_reap()
    processes = set(_descendants(os.getpid())) - before.children
    if processes or resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt != before.reaped_faults:
        processes |= set(_escaped(before))
    left = [f"process {pid} ({_describe(pid)})" for pid in sorted(processes)]
    for pid in processes:
        _end(pid)
    new = _new_descriptors(before)
    if new:
        gc.collect()
        new = _new_descriptors(before)
    return left + [f"descriptor {fd} -> {target}" for fd, target in sorted(new.items())]


def _let_kept_ones_reap() -> None:
    """Wait a moment: kept processes notice the end of a test's process by themselves."""
    deadline = time.monotonic() + PATIENCE
    while any(any(_descendants(pid)) for pid in KEPT_PROCESSES) and time.monotonic() < deadline:
        time.sleep(0.002)


def _descendants(pid: int) -> Iterator[int]:
    """Asked four times a test, so it reads no more than it must and makes no paths."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        for child in map(int, _read(f"/proc/{pid}/task/{task}/children").split()):
            if child not in KEPT_PROCESSES:
                yield child
            yield from _descendants(child)


def _escaped(before: Snapshot) -> Iterator[int]:
    oldest = before.newest if before.newest <= _newest() else 0  # ids go up, until they begin anew
    for name in os.listdir(PROC):
        if not name.isdigit() or int(name) <= oldest or not _is_tagged(entry := PROC / name):
            continue
        if _born(entry) >= before.at - 2 / TICK and _works_in(before, entry) and _is_orphan(entry):
            yield int(entry.name)


def _newest() -> int:
    return int(_read("/proc/loadavg").split()[-1])


def _is_tagged(entry: Path) -> bool:
    return TAG in _read(entry / "environ")


def _works_in(before: Snapshot, entry: Path) -> bool:
    here = _cwd(entry)
    if here.startswith(os.fspath(ROOT)) and before.mark not in _read(entry / "environ"):
        return False
    return here.startswith(before.homes)


def _is_orphan(entry: Path) -> bool:
    """Whether only the system's adopter is above the process, or above the processes that it came with."""
    parent = _parent(entry)
    while _is_tagged(parent):
        parent = _parent(parent)
    return parent.name in ("0", "1") or _read(parent / "comm").strip() in ADOPTERS


def _parent(entry: Path) -> Path:
    fields = _stat(entry)
    return PROC / (fields[1].decode() if fields else "0")


def _born(entry: Path) -> float:
    fields = _stat(entry)  # read once: between two looks it may go
    return int(fields[19]) / TICK if fields else 0.0


def _stat(entry: Path) -> list[bytes]:
    """The fields after the command's name: state, parent, …; empty when the process is gone."""
    return _read(entry / "stat").rpartition(b") ")[2].split()


def _cwd(entry: Path) -> str:
    try:
        return os.readlink(entry / "cwd")
    except OSError:
        return ""


def _describe(pid: int) -> str:
    command = _read(PROC / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return command or "zombie"


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except ChildProcessError:  # not ours to reap: see it go
        deadline = time.monotonic() + PATIENCE
        while _stat(PROC / str(pid))[:1] not in ([], [b"Z"], [b"X"]) and time.monotonic() < deadline:
            time.sleep(0.001)
    except (ProcessLookupError, PermissionError):
        pass


def _descriptors() -> set[Descriptor]:
    """Asked twice a test, so it does not read what each is called: that takes four times as long."""
    found: set[Descriptor] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.fstat(int(name))
        except OSError:
            continue  # the listing's own
        found.add((int(name), file.st_dev, file.st_ino))
    return found


def _new_descriptors(before: Snapshot) -> dict[int, str]:
    """What is open now and was not before, by number, with what it is called."""
    new = {fd for fd, _, _ in _descriptors() - before.descriptors} - KEPT_DESCRIPTORS
    called: dict[int, str] = {}
    for fd in new:
        with suppress(OSError):  # a thread has just closed it
            called[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: target for fd, target in called.items() if not target.startswith(HARMLESS)}


def _read(path: Path | str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
