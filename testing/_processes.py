"""Information about processes from /proc (Linux). If a process has ended meanwhile, its data reads as empty.

Every process that a room starts carries the room's run id: in `GREENROOM_ROOM` in its environment, or, for the guard,
among its arguments. The id begins with the pid of the room's own process. So the remains of a room can be told from all
other processes of the machine, wherever they are in the process tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
TAG: Final = b"GREENROOM_ROOM="


def run_ids(pid: int) -> list[bytes]:
    """The ids of the runs that a process belongs to, from its environment."""
    words = [*read(pid, "environ").split(b"\0"), *read(pid, "cmdline").split(b"\0")]
    return [word.removeprefix(TAG) for word in words if word.startswith(TAG)]


def of_run(run_id: str) -> set[int]:
    """All processes of this run."""
    return {pid for pid in every_pid() if run_id.encode() in run_ids(pid)}


def of_this_process() -> set[int]:
    """All processes of our rooms, open or closed, and our zombies."""
    ours = b"%d-" % os.getpid()
    tagged = {pid for pid in every_pid() if any(run.startswith(ours) for run in run_ids(pid))}
    return tagged | {pid for pid in children(os.getpid()) if is_zombie(pid)}


def every_pid() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def children(pid: int) -> Iterator[int]:
    for listing in PROC.glob(f"{pid}/task/*/children"):
        yield from map(int, _bytes_of(listing).split())


def stat(pid: int) -> list[bytes]:
    """The fields after the command's name: state, parent, …"""
    return read(pid, "stat").rpartition(b") ")[2].split()


def is_zombie(pid: int) -> bool:
    return stat(pid)[:1] == [b"Z"]


def command(pid: int) -> str:
    """Its command line, or "zombie"."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "zombie"


def read(pid: int, name: str) -> bytes:
    return _bytes_of(PROC / str(pid) / name)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
