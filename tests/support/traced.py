"""What a room tells to OpenTelemetry, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@attrs.frozen
class Told:
    """One span: `kind` is SERVER, CLIENT or INTERNAL; `seconds` is how long it took; `error` its `error.type`."""

    name: str
    kind: str
    id: int
    parent: int | None
    trace: int
    seconds: float
    start: int
    end: int
    said: Mapping[str, Any]
    is_error: bool
    span: ReadableSpan

    @property
    def error(self) -> Any:
        return self.said.get("error.type")


class Telemetry:
    """The providers to give to a room, and what they were told."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def providers(self) -> dict[str, Any]:
        return {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self) -> list[Told]:
        """In the order in which they began."""
        return sorted(
            map(_told, self.exporter.get_finished_spans()), key=lambda told: (told.start, -told.end)
        )

    def of(self, kind: str) -> list[Told]:
        return [told for told in self.spans() if told.kind == kind]

    def names(self) -> list[str]:
        return [told.name for told in self.spans()]

    def durations(self, name: str) -> list[tuple[dict[str, Any], HistogramDataPoint]]:
        """Each point of a histogram, with its attributes."""
        data = self.reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [(dict(point.attributes), point) for metric in metrics for point in metric.data.data_points]  # type: ignore[misc]


def _told(span: ReadableSpan) -> Told:
    assert span.context is not None
    start, end = span.start_time or 0, span.end_time or 0
    return Told(
        span.name,
        span.kind.name,
        span.context.span_id,
        span.parent.span_id if span.parent is not None else None,
        span.context.trace_id,
        (end - start) / 1e9,
        start,
        end,
        dict(span.attributes or {}),
        not span.status.is_ok and span.status.status_code.name == "ERROR",
        span,
    )
