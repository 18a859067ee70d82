"""Whatever the attack, the neighbours go on: the table of attacks (`_rows`), tried at the doors (`_doors`).

Every test run tries the quick rows, each at one door, and measures no stalls, because other tests run beside them.
`make hostile` tries each row at each door, one at a time.
CI tries each row at one of its doors, one at a time. (The row's name decides which door, so a new row moves no other.
Nearly every attack is handled below the doors.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from zlib import crc32

import pytest

from ._play import play_all
from ._rows import ROWS
from ._words import DOORS, Row

WHICH = os.environ.get("GREENROOM_HOSTILE", "quick")  # or `each`: at one door; or anything else: all
IS_ALONE = WHICH != "quick"


def plays() -> Iterator[tuple[str, Sequence[Row]]]:
    quick = [row for row in ROWS if row.quick]
    for door in DOORS:
        fitting = [row for row in ROWS if door not in row.not_at]
        if WHICH == "each":
            yield from ((door, [row]) for row in ROWS if one_of(row) == door)
        elif IS_ALONE:
            yield from ((door, [row]) for row in fitting)
        else:
            yield door, [row for row in quick if one_of(row) == door]


def one_of(row: Row) -> str:
    """The door at which the row is tried when it is tried at only one."""
    doors = [door for door in DOORS if door not in row.not_at]
    return doors[crc32(row.name.encode()) % len(doors)]


@pytest.mark.parametrize(
    ("door", "rows"),
    [pytest.param(door, rows, id=f"{rows[0].name if IS_ALONE else 'some'}-{door}") for door, rows in plays()],
)
def test_the_neighbours_go_on(door: str, rows: Sequence[Row]) -> None:
    play_all(rows, door, is_alone=IS_ALONE)


def test_no_two_attacks_have_one_name() -> None:
    names = [row.name for row in ROWS]

    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() for name in names)
