"""B3: client → gateway → server, stdio on both sides: a call's latency, and calls a second with 64 in flight.

Against no gateway at all (the same client on the server itself), FastMCP's proxy and MetaMCP. `direct` passes a tool
through under its own name, as FastMCP does, and is judged against that; `proxy` is the one `mcp` tool, which reads what
passes, bounds it and renders it for a model, as MetaMCP's `mcp_call` does, and is judged against that one.

A bare forwarder, which does nothing but forward, stands beside them as the limit: the difference to no gateway is what
a third process costs on the machine at hand, and no gateway in Python can be without it. The processor time that a call
takes of our process is compared with the forwarder's.

Latency is judged on one core; on all of them it is context. Throughput has all cores.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from ._figures import Bound, Figure, at_least, at_most, ratio
from ._gateways import NO_GATEWAY, Gateway, exposures, fastmcp, forwarders, metamcp, ours
from ._processes import burnt
from ._rounds import Size, one_core, take_turns
from ._run import run_alone
from ._wire_client import WireClient

Samples = dict[str, list[float]]
Pair = tuple[Bound | None, Bound | None]  # of latency, of throughput

BOUNDS: Mapping[tuple[str, str], Pair] = {
    ("direct", "FastMCP proxy"): (at_most(0.15, 0.10), at_least(25, 60)),
    ("direct", "no gateway"): (at_most(3, 2), None),
    ("proxy", "MetaMCP"): (at_most(0.5), at_least(4)),
}
UNBOUND: Pair = (None, None)


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        others = [fastmcp(), *filter(None, [metamcp(home)])]
        limits = forwarders()
        our_doors = [ours(home, expose=name) for name in exposures()]
        seen = _measured([*our_doors, *limits, NO_GATEWAY, *others], size)
    note = "" if len(others) == 2 else "MetaMCP not measured: npm has no such package here"
    for door in our_doors:
        for peer in (NO_GATEWAY, *others):
            yield from _compared(door.name, peer.name, seen, note)
        yield _processor(door.name, limits[0].name, seen)
    for limit in limits:
        yield from _compared(limit.name, NO_GATEWAY.name, seen, "the limit")


@attrs.frozen
class Seen:
    """By gateway: microseconds a call on one core and on all of them, of the wall's clock and of its own processor; and
    calls a second."""

    latency: Samples
    processor: Samples
    latency_on_all: Samples
    throughput: Samples


def _compared(door: str, peer: str, seen: Seen, note: str) -> Iterator[Figure]:
    how = door.removeprefix("greenroom serve --expose ")
    latency, throughput = BOUNDS.get((how, peer), UNBOUND)
    for what, samples, unit, bound in (
        (f"latency ÷ {peer}", seen.latency, "µs", latency),
        (f"latency ÷ {peer}, all cores", seen.latency_on_all, "µs", None),
        (f"calls/s at 64 ÷ {peer}", seen.throughput, "/s", throughput),
    ):
        yield ratio("B3", f"{how}: {what}", (door, samples[door]), (peer, samples[peer]), unit, bound, note)


def _processor(door: str, limit: str, seen: Seen) -> Figure:
    what = f"{door.removeprefix('greenroom serve --expose ')}: processor of a call ÷ {limit}"
    return ratio("B3", what, (door, seen.processor[door]), (limit, seen.processor[limit]), "µs")


def _measured(gateways: list[Gateway], size: Size) -> Seen:
    """All of them up at once and taking turns, latency in many short ones: what else the machine does meanwhile then
    falls on all of them alike. An idle one costs the others nothing."""
    processor: Samples = defaultdict(list)

    def latency(name: str, client: WireClient) -> float:
        return client.latency(size.of(_calls(name, 250), 3))

    def both(name: str, client: WireClient) -> float:
        count, before = size.of(_calls(name, 250), 3), burnt(client.pid)
        found = client.latency(count)
        processor[name].append((burnt(client.pid) - before) / count * 1e6)
        return found

    def throughput(name: str, client: WireClient) -> float:
        return client.throughput(size.of(256 if "FastMCP" in name else 8000, 64))

    with one_core(), _all_connected(gateways) as clients:
        latencies = _by_name(clients, both, 3 * size.rounds)
    with _all_connected(gateways) as clients:
        return Seen(
            latencies,
            {name: samples[1:] for name, samples in processor.items()},  # the first turn warms up
            _by_name(clients, latency, size.rounds),
            _by_name(clients, throughput, size.rounds),
        )


def _calls(name: str, count: int) -> int:
    """A slow one is called less often."""
    return 40 if "FastMCP" in name else count


@contextmanager
def _all_connected(gateways: list[Gateway]) -> Generator[dict[str, WireClient]]:
    with ExitStack() as stack:
        yield {gateway.name: stack.enter_context(_connected(gateway)) for gateway in gateways}


def _by_name(
    clients: dict[str, WireClient], turn: Callable[[str, WireClient], float], rounds: int
) -> Samples:
    sides = [lambda name=name, client=client: turn(name, client) for name, client in clients.items()]
    return dict(zip(clients, take_turns(sides, rounds), strict=True))


def _connected(gateway: Gateway) -> WireClient:
    client = WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env)
    try:
        client.greet()
        client.check_call("hello")
    except BaseException:
        client.__exit__(None, None, None)
        raise
    return client


if __name__ == "__main__":
    run_alone(measure)
