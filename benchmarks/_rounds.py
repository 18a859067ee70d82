"""Rounds: how sides take turns, how large a run is, and on which core.

Where the latency of one call is compared, all processes of a run share one core. On two, what a wake-up across them
costs is the scheduler's mood of the day, 12 µs or 60, and would decide the ratio.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import attrs

Side = Callable[[], float]  # one turn; the sample it measured
AsyncSide = Callable[[], Awaitable[float]]


@attrs.frozen
class Size:
    """A full run, or a quick one that only shows that everything works."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 7

    def of(self, full: int, tiny: int) -> int:
        """A count: `full`, or `tiny` in a quick run."""
        return tiny if self.quick else full


def take_turns(sides: Sequence[Side], rounds: int) -> list[list[float]]:
    """A B A B …: the samples of each side, one per round. The first turn of each is not counted: it warms up."""
    for side in sides:
        side()
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, kept in zip(sides, samples, strict=True):
            gc.collect()
            kept.append(side())
    return samples


async def take_async_turns(sides: Sequence[AsyncSide], rounds: int) -> list[list[float]]:
    """`take_turns` for sides that live in one event loop."""
    for side in sides:
        await side()
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, kept in zip(sides, samples, strict=True):
            gc.collect()
            kept.append(await side())
    return samples


async def async_microseconds_each(count: int, body: Callable[[], Awaitable[object]]) -> float:
    """Run `body` once, which does something `count` times: microseconds for each."""
    start = time.perf_counter()
    await body()
    return (time.perf_counter() - start) / count * 1e6


async def async_processor_each(count: int, body: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of processor that this process takes for each of the `count` things that `body` does."""
    start = time.process_time()
    await body()
    return (time.process_time() - start) / count * 1e6


@contextmanager
def one_core() -> Generator[None]:
    """This process, and whatever it starts meanwhile, on one core. Nothing changes where a system has no such call."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(all_of_them)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


def per_second(microseconds: Sequence[float]) -> list[float]:
    """Microseconds for one as how many a second."""
    return [1e6 / sample for sample in microseconds]
