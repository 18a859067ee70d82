"""Histories of one incarnation, drawn by walking through the lifecycle table."""

from __future__ import annotations

from typing import Final

import attrs
from hypothesis import strategies as st

from ...protocol.lifecycle import TABLE, Cause, Effect, Ending, Life, State, Trigger, settle, step


@attrs.frozen
class Occurrence:
    """One thing that happens to an incarnation, with what `lifecycle.step` wants to know of it.

    `trigger` None: the last call in flight has ended (`lifecycle.settle`).
    """

    trigger: Trigger | None
    ending: Ending | None = None
    deadline: float | None = None
    in_flight: int = 0

    def apply(self, life: Life) -> tuple[Life, tuple[Effect, ...]]:
        """The next life, and what has to be done. Raises `IllegalTransition`."""
        if self.trigger is None:
            return settle(life)
        return step(life, self.trigger, ending=self.ending, deadline=self.deadline, in_flight=self.in_flight)


def lifecycle_events(*, most: int = 12) -> st.SearchStrategy[list[Occurrence]]:
    """What may happen to one incarnation from its beginning, each event one that the table has there.

    `most`: how many at most; they are fewer when it is closed before.
    """
    return _walks(most)


_ENDINGS: Final = st.sampled_from(Cause).map(Ending)
_DEADLINES: Final = st.integers(0, 60).map(float)
_IN_FLIGHT: Final = st.integers(0, 3)
_CHOICES: Final = {count: st.integers(0, count - 1) for count in range(1, len(Trigger) + 1)}
_END_IT: Final = frozenset({Trigger.FAILED, Trigger.DRAIN, Trigger.STOP, Trigger.LOST})


@st.composite
def _walks(draw: st.DrawFn, most: int) -> list[Occurrence]:
    life, walk = Life(), list[Occurrence]()
    for _ in range(draw(st.integers(0, most))):
        choices = _possible(life)
        if not choices:
            break
        walk.append(_drawn(draw, choices[draw(_CHOICES[len(choices)])], life))
        life, _ = walk[-1].apply(life)
    return walk


def _possible(life: Life) -> list[Trigger | None]:
    """`gone` is told of a tree that was stopped, and a deadline passes of one that was not."""
    row: list[Trigger | None] = list(TABLE[life.state])
    if life.state is not State.DRAINING:
        return row
    left_out = Trigger.DEADLINE if life.stopping else Trigger.GONE
    settles: list[Trigger | None] = [] if life.stopping else [None]
    return [trigger for trigger in row if trigger is not left_out] + settles


def _drawn(draw: st.DrawFn, trigger: Trigger | None, life: Life) -> Occurrence:
    is_busy = life.state in (State.CONNECTED, State.DRAINING) and not life.stopping
    return Occurrence(
        trigger,
        ending=draw(_ENDINGS) if trigger in _END_IT else None,
        deadline=draw(_DEADLINES) if trigger is Trigger.DRAIN else None,
        in_flight=draw(_IN_FLIGHT) if is_busy and trigger not in (None, Trigger.GONE) else 0,
    )
