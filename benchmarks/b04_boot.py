"""B4: from starting `greenroom serve` with fifty lazy servers to the answer of `tools/list`, without a child.

The cache holds what all fifty have. FastMCP's proxy stands before one server only: with fifty it would start them all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ._figures import Figure, at_most, quantity, ratio
from ._gateways import Gateway, fastmcp, ours
from ._processes import children
from ._rounds import Size, take_turns
from ._run import run_alone
from ._wire_client import WireClient

SERVERS = 50


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        gateway, peer = ours(Path(folder), servers=SERVERS), fastmcp()
        _fill_cache(gateway)
        started: list[float] = []
        sides = [lambda: boot(gateway, started), lambda: boot(peer)]
        ours_ms, theirs_ms = take_turns(sides, size.of(5, 1))
    yield ratio(
        "B4", f"boot to tools/list, {SERVERS} lazy servers", ("greenroom serve", ours_ms), (peer.name, theirs_ms),
        "ms", at_most(0.15, 0.10),
    )  # fmt: skip
    yield quantity("B4", "children of it by then", started, "processes", at_most(0))


def boot(gateway: Gateway, started: list[float] | None = None) -> float:
    """Milliseconds; how many children it had then is added to `started`."""
    with WireClient(gateway.command, env=gateway.env) as client:
        client.initialize()
        client.ask("tools/list", {})
        elapsed = time.perf_counter() - client.started
        if started is not None:
            started.append(len(children(client.pid)))
    return elapsed * 1000


def _fill_cache(gateway: Gateway) -> None:
    """A first run asks every server once, in the background. Wait until none of its children is left."""
    with WireClient(gateway.command, env=gateway.env) as client:
        client.initialize()
        while f"{SERVERS} tools" not in _status(client):
            time.sleep(0.1)


def _status(client: WireClient) -> str:
    result = client.ask("tools/call", {"name": "mcp", "arguments": {}})
    return str(result["content"][0]["text"])


if __name__ == "__main__":
    run_alone(measure)
