"""Long work in slices, done in a loop: between two of them whatever else is due has its turn.

However many are at long work, one of them does one slice in a pass of the loop, in turn: six clients that ask a gateway
of twenty thousand servers for its status would otherwise let everybody wait for six slices at a time.
"""

from __future__ import annotations

from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

from ..protocol.slices import Slices

T = TypeVar("T")

_turn: RunVar[anyio.Lock] = RunVar("greenroom's turn at long work")


async def in_turns(work: Slices[T]) -> T:
    """Do `work`, with a checkpoint after each slice. Work of a single slice has none."""
    try:
        next(work)
    except StopIteration as end:
        return end.value
    turn = _turn_of_this_loop()
    while True:
        async with turn:  # a checkpoint, and those who came before
            try:
                next(work)
            except StopIteration as end:
                return end.value


def _turn_of_this_loop() -> anyio.Lock:
    try:
        return _turn.get()
    except LookupError:
        turn = anyio.Lock()
        _turn.set(turn)
        return turn
