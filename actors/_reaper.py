"""Orphans of our children, on Linux: they become ours, so that nothing that left its tree is lost from sight.

A process that leaves its group and empties its environment can be found by neither; when its parent ends it becomes a
child of process 1, and nobody knows whose it was. A sub-reaper is given such orphans instead. That is a trait of the
whole process, so a room never takes it by itself: `greenroom serve`, whose process is ours alone, does.

Whose a stray is, is not known any more. But it was born after its server: so it is ended when no server runs that is
older than it, and never while its own may still run. As process 1 of a container we are given everybody's orphans:
there the dead are reaped and nobody is ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

import attrs

_PR_SET_CHILD_SUBREAPER: Final = 36


@attrs.frozen
class Stray:
    """A child of ours that we did not start. `born`: clock ticks since boot."""

    pid: int
    group: int
    born: int
    is_dead: bool


class _Ourselves:
    """What this process has taken on."""

    is_wanted = False
    is_on = False


def want_orphans() -> None:
    """This process is ours alone: take the orphans below it, from the first child on."""
    _Ourselves.is_wanted = sys.platform == "linux"


def take_orphans() -> None:
    """As soon as there may be any. Idempotent; nothing where it was not wanted."""
    if _Ourselves.is_wanted and not _Ourselves.is_on:
        import ctypes

        with suppress(OSError, AttributeError):
            _Ourselves.is_on = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def has_orphans() -> bool:
    return _Ourselves.is_on


def strays(started: Collection[int]) -> list[Stray]:
    """Our children but for those we have `started`. Whatever left a tree of ours has a session of its own, as each of
    our servers has, so what runs in our own session is none."""
    ours = os.getsid(0)
    found: list[Stray] = []
    for pid in children_of(os.getpid()):
        if pid not in started and (fields := stat_of(pid)):
            state, _, group, session = fields[:4]
            if int(session) != ours:
                found.append(Stray(pid, int(group), int(fields[19]), state in (b"Z", b"X")))
    return found


def to_end(found: Iterable[Stray], servers: Iterable[int]) -> list[Stray]:
    """Those that no server can own any more. `servers`: when each that runs was born."""
    oldest = min(servers, default=None)
    return [] if os.getpid() == 1 else [one for one in found if oldest is None or one.born < oldest]


def reap(stray: Stray) -> None:
    with suppress(OSError):
        os.waitpid(stray.pid, os.WNOHANG)


def end(stray: Stray) -> None:
    """It is our child, so its id is nobody else's before it is reaped."""
    with suppress(OSError):
        os.kill(stray.pid, signal.SIGKILL)


def born(pid: int) -> int:
    """When it was, in clock ticks since boot; 0 when nobody knows."""
    fields = stat_of(pid)
    return int(fields[19]) if fields else 0


def stat_of(pid: int) -> list[bytes]:
    """What the kernel says of it, from the state on; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """A child is listed with the thread that made it. Empty where the system does not tell."""
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    return children


def departed(leader: int) -> list[int]:
    """Descriptors of what is below `leader` and has left its group. Taken before the leader ends and its tree falls
    apart; to be given to `end_departed`. Empty where there are none to be had."""
    found: list[int] = []
    for pid in _below(leader):
        if _left(pid, leader):
            with suppress(AttributeError, OSError):
                found.append(os.pidfd_open(pid))
                if pid not in _below(leader):  # its id may be somebody else's by now
                    os.close(found.pop())
    return found


def end_departed(found: Iterable[int]) -> None:
    """Kill and close them."""
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
