"""One timer for the whole room: a heap of deadlines and one task that sleeps until the earliest.

All deadlines of all actors are in this heap, so a thousand idle servers cost no task and no wake-up. Adding a
deadline does not wake the sleeping task: its sleep is a cancel scope whose own deadline is moved to the earlier
time. Cancelled timers stay in the heap until they come up or outnumber the live ones. Then the heap is rebuilt, so
memory is bounded by the live timers.

Timers for the same instant fire in the order they were set. A callback is a step: it must not wait. An exception
from it is a bug that is reported to `on_bug` and does not stop the others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import anyio


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
            self._sleep.deadline = when
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
                with anyio.CancelScope(deadline=self._next()) as self._sleep:
                    await anyio.sleep_forever()
                self._sleep = None
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


# ---- One alarm for all deadlines of an actor: queued calls, sent calls, idling, draining ----------------------------
#
# The alarm is set to the earliest deadline and only ever moved to an earlier time. When it rings, its owner handles
# what is due and sets it again. So in the common case accepting or ending a call touches no timer, and an idle actor is
# woken at most once.


class Alarm:
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
