"""B5: connect, list, one call, close; cycles a second.

Ours is `greenroom bench churn`'s machinery, through a room: guarded child, event stream, catalogue and all. Theirs is
the SDK's client doing the same. One after another, and sixteen at once; and, as context, our cycle without any process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import anyio

from greenroom import Greenroom
from greenroom.cli.bench_command import BenchPlan, churn
from greenroom.testing.fake_servers import FakeServer, fake_connectors

from ._far_end import BACKENDS, TEXT, config_of, sdk_client
from ._figures import Bound, Figure, at_least, quantity, ratio
from ._rounds import Size, take_turns
from ._run import run_alone

AT_ONCE = 16
_OPEN = partial(Greenroom.open, bootstrap=False, cache_path=":memory:")


def measure(size: Size) -> Iterator[Figure]:
    for backend in BACKENDS:
        yield _against_sdk(size, backend, size.of(25, 1), 1, at_least(1.3, 1.55))
    yield _against_sdk(size, "trio", size.of(4 * AT_ONCE, 2), size.of(AT_ONCE, 2), None)
    bare = take_turns([lambda: without_processes(size.of(100, 2))], size.rounds)[0]
    yield quantity("B5", "cycles/s without a process, trio", bare, "/s")


def _against_sdk(size: Size, backend: str, cycles: int, at_once: int, bound: Bound | None) -> Figure:
    sides = [lambda: ours(backend, cycles, at_once), lambda: theirs(backend, cycles, at_once)]
    our_rates, their_rates = take_turns(sides, size.rounds)
    how = "one after another" if at_once == 1 else f"{at_once} at once"
    what = f"cycles/s, {how}, {backend}"
    return ratio("B5", what, ("Greenroom", our_rates), ("mcp.Client", their_rates), "/s", bound)


def ours(backend: str, cycles: int, at_once: int) -> float:
    config = _OPEN(config_of(1)).config
    churned = anyio.run(
        churn, config, "echo0", BenchPlan(cycles, at_once, "echo", TEXT), _OPEN, backend=backend
    )
    assert not churned.failures
    assert not churned.leaks.found, churned.leaks
    return churned.per_second


def without_processes(cycles: int) -> float:
    """The same cycle on a fake server in this process: what our own machinery takes of it."""
    connectors = fake_connectors({"churn0": FakeServer()})
    churned = anyio.run(
        churn, _OPEN(config_of(1)).config, "echo0", BenchPlan(cycles, 1, "echo"), partial(_OPEN, connectors=connectors),
        backend="trio",
    )  # fmt: skip
    return churned.per_second


def theirs(backend: str, cycles: int, at_once: int) -> float:
    return anyio.run(_sdk_cycles, cycles, at_once, backend=backend)


async def _sdk_cycles(cycles: int, at_once: int) -> float:
    await _sdk_cycle()  # as ours, once to warm up
    left = cycles

    async def worker() -> None:
        nonlocal left
        while left:
            left -= 1
            await _sdk_cycle()

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(worker)
    return cycles / (time.perf_counter() - start)


async def _sdk_cycle() -> None:
    async with sdk_client() as client:
        await client.list_tools()
        await client.call_tool("echo", TEXT)


if __name__ == "__main__":
    run_alone(measure)
