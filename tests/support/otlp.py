"""A collector on loopback: it takes OTLP over HTTP, and decodes it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from .patience import until


@attrs.frozen
class Received:
    """One span of one program."""

    service: str
    name: str
    kind: str
    id: bytes
    parent: bytes
    trace: bytes
    start: int
    end: int
    said: Mapping[str, Any]
    is_error: bool


class Collector:
    def __init__(self) -> None:
        self.port = 0
        self.bodies: list[bytes] = []
        self.spans: list[Received] = []
        self.metrics: dict[str, list[Any]] = {}
        self.headers: list[Mapping[str, str]] = []
        self.paths_refused: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, *names: str) -> None:
        until(lambda: set(names) <= {span.name for span in self.spans}, f"{names}")

    def below(self, parent: Received) -> list[Received]:
        found = [span for span in self.spans if span.parent == parent.id]
        return sorted(found, key=lambda span: span.start)

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                service = str(_values(resource.resource.attributes)["service.name"])
                for scope in resource.scope_spans:
                    self.spans += [_received(service, span) for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics[metric.name] = [
                            (_values(point.attributes), point) for point in metric.histogram.data_points
                        ]


def _received(service: str, span: Span) -> Received:
    return Received(
        service,
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.span_id,
        span.parent_span_id,
        span.trace_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        span.status.code == Status.STATUS_CODE_ERROR,
    )


def _values(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in attributes}


@contextmanager
def collector() -> Generator[Collector]:
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            taken.headers.append(dict(self.headers))
            if self.path in taken.paths_refused:
                self.send_error(404)
                return
            taken.take(self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        taken.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield taken
        finally:
            server.shutdown()
            thread.join()
