"""One timer for the whole room: a heap of deadlines and one task that sleeps until the earliest.

All deadlines of all actors are in this heap, so a thousand idle servers cost no task and no wake-up. Adding a
deadline does not wake the sleeping task: its sleep is a cancel scope whose own deadline is moved to the earlier
time. Cancelled timers stay in the heap until they come up or outnumber the live ones. Then the heap is rebuilt, so
memory is bounded by the live timers.

Timers for the same instant fire in the order they were set. A callback is a step: it must not wait. An exception
from it is a bug that is reported to `on_bug` and does not stop the others.

A process that stood still (SIGSTOP, the lid of a laptop) finds on waking that deadlines have passed, and the answers
that came meanwhile unread: Python's own wait gives up an expired one without looking once more. So who wakes late, by a
jump, first lets the loop read for a moment, and judges then. In a room that is this timer's (`Timers.limited`); where
there is none, `at_most` and `in_time` do the same with a task of their own. The loop's own deadlines end a wait before
anything is read, so `make check` finds them wherever they stand and lists the few that may. The opposite holds for a
lease that others take over when it lapses: that of a host in a cluster is judged by its time alone. Rejected: a number
of turns of the loop, since an HTTP answer takes many, and a grace for each deadline, which would make punctual ones
late.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
import anyio.lowlevel

from .backend import pump_group

_JUMP: Final = 0.05  # seconds; who wakes later than this stood still, or its loop did
_READS_FOR: Final = 0.1  # seconds


def reads_for(due: float, now: float) -> float:
    """The seconds for which the loop reads before a deadline that was `due` is judged: none unless this process stood
    still when it passed. Both are times of the loop."""
    return _READS_FOR if now - due > _JUMP else 0.0


async def caught_up(due: float, now: float) -> None:
    """Wait until what came before `now` has been read, if this process stood still when a deadline passed that was
    `due`; return at once otherwise. Both are times of the loop."""
    if seconds := reads_for(due, now):
        await anyio.sleep(seconds)
        # The machine may be busy: at least one turn in which something is read.
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()


class Timer:
    """A deadline that was set. `cancel` is idempotent."""

    __slots__ = ("_timers", "callback", "order", "when")

    def __init__(self, when: float, order: int, callback: Callable[[], None], timers: Timers) -> None:
        self.when: float = when
        self.order: int = order
        self.callback: Callable[[], None] | None = callback
        self._timers = timers

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.order) < (other.when, other.order)

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.forget()


class Timers:
    def __init__(self, now: Callable[[], float], on_bug: Callable[[BaseException], None]) -> None:
        self._now = now
        self._on_bug = on_bug
        self._heap: list[Timer] = []
        self._live = 0  # set, not yet fired, not cancelled
        self._order = 0
        self._sleep: anyio.CancelScope | None = None

    def __len__(self) -> int:
        return self._live

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback()` at room time `when` (seconds); never inside this call, even when `when` has passed."""
        self._order += 1
        timer = Timer(when, self._order, callback, self)
        heapq.heappush(self._heap, timer)
        self._live += 1
        if self._sleep is not None and when < self._sleep.deadline:
            self._sleep.deadline = max(when, self._now())
        return timer

    def forget(self) -> None:
        """A timer was cancelled; rebuild when the cancelled ones outnumber the live ones."""
        self._live -= 1
        dead = len(self._heap) - self._live
        if dead > 64 and dead > self._live:
            self._heap = [timer for timer in self._heap if timer.callback is not None]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """The sleeping task; ends by cancellation."""
        try:
            while True:
                with anyio.CancelScope(deadline=max(self._next(), self._now())) as self._sleep:
                    await anyio.sleep_forever()
                due, self._sleep = self._sleep.deadline, None
                await caught_up(due, self._now())
                self._fire()
        finally:
            self._sleep = None

    def _next(self) -> float:
        while self._heap and self._heap[0].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0].when if self._heap else math.inf

    def _fire(self) -> None:
        """Fire what is due now; timers that a callback sets for this very instant wait for the next round."""
        now, last = self._now(), self._order
        held: list[Timer] = []
        while self._heap and self._heap[0].when <= now:
            timer = heapq.heappop(self._heap)
            callback = timer.callback
            if callback is None:
                continue
            if timer.order > last:
                held.append(timer)
                continue
            timer.callback = None
            self._live -= 1
            try:
                callback()
            except Exception as error:
                self._on_bug(error)
        for timer in held:
            heapq.heappush(self._heap, timer)

    @contextmanager
    def limited(self, when: float) -> Generator[TimeLimit]:
        """Cancel what runs in this context at `when`, a time of the room."""
        limit = TimeLimit(self)
        limit.move(when)
        try:
            with limit.scope:
                yield limit
        finally:
            limit.move(math.inf)


