"""B8: memory for each configured server that nobody has called yet, and of the gateway against FastMCP's proxy.

A room with many servers and a room with one, each in a process of its own; the difference, divided. The gateways are
measured connected, after a call.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import anyio

from ._far_end import config_of, room_of
from ._figures import Figure, at_most, quantity, ratio
from ._gateways import EXPOSURES, Gateway, fastmcp, ours
from ._processes import rss
from ._rounds import Size, take_turns
from ._run import run_alone
from ._wire_client import WireClient

SERVERS = 1000
MANY = 100  # servers, above which what processes differ by is nothing beside them


def measure(size: Size) -> Iterator[Figure]:
    each, one = take_turns([lambda: per_server(SERVERS), lambda: room_rss(1) / 1024], size.of(5, 1))
    beside = {"a room of one": one[0]}
    yield quantity("B8", f"memory per idle server, of {SERVERS:,}", each, "KiB", at_most(4, 3), beside)
    with tempfile.TemporaryDirectory() as folder:
        gateway, peer = ours(Path(folder), expose=EXPOSURES[0]), fastmcp()
        mine, theirs = take_turns([lambda: gateway_rss(gateway), lambda: gateway_rss(peer)], size.of(5, 1))
    yield ratio("B8", "gateway's memory ÷ FastMCP proxy", ("greenroom serve", mine), (peer.name, theirs), "MiB",
                at_most(0.45, 0.35))  # fmt: skip


def per_server(count: int) -> float:
    """KiB for each of `count` servers."""
    return (room_rss(count) - room_rss(1)) / (count - 1) / 1024


def room_rss(count: int) -> int:
    """Resident bytes of a process with a room of `count` servers."""
    return _probed("resident", count)


def allocated_per_server(count: int) -> float:
    """The same in bytes that Python allocated, for ten servers are less than one page.

    Two processes differ by some 10 KiB, which is much for ten servers: so the median of as many as that takes.
    """
    times = 1 if count > MANY else 5
    above = (_probed("allocated", count) - _probed("allocated", 1) for _ in range(times))
    return statistics.median(above) / (count - 1) / 1024


def _probed(what: str, count: int) -> int:
    command = [sys.executable, "-m", "benchmarks.b08_memory", "probe", what, str(count)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def gateway_rss(gateway: Gateway) -> float:
    """MiB, when it has connected its server and answered a call."""
    with WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env) as client:
        client.initialize()
        client.ask("tools/list", {})
        client.check_call("hello")
        return rss(client.pid) / 2**20


async def probe(what: str, count: int) -> None:
    if what == "allocated":
        tracemalloc.start()
    config = config_of(count)
    async with room_of(config) as room:
        assert len(room.status()) == count
        del config
        gc.collect()
        print(tracemalloc.get_traced_memory()[0] if what == "allocated" else rss())


if __name__ == "__main__":
    if sys.argv[1:2] == ["probe"]:
        anyio.run(probe, sys.argv[2], int(sys.argv[3]), backend="trio")
    else:
        run_alone(measure)
