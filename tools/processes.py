"""The processes of this machine, as the kernel tells of them (Linux)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def parents() -> dict[int, int]:
    """The parent of each process that is no zombie, in the order of their numbers."""
    found: dict[int, int] = {}
    for name in sorted((name for name in os.listdir("/proc") if name.isdigit()), key=int):
        with suppress(OSError, ValueError):
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(name)] = int(parent)
    return found


def command(pid: int) -> str:
    """Its words with spaces between them, or "" if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def children(parent: int, having: str = "") -> list[int]:
    """Those whose command has this text."""
    return [pid for pid, above in parents().items() if above == parent and having in command(pid)]


def descendants(ancestor: int) -> set[int]:
    above = parents()
    found, fresh = set[int](), {ancestor}
    while fresh := {pid for pid, parent in above.items() if parent in fresh}:
        found |= fresh
    return found
