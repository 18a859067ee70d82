"""Large blocks of memory go back to the system when they are freed.

glibc takes blocks of up to 32 MiB from its heap once it has seen one of that size freed. The heap only shrinks from its
end, so after a message of 24 MiB the process keeps 24 MiB more for ever, if anything small was allocated behind it: and
while a large message is read in slices, other calls allocate. Blocks of a megabyte or more are therefore mapped each by
itself. Smaller ones, which plain calls consist of, are not affected.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # see mallopt(3)
_LARGE: Final = 1 << 20  # bytes


def return_large_blocks() -> None:
    """From now on. For a process that is ours alone. Does nothing where there is no such setting (musl, macOS)."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
