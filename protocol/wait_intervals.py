"""What somebody waited for, as the moves of a server's start (`StartMoved`) tell: for a timeline, for spans, for the
story of a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

Moves = Iterable[tuple[float, str]]  # when a start came to which place (`Place`), in the order of time
QUEUE = "queue"


def waits(
    moves: Moves, since: float, until: float, name_of: Callable[[str], str]
) -> Iterator[tuple[str, float, float]]:
    """What there was to wait for, one after the other: its name, start and end. `name_of` names what is waited for in a
    place; what the moves do not explain is the queue."""
    name, start = QUEUE, since
    for at, place in moves:
        if at >= until:
            break
        now_for = name_of(place)
        if at > since and now_for != name:
            yield name, start, at
            start = at
        name = now_for
    yield name, start, until
