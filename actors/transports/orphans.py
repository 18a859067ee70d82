"""Adopts orphans of our children, on Linux, so that a process that left its tree is not lost from sight.

A process that leaves its group and empties its environment can be found by neither. When its parent ends it becomes a
child of process 1, and nobody knows which server started it. A sub-reaper receives such orphans instead. Being a
sub-reaper is a property of the whole process, so a room never becomes one by itself. `greenroom serve` does, because
its process is ours alone.

It is then unknown which server an orphan came from. But the orphan was born after its server. So it is ended when no
running server is older than it, and never while its own server may still run. As process 1 of a container we receive
everybody's orphans: there we only reap the dead and end nobody.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from ..process_tuning import return_large_blocks
from ._guard_program import children_of, stat_of

_PR_SET_CHILD_SUBREAPER: Final = 36


class Stray(msgspec.Struct, frozen=True):
    """A child of ours that we did not start. `born`: clock ticks since boot."""

    pid: int
    group: int
    born: int
    is_dead: bool

    def reap(self) -> None:
        with suppress(OSError):
            os.waitpid(self.pid, os.WNOHANG)

    def end(self) -> None:
        """It is our child, so its id is nobody else's before it is reaped."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)


class _ReaperState:
    """The reaping that this process has taken on."""

    is_wanted = False
    is_on = False


def want_orphans() -> None:
    """Adopt the orphans below this process from the first child on. For a process that is ours alone."""
    _ReaperState.is_wanted = sys.platform == "linux"


def take_orphans() -> None:
    """Become a sub-reaper, before there can be orphans. Idempotent; does nothing when it was not requested.

    What else this process does because it is ours alone is done here too, for it needs the same library.
    """
    if _ReaperState.is_wanted and not _ReaperState.is_on:
        import ctypes

        with suppress(OSError, AttributeError):
            _ReaperState.is_on = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        return_large_blocks()


def has_orphans() -> bool:
    return _ReaperState.is_on


def strays(started: Collection[int]) -> list[Stray]:
    """Our children except those we have `started`. Each of our servers has its own session, and so has what left its
    tree; so a child in our own session is not an orphan."""
    ours = os.getsid(0)
    found: list[Stray] = []
    for pid in children_of(os.getpid()):
        if pid not in started and (fields := stat_of(pid)):
            state, _, group, session = fields[:4]
            if int(session) != ours:
                found.append(Stray(pid, int(group), int(fields[19]), state in (b"Z", b"X")))
    return found


def to_end(found: Iterable[Stray], servers: Iterable[int]) -> list[Stray]:
    """The orphans that no running server can own. `servers`: when each running server was born."""
    oldest = min(servers, default=None)
    return [] if os.getpid() == 1 else [one for one in found if oldest is None or one.born < oldest]


def born(pid: int) -> int:
    """When the process was born, in clock ticks since boot; 0 when that is unknown."""
    fields = stat_of(pid)
    return int(fields[19]) if fields else 0


def departed(leader: int) -> list[int]:
    """Descriptors of the processes below `leader` that have left its group; pass them to `end_departed`. Call this
    before the leader ends and its tree falls apart. Empty where no descriptors are available."""
    found: list[int] = []
    for pid in _below(leader):
        if _left(pid, leader):
            with suppress(AttributeError, OSError):
                found.append(os.pidfd_open(pid))
                if pid not in _below(leader):  # its id may belong to another process by now
                    os.close(found.pop())
    return found


def end_departed(found: Iterable[int]) -> None:
    """Kill these processes and close the descriptors."""
    for descriptor in found:
        with suppress(OSError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def _below(leader: int) -> list[int]:
    found: list[int] = []
    to_see = children_of(leader)
    while to_see:
        pid = to_see.pop()
        found.append(pid)
        to_see += [child for child in children_of(pid) if child not in found]
    return found


def _left(pid: int, group: int) -> bool:
    fields = stat_of(pid)
    return bool(fields) and int(fields[2]) != group and fields[0] not in (b"Z", b"X")
