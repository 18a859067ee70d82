"""Garbage while starting: none is looked for until a loop runs.

All that is imported stays, and each new module makes the collector go over the earlier ones again, which is a tenth of
the time to start. So the `greenroom` command turns it off before its first import, and whoever runs a loop turns it on
again, with what is there by then set aside for good: a collection looks at calls, never at modules. An embedder's
collector is the embedder's: where it was not turned off, nothing is done.

What a room is made of stays as well: of twenty thousand servers it is a million objects, which a collection would go
over in a tenth of a second. So a process that is a room's alone sets them aside once the room is there.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


def collect_again() -> None:
    """End what `greenroom.__main__` began. A loop is about to run, and its imports are done."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def uncollected() -> Generator[None]:
    """While much is read that nobody throws away piece by piece: a collection would go over all of it, in one go."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def set_room_aside() -> None:
    """A room was made, and stays until the end of this process."""
    gc.freeze()
