"""Rollouts that are played: each begins, makes its calls of a server that counts them, and ends, in a task of its own.

How one begins is a side's: it gives an async context of a function that makes a call. All are alive at once
(`together`), or each ends after its calls and another takes its place (`in_turn`), so that servers start and end while
others are called.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import attrs

from ._processes import burnt, descendants, rss

CALLS = 20
_LIFE = 2.0 / 64  # seconds of one rollout, for each that lives: some thirty begin a second, however many live
_GENERATIONS = 2
Ask = Callable[[], Awaitable[str]]
Begin = Callable[[], AbstractAsyncContextManager[Ask]]
Side = Callable[[int], AbstractAsyncContextManager[Begin]]


@attrs.define
class Rollouts:
    """What so many rollouts came to. Times in seconds."""

    count: int
    starts: float = 0.0  # a second
    took: list[float] = attrs.field(factory=list[float])  # each call, but for the first of a rollout
    burnt: float = 0.0  # our own processor time of these calls
    memory: float = 0.0  # of one child, in MiB
    lost: int = 0
    wrong: int = 0

    async def together(self, begin: Begin) -> None:
        """Begin all, and let each make its calls when all have made one."""
        firsts = [asyncio.Event() for _ in range(self.count)]
        lasts = [asyncio.Event() for _ in range(self.count)]
        calling, over = asyncio.Event(), asyncio.Event()

        async def rollout(first: asyncio.Event, last: asyncio.Event) -> None:
            try:
                async with begin() as ask:
                    await self._ask(ask, 1)
                    first.set()
                    await calling.wait()
                    for number in range(2, CALLS + 2):
                        await self._ask(ask, number, self.took)
                    last.set()
                    await over.wait()
            except Exception:  # whatever the client calls it
                self.lost += 1
            finally:
                first.set()
                last.set()

        begun = time.perf_counter()
        tasks = [asyncio.create_task(rollout(*each)) for each in zip(firsts, lasts, strict=True)]
        for event in firsts:
            await event.wait()
        self.starts = self.count / (time.perf_counter() - begun)
        alive = descendants(os.getpid())
        self.memory = sum(map(rss, alive)) / self.count / 2**20
        before = burnt(os.getpid())
        calling.set()
        for event in lasts:
            await event.wait()
        self.burnt = burnt(os.getpid()) - before
        over.set()
        await asyncio.gather(*tasks)

    async def in_turn(self, begin: Begin) -> None:
        """So many are alive, and each that has made its calls is followed by another."""
        life = _LIFE * self.count
        starts, calls = list[float](), list[tuple[float, float]]()
        ends: list[float] = []

        async def place(number: int) -> None:
            await asyncio.sleep(life * number / self.count)
            for _ in range(_GENERATIONS):
                try:
                    async with begin() as ask:
                        await self._ask(ask, 1)
                        starts.append(time.perf_counter())
                        for called in range(2, CALLS + 2):
                            took: list[float] = []
                            await asyncio.sleep(life / CALLS)
                            await self._ask(ask, called, took)
                            calls.extend((time.perf_counter(), each) for each in took)
                except Exception:
                    self.lost += 1
            ends.append(time.perf_counter())

        await asyncio.gather(*(place(number) for number in range(self.count)))
        if len(starts) <= self.count:
            return  # hardly any has begun: they are counted as lost
        first, last = sorted(starts)[self.count - 1], min(ends)  # between these all places were taken
        self.starts = sum(first < at <= last for at in starts) / (last - first)
        self.took = [took for at, took in calls if first < at <= last]

    async def _ask(self, ask: Ask, expected: int, took: list[float] | None = None) -> None:
        begun = time.perf_counter()
        try:
            said = await ask()
        except Exception:  # whatever the client calls it
            self.lost += 1
        else:
            self.wrong += said != str(expected)
            if took is not None:
                took.append(time.perf_counter() - begun)

    def of(self, share: float) -> float:
        """This quantile of a call, in milliseconds."""
        return sorted(self.took)[int(len(self.took) * share)] * 1000 if self.took else 0.0

    def for_a_call(self) -> float:
        """Our own processor time of a call, in microseconds."""
        return self.burnt / max(1, len(self.took)) * 1e6


async def play(side: Side, count: int, *, in_turn: bool) -> Rollouts:
    """So many rollouts of this side."""
    found = Rollouts(count)
    async with side(count) as begin:
        await (found.in_turn(begin) if in_turn else found.together(begin))
    return found


async def told(side: Side) -> list[str]:
    """What one rollout hears, call by call. After the first error it makes one call more."""
    heard: list[str] = []
    try:
        await _listen(side, heard)
    except Exception as error:
        heard.append(f"its client ends: {_named(error)}")
    return heard


async def _listen(side: Side, heard: list[str]) -> None:
    async with side(1) as begin, begin() as ask:
        for _ in range(CALLS):
            begun, has_failed = time.perf_counter(), not all(map(str.isdigit, heard))
            try:
                heard.append(await ask())
            except Exception as error:  # whatever the client calls it
                heard.append(f"{_named(error)} after {time.perf_counter() - begun:.1f} s")
            if has_failed:
                break


def _named(error: BaseException) -> str:
    while inner := getattr(error, "exceptions", None):  # a group
        error = inner[0]
    reach = getattr(error, "reach", None)
    return type(error).__name__ + (f" ({reach.value})" if reach is not None else "")
