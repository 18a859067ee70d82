"""Looks from outside, in `/proc`: which processes exist, and what they hold. No process is asked, so none can lie.

A process is signalled through a pidfd that is opened before its mark is read, so a recycled id is never hit.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from ._server_file import MARK

PAGE = os.sysconf("SC_PAGE_SIZE")


def read(path: str) -> bytes:
    """The content of the file; empty when the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def marked(token: str) -> set[int]:
    """Every process with the mark of this life, except zombies."""
    return {pid for pid in _all() if _is_marked(pid, token) and state(pid) not in "ZX"}


def children(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found |= {int(child) for child in read(f"/proc/{pid}/task/{task}/children").split()}
    return found


def zombies(pid: int) -> set[int]:
    """Children of `pid` that are dead and not reaped."""
    return {child for child in children(pid) if state(child) == "Z"}


def guard_of(pid: int) -> int | None:
    """The guard of a gateway. The last word of its command line is its owner's id; it outlives its owner."""
    for other in _all():
        words = read(f"/proc/{other}/cmdline").split(b"\0")
        if len(words) > 4 and words[-2] == b"%d" % pid and words[-4].endswith(b"_guard_program.py"):
            return other if state(other) not in "ZX" else None
    return None


def state(pid: int) -> str:
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else "X"


def incarnation(pid: int) -> str:
    """The incarnation that a process belongs to, by its environment."""
    prefix = b"GREENROOM_INCARNATION="
    words = read(f"/proc/{pid}/environ").split(b"\0")
    return next((word.removeprefix(prefix).decode() for word in words if word.startswith(prefix)), "")


def descriptors(pid: int) -> list[str]:
    """The target of each open descriptor, without the numbers of pipes and sockets."""
    targets: list[str] = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            targets.append(os.readlink(fd).partition(":[")[0])
    return sorted(targets)


def resident(pid: int) -> float:
    """MiB of memory."""
    return int(read(f"/proc/{pid}/statm").split()[1]) * PAGE / (1 << 20)


def describe(pid: int) -> str:
    command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"{pid} ({state(pid)}) {command} {incarnation(pid)}"


class Target:
    """A process held by a pidfd. Close it after use."""

    def __init__(self, pid: int) -> None:
        """Raises `OSError` when it is gone."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def send(self, number: int) -> None:
        """Signal it, if it is still there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        os.close(self._fd)


def hold(pid: int, token: str) -> Target | None:
    """A marked process to be signalled; None when it is gone, or its id belongs to another process by now."""
    try:
        target = Target(pid)
    except OSError:
        return None
    if _is_marked(pid, token):
        return target
    target.close()
    return None


def end_all(token: str) -> None:
    for pid in marked(token):
        target = hold(pid, token)
        if target is not None:
            target.send(signal.SIGKILL)
            target.close()


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_marked(pid: int, token: str) -> bool:
    return f"{MARK}={token}".encode() in read(f"/proc/{pid}/environ").split(b"\0")
