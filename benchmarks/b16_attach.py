"""B16: a call through `greenroom attach` against one through `greenroom serve` on stdio: latency, and calls a second
with 64 in flight; for both exposures.

Both stand before an echo server of their own. Latency is judged on one core, where a further process in the middle
would show; on all of them it is context.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from ._figures import Bound, Figure, at_most, ratio
from ._gateways import EXPOSURES, Gateway, ours
from ._rounds import Size, one_core, take_turns
from ._run import run_alone
from ._wire_client import WireClient

Clients = dict[str, WireClient]


def measure(size: Size) -> Iterator[Figure]:
    for expose in EXPOSURES:
        with tempfile.TemporaryDirectory() as folder:
            gateways = _pair(Path(folder), expose)
            with one_core(), _connected(gateways) as clients:
                pinned = _turns(clients, lambda client: client.latency(size.of(250, 3)), 3 * size.rounds)
            with _connected(gateways) as clients:
                free = _turns(clients, lambda client: client.latency(size.of(250, 3)), size.rounds)
                many = _turns(clients, lambda client: client.throughput(size.of(8000, 64)), size.rounds)
        yield _figure(f"{expose}: latency", pinned, "µs", at_most(1.6, 1.4))
        yield _figure(f"{expose}: latency, all cores", free, "µs")
        yield _figure(f"{expose}: calls/s at 64", many, "/s")


def _figure(what: str, seen: dict[str, list[float]], unit: str, bound: Bound | None = None) -> Figure:
    attached, served = seen.items()
    return ratio("B16", f"{what} ÷ serve", attached, served, unit, bound)


def _pair(folder: Path, expose: str) -> list[Gateway]:
    """`attach` and `serve`, each with a configuration and a home of its own."""
    pair: list[Gateway] = []
    for command in ("attach", "serve"):
        home = folder / command
        home.mkdir()
        gateway = ours(home, expose=expose)
        words = tuple(command if word == "serve" else word for word in gateway.command)
        env = {**(gateway.env or {}), "XDG_STATE_HOME": str(home)}
        pair.append(attrs.evolve(gateway, name=f"greenroom {command}", command=words, env=env))
    return pair


@contextmanager
def _connected(gateways: list[Gateway]) -> Generator[Clients]:
    with ExitStack() as stack:
        clients: Clients = {}
        for gateway in gateways:
            stack.callback(_stop, gateway)
            client = WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env)
            clients[gateway.name] = stack.enter_context(client)
            client.initialize()
            client.check_call("hello")
        yield clients


def _stop(gateway: Gateway) -> None:
    """End the room in the background, which would outlive its client."""
    place = gateway.command.index("--config")
    words = [*gateway.command[: place - 1], "stop", *gateway.command[place : place + 2]]
    subprocess.run(words, env=gateway.env, stderr=subprocess.DEVNULL, check=True)


def _turns(clients: Clients, turn: Callable[[WireClient], float], rounds: int) -> dict[str, list[float]]:
    sides = [lambda client=client: turn(client) for client in clients.values()]
    return dict(zip(clients, take_turns(sides, rounds), strict=True))


if __name__ == "__main__":
    run_alone(measure)
