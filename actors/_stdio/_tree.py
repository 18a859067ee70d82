"""Signs, visible from outside, that a process tree is working."""

from __future__ import annotations

import os
from contextlib import suppress

from .._guard_main import children_of


def tree_signs(pid: int) -> object:
    """The processes in the tree of `pid` and the processor time that each has used. Compare it with an earlier result:
    when they differ, the tree works.

    Where the system does not tell, each result differs from every other, as if the tree worked.
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
