"""B20: a call with a provider of OpenTelemetry, against the same call without one.

The provider is what `serve --otlp` makes: the SDK's, with its batches, its histograms and its exporter, to a collector
on this machine that answers and throws away. Embedded: two rooms in one process, of which one is given the providers.
Through the gateway: `serve --otlp` and `serve`. All on one core; the collector and the threads of the exporter are on
it, too, because whoever traces pays for them. Beside the latency stands the processor time of our process, with those
threads: what they do in the background may fall into the other side's turn.

Without a provider the feature must cost nothing. That is counted and not timed: the bounds of
`tests/whole/test_call_cost.py` are those from before there were spans.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import attrs

from greenroom import Greenroom
from greenroom.gateway.otlp import exporting

from ._far_end import BACKENDS, TEXT, config_of, room_of
from ._figures import Figure, at_most, ratio
from ._gateways import Gateway, exposures, ours
from ._processes import burnt
from ._rounds import Size, one_core, take_async_turns, take_turns
from ._run import run_alone
from ._wire_client import WireClient

BOUND = at_most(1.6, 1.3)
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(size: Size) -> Iterator[Figure]:
    with one_core(), collector() as url:
        for backend in BACKENDS:
            yield from _compared(f"call, {backend}", anyio.run(_embedded, size, url, backend=backend))
        for expose in exposures():
            yield from _compared(f"gateway, {expose}", _through_gateway(size, url, expose))


@attrs.define
class Seen:
    """Microseconds a call of one side, by the clock and of the processor of its process."""

    latency: list[float] = attrs.field(factory=list[float])
    processor: list[float] = attrs.field(factory=list[float])

    def take(self, count: int, latency: float, processor: float) -> float:
        """The first turn warms up."""
        self.processor.append(processor / count * 1e6)
        return latency / count * 1e6


def _compared(what: str, sides: Sequence[Seen]) -> Iterator[Figure]:
    traced, plain = sides
    times = (
        (what, traced.latency, plain.latency),
        (f"{what}: processor", traced.processor[1:], plain.processor[1:]),
    )
    for named, with_spans, without in times:
        yield ratio("B20", named, ("with spans", with_spans), ("without", without), "µs", BOUND)


@contextmanager
def collector() -> Generator[str]:
    """The URL of a collector that keeps nothing. It is a process of its own."""
    command = [sys.executable, "-c", COLLECTOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


async def _embedded(size: Size, url: str) -> list[Seen]:
    count, sides = size.of(400, 5), [Seen(), Seen()]
    with exporting(url, _not_heard) as providers:
        given = Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", **providers)
        async with given as traced, room_of(config_of(1)) as plain:

            async def called(room: Greenroom, seen: Seen) -> float:
                clock, processor = time.perf_counter(), time.process_time()
                for _ in range(count):
                    await room.call("echo0_echo", TEXT)
                return seen.take(count, time.perf_counter() - clock, time.process_time() - processor)

            turns = [partial(called, room, seen) for room, seen in zip((traced, plain), sides, strict=True)]
            for seen, taken in zip(sides, await take_async_turns(turns, 3 * size.rounds), strict=True):
                seen.latency = taken
    return sides


def _not_heard(text: str) -> None:
    raise AssertionError(text)


def _through_gateway(size: Size, url: str, expose: str) -> list[Seen]:
    count, sides = size.of(250, 3), [Seen(), Seen()]

    def called(client: WireClient, seen: Seen) -> float:
        before = burnt(client.pid)
        latency = client.latency(count)
        return seen.take(count, latency * count / 1e6, burnt(client.pid) - before)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        clients: list[WireClient] = []
        for gateway in _pair(Path(folder), url, expose):
            client = WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env)
            clients.append(stack.enter_context(client))
            client.initialize()
            client.check_call("hello")
        turns = [partial(called, client, seen) for client, seen in zip(clients, sides, strict=True)]
        for seen, taken in zip(sides, take_turns(turns, 3 * size.rounds), strict=True):
            seen.latency = taken
    return sides


def _pair(folder: Path, url: str, expose: str) -> Iterator[Gateway]:
    for name, options in (("traced", ("--otlp", url)), ("plain", ())):
        home = folder / name
        home.mkdir()
        gateway = ours(home, expose=expose)
        yield attrs.evolve(gateway, name=name, command=(*gateway.command, *options))


if __name__ == "__main__":
    run_alone(measure)
