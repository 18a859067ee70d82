"""The waits for one actor's connection, apart from its calls, in one list.

Each wait knows when it began, whether the connection was requested by name, and for which incarnation it waits:
the present one, or the next one when the present one is already ending. So one list tells which waits get the
error of a failed attempt (those for that attempt) and which go on (those begun after the failure).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import attrs

from ..protocol.errors import CallError
from ..protocol.lifecycle import Life, Means, State

Told = Callable[[CallError | None], None]


@attrs.define(eq=False)
class Wait:
    told: Told  # called once: with None when it is connected, with the error when that fails
    since: float
    incarnation: int  # the first incarnation that it waits for
    by_name: bool = False  # around the gate, and even if the server was taken down


class Waits:
    """All waits of one actor, in order of arrival."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, told: Told, now: float, life: Life, *, by_name: bool) -> Callable[[], None]:
        """Returns the function that stops the wait. Harmless once the wait is over."""
        is_over = life.state in (State.DRAINING, State.CLOSED)
        wait = Wait(told, now, life.incarnation + is_over, by_name)
        self._waits.append(wait)

        def stop_waiting() -> None:
            self._forget(wait)

        return stop_waiting

    def open(self, life: Life) -> Iterator[Wait]:
        """The waits that can still be met: not those whose attempt has failed and is being cleaned up."""
        is_failed = life.ending is not None and life.ending.cause.has(Means.NO_START)
        return (wait for wait in self._waits if not is_failed or wait.incarnation > life.incarnation)

    def forget_names(self) -> None:
        """The server was taken down: requests by name before that no longer count as by name."""
        for wait in self._waits:
            wait.by_name = False

    def since(self, life: Life) -> float:
        """When the oldest wait began; `inf` when there is none."""
        return min((wait.since for wait in self.open(life)), default=math.inf)

    def tell(self, error: CallError | None, *, up_to: float = math.inf) -> None:
        """End the waits for incarnations up to this number, and tell them."""
        self._tell([wait for wait in self._waits if wait.incarnation <= up_to], error)

    def tell_early(self, error: CallError, since: float, life: Life) -> None:
        """Tell the waits that began at `since` or earlier."""
        self._tell([wait for wait in self.open(life) if wait.since <= since], error)

    def _tell(self, waits: list[Wait], error: CallError | None) -> None:
        for wait in waits:
            if self._forget(wait):  # unless an earlier callback ended this wait
                wait.told(error)

    def _forget(self, wait: Wait) -> bool:
        if wait not in self._waits:
            return False
        self._waits.remove(wait)
        return True
