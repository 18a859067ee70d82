"""Work that is begun now and awaited only if it does not end at once.

A time limit around an `await` that nearly never waits costs more than all the rest of it: a cancel scope and a timer,
made and thrown away. So the work is run up to its first wait without one. For asyncio only, and for work that waits
inside no cancel scope of its own: scopes must be left in the reverse order of entering them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """`has_ended`: it did not wait, and `value` is its result. Otherwise await this, once, in the same task."""

    value: T

    def __init__(self, work: Awaitable[T]) -> None:
        self._steps = work.__await__()
        try:
            self._waits_for = next(self._steps)
        except StopIteration as end:
            self.value, self.has_ended = end.value, True
        else:
            self.has_ended = False

    def __await__(self) -> Generator[Any, Any, T]:
        if self.has_ended:
            return self.value
        return (yield from _rest_of(self._steps, self._waits_for))


class Rest(Generic[T]):
    """The rest of `work`, which waits for `waits_for` now. Await it, once, in the task that goes on with it."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        return _rest_of(self._work, self._waits_for)


def _rest_of(steps: Any, waits_for: Any) -> Generator[Any, Any, Any]:
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:
            step = steps.throw, error
        else:
            step = steps.send, sent
        try:
            waits_for = step[0](step[1])
        except StopIteration as end:
            return end.value
