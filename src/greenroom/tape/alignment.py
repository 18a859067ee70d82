"""Which items of two sequences belong together, as in a text diff. Pure.

Equal items at both ends are taken first. What is left is solved at best if it is short: so that as many items as
possible are equal to their partners, and then as many as possible alike. If it is long, it is cut at those items that
are there exactly once on each side and in the same order (patience diff). Where no item is there just once, the first
of each kind belongs to the first, the second to the second. So it takes n log n steps a level, and levels are bounded:
a tape has a million calls, and a hostile one has them in the order that is the worst.

Rejected: `difflib.SequenceMatcher`. It takes a quadratic number of steps where items repeat, as the calls of an agent
that polls do, or it leaves out just those; and it knows no items that are alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Final

Pair = tuple[int, int]
Alike = Callable[[int, int], bool]  # of two places
_DEEPEST: Final = 30
_SHORT: Final = 10_000  # pairs of places that are all looked at: a few milliseconds
_EQUAL: Final = 3  # what an equal pair counts; one that is alike counts 1


def aligned(
    first: Sequence[Hashable], second: Sequence[Hashable], alike: Alike = lambda _at, _other: False
) -> list[Pair]:
    """Places of equal items, rising on both sides. `alike`: whether items that are not equal had better face each other
    than others."""
    pairs: list[Pair] = []
    todo = [(0, len(first), 0, len(second), 0)]
    while todo:
        at, end, other, other_end, depth = todo.pop()
        while at < end and other < other_end and first[at] == second[other]:
            pairs.append((at, other))
            at, other = at + 1, other + 1
        while at < end and other < other_end and first[end - 1] == second[other_end - 1]:
            end, other_end = end - 1, other_end - 1
            pairs.append((end, other_end))
        if at == end or other == other_end:
            continue
        if (end - at) * (other_end - other) <= _SHORT:
            pairs += _best(first, second, alike, range(at, end), range(other, other_end))
            continue
        found = _rising(_candidates(first, second, at, end, other, other_end))
        if depth == _DEEPEST:
            pairs += found
            continue
        for here, there in (*found, (end, other_end)):
            todo.append((at, here, other, there, depth + 1))
            at, other = here, there
    return sorted(pairs)


def _best(
    first: Sequence[Hashable], second: Sequence[Hashable], alike: Alike, here: range, there: range
) -> list[Pair]:
    """The equal pairs of the best alignment, in which equal pairs count more than alike ones."""

    def worth(at: int, other: int) -> int:
        return _EQUAL if first[at] == second[other] else int(alike(at, other))

    # rows[i][j]: what the rest from the i-th and j-th place on counts at most.
    rows = [[0] * (len(there) + 1) for _ in range(len(here) + 1)]
    for i in range(len(here) - 1, -1, -1):
        row, below = rows[i], rows[i + 1]
        for j in range(len(there) - 1, -1, -1):
            row[j] = max(below[j], row[j + 1], worth(here[i], there[j]) + below[j + 1])
    pairs: list[Pair] = []
    i = j = 0
    while i < len(here) and j < len(there):
        value = worth(here[i], there[j])
        if value and rows[i][j] == value + rows[i + 1][j + 1]:
            if value == _EQUAL:
                pairs.append((here[i], there[j]))
            i, j = i + 1, j + 1
        elif rows[i][j] == rows[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _candidates(
    first: Sequence[Hashable], second: Sequence[Hashable], at: int, end: int, other: int, other_end: int
) -> list[Pair]:
    """Equal items that may belong together, each at most once, in the order of the first."""
    here, there = _places(first, at, end), _places(second, other, other_end)
    once = [
        (places[0], there[item][0])
        for item, places in here.items()
        if len(places) == 1 and len(there.get(item, ())) == 1
    ]
    if once:
        return once
    return sorted(
        pair for item, places in here.items() for pair in zip(places, there.get(item, ()), strict=False)
    )


def _places(items: Sequence[Hashable], begin: int, end: int) -> dict[Hashable, list[int]]:
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for at in range(begin, end):
        found[items[at]].append(at)
    return found


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """As many of the pairs as can be in the same order on both sides. They are given in the order of the first."""
    lasts: list[int] = []  # for each length, the smallest second place with which a row of it ends
    ends: list[int] = []  # the number of that pair
    before: list[int] = []  # for each pair, the one before it in its row
    for number, (_, there) in enumerate(pairs):
        length = bisect_left(lasts, there)
        before.append(ends[length - 1] if length else -1)
        lasts[length : length + 1] = [there]
        ends[length : length + 1] = [number]
    row: list[Pair] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        row.append(pairs[number])
        number = before[number]
    return row[::-1]
