"""B7: our mailbox against trio's memory channel and pykka: tells a second, and asks a second, one asker.

The consumer counts; that is all it does. Ours is a core actor, the kind that owns a task: `Ref.tell` and `Ref.ask`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import attrs
import pykka
import trio
import trio.testing

from greenroom.actors.backend import current_backend
from greenroom.actors.mailbox import CoreActor, Reply

from ._figures import Figure, at_least, ratio
from ._rounds import Size, take_turns
from ._run import run_alone

BUFFER = 128


def measure(size: Size) -> Iterator[Figure]:
    tells, asks = size.of(50_000, 100), size.of(5_000, 20)
    ours, channel, pykkas = take_turns(
        [
            lambda: trio.run(tell_ours, tells),
            lambda: trio.run(tell_channel, tells),
            lambda: tell_pykka(tells),
        ],
        size.rounds,
    )
    mine = ("Greenroom", ours)
    yield ratio("B7", "tells/s ÷ trio channel", mine, ("trio channel", channel), "/s", at_least(5))
    yield ratio("B7", "tells/s ÷ pykka", mine, ("pykka", pykkas), "/s")
    ours, channel, limit, pykkas = take_turns(
        [
            lambda: trio.run(ask_ours, asks),
            lambda: trio.run(ask_channel, asks),
            lambda: trio.run(switch_tasks, asks),
            lambda: ask_pykka(asks),
        ],
        size.rounds,
    )
    mine = ("Greenroom", ours)
    yield ratio("B7", "asks/s ÷ trio channel", mine, ("trio channel", channel), "/s", at_least(1))
    yield ratio("B7", "asks/s ÷ two bare task switches", mine, ("trio itself", limit), "/s")
    yield ratio("B7", "asks/s ÷ pykka", mine, ("pykka", pykkas), "/s", at_least(5))


# ---- ours -----------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Ask:
    reply: Reply[int]


class Counter:
    def __init__(self, expected: int) -> None:
        self.core: CoreActor[Any] = CoreActor("counter", current_backend(), self, 1 << 30)
        self.ref = self.core.ref
        self.seen = 0
        self.expected = expected
        self.done = trio.Event()

    def step(self, message: Any) -> None:
        self.seen += 1
        if isinstance(message, Ask):
            message.reply.send(self.seen)
        elif self.seen == self.expected:
            self.done.set()

    async def after_batch(self) -> None:
        """Nothing to do."""

    def close(self, error: Exception) -> None:
        """Nobody was promised anything."""


async def tell_ours(count: int) -> float:
    counter = Counter(count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counter.core.run)
        start = time.perf_counter()
        for number in range(count):
            counter.ref.tell(number)
        await counter.done.wait()
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return count / elapsed


async def ask_ours(count: int) -> float:
    counter = Counter(-1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counter.core.run)
        start = time.perf_counter()
        for _ in range(count):
            await counter.ref.ask(Ask)
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return count / elapsed


# ---- a trio channel, the way one writes an actor with it ------------------------------------------------------------


async def tell_channel(count: int) -> float:
    send, receive = trio.open_memory_channel[int](BUFFER)

    async def consume() -> None:
        seen = 0
        async for _ in receive:
            seen += 1

    start = time.perf_counter()
    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(consume)
        for number in range(count):
            await send.send(number)
    return count / (time.perf_counter() - start)


class _Slot:
    """A one-shot answer: an event and a value."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.value = 0


async def ask_channel(count: int) -> float:
    send, receive = trio.open_memory_channel[_Slot](BUFFER)

    async def consume() -> None:
        seen = 0
        async for slot in receive:
            seen += 1
            slot.value = seen
            slot.ready.set()

    start = time.perf_counter()
    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(consume)
        for _ in range(count):
            slot = _Slot()
            await send.send(slot)
            await slot.ready.wait()
    return count / (time.perf_counter() - start)


# ---- the limit: no ask of another task can be cheaper than waking it and being woken by it ---------------------------


async def switch_tasks(count: int) -> float:
    asker, other = trio.lowlevel.current_task(), list[trio.lowlevel.Task]()

    async def answer() -> None:
        other.append(trio.lowlevel.current_task())
        while True:
            await trio.lowlevel.wait_task_rescheduled(_leave)
            trio.lowlevel.reschedule(asker)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.testing.wait_all_tasks_blocked()
        start = time.perf_counter()
        for _ in range(count):
            trio.lowlevel.reschedule(other[0])
            await trio.lowlevel.wait_task_rescheduled(_leave)
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return count / elapsed


def _leave(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


# ---- pykka ----------------------------------------------------------------------------------------------------------


class PykkaCounter(pykka.ThreadingActor):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> int:
        self.seen += 1
        return self.seen


def tell_pykka(count: int) -> float:
    actor = PykkaCounter.start()
    start = time.perf_counter()
    for number in range(count):
        actor.tell(number)
    actor.ask(None)
    elapsed = time.perf_counter() - start
    actor.stop()
    return count / elapsed


def ask_pykka(count: int) -> float:
    actor = PykkaCounter.start()
    start = time.perf_counter()
    for number in range(count):
        actor.ask(number)
    elapsed = time.perf_counter() - start
    actor.stop()
    return count / elapsed


if __name__ == "__main__":
    run_alone(measure)