class Alarm:
    """One alarm for all deadlines of an actor: queued calls, sent calls, idling, draining.

    It is set to the earliest deadline and only ever moved to an earlier time. When it rings, its owner handles what is
    due and sets it again. So in the common case accepting or ending a call touches no timer, and an idle actor is woken
    at most once.
    """

    __slots__ = ("_ring", "_timer", "_timers", "when")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self.when = math.inf  # in the room's time; `inf` while it is not set
        self._timers = timers
        self._ring = ring
        self._timer: Timer | None = None

    def wake_by(self, when: float) -> None:
        """Ring at this time, unless the alarm rings earlier anyway."""
        if self.when <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.when = when
        self._timer = self._timers.at(when, self._rang)

    def _rang(self) -> None:
        self._timer = None
        self.when: float = math.inf
        self._ring()


class TimeLimit:
    """A scope for one task that is cancelled at a time of the room, after what came until then has been read."""

    __slots__ = ("_timer", "_timers", "scope", "when")

    def __init__(self, timers: Timers) -> None:
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.when: float = math.inf
        self._timers = timers
        self._timer: Timer | None = None

    def move(self, when: float) -> None:
        """Cancel at this time instead; `inf`: not at all. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self.when = when
        self._timer = self._timers.at(when, self.scope.cancel) if when < math.inf else None


@asynccontextmanager
async def at_most(seconds: float) -> AsyncGenerator[anyio.CancelScope]:
    """Cancel what runs in this context after `seconds`, once what came until then has been read. Whether that happened
    is the scope's `cancelled_caught`. `inf`: never.

    Nothing is cancelled while it is left: a connection that was made in time would be lost with nobody to close it.
    """
    if seconds == math.inf:
        with anyio.CancelScope() as scope:
            yield scope
        return
    due, scope, timer = anyio.current_time() + max(seconds, 0.0), anyio.CancelScope(), _DeadlineTask()
    async with pump_group() as tasks:
        tasks.start_soon(timer.run, scope, due)
        try:
            with scope:
                yield scope
        finally:
            await timer.end()


@asynccontextmanager
async def in_time(seconds: float) -> AsyncGenerator[None]:
    """Cancel what runs in this context after `seconds`, as `at_most` does, and raise `TimeoutError` for it."""
    async with at_most(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError


class _DeadlineTask:
    """The task that cancels a scope when its time has come. It ends when it is told to, and by nothing else: who waits
    for it would be cancelled with it."""

    def __init__(self) -> None:
        self._life = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()

    async def run(self, scope: anyio.CancelScope, due: float) -> None:
        try:
            with self._life:
                await anyio.sleep_until(due)
                await caught_up(due, anyio.current_time())
                scope.cancel()
        finally:  # also when its loop is shut down
            self._ended.set()

    async def end(self) -> None:
        """Returns when it has ended."""
        self._life.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
            await anyio.lowlevel.cancel_shielded_checkpoint()  # asyncio: until its group knows, too
