"""B15: client → `serve --http` → stdio server: a call's latency and the processor that it takes of our process, on one
connection, and calls a second with 1, 16, 64 and 256 connections, each of which has a session and a call open all the
time.

The processor is judged against the same call over stdio, which says what HTTP itself costs, and against a native proxy
where it can be had (`dcc-mcp-server translate`, in Rust, which does nothing but pass on). Latency and calls are judged
against FastMCP's proxy over HTTP. The limit beside them is a bare protocol of asyncio with a constant for an answer: no
gateway in Python can be faster. It has no server behind it and reads no HTTP, so what we take beyond it is both of
these, too.

Latency and processor are judged on one core; on all of them latency is context. Throughput has all cores.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from ._figures import Bound, Figure, at_least, at_most, ratio
from ._gateways import Gateway, ours
from ._http_client import HttpSide
from ._http_gateways import (
    FASTMCP,
    NATIVE,
    OURS,
    HttpGateway,
    constant,
    fastmcp_over_http,
    native_over_http,
    ours_over_http,
)
from ._processes import burnt
from ._rounds import Size, one_core, take_turns
from ._run import run_alone
from ._wire_client import WireClient

Samples = dict[str, list[float]]

STDIO = "the same over stdio"
CONNECTIONS = (1, 16, 64, 256)
CALLS = {FASTMCP: 100}  # in one turn; a slow one is called less often
MANY = 3000  # in one turn of any other
LATENCY: Mapping[str, Bound] = {FASTMCP: at_most(0.1)}
PROCESSOR: Mapping[str, Bound] = {STDIO: at_most(4, 2.5), NATIVE: at_most(3.5, 2.5)}


S = TypeVar("S")


class Side(Protocol):
    @property
    def pid(self) -> int: ...

    def latency(self, count: int) -> float: ...


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        native = native_over_http()
        gateways = [
            ours_over_http(Path(folder)),
            fastmcp_over_http(),
            constant(),
            *([native] if native else []),
        ]
        over_stdio = ours(Path(other), expose="direct")
        note = "" if native else f"{NATIVE} not measured: the package index has it not here"
        peers = [gateway.name for gateway in gateways[1:]]
        with one_core(), _up(gateways, 1) as sides, _piped(over_stdio) as piped:
            latency, processor = _each({**sides, STDIO: piped}, size, 3 * size.rounds)
        for peer in (*peers, STDIO):
            yield _compared(f"latency ÷ {peer}", latency, peer, "µs", LATENCY.get(peer), note)
            yield _compared(f"processor of a call ÷ {peer}", processor, peer, "µs", PROCESSOR.get(peer), note)
        with _up(gateways, 1) as sides:
            latency, _ = _each(sides, size, size.rounds)
            for peer in peers:
                yield _compared(f"latency, all cores ÷ {peer}", latency, peer, "µs")
            for connections in CONNECTIONS if not size.quick else (1, 4):
                for side in sides.values():
                    side.connect(connections)
                many = _turns(sides, lambda name, side: side.throughput(_count(size, name, 1)), size.rounds)
                for peer in peers:
                    bound = at_least(5, 10) if (connections, peer) == (64, FASTMCP) else None
                    yield _compared(f"calls/s at {connections} ÷ {peer}", many, peer, "/s", bound)


def _count(size: Size, name: str, part: int) -> int:
    return size.of(CALLS.get(name, MANY) // part, 4)


def _compared(
    what: str, seen: Samples, peer: str, unit: str, bound: Bound | None = None, note: str = ""
) -> Figure:
    return ratio("B15", what, (OURS, seen[OURS]), (peer, seen[peer]), unit, bound, note)


def _each(sides: Mapping[str, Side], size: Size, rounds: int) -> tuple[Samples, Samples]:
    """By side: microseconds a call of the clock, and of the processor of its own process."""
    processor: Samples = defaultdict(list)

    def both(name: str, side: Side) -> float:
        count, before = _count(size, name, 5), burnt(side.pid)
        found = side.latency(count)
        processor[name].append((burnt(side.pid) - before) / count * 1e6)
        return found

    latency = _turns(sides, both, rounds)
    return latency, {name: samples[1:] for name, samples in processor.items()}  # the first turn warms up


@contextmanager
def _up(gateways: Sequence[HttpGateway], connections: int) -> Generator[dict[str, HttpSide]]:
    with ExitStack() as stack:
        sides = {gateway.name: stack.enter_context(gateway.served()) for gateway in gateways}
        for side in sides.values():
            side.connect(connections)
        yield sides


@contextmanager
def _piped(gateway: Gateway) -> Generator[WireClient]:
    with WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env) as client:
        client.initialize()
        client.check_call("hello")
        yield client


def _turns(sides: Mapping[str, S], turn: Callable[[str, S], float], rounds: int) -> Samples:
    turns = [lambda name=name, side=side: turn(name, side) for name, side in sides.items()]
    return dict(zip(sides, take_turns(turns, rounds), strict=True))


if __name__ == "__main__":
    run_alone(measure)
