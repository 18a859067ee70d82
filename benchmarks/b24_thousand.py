"""B24 with a thousand rollouts. It takes some minutes and 10 GiB of memory, so `make bench` leaves it out."""

from __future__ import annotations

from collections.abc import Iterator

from ._figures import Figure
from ._rounds import Size
from ._run import run_alone
from .b24_rollouts import compared


def measure(size: Size) -> Iterator[Figure]:
    yield from compared(size.of(1_000, 2), 1)


if __name__ == "__main__":
    run_alone(measure)
