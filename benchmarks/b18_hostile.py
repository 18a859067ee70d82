"""B18: ten calm servers beside each attack of `tests/hostile`: their worst stall, and the median of their calls against
the same gateway before it was attacked.

Of each kind of attack the worst is shown, by its name. A stall is the longest stretch in which the gateway's loop heard
of nothing: so is told what it does to its servers from what the machine does to all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile._doors import opened
from tests.hostile._play import ALONE, Called, Seen, copied, end, play
from tests.hostile._rows import KINDS
from tests.hostile._words import Row

from ._figures import TIMES, Figure, at_most
from ._rounds import Size
from ._run import run_alone

NEIGHBOURS = 10


def measure(size: Size) -> Iterator[Figure]:
    for kind, rows in KINDS.items():
        chosen = [row for row in rows if "direct" not in row.not_at][: size.of(len(rows), 1)]
        yield from figures(kind, {row.name: _played(row) for row in chosen})


def figures(kind: str, seen: dict[str, Seen]) -> Iterator[Figure]:
    """The worst stall, and the worst ratio of medians."""
    stalls = {name: max(call.stall for call in each.beside) * 1e3 for name, each in seen.items()}
    ratios = {name: _median(each.beside) / _median(each.calm) for name, each in seen.items()}
    yield _worst(f"{kind}: worst stall of ten calm servers", stalls, "ms", (20, 10))
    yield _worst(f"{kind}: median call beside it ÷ without", ratios, TIMES, (2, None))


def _worst(what: str, values: dict[str, float], unit: str, bound: tuple[float, float | None]) -> Figure:
    name = max(values, key=values.__getitem__)
    low, high = min(values.values()), values[name]
    note = f"of {len(values)} the worst: {name}"
    return Figure("B18", what, high, low, high, unit=unit, bound=at_most(*bound), note=note)


def _median(calls: Sequence[Called]) -> float:
    return statistics.median(call.took for call in calls)


def _played(row: Row) -> Seen:
    copy = copied()
    with (
        TemporaryDirectory(prefix="gr-") as folder,
        opened("direct", [row], Path(folder), NEIGHBOURS) as door,
    ):
        seen = play(row, door, ALONE, copy)
        end(door)
    return seen


if __name__ == "__main__":
    run_alone(measure)
