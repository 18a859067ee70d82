"""B17: memory of a session over HTTP that is open and idle, of a thousand; and sessions opened and closed a second.

A session is opened with `initialize` and `notifications/initialized` and closed with DELETE; none calls a tool, so none
has a child. The first sessions are not counted: they make what all of them share.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ._figures import Figure, at_least, at_most, quantity, ratio
from ._http_client import HttpSide
from ._http_gateways import fastmcp_over_http, ours_over_http
from ._processes import rss
from ._rounds import Size, take_turns
from ._run import run_alone

KIB = 1024
FIRST = 50


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        gateways = [ours_over_http(Path(folder), max_sessions=2000), fastmcp_over_http()]
        with gateways[0].served() as our, gateways[1].served() as their:
            sides = [our, their]
            turns = [lambda side=side: side.cycles(size.of(100, 2)) for side in sides]
            cycles = take_turns(turns, size.rounds)
            each = [_memory_each(side, size.of(1000, 5), size.of(FIRST, 1)) for side in sides]
    yield quantity(
        "B17", "memory of an idle session", [each[0]], "KiB", at_most(24, 12), {their.name: each[1]}
    )
    our_cycles, their_cycles = zip((our.name, their.name), cycles, strict=True)
    yield ratio(
        "B17", "sessions opened and closed a second ÷ FastMCP", our_cycles, their_cycles, "/s", at_least(5)
    )


def _memory_each(side: HttpSide, count: int, first: int) -> float:
    """KiB of resident memory for each of `count` sessions that are open."""
    side.leave_sessions(first)
    before = rss(side.pid)
    side.leave_sessions(count)
    return (rss(side.pid) - before) / KIB / count


if __name__ == "__main__":
    run_alone(measure)
