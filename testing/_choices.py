"""What one run of an exploration decides, and what it could have decided otherwise.

A run meets choices, always in the same order. They are of three kinds, and are written down in one list, so that the
search can say "the same up to here, then something else":

* **Hold.** In each turn of the loop some tasks are ready. When it is more than one, one of them may be held: it goes on
  when all others wait, before time passes, and after `LONGEST` turns at the latest. How many steps a task is away from
  something is an accident: one checkpoint more in a library, or an answer that comes later, moves it. So a held task
  is late by as many turns as it takes. A pick of `k` holds the `k`-th; then another one may be held.
* **Order.** While more than one task of a turn has not run yet, the next one is a choice. By default it is the oldest.
  A pick of `k` puts off the first `k` of them to the end of this turn. So with one deviation any task goes first, or
  the oldest goes last, and each order of a turn can be had.
* **Cancel.** At the beginning of each turn, if anything has happened since the last one, each task that may be
  cancelled and has begun could be cancelled now. One run cancels at most once.

A run also notes who stood for choice (`prints`): a run that shares a prefix with another one must have met the same
choices up to there. These are numbers, not names, since there are many runs. Beyond `most` choices, all is done by
default.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from zlib import crc32

import anyio
import attrs

from ._plan import Plan

T = TypeVar("T")

LONGEST: Final = 100  # turns

_COUNTED: Final = re.compile(r"Task-\d+")  # asyncio numbers tasks that have no name, through all runs


class Choices:
    """Makes the choices of one run by its plan, and writes them down.

    `wanted`: the names of tasks that may be cancelled. `widths`: for each choice how many ways there are, for each
    moment at which a task could be cancelled `-i` (`labels[i - 1]` is the task). `inside`: for each, whether it was
    within `exploring()`. `last`: the index of the last one at which the plan deviates.
    """

    def __init__(self, plan: Plan, wanted: Sequence[str], most: int) -> None:
        self.widths, self.prints, self.inside = array("i"), array("L"), bytearray()
        self.labels: list[str] = []
        self.names: set[str] = set()
        self.last = -1
        self.told: list[str] = []  # the deviations in words
        self.wrong = ""  # why the plan is of another scenario
        self.is_cut = False
        self.is_marked = False
        self.depth = 0  # of `exploring()`
        self.steps = 0
        self._seen = -1  # steps, when the last turn began
        self._plan = plan
        self._picks = dict(plan.picks)
        self._wanted = wanted
        self._most = most
        self._orders = 0
        self._held: set[int] = set()  # ids of what is held
        self._held_for = 0  # turns
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._begun: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._is_cancelled = False

    # ---- order ------------------------------------------------------------------------------------------------------

    def order(self, tasks: Sequence[T], names: Sequence[str]) -> list[T]:
        """Those of these tasks that shall run in this turn, in their order. The others must be asked for again."""
        ready = list(zip(tasks, map(_plain, names), strict=True))
        self._held &= {id(task) for task in tasks}
        left = [one for one in ready if id(one[0]) not in self._held]
        self._held_for = self._held_for + 1 if self._held and left else 0
        if not left or self._held_for > LONGEST:
            left = ready
            self._held.clear()
        while len(left) > 1 and (hold := self._hold([name for _, name in left])):
            self._held.add(id(left.pop(hold - 1)[0]))
        self.steps += len(left)
        done: list[T] = []
        while len(left) > 1:
            pick = self._put_off([name for _, name in left])
            left = left[pick:] + left[:pick]
            done.append(left.pop(0)[0])
        return [*done, *(task for task, _ in left)]

    def _hold(self, names: Sequence[str]) -> int:
        hold = self._pick("hold", len(names) + 1, names)
        if hold:
            self.told.append(
                f"{self._orders - 1}: {short_name(names[hold - 1])} is held until the others wait"
            )
        return hold

    def _put_off(self, names: Sequence[str]) -> int:
        pick = self._pick("order", len(names), names)
        if pick:
            put_off = " and ".join(map(short_name, names[:pick]))
            self.told.append(f"{self._orders - 1}: {short_name(names[pick])} before {put_off}")
        return pick

    def _pick(self, kind: str, width: int, names: Sequence[str]) -> int:
        if self._orders >= self._most:
            self.is_cut = True
            return 0
        number = self._orders
        self._orders += 1
        self._note(width, f"{kind} {','.join(names)}")
        pick = self._picks.get(number, 0)
        if pick:
            self.last = len(self.widths) - 1
        if pick >= width:
            self.wrong = self.wrong or f"choice {number} has {width} ways, and no way {pick}"
            return 0
        return pick

    # ---- cancel -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A turn begins: a task may be cancelled."""
        if self.steps == self._seen:
            return
        self._seen = self.steps
        for label, scope in tuple(self._scopes.items()):
            if self._is_cancelled:
                return
            self._turns[label] += 1
            if label not in self.labels:
                self.labels.append(label)
            self._note(-1 - self.labels.index(label), label)
            cancel = self._plan.cancel
            if cancel is not None and (cancel.task, cancel.turn) == (label, self._turns[label]):
                self.last = len(self.widths) - 1
                self._is_cancelled = True
                self.told.append(f"{label} is cancelled")
                scope.cancel()

    def may_cancel(self, name: str) -> bool:
        """Whether a task of this name may be cancelled: by its full name, or by what is after its last dot."""
        self.names |= {name, short_name(_plain(name))}
        return name in self._wanted or short_name(name) in self._wanted

    async def cancellable(self, body: Coroutine[Any, Any, T], name: str) -> T | None:
        """Await `body` where it can be cancelled. The second task of a name is called `name#2`."""
        name = short_name(name)
        self._begun[name] += 1
        label = name if self._begun[name] == 1 else f"{name}#{self._begun[name]}"
        with anyio.CancelScope() as scope:
            self._scopes[label] = scope
            try:
                return await body
            finally:
                del self._scopes[label]
        return None

    # ---- afterwards -------------------------------------------------------------------------------------------------

    def _note(self, width: int, who: str) -> None:
        self.widths.append(width)
        self.prints.append(crc32(who.encode()))
        self.inside.append(self.depth > 0)

    def finish(self) -> None:
        """The run is over: were all deviations of the plan met?"""
        cancel = self._plan.cancel
        if late := [number for number in self._picks if number >= self._orders]:
            self.wrong = self.wrong or f"there are {self._orders} choices, and no choice {late[0]}"
        if cancel is not None and not self._is_cancelled:
            turns = self._turns[cancel.task]
            self.wrong = self.wrong or f"{cancel.task} lives for {turns} turns, and not for {cancel.turn}"


@attrs.define
class _Now:
    choices: Choices | None = None


_now = _Now()


@contextmanager
def deciding(choices: Choices) -> Generator[None]:
    """While it is open, these are the choices that `exploring` marks."""
    before, _now.choices = _now.choices, choices
    try:
        yield
    finally:
        _now.choices = before


@contextmanager
def exploring() -> Generator[None]:
    """In a scenario: only what happens while this is open is explored. Before and after it, everything is done in the
    default order, and nobody is cancelled.

    A scenario that never opens it is explored from its beginning to its end. Outside of `explore` it does nothing.
    """
    choices = _now.choices
    if choices is None:
        yield
        return
    choices.is_marked = True
    choices.depth += 1
    try:
        yield
    finally:
        choices.depth -= 1


def _plain(name: str) -> str:
    return _COUNTED.sub("task", name)


def short_name(name: str) -> str:
    """The name of a function without where it is."""
    return name.rpartition(".")[2]
