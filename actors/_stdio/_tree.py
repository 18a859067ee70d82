"""What a process tree shows of its work to whoever looks from outside."""

from __future__ import annotations

import os
from contextlib import suppress

from .._reaper import children_of


def tree_signs(pid: int) -> object:
    """Who is in the tree below `pid` and how much processor time each has used: to be compared with an earlier one.

    Where the system does not tell, each answer differs from every other, as of a tree that works.
    """
    if not os.path.exists("/proc/self/task"):
        return object()
    found: dict[int, bytes] = {}
    to_see = [pid]
    while to_see:
        one = to_see.pop()
        with suppress(OSError):  # it has ended meanwhile
            found[one] = _times_of(one)
            to_see += [child for child in children_of(one) if child not in found]
    return found


def _times_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return b" ".join(fields[11:13])  # utime, stime
