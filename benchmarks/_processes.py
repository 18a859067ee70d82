"""What a process holds and has burnt, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss(pid: int | None = None) -> int:
    """Resident bytes of a process (None: this one)."""
    return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * _PAGE


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for task in _tasks(pid):
        found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


def burnt(pid: int) -> float:
    """Seconds of processor that all threads of a process have had."""
    took = 0
    for task in _tasks(pid):
        with suppress(FileNotFoundError):  # a thread that has just ended
            took += int((task / "schedstat").read_text().split()[0])
    return took / 1e9


def wake_ups(pid: int) -> int:
    """How often the threads of a process have waited for something: voluntary context switches."""
    lines = (line for task in _tasks(pid) for line in (task / "status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())
