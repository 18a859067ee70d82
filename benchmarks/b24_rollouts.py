"""B24: rollouts, each with a server of its own that keeps state, all alive at once; and such that follow each other.

The server counts, so each answer says whether it came from the right process with the right state. *Together*: so many
sessions begin, and when each has made a call, all make twenty. *In turn*: each ends after its twenty calls and another
begins, some thirty a second if the machine can, while the others call. Beside it: as many of the SDK's clients, and
verifiers' own launcher and client, with the same tool. Its environment is made by `make world ARGS="--only verifiers"`;
without that, it is left out. A thousand take minutes, and have a file of their own (`b24_thousand`). Last, what is
heard of a server that dies in the middle of a rollout, and of a connection that drops after the call has run. The
children burn processor on the same cores.

And how long a call with a process of its own takes, of a server as the SDK's authors write them: cold, with `warm`, and
with `reset` beside it, in turns in one run; and what such a call costs in processor time, ours and that of all
processes, with the starts ahead. Rollouts that come and go, with eight warm children, must not meet the state of
another, whether each child is used once or reset and used again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from greenroom import Greenroom
from greenroom.events import WarmChildMoved

from ._far_end import sdk_client
from ._figures import Figure, at_most, quantity
from ._peers.counter import times_noted
from ._rollouts import Ask, Begin, Rollouts, Side, play, told
from ._rounds import Size
from ._run import run_alone

ROOT = Path(__file__).resolve().parent.parent
COUNTER = (sys.executable, "-S", str(ROOT / "benchmarks" / "_peers" / "counter.py"))
VERIFIERS = ROOT / ".build" / "world" / "adapters" / "verifiers"
SDK, ITS_OWN = "SDK and gather", "verifiers"
FEW = 16  # a toolset of verifiers takes five seconds of processor to start
DEADLY = 10
SLOW_TO_START = (sys.executable, str(ROOT / "benchmarks" / "_peers" / "sdk_keeper.py"))
WARM = 8
COLD, AHEAD, AGAIN = "cold", f"warm: {WARM}", f"warm: {WARM}, and reset"


@asynccontextmanager
async def rooms(count: int, command: Sequence[str] = COUNTER) -> AsyncGenerator[Begin]:
    """A session for each rollout."""
    settings = {"isolation": "per_session", "maxSessionConnections": count + 1, "connectTimeoutMs": 120_000}
    servers = {"count": {"command": command[0], "args": list(command[1:])}}
    config, numbers = {"mcpServers": servers, "settings": settings}, itertools.count()
    async with Greenroom.open(config, bootstrap=False, cache_path=":memory:") as room:

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Ask]:
            async with room.session(f"rollout {next(numbers)}") as session:

                async def ask() -> str:
                    return (await session.call("count_add", {}, timeout=120)).text

                yield ask

        yield begin


@asynccontextmanager
async def clients(_: int, command: Sequence[str] = COUNTER) -> AsyncGenerator[Begin]:
    """A client of the SDK for each rollout."""

    @asynccontextmanager
    async def begin() -> AsyncGenerator[Ask]:
        async with sdk_client(command) as client:

            async def ask() -> str:
                return (await client.call_tool("add", {})).content[0].text

            yield ask

    yield begin


def ways(warm: int) -> Mapping[str, Mapping[str, Any]]:
    """An entry of the server for each way."""
    entry = {"command": SLOW_TO_START[0], "args": list(SLOW_TO_START[1:]), "isolation": "per_call"}
    ahead = {**entry, "warm": warm, "lifecycle": "eager"}
    return {COLD: entry, AHEAD: ahead, AGAIN: {**ahead, "reset": "reset"}}


async def first_answers(count: int, warm: int) -> Mapping[str, Sequence[float]]:
    """The seconds of so many calls each way, each with a process to itself."""
    took: dict[str, list[float]] = {way: [] for way in ways(warm)}
    servers = dict(zip("abc", ways(warm).values(), strict=True))
    async with Greenroom.open({"mcpServers": servers}, bootstrap=False, cache_path=":memory:") as room:
        await _until_warm(room, warm)
        await room.call("c_keep", {"text": "x"}, timeout=120)  # so that one has been reset
        for _ in range(count):
            await _until_warm(room, warm)
            await asyncio.sleep(1)  # so that none of them works to start any more
            for server, seconds in zip(servers, took.values(), strict=True):
                begun = time.perf_counter()
                answer = await room.call(f"{server}_keep", {"text": "x"}, timeout=120)
                seconds.append(time.perf_counter() - begun)
                assert answer.text == "x", "it met what somebody else had left"
    return took


async def _until_warm(room: Greenroom, count: int) -> None:
    """Wait until both servers that have children ahead have them all."""
    async with room.events() as events:
        while sum(row.warm == count for row in room.status()) < 2:
            async for event in events:
                if isinstance(event, WarmChildMoved):
                    break


def processor_of(entry: Mapping[str, Any], count: int) -> float:
    """The seconds of processor that one of so many calls takes, one after the other: ours, and those of all
    processes."""

    async def play() -> None:
        config = {"mcpServers": {"a": dict(entry)}}
        async with Greenroom.open(config, bootstrap=False, cache_path=":memory:") as room:
            for _ in range(count):
                await room.call("a_keep", {"text": "x"}, timeout=120)

    before = _processor()
    asyncio.run(play())
    return (_processor() - before) / count


def _processor() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


async def churn(count: int, **more: Any) -> tuple[int, int]:
    """So many rollouts that come and go, sixteen at a time, with warm children: how many calls were lost, and how many
    answers came from a process that kept something of somebody else. `more`: keys of the entry."""
    settings = {"isolation": "per_session", "maxSessionConnections": 64}
    servers = {"count": {"command": COUNTER[0], "args": list(COUNTER[1:]), "warm": WARM, **more}}
    lost = wrong = 0
    left = iter(range(count))
    async with Greenroom.open(
        {"mcpServers": servers, "settings": settings}, bootstrap=False, cache_path=":memory:"
    ) as room:

        async def play() -> None:
            nonlocal lost, wrong
            for number in left:
                async with room.session(f"rollout {number}") as session:
                    for expected in range(1, 4):
                        try:
                            said = (await session.call("count_add", {}, timeout=120)).text
                        except Exception:
                            lost += 1
                        else:
                            wrong += said != str(expected)

        await asyncio.gather(*(play() for _ in range(16)))
    return lost, wrong


def has_verifiers() -> bool:
    return (VERIFIERS / ".installed").exists()


def its_own(*arguments: str) -> Any:
    """What verifiers' launcher and client come to, in their environment."""
    command = [str(VERIFIERS / "bin" / "python"), "-m", "benchmarks._peers.verifiers_rollouts", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, env=env, text=True, check=True)
    return json.loads(done.stdout)


