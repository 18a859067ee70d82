"""What has been started, as the kernel tells it: every process that descends from this one, however it came to be.

Processes whose parent dies become children of this one (a subreaper, Linux only), so nothing that a peer starts can be
lost from sight, and everything can be ended by its id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from .. import processes

_SUBREAPER, _END_WITH_PARENT = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    if _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system has no subreapers, so nothing can be counted")


def end_with_parent() -> None:
    """For a child that was just forked: it does not survive this program."""
    _LIBC.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def descendants() -> set[int]:
    """Those that are alive, without zombies."""
    return processes.descendants(os.getpid())


def servers_among(pids: set[int], script: str) -> set[int]:
    """Those that run `script`, or a shell that runs it."""
    return {pid for pid in pids if script in processes.command(pid)}


def memory(pids: set[int]) -> float:
    """MiB that they hold; what several share is counted once."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def end_all(own: set[int]) -> int:
    """End every descendant and wait until all are gone. `own`: those that somebody else waits for. Returns how many had
    to be ended besides these."""
    ended: set[int] = set()
    until = time.monotonic() + 20
    while alive := descendants():
        if time.monotonic() > until:
            raise RuntimeError(f"these processes cannot be ended: {sorted(alive)}")
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= alive - own
        time.sleep(0.02)
    _reap(own)
    return len(ended)


def _reap(own: set[int]) -> None:
    for listing in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in set(map(int, listing.read_text().split())) - own:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
