"""B13: from ten to ten thousand servers, tools or waiting calls: what a call, a server, a name and a decision of the
pool cost each, and how long a reload holds the loop.

The slope of a straight line through the logarithms: 0 is flat, 1 would be twice the cost at twice the size. What a
reload is judged by is its longest turn of the loop, in the loop's own processor time: a process with a room as `serve`
has it, which is recorded, and every server of which gets another definition. `--pictures` draws the curves into
`docs/`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from greenroom import CallError, Greenroom
from greenroom.actors.process_tuning import set_room_aside
from greenroom.catalogue.index import Index
from greenroom.protocol.events import Place
from greenroom.testing.fake_servers import FakeServer, fake_room, tool
from greenroom.testing.room_inside import RoomInside

from ._far_end import TEXT, config_of, echo_server, room_of
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
    turns = reload_turns(sizes, size)
    beside = {f"{count:,}": turn for count, turn in turns.items()}
    longest = [turns[max(turns)]]
    yield quantity("B13", f"longest turn in {RELOAD}", longest, "ms", at_most(50, 20), beside)


def curves(sizes: Sequence[int], size: Size) -> Iterator[tuple[str, str, Curve]]:
    """What is measured, its unit, and its cost at each size."""
    yield "a call, by servers in the room", "µs", dict(zip(sizes, call_costs(sizes, size), strict=True))
    yield "memory per idle server, by servers", "KiB", {count: allocated_per_server(count) for count in sizes}
    yield "resolving a name, by tools", "µs", dict(zip(sizes, name_costs(sizes, size), strict=True))
    yield (
        "a decision of the pool, by calls that wait",
        "µs",
        {count: anyio.run(decision_cost, count, size, backend="trio") for count in sizes},
    )


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


async def decision_cost(count: int, size: Size) -> float:
    """Microseconds of processor time of one decision while `count` servers have a call apart each that waits for one of
    two slots."""
    servers = {f"echo{number}": FakeServer(call_latency=math.inf) for number in range(count + 2)}
    never, samples = 10**9, list[float]()
    room = fake_room(
        servers,
        entries={name: {"isolation": "per_call"} for name in servers},
        settings={"maxConnections": 2, "acquireTimeoutMs": never, "callTimeoutMs": never},
    )
    async with room, anyio.create_task_group() as tasks:
        inside = RoomInside(room)
        await inside.teach_all({name: [tool("echo")] for name in servers})

        async def call(name: str) -> None:
            try:
                await room.call(f"{name}_echo")
            except CallError as error:
                raise AssertionError("its call was to wait") from error

        for name in servers:
            tasks.start_soon(call, name)
        while inside.count(Place.SLOT) < count:
            await checkpoint()
        decisions = size.of(1_000, 10)
        samples += [_processor_each(decisions, inside) for _ in range(size.rounds)]
        tasks.cancel_scope.cancel()
    return statistics.median(samples)


def _processor_each(decisions: int, inside: RoomInside) -> float:
    gc.collect()
    start = time.thread_time()
    for _ in range(decisions):
        inside.decide_again()
    return (time.thread_time() - start) / decisions * 1e6


RELOAD = "a recorded reload, by servers"


def reload_turns(sizes: Sequence[int], size: Size) -> Curve:
    """Milliseconds of the loop's longest turn in the first reload, each time in a process of its own."""
    return {count: statistics.median(_longest_turn(count) for _ in range(size.of(3, 1))) for count in sizes}


def _longest_turn(count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.b13_growth", "reload", str(count)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


class _Turns(selectors.DefaultSelector):
    """Keeps how long each turn of a loop took, in seconds of its thread's processor time."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[float] = []
        self._began = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        self.all.append(time.thread_time() - self._began)
        ready = super().select(timeout)
        self._began = time.thread_time()
        return ready


async def _reload(count: int, turns: _Turns) -> None:
    def config(version: str) -> dict[str, Any]:
        entries = {
            f"echo{number}": {**echo_server(), "env": {"API_KEY": f"staple-91-{version}-{number}"}}
            for number in range(count)
        }
        return {"mcpServers": entries}

    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"bootstrap": False, "cache_path": ":memory:", "record": folder}
        async with Greenroom.open(config("one"), **given) as room:
            set_room_aside()
            await asyncio.sleep(0)
            del turns.all[:]
            await room.reload(config("two"))
            await asyncio.sleep(0)
            print(json.dumps(max(turns.all) * 1000))


def slope(costs: Curve) -> float:
    """Of the least-squares line through (log size, log cost)."""
    return statistics.linear_regression(
        [math.log(count) for count in costs], [math.log(cost) for cost in costs.values()]
    ).slope


def draw() -> None:
    """The curves as `docs/growth-call.svg`, `-memory.svg`, `-name.svg`, `-pool.svg` and `-reload.svg`."""
    reload = f"longest turn in {RELOAD}", "ms", reload_turns(SIZES, Size())
    names = "call", "memory", "name", "pool", "reload"
    for name, (what, unit, costs) in zip(names, (*curves(SIZES, Size()), reload), strict=True):
        path = DOCS / f"growth-{name}.svg"
        path.write_text(curve(f"{what}, {unit}", costs), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    if "--pictures" in sys.argv:
        draw()
    elif sys.argv[1:2] == ["reload"]:
        turns = _Turns()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
            runner.run(_reload(int(sys.argv[2]), turns))
    else:
        run_alone(measure)