def measure(size: Size) -> Iterator[Figure]:
    yield from _warm(size)
    yield from compared(size.of(FEW, 2), size.of(3, 1))
    if not size.quick:
        yield from compared(64, 3)
        yield from compared(256, 1)
    yield from _failures()


def compared(count: int, rounds: int) -> Iterator[Figure]:
    """So many rollouts, all alive at once and in turn, beside as many of the SDK's clients."""
    for way, in_turn in (("together", False), ("in turn", True)):
        played: dict[str, list[Rollouts]] = {"Greenroom": [], SDK: []}
        for _ in range(rounds):
            for name, side in (("Greenroom", rooms), (SDK, clients)):
                played[name].append(asyncio.run(play(side, count, in_turn=in_turn)))
        if has_verifiers() and count <= FEW:
            played[ITS_OWN] = [Rollouts(**its_own(way.replace(" ", "_"), str(count)))]
        yield from _figures(f"of {count:,} rollouts {way}", played, in_turn=in_turn)


def _warm(size: Size) -> Iterator[Figure]:
    took = asyncio.run(first_answers(size.of(10, 1), size.of(WARM, 2)))
    for way, seconds in took.items():
        yield quantity(
            "B24", f"a call with a process to itself, {way}", [each * 1000 for each in seconds], "ms"
        )
    for way in (AHEAD, AGAIN):
        ratios = [one / other for one, other in zip(took[COLD], took[way], strict=True)]
        yield quantity("B24", f"how many times as long a cold one takes as {way}", ratios, "times")
    spent: dict[str, list[float]] = {way: [] for way in took}
    for _ in range(size.of(3, 1)):
        for way, entry in ways(size.of(WARM, 2)).items():
            spent[way].append(processor_of(entry, size.of(20, 4)))
    for way, seconds in spent.items():
        yield quantity(
            "B24",
            f"processor of a call with a process to itself, {way}",
            [each * 1000 for each in seconds],
            "ms",
        )
    for way, more in ((AHEAD, {}), (AGAIN, {"reset": "reset"})):
        lost, wrong = asyncio.run(churn(size.of(300, 20), **more))
        yield quantity("B24", f"calls lost, rollouts that come and go, {way}", [lost], "calls", at_most(0))
        yield quantity("B24", f"answers of a wrong state, {way}", [wrong], "calls", at_most(0))


def _figures(of: str, played: Mapping[str, list[Rollouts]], *, in_turn: bool) -> Iterator[Figure]:
    def said(what: str, unit: str, value: Callable[[Rollouts], float], bound: Any = None) -> Figure:
        ours, *others = ([value(one) for one in rounds] for rounds in played.values())
        beside = dict(zip([*played][1:], map(statistics.median, others), strict=True))
        return quantity("B24", f"{what}, {of}", ours, unit, bound, beside)

    yield said("servers started a second", "/s", lambda one: one.starts)
    yield said("a call, median", "ms", lambda one: one.of(0.5))
    yield said("a call, 99 of 100", "ms", lambda one: one.of(0.99))
    if not in_turn:
        yield said("own processor of a call", "µs", Rollouts.for_a_call)
        yield said("memory of a rollout's processes", "MiB", lambda one: one.memory)
    yield said("calls lost", "calls", lambda one: one.lost, at_most(0))
    yield said("answers of a wrong state", "calls", lambda one: one.wrong, at_most(0))


def _failures() -> Iterator[Figure]:
    """How often the tool has run when the tenth call gets no answer, and what was heard in place of that."""
    died = {"Greenroom": _died(rooms), SDK: _died(clients)}
    dropped: dict[str, Any] = {}
    if has_verifiers():
        died[ITS_OWN] = its_own("death")
        dropped = its_own("drop")
    for what, sides in (("its server dies", died), ("its connection drops after it ran", dropped)):
        for name, found in sides.items():
            yield quantity(
                "B24", f"in the middle {what}, {name}: runs for {len(found['heard'])} calls", [found["ran"]], "runs",
                note="heard: " + _in_short(found["heard"]),
            )  # fmt: skip


def _died(side: Callable[..., Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder, "log"))
        doomed: Side = partial(side, command=(*COUNTER, log, str(DEADLY)))
        heard = asyncio.run(told(doomed))
        return {"heard": heard, "ran": times_noted(log)}


def _in_short(heard: Sequence[str]) -> str:
    """What came in place of the answer, and what came after that."""
    odd = next((i for i, text in enumerate(heard, 1) if text != str(i)), None)
    if odd is None:
        return "nothing wrong"
    return ", then ".join(heard[odd - 1 : odd + 1])


if __name__ == "__main__":
    run_alone(measure)
