"""Runs long work in slices in a loop; between two slices everything else that is due gets its turn.

However many tasks have long work, only one of them runs one slice in each pass of the loop, in turn. Otherwise six
clients that ask a gateway of twenty thousand servers for its status would make everybody wait for six slices at a
time.
"""

from __future__ import annotations

from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

from ..protocol.slices import Slices, finish

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
        async with turn:  # a checkpoint, and the turns of those who came first
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


async def all_of(work: Slices[None]) -> None:
    """Do all of `work`, in slices. Even if this task is cancelled meanwhile, all of it is done."""
    try:
        with anyio.CancelScope(shield=True):
            await in_turns(work)
    except BaseException:
        finish(work)
        raise
