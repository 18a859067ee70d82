"""B3: client → gateway → server, stdio on both sides: a call's latency, and calls a second with 64 in flight.

Against no gateway at all (the same client on the server itself), FastMCP's proxy and MetaMCP. `direct` passes a tool
through under its own name, as FastMCP does, and is judged against that; `proxy` is the one `mcp` tool, which reads what
passes, bounds it and renders it for a model, as MetaMCP's `mcp_call` does, and is judged against that one.

A bare forwarder, which does nothing but forward, stands beside them as the limit: the difference to no gateway is what
a third process costs on the machine at hand, and no gateway in Python can be without it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from ._figures import Bound, Figure, at_least, at_most, ratio
from ._gateways import NO_GATEWAY, Gateway, exposures, fastmcp, forwarders, metamcp, ours
from ._rounds import Size, take_turns
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
        latencies, throughputs = _measured([*our_doors, *limits, NO_GATEWAY, *others], size)
    note = "" if len(others) == 2 else "MetaMCP not measured: npm has no such package here"
    for door in our_doors:
        for peer in (NO_GATEWAY, *others):
            yield from _compared(door.name, peer.name, latencies, throughputs, note)
    for limit in limits:
        yield from _compared(limit.name, NO_GATEWAY.name, latencies, throughputs, "the limit")


def _compared(door: str, peer: str, latencies: Samples, throughputs: Samples, note: str) -> Iterator[Figure]:
    how = door.removeprefix("greenroom serve --expose ")
    latency, throughput = BOUNDS.get((how, peer), UNBOUND)
    yield ratio(
        "B3",
        f"{how}: latency ÷ {peer}",
        (door, latencies[door]),
        (peer, latencies[peer]),
        "µs",
        latency,
        note,
    )
    what = f"{how}: calls/s at 64 ÷ {peer}"
    yield ratio("B3", what, (door, throughputs[door]), (peer, throughputs[peer]), "/s", throughput, note)


def _measured(gateways: list[Gateway], size: Size) -> tuple[Samples, Samples]:
    """All of them up at once and taking turns, latency in many short ones: what else the machine does meanwhile then
    falls on all of them alike. An idle one costs the others nothing."""
    with ExitStack() as stack:
        clients = {gateway.name: stack.enter_context(_connected(gateway)) for gateway in gateways}
        latencies = _by_name(
            clients, lambda client, slow: client.latency(size.of(40 if slow else 250, 3)), 3 * size.rounds
        )
        throughputs = _by_name(
            clients, lambda client, slow: client.throughput(size.of(256 if slow else 8000, 64)), size.rounds
        )
    return latencies, throughputs


def _by_name(
    clients: dict[str, WireClient], turn: Callable[[WireClient, bool], float], rounds: int
) -> Samples:
    sides = [
        lambda name=name, client=client: turn(client, "FastMCP" in name) for name, client in clients.items()
    ]
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
