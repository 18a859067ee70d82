"""What a process that exists only for a room sets for all of itself, and why. Nothing here is done to a program that
embeds a room.

*The garbage collector is off until a loop runs.* Everything that is imported stays, and while modules are loaded the
collector goes over the earlier ones again and again. Without it `greenroom serve` takes 8 % less processor time to
start, and `greenroom status` 20 %, half of that because it ends without the interpreter's last collection. Whoever runs
a loop turns the collector on again and sets aside for good everything that exists by then.

*The objects of an open room are set aside.* Twenty thousand servers are a million objects, and a collection would take
a tenth of a second to go over them.

*Large blocks of memory go back to the system.* glibc takes blocks of up to 32 MiB from its heap once it has seen one of
that size freed. The heap only shrinks from its end, so after a message of 24 MiB the process would keep 24 MiB more for
ever, if anything small was allocated behind it. Blocks of a megabyte or more are therefore mapped each by itself.
Smaller ones, which plain calls consist of, are not affected.

*A thread keeps the interpreter from the loop for a millisecond at most*, a fifth of Python's default.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Final

_TURN: Final = 0.001  # seconds
_M_MMAP_THRESHOLD: Final = -3  # see mallopt(3)
_LARGE: Final = 1 << 20  # bytes


def collect_again() -> None:
    """Turn the collector on again, if `greenroom.__main__` turned it off. Call it before a loop runs, after
    the imports."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def end_uncollected() -> None:
    """Skip the collector's last run, if no loop has run in this process. Call it before a command ends."""
    if not gc.isenabled():
        gc.freeze()


def set_room_aside() -> None:
    """Set aside the objects of a room that stays until the process ends."""
    gc.freeze()


def return_large_blocks() -> None:
    """Return freed large blocks to the system from now on. Does nothing where the allocator has no such setting (musl,
    macOS)."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def shorten_turns_of_threads() -> None:
    sys.setswitchinterval(_TURN)
