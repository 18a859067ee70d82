"""B20: a call with a provider of OpenTelemetry, against the same call without one.

The provider is what `serve --otlp` makes: the SDK's, with its batches, its histograms and its exporter, to a collector
on this machine that answers and throws away. Embedded: two rooms in one process, of which one is given the providers.
Through the gateway: `serve --otlp` and `serve`. All on one core; the collector and the threads of the exporter are on
it, too, because whoever traces pays for them. Beside the latency stands the processor time of our process, with those
threads: what they do in the background may fall into the other side's turn.

A third side says how much of that is ours. It makes the same spans and durations by hand, with the attributes that a
call of a traced room has told, around each call of the room without a provider; by the same SDK, to the same collector.
No program that wants these spans can have them for less, so the ratio to this floor is what we can make better. It is
embedded, where both are in one process; of the gateway's spans, the floor is how the others are made.

Without a provider the feature must cost nothing. That is counted and not timed: the bounds of
`tests/whole/test_call_cost.py` are those from before there were spans.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanKind, set_span_in_context

from greenroom import Greenroom
from greenroom.observe.otlp import exporting

from ._far_end import BACKENDS, TEXT, config_of, room_of
from ._figures import Figure, at_most, ratio
from ._gateways import EXPOSURES, Gateway, ours
from ._processes import burnt
from ._rounds import Size, one_core, take_async_turns, take_turns
from ._run import run_alone
from ._wire_client import WireClient

BOUND = at_most(1.6, 1.3)
OURS = at_most(1.3, 1.15)  # over the SDK alone
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
            *sides, by_hand = anyio.run(_embedded, size, url, backend=backend)
            yield from _compared(f"call, {backend}", sides)
            yield from _over_the_floor(f"call, {backend}: to the SDK alone", sides[0], by_hand)
        for expose in EXPOSURES:
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


def _over_the_floor(what: str, traced: Seen, by_hand: Seen) -> Iterator[Figure]:
    times = (
        (what, traced.latency, by_hand.latency),
        (f"{what}: processor", traced.processor[1:], by_hand.processor[1:]),
    )
    for named, with_spans, floor in times:
        yield ratio("B20", named, ("with spans", with_spans), ("the SDK alone", floor), "µs", OURS)


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
    count, sides = size.of(400, 5), [Seen(), Seen(), Seen()]
    told = await _told_of_a_call()
    with exporting(url, _not_heard) as providers:
        given = Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", **providers)
        async with given as traced, room_of(config_of(1)) as plain:
            by_hand = ByHand(told, **providers)

            async def called(room: Greenroom, around: Callable[[], object], seen: Seen) -> float:
                clock, processor = time.perf_counter(), time.process_time()
                for _ in range(count):
                    await room.call("echo0_echo", TEXT)
                    around()
                return seen.take(count, time.perf_counter() - clock, time.process_time() - processor)

            turns = [
                partial(called, traced, _nothing, sides[0]),
                partial(called, plain, _nothing, sides[1]),
                partial(called, plain, by_hand.tell, sides[2]),
            ]
            for seen, taken in zip(sides, await take_async_turns(turns, 3 * size.rounds), strict=True):
                seen.latency = taken
    return sides


def _nothing() -> None:
    pass


@attrs.frozen
class Told:
    """What a traced room has told of one call: its spans, each with its parent's place among them, and its duration."""

    spans: Sequence[tuple[str, SpanKind, Mapping[str, Any], int | None]]
    durations: Sequence[tuple[str, Mapping[str, Any]]]


async def _told_of_a_call() -> Told:
    spans, durations = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    providers: dict[str, Any] = {"tracer_provider": tracers, "meter_provider": MeterProvider([durations])}
    async with Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", **providers) as room:
        await room.call("echo0_echo", TEXT)  # it waits for its server
        spans.clear()
        await room.call("echo0_echo", TEXT)
        found = sorted(
            spans.get_finished_spans(), key=lambda span: (span.start_time or 0, span.parent is not None)
        )
        places = {span.context.span_id: place for place, span in enumerate(found) if span.context}
        data = durations.get_metrics_data()
    return Told(
        [
            (
                span.name,
                span.kind,
                dict(span.attributes or {}),
                places.get(span.parent.span_id) if span.parent else None,
            )
            for span in found
        ],
        [
            (metric.name, dict(point.attributes or {}))
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name == "mcp.client.operation.duration"
        ],
    )


class ByHand:
    """Tells the same, with as few steps of the SDK as do it."""

    def __init__(self, told: Told, tracer_provider: Any, meter_provider: Any) -> None:
        self._told = told
        self._tracer = tracer_provider.get_tracer("by hand")
        meter = meter_provider.get_meter("by hand")
        self._durations = [(meter.create_histogram(name, "s"), said) for name, said in told.durations]

    def tell(self) -> None:
        now, begun = time.time_ns(), list[Span]()
        for name, kind, said, parent in self._told.spans:
            context = Context() if parent is None else set_span_in_context(begun[parent], Context())
            begun.append(self._tracer.start_span(name, context, kind, attributes=said, start_time=now))
        for span in reversed(begun):
            span.end(now)
        for histogram, said in self._durations:
            histogram.record(0.001, said)


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
