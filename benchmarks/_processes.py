"""What a process holds and has burnt, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss(pid: int | None = None) -> int:
    """Resident bytes of a process (None: this one)."""
    return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * _PAGE


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
