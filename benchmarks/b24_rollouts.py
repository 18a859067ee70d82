"""B24: rollouts, each with a server of its own that keeps state, all alive at once.

So many sessions begin together; each makes one call, which starts its child, waits until all have one, and makes twenty
more. The server counts, so each answer says whether it came from the right process with the right state. Beside it: as
many of the SDK's clients under `asyncio.gather`. The children burn processor on the same cores.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs

from greenroom import Greenroom

from ._far_end import sdk_client
from ._figures import Figure, at_most, quantity
from ._processes import burnt, children, rss
from ._rounds import Size
from ._run import run_alone

COMMAND = (sys.executable, "-S", str(Path(__file__).parent / "_peers" / "counter.py"))
CALLS = 20
SDK = "SDK and gather"
Ask = Callable[[], Awaitable[str]]


@attrs.define
class Rollouts:
    """What so many rollouts came to."""

    count: int
    started: float = 0.0  # seconds until all had a child
    first: list[float] = attrs.field(factory=list[float])
    took: list[float] = attrs.field(factory=list[float])  # each call
    burnt: float = 0.0  # our own processor time of these calls
    memory: float = 0.0  # of one child
    lost: int = 0
    wrong: int = 0

    async def play(self, clients: list[Ask]) -> None:
        """Start them all, then let each make its calls."""
        begun = time.perf_counter()
        await asyncio.gather(*(self._ask(ask, 1, self.first) for ask in clients))
        self.started = time.perf_counter() - begun
        alive = children(os.getpid())
        self.memory = statistics.fmean(map(rss, alive)) / 2**20 if alive else 0.0
        before = burnt(os.getpid())
        await asyncio.gather(*(self._twenty(ask) for ask in clients))
        self.burnt = burnt(os.getpid()) - before

    async def _twenty(self, ask: Ask) -> None:
        for number in range(2, CALLS + 2):
            await self._ask(ask, number, self.took)

    async def _ask(self, ask: Ask, expected: int, took: list[float]) -> None:
        begun = time.perf_counter()
        try:
            said = await ask()
        except Exception:  # whatever the client calls it
            self.lost += 1
        else:
            self.wrong += said != str(expected)
            took.append(time.perf_counter() - begun)

    def of(self, share: float) -> float:
        """This quantile of a call, in milliseconds."""
        return sorted(self.took)[int(len(self.took) * share)] * 1000 if self.took else 0.0


async def ours(count: int) -> Rollouts:
    settings = {"isolation": "per_session", "maxSessionConnections": count + 1}
    servers = {"count": {"command": COMMAND[0], "args": list(COMMAND[1:])}}
    found, config = Rollouts(count), {"mcpServers": servers, "settings": settings}
    async with (
        Greenroom.open(config, bootstrap=False, cache_path=":memory:") as room,
        AsyncExitStack() as stack,
    ):
        asks: list[Ask] = []
        for number in range(count):
            session = await stack.enter_async_context(room.session(f"rollout {number}"))

            async def ask(session: Any = session) -> str:
                return (await session.call("count_add", {}, timeout=120)).text

            asks.append(ask)
        await found.play(asks)
    return found


async def theirs(count: int) -> Rollouts:
    """Each client in a task of its own, which is what its cancel scopes want. A client starts with its first call."""
    found, over = Rollouts(count), asyncio.Event()

    async def hold(wanted: asyncio.Event, ready: asyncio.Future[Any]) -> None:
        await wanted.wait()
        try:
            async with sdk_client(COMMAND) as client:
                ready.set_result(client)
                await over.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    asks: list[Ask] = []
    tasks: list[asyncio.Task[None]] = []
    for _ in range(count):
        wanted, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        tasks.append(asyncio.create_task(hold(wanted, ready)))

        async def ask(wanted: asyncio.Event = wanted, ready: asyncio.Future[Any] = ready) -> str:
            wanted.set()
            client = await ready
            return (await client.call_tool("add", {})).content[0].text

        asks.append(ask)
    await found.play(asks)
    over.set()
    await asyncio.gather(*tasks)
    return found


def measure(size: Size) -> Iterator[Figure]:
    for count in (size.of(64, 2), 256, 1_000)[: size.of(3, 1)]:
        rounds = [(asyncio.run(ours(count)), asyncio.run(theirs(count))) for _ in range(size.of(3, 1))]
        of = f"of {count:,} rollouts"

        def said(
            what: str, unit: str, value: Callable[[Rollouts], float], bound: Any = None,
            rounds: list[tuple[Rollouts, Rollouts]] = rounds, of: str = of,
        ) -> Figure:  # fmt: skip
            their = statistics.median(value(each) for _, each in rounds)
            return quantity(
                "B24", f"{what}, {of}", [value(each) for each, _ in rounds], unit, bound, {SDK: their}
            )

        yield said("children started a second", "/s", lambda one: one.count / one.started)
        yield said("a call, median", "ms", lambda one: one.of(0.5))
        yield said("a call, 99 of 100", "ms", lambda one: one.of(0.99))
        yield said("own processor of a call", "µs", lambda one: one.burnt / max(1, len(one.took)) * 1e6)
        yield said("memory of a child", "MiB", lambda one: one.memory)
        yield said("calls lost", "calls", lambda one: one.lost, at_most(0))
        yield said("answers of a wrong state", "calls", lambda one: one.wrong, at_most(0))


if __name__ == "__main__":
    run_alone(measure)
