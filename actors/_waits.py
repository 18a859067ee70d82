"""Who waits for an actor to be connected, besides its calls: one list.

Each wait knows since when it waits, whether the connection was asked for by name, and for which incarnation it waits:
for the present one, or for the next when that one is on its way out already. So one list answers who is told of a
failed attempt (those who waited for it) and who goes on waiting (those who came after it had failed).
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
    incarnation: int  # the first that it waits for
    by_name: bool = False  # around its gate, and although it was taken down


class Waits:
    """All of one actor's, in order of arrival."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, told: Told, now: float, life: Life, *, by_name: bool) -> Callable[[], None]:
        """Returns how to stop waiting. Harmless when it was told already."""
        is_over = life.state in (State.DRAINING, State.CLOSED)
        wait = Wait(told, now, life.incarnation + is_over, by_name)
        self._waits.append(wait)

        def stop_waiting() -> None:
            self._forget(wait)

        return stop_waiting

    def open(self, life: Life) -> Iterator[Wait]:
        """Those who may still get what they wait for: not those whose attempt has failed and is cleared away."""
        is_failed = life.ending is not None and life.ending.cause.has(Means.NO_START)
        return (wait for wait in self._waits if not is_failed or wait.incarnation > life.incarnation)

    def forget_names(self) -> None:
        """It was taken down: whoever asked for it by name did so before that."""
        for wait in self._waits:
            wait.by_name = False

    def since(self, life: Life) -> float:
        """Since when the first of them waits; `inf` when there is none."""
        return min((wait.since for wait in self.open(life)), default=math.inf)

    def tell(self, error: CallError | None, *, up_to: float = math.inf) -> None:
        """Tell those who wait for an incarnation up to this number, and no longer wait for them."""
        self._tell([wait for wait in self._waits if wait.incarnation <= up_to], error)

    def tell_early(self, error: CallError, since: float, life: Life) -> None:
        """Tell those who have waited since `since` or longer."""
        self._tell([wait for wait in self.open(life) if wait.since <= since], error)

    def _tell(self, waits: list[Wait], error: CallError | None) -> None:
        for wait in waits:
            if self._forget(wait):  # unless one before it ended its wait
                wait.told(error)

    def _forget(self, wait: Wait) -> bool:
        if wait not in self._waits:
            return False
        self._waits.remove(wait)
        return True
