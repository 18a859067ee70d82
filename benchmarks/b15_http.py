"""B15: client → `serve --http` → stdio server: a call's latency on one connection, and calls a second with 1, 16, 64
and 256 connections, each of which has a session and a call open all the time.

Against FastMCP's proxy over HTTP, and against the ASGI server that carries our door with a constant for an answer: no
gateway on this server can be faster. That one has no server behind it, so what we take beyond it is also the pipe to
another process and back.

Latency is judged on one core; on all of them it is context. Throughput has all cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ._figures import Bound, Figure, at_least, at_most, ratio
from ._http_client import HttpSide
from ._http_gateways import CONSTANT, FASTMCP, OURS, HttpGateway, constant, fastmcp_over_http, ours_over_http
from ._rounds import Size, one_core, take_turns
from ._run import run_alone

Samples = dict[str, list[float]]

CONNECTIONS = (1, 16, 64, 256)
CALLS = {OURS: 3000, CONSTANT: 3000, FASTMCP: 100}  # in one turn; a slow one is called less often
LATENCY: Mapping[str, Bound] = {FASTMCP: at_most(0.3, 0.15), CONSTANT: at_most(2, 1.5)}
PEERS = (FASTMCP, CONSTANT)


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        gateways = [ours_over_http(Path(folder)), fastmcp_over_http(), constant()]
        with one_core(), _up(gateways, 1) as sides:
            pinned = _turns(sides, lambda side: side.latency(_count(size, side.name, 5)), 3 * size.rounds)
        yield from _compared("latency", pinned, "µs", LATENCY)
        with _up(gateways, 1) as sides:
            free = _turns(sides, lambda side: side.latency(_count(size, side.name, 5)), size.rounds)
            yield from _compared("latency, all cores", free, "µs", {})
            for connections in CONNECTIONS if not size.quick else (1, 4):
                for side in sides:
                    side.connect(connections)
                many = _turns(sides, lambda side: side.throughput(_count(size, side.name, 1)), size.rounds)
                bounds = {FASTMCP: at_least(5, 10)} if connections == 64 else {}
                yield from _compared(f"calls/s at {connections}", many, "/s", bounds)


def _count(size: Size, name: str, part: int) -> int:
    return size.of(CALLS[name] // part, 4)


def _compared(what: str, seen: Samples, unit: str, bounds: Mapping[str, Bound]) -> Iterator[Figure]:
    for peer in PEERS:
        yield ratio("B15", f"{what} ÷ {peer}", (OURS, seen[OURS]), (peer, seen[peer]), unit, bounds.get(peer))


@contextmanager
def _up(gateways: list[HttpGateway], connections: int) -> Generator[list[HttpSide]]:
    with ExitStack() as stack:
        sides = [stack.enter_context(gateway.served()) for gateway in gateways]
        for side in sides:
            side.connect(connections)
        yield sides


def _turns(sides: list[HttpSide], turn: Callable[[HttpSide], float], rounds: int) -> Samples:
    turns = [lambda side=side: turn(side) for side in sides]
    return dict(zip((side.name for side in sides), take_turns(turns, rounds), strict=True))


if __name__ == "__main__":
    run_alone(measure)
