"""B3: client → gateway → server, stdio on both sides: a call's latency, and calls a second with 64 in flight.

Judged against a bare forwarder, which does nothing but forward, in the same run: no gateway in Python can be without
what a third process and its loop cost on the machine at hand. The ratio to no gateway at all (the same client on the
server itself) is context, for the forwarder too: most of it is that price. The processor time that a call takes of our
process is judged in the same way, against the forwarder's.

Judged against other gateways as well: FastMCP's proxy, and MetaMCP where it can be had. A native proxy stands beside
them (tooner, in Go): what no Python reaches, and so without a bound. `direct` passes a tool through
under its own name, as FastMCP does; `proxy` is the one `mcp` tool, which removes credentials from results, bounds them
and renders them for a model, as MetaMCP's `mcp_call` does.

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
from ._gateways import EXPOSURES, NATIVE, NO_GATEWAY, Gateway, fastmcp, forwarders, metamcp, native, ours
from ._processes import burnt
from ._rounds import Size, one_core, take_turns
from ._run import run_alone
from ._wire_client import WireClient

Samples = dict[str, list[float]]
Pair = tuple[Bound | None, Bound | None]  # of latency, of throughput

LIMIT = "bare forwarder, asyncio"
BOUNDS: Mapping[tuple[str, str], Pair] = {
    ("direct", LIMIT): (at_most(1.4, 1.25), None),
    ("proxy", LIMIT): (at_most(1.6, 1.5), None),
    ("direct", "FastMCP proxy"): (at_most(0.06), at_least(60, 100)),
    ("proxy", "FastMCP proxy"): (at_most(0.08), at_least(35)),
    ("proxy", "MetaMCP"): (at_most(0.5), at_least(4)),
}
PROCESSOR: Mapping[str, Bound] = {"direct": at_most(1.7, 1.4), "proxy": at_most(2.3, 2)}
UNBOUND: Pair = (None, None)


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        others = [fastmcp(), *filter(None, [metamcp(home), native()])]
        limits = forwarders()
        our_doors = [ours(home, expose=name) for name in EXPOSURES]
        seen = _measured([*our_doors, *limits, NO_GATEWAY, *others], size)
    measured = {other.name for other in others}
    missing = [name for name in ("MetaMCP", NATIVE) if name not in measured]
    note = f"{' and '.join(missing)} not measured: npm has no such package here" if missing else ""
    for door in our_doors:
        for peer in (LIMIT, NO_GATEWAY.name, *(other.name for other in others)):
            yield from _compared(door.name, peer, seen, note)
        for peer in (LIMIT, *measured.intersection((NATIVE,))):
            yield _processor(door.name, peer, seen)
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
    how = _short(door)
    latency, throughput = BOUNDS.get((how, peer), UNBOUND)
    for what, samples, unit, bound in (
        (f"latency ÷ {peer}", seen.latency, "µs", latency),
        (f"latency ÷ {peer}, all cores", seen.latency_on_all, "µs", None),
        (f"calls/s at 64 ÷ {peer}", seen.throughput, "/s", throughput),
    ):
        yield ratio("B3", f"{how}: {what}", (door, samples[door]), (peer, samples[peer]), unit, bound, note)


def _processor(door: str, peer: str, seen: Seen) -> Figure:
    how, processor = _short(door), seen.processor
    bound = PROCESSOR.get(how) if peer == LIMIT else None
    what = f"{how}: processor of a call ÷ {peer}"
    return ratio("B3", what, (door, processor[door]), (peer, processor[peer]), "µs", bound)


def _short(door: str) -> str:
    return door.removeprefix("greenroom serve --expose ")


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
        client.initialize()
        client.check_call("hello")
    except BaseException:
        client.__exit__(None, None, None)
        raise
    return client


if __name__ == "__main__":
    run_alone(measure)
