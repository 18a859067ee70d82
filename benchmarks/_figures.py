"""A figure: one measured number, what it may be, and what was seen beside it."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import ge, le
from typing import Any

import attrs

TIMES = "×"  # the unit of a ratio


class Verdict(enum.Enum):
    REACHED = "aim"
    HELD = "must"
    MISSED = "MISSED"
    SHOWN = ""  # context: nothing is asked of it


@attrs.frozen
class Bound:
    """What a figure must reach, and what it aims for; `sense` is "≤" or "≥"."""

    sense: str
    must: float
    aim: float | None = None

    def judge(self, value: float) -> Verdict:
        reaches: Callable[[float, float], bool] = le if self.sense == "≤" else ge
        if not reaches(value, self.must):
            return Verdict.MISSED
        return Verdict.REACHED if self.aim is not None and reaches(value, self.aim) else Verdict.HELD

    def __str__(self) -> str:
        aim = "" if self.aim is None else f" ({number(self.aim)})"
        return f"{self.sense} {number(self.must)}{aim}"


def at_most(must: float, aim: float | None = None) -> Bound:
    return Bound("≤", must, aim)


def at_least(must: float, aim: float | None = None) -> Bound:
    return Bound("≥", must, aim)


@attrs.frozen
class Figure:
    """`value` in `unit` (`TIMES` for a ratio), between `low` and `high` over the rounds. `seen` is what it was made of:
    medians by side, in `seen_unit`."""

    row: str
    what: str
    value: float
    low: float
    high: float
    unit: str = TIMES
    bound: Bound | None = None
    seen: Mapping[str, float] = attrs.field(factory=dict[str, float])
    seen_unit: str = ""
    note: str = ""

    @property
    def result(self) -> str:
        """The value and its unit; of one that missed its bound, with the digit that shows it."""
        return f"{number(self.value, self._missed)} {self.unit}".strip()

    @property
    def spread(self) -> str:
        return f"{number(self.low, self._missed)} … {number(self.high, self._missed)}"

    @property
    def _missed(self) -> float | None:
        return self.bound.must if self.bound is not None and self.verdict is Verdict.MISSED else None

    @property
    def verdict(self) -> Verdict:
        return self.bound.judge(self.value) if self.bound is not None else Verdict.SHOWN

    def as_record(self) -> dict[str, Any]:
        """JSON-ready; `from_record` reads it back."""
        return attrs.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Figure:
        fields = dict(record)
        bound: Any = fields.pop("bound")
        return cls(**fields, bound=Bound(**bound) if bound is not None else None)


def ratio(
    row: str,
    what: str,
    ours: tuple[str, Sequence[float]],
    theirs: tuple[str, Sequence[float]],
    unit: str,
    bound: Bound | None = None,
    note: str = "",
) -> Figure:
    """Ours ÷ theirs, round by round. Each side is its name and one sample (in `unit`) per round."""
    ratios = [our / their for our, their in zip(ours[1], theirs[1], strict=True)]
    seen = {name: statistics.median(samples) for name, samples in (ours, theirs)}
    return Figure(
        row, what, statistics.median(ratios), min(ratios), max(ratios),
        bound=bound, seen=seen, seen_unit=unit, note=note,
    )  # fmt: skip


def quantity(
    row: str,
    what: str,
    samples: Sequence[float],
    unit: str,
    bound: Bound | None = None,
    beside: Mapping[str, float] | None = None,
    note: str = "",
) -> Figure:
    """A number that is judged as it is, in `unit`; `beside` it in the same unit whatever it is to be compared with."""
    return Figure(
        row, what, statistics.median(samples), min(samples), max(samples),
        unit=unit, bound=bound, seen=beside or {}, seen_unit=unit, note=note,
    )  # fmt: skip


def number(value: float, beside: float | None = None) -> str:
    """As many digits as say something, and as many as tell it from the number that it stands beside."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.095 else 3
    if beside is not None and beside != value:
        while f"{value:.{digits}f}" == f"{beside:.{digits}f}":
            digits += 1
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
