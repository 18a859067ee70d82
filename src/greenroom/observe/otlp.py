"""`serve --otlp`: sends what the room tells to OpenTelemetry to a collector, by OTLP over HTTP.

The SDK does all of it, in threads of its own; it comes with the extra `otel`, and is loaded only here. Its variables
(`OTEL_…`) have their effect. If a collector cannot be reached, the log says so once: a gateway serves on without
it, and what it would have been told is dropped. `doctor --otlp` asks before, with the same exporters and so the same
variables: a request with nothing in it must be taken.

`tape --otlp` sends the calls of a tape (`observe/taped_spans.py`), to a collector or into a file. It waits for the
collector, since that is all that it does: the SDK's own queue would drop what does not fit.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from ..config.private_files import open_own
from ..protocol.errors import UsageError
from ..protocol.safe_text import one_line
from ..protocol.version import VERSION

if TYPE_CHECKING:
    from ..tape.tape_reader import Tape

_ANSWERS_IN: Final = 2.0  # seconds, when it is only asked whether it is there
_GRPC: Final = 4317  # the usual port of OTLP over gRPC
_LAST_WORDS: Final = (
    0.7  # seconds to send what has not been sent yet: less than the alarm of a hurried end leaves
)
_BATCH: Final = 512  # spans that are sent at once
_OURS: Final = "opentelemetry"  # the root of its loggers


@contextmanager
def exporting(url: str, tell: Callable[[str], object]) -> Generator[dict[str, Any]]:
    """The providers for a room, as options of `Greenroom.open`. `url`: the collector's; empty: as `OTEL_…` says. Raises
    `UsageError` without the extra, and for what is no URL."""
    spans, durations = _exporters(url)
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    log = logging.getLogger(_OURS)
    once = _FirstWarningTeller(tell)
    log.addHandler(once)
    log.propagate = False
    resource = Resource.create(_about_us())
    # Not at the exit of the process, which would wait for a collector that does not answer.
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(spans))
    reader = PeriodicExportingMetricReader(durations)
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    try:
        yield {"tracer_provider": tracers, "meter_provider": meters}
    finally:
        once.is_over = True
        ends = [threading.Thread(target=each.shutdown, daemon=True) for each in (tracers, meters)]
        for end in ends:
            end.start()
        until = time.monotonic() + _LAST_WORDS
        for end in ends:
            end.join(max(0.0, until - time.monotonic()))


def send_tape(tape: Tape, to: str) -> int:
    """Send the calls of a tape as spans, with the times at which they were. `to`: the URL of a collector, or a file,
    which gets them as JSON lines, as the OpenTelemetry Protocol File Exporter writes them. Returns how many spans.
    Raises `UsageError` without the extra, for a file that cannot be written, and when the collector does not take
    them."""
    is_url = to.startswith(("http://", "https://"))
    spans = _exporters(to if is_url else "")[0]
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from .taped_spans import tell_spans

    about = _about_us() | {"service.version": tape.head.greenroom, "greenroom.tape": tape.path.name}
    del about["process.pid"]  # it is not ours that made the calls
    tracers = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    with ExitStack() as opened:
        if is_url:
            opened.callback(spans.shutdown)
            batches = _Batches(partial(_send, spans, to))
        else:
            batches = _Batches(opened.enter_context(_spans_file(to)))
        tracers.add_span_processor(cast("Any", batches))
        tell_spans(tape, tracers)
        batches.send()
    return batches.sent


class _Batches:
    """A span processor that hands spans on as they come, so many at once, and drops none."""

    def __init__(self, take: Callable[[Sequence[Any]], None]) -> None:
        self._take = take
        self._ended: list[Any] = []
        self.sent = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass

    def _on_ending(self, span: Any) -> None:
        pass

    def on_end(self, span: Any) -> None:
        if span.context.trace_flags.sampled:
            self._ended.append(span)
            if len(self._ended) >= _BATCH:
                self.send()

    def send(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            self._take(ended)
            self.sent += len(ended)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def _send(exporter: Any, url: str, spans: Sequence[Any]) -> None:
    if (why := _refused(exporter, spans)) is not None:
        raise UsageError(f"The collector does not take the spans: {why}. To fix it: {_mend(url)}")


@contextmanager
def _spans_file(path: str) -> Generator[Callable[[Sequence[Any]], None]]:
    """A file for spans, which only its owner can read."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    def write(spans: Sequence[Any]) -> None:
        said = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        for span in _spans_in(said):
            for key in ("traceId", "spanId", "parentSpanId"):
                if key in span:  # ids are hexadecimal in OTLP, whatever JSON has for bytes elsewhere
                    span[key] = b64decode(span[key]).hex()
        file.write(json.dumps(said, separators=(",", ":")).encode() + b"\n")

    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, is_named=True), "wb") as file:
            yield write
    except OSError as error:
        raise UsageError(f"--otlp {path}: {error.strerror}. Name a file that can be written.") from None


