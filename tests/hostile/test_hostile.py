"""Whatever is thrown at it, the neighbours go on: the table of attacks (`_rows`), tried at the doors (`_doors`).

In every run of the tests the quick rows, shared out among the doors; with `make hostile` each row at each door, alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from ._play import play_all
from ._rows import ROWS
from ._words import DOORS, Row

IS_FULL = "GREENROOM_HOSTILE" in os.environ


def plays() -> Iterator[tuple[str, Sequence[Row]]]:
    for number, door in enumerate(DOORS):
        fitting = [row for row in ROWS if door not in row.not_at]
        if IS_FULL:
            yield from ((door, [row]) for row in fitting)
        else:
            yield door, [row for row in fitting if row.quick][number % 2 :: 2]


@pytest.mark.parametrize(
    ("door", "rows"),
    [pytest.param(door, rows, id=f"{rows[0].name if IS_FULL else 'some'}-{door}") for door, rows in plays()],
)
def test_the_neighbours_go_on(door: str, rows: Sequence[Row]) -> None:
    play_all(rows, door)


def test_no_two_attacks_have_one_name() -> None:
    names = [row.name for row in ROWS]

    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() for name in names)
