"""Long work in slices, done in a loop: between two of them whatever else is due has its turn."""

from __future__ import annotations

from typing import TypeVar

import anyio.lowlevel

from ..protocol.slices import Slices

T = TypeVar("T")


async def in_turns(work: Slices[T]) -> T:
    """Do `work`, with a checkpoint after each slice. Work of a single slice has none."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        await anyio.lowlevel.checkpoint()
