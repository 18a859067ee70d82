"""Drive one trio run from a synchronous test. Each step enters the run, lets everything settle, and stops it again.

It uses trio's guest mode with a queue as the host loop, all in one thread. Only `advance` moves the `MockClock`, from
deadline to deadline, so that every timer fires at its own time.
"""

from __future__ import annotations

import queue
import random
import selectors
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import outcome
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

STUCK = 30.0  # real seconds without anything to do; a busy machine is without some, now and then
TOO_LONG = 30_000  # turns of the loop for one step


class StuckError(RuntimeError):
    """A step waits for something that only happens later: start it in the background, then call `advance`."""


class VirtualRun:
    """A trio run under a virtual clock, driven from outside step by step."""

    def __init__(self) -> None:
        self._host: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._result: outcome.Outcome[None] | None = None
        self._clock = MockClock()
        self.nursery: trio.Nursery  # for tasks that live as long as the run
        self._token: trio.lowlevel.TrioToken | None = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._host.put,
            done_callback=self._done,
            clock=self._clock,
        )
        self._turn_until(lambda: self._token is not None)

    async def _main(self) -> None:
        async with trio.open_nursery() as self.nursery:
            self._token = trio.lowlevel.current_trio_token()
            await trio.sleep_forever()

    def _cancel(self) -> None:
        self._clock.autojump_threshold = 0  # what is shielded from the cancellation may still need its time
        self.nursery.cancel_scope.cancel()

    def _done(self, result: outcome.Outcome[None]) -> None:
        self._result = result

    def _turn_until(self, done: Callable[[], bool]) -> None:
        turns = 0
        while not done() and self._result is None:
            self._turn()
            turns += 1
            if turns > TOO_LONG:
                raise StuckError(f"tasks run without end at {self.now:g} s")
        if self._result is not None:
            self._result.unwrap()

    def _turn(self) -> None:
        try:
            turn = self._host.get(timeout=STUCK)
        except queue.Empty:
            raise StuckError(
                f"every task waits for time to pass, at {self.now:g} s, and so does this step"
            ) from None
        turn()

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self._clock.current_time()

    def run(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Await `step()` in the run, then let every task go on until it waits."""
        box: list[outcome.Outcome[Any]] = []

        async def job() -> None:
            result = await outcome.acapture(step)  # only Exceptions can come: nobody cancels this task
            await wait_all_tasks_blocked()
            box.append(result)

        assert self._token is not None
        self._token.run_sync_soon(lambda: self.nursery.start_soon(job))
        self._turn_until(lambda: bool(box))
        return box[0].unwrap()

    def advance(self, seconds: float) -> None:
        """Let time pass, one deadline after the other."""

        async def go() -> None:
            end = self._clock.current_time() + seconds
            while True:
                next_one = trio.lowlevel.current_statistics().seconds_to_next_deadline
                left = end - self._clock.current_time()
                if next_one > left:
                    break
                self._clock.jump(max(next_one, 0.0))
                await wait_all_tasks_blocked()
            self._clock.jump(max(left, 0.0))

        self.run(go)

    def close(self) -> None:
        """Cancel all remaining tasks and end the run, even if that takes much virtual time. Idempotent."""
        if self._result is None:
            assert self._token is not None
            self._token.run_sync_soon(self._cancel)
            while self._result is None:
                self._turn()


# ---- Virtual time on asyncio -----------------------------------------------------------------------------------------
#
# A loop that never waits for time to pass. (trio has its own, `MockClock`.)
#
# When nothing is readable, the selector does not wait, but adds the requested wait to the clock. When nothing is ready
# and no timer is set, the loop waits for something that cannot happen. After a second of real time (threads may still
# bring something) `on_stuck` is called, which by default is an error and not a hang. Time starts at 0.0.

LOOP_STUCK: Final = 1.0  # real seconds


def _raise_stuck() -> None:
    raise RuntimeError("virtual time: every task waits and no timer is set")


class JumpingSelector(selectors.DefaultSelector):
    """A loop that has it says `now` as its time."""

    def __init__(self, on_stuck: Callable[[], None] = _raise_stuck) -> None:
        super().__init__()
        self.now: float = 0.0
        self._on_stuck = on_stuck

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(LOOP_STUCK if timeout is None else 0)
        if ready:
            return ready
        if timeout is None:
            self._on_stuck()
        else:
            self.now += max(timeout, 0.0)
        return ready


# ---- The order in which trio runs tasks: from one number, or decided by a function ----------------------------------
#
# trio draws the order of each batch of runnable tasks at random. If Hypothesis draws the seed (or a test prints it),
# the whole order follows from it, so a race can be searched for, shrunk and repeated. Without a drawn seed, Hypothesis
# explores exactly one order, however many examples it runs.
#
# An exploration decides the order itself (`ordered_by`).
#
# trio keeps its random generator private (`trio._core._run._r`). Only this module touches it. When a trio release
# removes it, the error says what to do.


class ScheduleError(RuntimeError):
    """The order of tasks can not be decided from here: the installed trio or asyncio has no such switch."""


def seed_schedule(seed: int) -> None:
    """Make trio's order of tasks and the `random` module depend only on `seed` from now on.

    Raises `ScheduleError` if the installed trio does not support this."""
    internals = _internals()
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    internals._r.seed(seed)
    random.seed(seed)


@contextmanager
def ordered_by(order: Callable[[list[trio.lowlevel.Task]], list[trio.lowlevel.Task]]) -> Generator[None]:
    """While it is open, a trio run asks `order` in each turn. It is given the tasks of the turn, the oldest first, and
    returns those that shall run, in their order; the others are ready in the next turn again. An exception out of it is
    the end of the run (`trio.TrioInternalError`).

    Raises `ScheduleError` if the installed trio does not support this."""

    class Orders(random.Random):
        def shuffle(self, x: Any) -> None:
            ready, now = list(x), order(x)
            x[:] = reversed(now)  # trio takes them from the end
            internals.GLOBAL_RUN_CONTEXT.runner.runq.extend(task for task in ready if task not in now)

    internals = _internals()
    before = internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING
    internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = Orders(0), True
    try:
        yield
    finally:
        internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = before


def _internals() -> Any:
    """The module of trio that has the switch and the generator."""
    import trio._core._run as trio_run

    internals: Any = trio_run
    switch, source = (getattr(internals, name, None) for name in ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r"))
    if not isinstance(switch, bool) or not isinstance(source, random.Random):
        import trio

        raise ScheduleError(
            f"trio {trio.__version__} does not let its schedule be seeded the way Greenroom knows: use a trio release "
            "that Greenroom was tested with (see constraints.txt)."
        )
    return internals
