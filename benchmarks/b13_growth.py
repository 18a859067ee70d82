"""B13: from ten to ten thousand servers or tools: what a call, a server and a name cost each.

The slope of a straight line through the logarithms: 0 is flat, 1 would be twice the cost at twice the size.
`--pictures` draws the curves into `docs/`.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from greenroom import Greenroom
from greenroom.catalogue.index import Index

from ._far_end import TEXT, config_of, room_of
from ._figures import Figure, at_most, quantity
from ._pictures import curve
from ._rounds import AsyncSide, Side, Size, async_microseconds_each, take_async_turns, take_turns
from ._run import run_alone
from .b08_memory import allocated_per_server
from .b10_search import index_of, look_up_us

SIZES = (10, 100, 1_000, 10_000)
DOCS = Path(__file__).resolve().parent.parent / "docs"
Curve = Mapping[int, float]


def measure(size: Size) -> Iterator[Figure]:
    sizes = SIZES if not size.quick else SIZES[:2]
    for what, unit, costs in curves(sizes, size):
        beside = {f"{count:,}": cost for count, cost in costs.items()}
        yield quantity("B13", f"slope of {what}", [slope(costs)], "", at_most(0.1), beside, f"in {unit}")


def curves(sizes: Sequence[int], size: Size) -> Iterator[tuple[str, str, Curve]]:
    """What is measured, its unit, and its cost at each size."""
    yield "a call, by servers in the room", "µs", dict(zip(sizes, call_costs(sizes, size), strict=True))
    yield "memory per idle server, by servers", "KiB", {count: allocated_per_server(count) for count in sizes}
    yield "resolving a name, by tools", "µs", dict(zip(sizes, name_costs(sizes, size), strict=True))


def call_costs(sizes: Sequence[int], size: Size) -> list[float]:
    return [statistics.median(samples) for samples in anyio.run(_calls, sizes, size, backend="trio")]


async def _calls(sizes: Sequence[int], size: Size) -> list[list[float]]:
    """Rooms of every size, all open, taking turns."""
    async with AsyncExitStack() as stack:
        rooms = [await stack.enter_async_context(room_of(config_of(count))) for count in sizes]
        turns = [_turn(room, count, size.of(300, 5)) for room, count in zip(rooms, sizes, strict=True)]
        return await take_async_turns(turns, size.rounds)


def _turn(room: Greenroom, count: int, calls: int) -> AsyncSide:
    """`calls` calls of the last of its `count` servers."""

    async def turn() -> None:
        for _ in range(calls):
            await room.call(f"echo{count - 1}_echo", TEXT)

    return lambda: async_microseconds_each(calls, turn)


def name_costs(sizes: Sequence[int], size: Size) -> list[float]:
    """The same number of look-ups at every size, over the names there are."""
    indexes = [index_of(count) for count in sizes]
    sides = [_look_ups(index, size.of(10_000, 100)) for index in indexes]
    return [statistics.median(samples) for samples in take_turns(sides, size.rounds)]


def _look_ups(index: Index, count: int) -> Side:
    names = [target.name for target in index.tools()][:1000]
    asked = (names * (count // len(names) + 1))[:count]
    return lambda: look_up_us(index.get, asked)


def slope(costs: Curve) -> float:
    """Of the least-squares line through (log size, log cost)."""
    return statistics.linear_regression(
        [math.log(count) for count in costs], [math.log(cost) for cost in costs.values()]
    ).slope


def draw() -> None:
    """The curves as `docs/growth-call.svg`, `-memory.svg` and `-name.svg`."""
    for name, (what, unit, costs) in zip(("call", "memory", "name"), curves(SIZES, Size()), strict=True):
        path = DOCS / f"growth-{name}.svg"
        path.write_text(curve(f"{what}, {unit}", costs), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    if "--pictures" in sys.argv:
        draw()
    else:
        run_alone(measure)
