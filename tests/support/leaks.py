"""After every test: no process, no descriptor is left.

A test that leaves something behind fails by itself, and what it left is ended, so the next one starts clean.

* Children are read from `/proc/<pid>/task/*/children`, recursively; a zombie counts, it should have been reaped.
* A process that left our tree (setsid and double fork) is found by what the room puts into every child's environment,
  provided that it was born during the test and works in our folder or in a test's. That scan reads every process of the
  machine, so it is made only when the test has reaped a child at all: its page faults show in our resource usage.
* Descriptors are compared by number and target. Garbage is collected before a difference is believed.

Linux only: elsewhere nothing is watched.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROC = Path("/proc")
TAG = b"GREENROOM_ROOM="
HARMLESS = ("/dev/urandom",)  # opened once by the interpreter, kept
TICK = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Snapshot:
    """What this process had at one moment."""

    children: frozenset[int]
    descriptors: dict[int, str]
    reaped_faults: int
    at: float  # seconds since boot


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves processes or descriptors behind, and ends them."""
    if sys.platform != "linux":
        yield
        return
    before = snapshot()
    yield
    left = leaks_since(before)
    if left:
        pytest.fail(f"{request.node.name} left behind: " + "; ".join(left), pytrace=False)


def snapshot() -> Snapshot:
    return Snapshot(
        children=frozenset(_descendants(os.getpid())),
        descriptors=_descriptors(),
        reaped_faults=resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt,
        at=time.clock_gettime(time.CLOCK_BOOTTIME),
    )


def leaks_since(before: Snapshot) -> list[str]:
    """What is there now and was not before, in words. Processes among it are killed and reaped."""
    processes = set(_descendants(os.getpid())) - before.children
    if processes or resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt != before.reaped_faults:
        processes |= set(_escaped(before.at))
    left = [f"process {pid} ({_describe(pid)})" for pid in sorted(processes)]
    for pid in processes:
        _end(pid)
    if _new_descriptors(before):
        gc.collect()
    return left + [f"descriptor {fd} -> {target}" for fd, target in sorted(_new_descriptors(before).items())]


def _descendants(pid: int) -> Iterator[int]:
    for listing in PROC.glob(f"{pid}/task/*/children"):
        for child in _read(listing).split():
            yield int(child)
            yield from _descendants(int(child))


def _escaped(since: float) -> Iterator[int]:
    homes = (os.fspath(ROOT), tempfile.gettempdir())
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or TAG not in _read(entry / "environ"):
            continue
        if _born(entry) >= since - 2 / TICK and _cwd(entry).startswith(homes):
            yield int(entry.name)


def _born(entry: Path) -> float:
    fields = _read(entry / "stat").rpartition(b") ")[2].split()
    return int(fields[19]) / TICK if fields else 0.0


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
    except (ProcessLookupError, PermissionError, ChildProcessError):
        pass


def _descriptors() -> dict[int, str]:
    targets: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            targets[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
    return targets


def _new_descriptors(before: Snapshot) -> dict[int, str]:
    new = _descriptors().items() - before.descriptors.items()
    return {fd: target for fd, target in new if not target.startswith(HARMLESS)}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
