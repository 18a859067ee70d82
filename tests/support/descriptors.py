"""The descriptors of a process: what they tell of it, and how it gets no other than it has."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress

from .patience import until_still


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


def at_rest(pid: int) -> None:
    """Wait until its descriptors stay what they are: one that is about to be closed would leave room for another."""
    until_still(lambda: _descriptors(pid), 0.5, "its descriptors")


def hears_of_files(pid: int) -> bool:
    """Whether the kernel tells it of files that change now."""
    return "anon_inode:inotify" in _descriptors(pid).values()


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
