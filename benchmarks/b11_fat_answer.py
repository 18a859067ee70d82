"""B11: one result line of 32 MiB while ten other servers are called: how long all takes, and how long the others stall.

The others call without a pause until the fat answer is in. Their worst call is the stall.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import anyio

from ._far_end import TEXT, config_of, room_of, sdk_client
from ._figures import Figure, at_most, quantity, ratio
from ._rounds import Size, take_async_turns
from ._run import run_alone

OTHERS = 10
Call = Callable[[], Awaitable[object]]


def measure(size: Size) -> Iterator[Figure]:
    megabytes = size.of(32, 1)
    (mine, stalls), (theirs, their_stalls) = anyio.run(_measured, size, megabytes << 20, backend="trio")
    what = f"a {megabytes} MiB answer beside {OTHERS} busy servers"
    yield ratio("B11", f"{what}: time", ("Greenroom", mine), ("mcp.Client", theirs), "ms", at_most(0.05))
    yield quantity(
        "B11", f"{what}: worst stall", stalls, "ms", at_most(50), {"mcp.Client": max(their_stalls)}
    )


async def _measured(size: Size, fat: int) -> tuple[tuple[list[float], list[float]], ...]:
    async with AsyncExitStack() as stack:
        room = await stack.enter_async_context(room_of(config_of(OTHERS + 1, maxConnections=OTHERS + 1)))
        clients = [await stack.enter_async_context(sdk_client()) for _ in range(OTHERS + 1)]
        names = [f"echo{number}_echo" for number in range(OTHERS + 1)]
        for name in names:
            await room.call(name, TEXT)
        ours = _Side(
            lambda: room.call(names[0], {"size": fat}),
            [lambda name=name: room.call(name, TEXT) for name in names[1:]],
        )
        theirs = _Side(
            lambda: clients[0].call_tool("echo", {"size": fat}),
            [lambda client=client: client.call_tool("echo", TEXT) for client in clients[1:]],
        )
        samples = await take_async_turns([ours.turn, theirs.turn], size.of(5, 1))
        return (samples[0], ours.stalls[1:]), (samples[1], theirs.stalls[1:])


class _Side:
    """One side's turn: the fat call, and the others meanwhile. `stalls` has their worst call of each turn."""

    def __init__(self, fat: Call, others: list[Call]) -> None:
        self.stalls: list[float] = []
        self._fat = fat
        self._others = others

    async def turn(self) -> float:
        worst = 0.0
        done = False

        async def caller(call: Call) -> None:
            nonlocal worst
            while not done:
                start = time.perf_counter()
                await call()
                worst = max(worst, time.perf_counter() - start)

        start = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for call in self._others:
                tasks.start_soon(caller, call)
            await self._fat()
            done = True
        self.stalls.append(worst * 1000)
        return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    run_alone(measure)
