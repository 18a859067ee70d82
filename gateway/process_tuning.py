"""Keeps the garbage collector from work that finds nothing.

Everything that is imported stays, and while modules are loaded the collector goes over the earlier ones again
and again: a tenth of the time to start. So the `greenroom` command turns it off before its first import.
Whoever runs a loop turns it on again and sets aside for good everything that exists by then. From then on a
collection looks at calls, never at modules. An embedder decides about its own collector: if it was not turned
off, nothing is done. A command that ran no loop ends without the interpreter's last collection, which would go
over all that was imported once more: a tenth of the time of `greenroom status`.

The objects of a room stay as well. Twenty thousand servers are a million objects, and a collection would take
a tenth of a second to go over them. So a process that exists only for a room sets them aside once the room is
open.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


def collect_again() -> None:
    """Turn the collector on again, if `greenroom.__main__` turned it off. Call it before a loop runs, after
    the imports."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def end_uncollected() -> None:
    """Call it before a command ends: if no loop has run, there is nothing that a last collection should find."""
    if not gc.isenabled():
        gc.freeze()


@contextmanager
def uncollected() -> Generator[None]:
    """Turn the collector off while much is read that stays. A collection would go over all of it at once."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def set_room_aside() -> None:
    """Set aside the objects of a room that stays until the process ends."""
    gc.freeze()