def _spans_in(said: Any) -> Iterator[dict[str, Any]]:
    for resource in said["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


class _NoExporter(UsageError):
    """Nothing can be exported; with what mends that."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}. To fix it: {mend}")
        self.what, self.mend = what, mend


def _exporters(url: str, timeout: float | None = None) -> tuple[Any, Any]:
    """The SDK's own, of spans and of durations."""
    if url and not url.startswith(("http://", "https://")):
        raise _NoExporter(f"{one_line(url)} is not a URL for --otlp", "write it like http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        what = "--otlp needs packages that are not installed"
        raise _NoExporter(what, "pip install 'greenroom[otel]'") from None
    base = url.rstrip("/")
    traces, metrics = (f"{base}/v1/{what}" if base else None for what in ("traces", "metrics"))
    return OTLPSpanExporter(traces, timeout=timeout), OTLPMetricExporter(metrics, timeout=timeout)


def wrong_with(url: str) -> Iterator[tuple[str, str]]:
    """What keeps `serve --otlp` with this URL from being heard, each with what mends it."""
    try:
        spans, durations = _exporters(url, _ANSWERS_IN)
    except _NoExporter as error:
        yield error.what, error.mend
        return
    from opentelemetry.sdk.metrics.export import MetricsData

    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield "OTEL_SDK_DISABLED turns OpenTelemetry off, so nothing is sent", "unset OTEL_SDK_DISABLED"
    for name, exporter, nothing in (("spans", spans, ()), ("durations", durations, MetricsData([]))):
        why = _refused(exporter, nothing)
        exporter.shutdown()
        if why is not None:
            yield f"its collector does not take {name}: {why}", _mend(url)
            return  # the same is wrong with the other, most often


def _refused(exporter: Any, said: Any) -> str | None:
    """Why the collector does not take this; None if it does."""
    log, listener = logging.getLogger(_OURS), _FirstWarningKeeper()
    propagated, log.propagate = log.propagate, False
    log.addHandler(listener)
    try:
        taken = exporter.export(said).name == "SUCCESS"
    finally:
        log.removeHandler(listener)
        log.propagate = propagated
    return None if taken else listener.text or "it does not answer"


def _mend(url: str) -> str:
    asked = url or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if f":{_GRPC}" in urlsplit(asked).netloc:
        return f"name its port for OTLP over HTTP, often 4318: {_GRPC} is most likely for gRPC"
    named = "--otlp, OTEL_EXPORTER_OTLP_ENDPOINT"
    return f"start the collector, or correct its URL ({named}) and OTEL_EXPORTER_OTLP_HEADERS"


def _about_us() -> dict[str, str | int]:
    said = f"service.name={os.environ.get('OTEL_SERVICE_NAME', '')},{os.environ.get('OTEL_RESOURCE_ATTRIBUTES', '')}"
    named = any(part.strip().startswith("service.name=") and part.strip()[13:] for part in said.split(","))
    about: dict[str, str | int] = {"service.version": VERSION, "process.pid": os.getpid()}
    return about if named else {"service.name": "greenroom", **about}


class _FirstWarningKeeper(logging.Handler):
    """Keeps the first warning."""

    text = ""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or one_line(record.getMessage(), 200)


class _FirstWarningTeller(logging.Handler):
    """Tells the first warning, and that it was the last."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self.is_over = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_over:
            self.is_over = True
            self._tell(
                f"OpenTelemetry: {one_line(record.getMessage(), 300)} (told once; calls go on without it)"
            )
