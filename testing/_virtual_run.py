"""Drive one trio run from a synchronous test. Each step enters the run, lets everything settle, and stops it again.

It uses trio's guest mode with a queue as the host loop, all in one thread. Only `advance` moves the `MockClock`, from
deadline to deadline, so that every timer fires at its own time.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from typing import Any

import outcome
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

STUCK = 30.0  # real seconds without anything to do; a busy machine is without some, now and then
TOO_LONG = 30_000  # turns of the loop for one step


class StuckError(RuntimeError):
    """A step waits for something that only happens later: start it in the background, then call `advance`."""


class VirtualRun:
    def __init__(self) -> None:
        self._host: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._result: outcome.Outcome[None] | None = None
        self._clock = MockClock()
        self.nursery: trio.Nursery
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
                raise StuckError(f"tasks run without end at {self.now:g}s")
        if self._result is not None:
            self._result.unwrap()

    def _turn(self) -> None:
        try:
            turn = self._host.get(timeout=STUCK)
        except queue.Empty:
            raise StuckError(
                f"every task waits for time to pass, at {self.now:g}s, and so does this step"
            ) from None
        turn()

    @property
    def now(self) -> float:
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
        """Cancel what is left, and let the run end, however much virtual time that takes. Idempotent."""
        if self._result is None:
            assert self._token is not None
            self._token.run_sync_soon(self._cancel)
            while self._result is None:
                self._turn()
