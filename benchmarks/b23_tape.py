"""B23: what recording a tape costs a call, and how fast one is replayed.

Two rooms in one process on one core, of which one records: its calls against the same calls of the other. The processor
time is that of our process. A tape of as many calls is then replayed at once, in a room that starts nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

from greenroom import Greenroom

from ._far_end import BACKENDS, TEXT, config_of, room_of
from ._figures import Figure, at_most, quantity, ratio
from ._rounds import Size, one_core, take_async_turns
from ._run import run_alone

CALLS = 1000


def measure(size: Size) -> Iterator[Figure]:
    with one_core():
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                recording, plain = anyio.run(_recorded, size, Path(folder), backend=backend)
                yield ratio(
                    "B23",
                    f"call, {backend}: processor",
                    ("recording", recording),
                    ("without", plain),
                    "µs",
                    at_most(1.1, 1.05),
                )
    with tempfile.TemporaryDirectory() as folder:
        seconds = anyio.run(_replayed, size.of(CALLS, 5), Path(folder) / "one.tape")
        yield quantity("B23", f"replay of {CALLS:,} calls", [seconds], "s", at_most(1.0))


async def _recorded(size: Size, folder: Path) -> tuple[list[float], list[float]]:
    count = size.of(400, 5)

    async def called(room: Greenroom, seen: list[float]) -> float:
        processor = time.process_time()
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
        seen.append((time.process_time() - processor) / count * 1e6)
        return seen[-1]

    both: tuple[list[float], list[float]] = ([], [])
    async with AsyncExitStack() as stack:
        given = Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", record=folder)
        rooms = [await stack.enter_async_context(each) for each in (given, room_of(config_of(1)))]
        sides = [partial(called, room, seen) for room, seen in zip(rooms, both, strict=True)]
        await take_async_turns(sides, size.rounds + 1)
    return both[0][1:], both[1][1:]


async def _replayed(count: int, tape: Path) -> float:
    given = Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", record=tape)
    async with given as room:
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
    began = time.perf_counter()
    async with Greenroom.replay(tape) as room:
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
    return time.perf_counter() - began


if __name__ == "__main__":
    run_alone(measure)
