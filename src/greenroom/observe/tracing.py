"""Spans and durations of what is asked of a room, for OpenTelemetry.

A room has a `Tracing` only if somebody takes part in it: the program gave a provider, or has set one for the whole
process. Otherwise nothing of this module is loaded, and no call takes a step more. `CallTraces` is the watcher of its
calls, and says with which trace context a request is stamped.

The spans of one call, each beside the others under the span of whoever asked:

* `approval`: a person was asked whether it is allowed.
* `queue`, `slot`, `connect`: what it waited for before it was sent. It is known only afterwards, so these are made when
  the wait is over. The moves of its server's start (`StartMoved`) say what there was to wait for, and when; what they
  do not explain is the queue. A wait of less than a millisecond is none.
* a span of kind CLIENT: the request to the server, from when it was written to its answer. A call that is sent again
  has one for each time. Its context is what the server is told.

Names, attributes and durations are those of the semantic conventions for MCP, and `greenroom.…` of our own. Nothing is
told of arguments and results, and no text of an error, which may quote them. Names lose secrets as in events.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from ..actors.call import Call
from ..actors.watchers import Order
from ..config.scrubbing import changes
from ..protocol.address import Address
from ..protocol.bounds import TRACED_TOOLS
from ..protocol.errors import Reach, RemoteError
from ..protocol.events import Event, Kind, Place, StartMoved, Transition
from ..protocol.lifecycle import Cause, State
from ..protocol.result import says_error
from ..protocol.safe_text import one_line
from ..protocol.trace_context import TraceContext, ids_in
from ..protocol.version import VERSION
from ..protocol.wait_intervals import QUEUE, waits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from ..config.model import ServerDefinition
    from ..supervisor.attachments import RoomSeam

SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
OTHER: Final = "other"  # stands for the tools over the bound
TOOL_ERROR: Final = "tool_error"
_LONGEST_NAME: Final = 128
_ADDRESSES: Final = 1_024  # whose last moves are remembered
_MOVES: Final = 32  # of one of them
_REMEMBERED: Final = 1_024  # names without secrets, and what calls have in common
_WAIT: Final = 0.001  # seconds from which on somebody has waited
_WAITED_FOR: Final = {
    Place.SLOT.value: "slot",
    Place.STARTING.value: "connect",
    Place.OPENING.value: "connect",
}  # anything else is the queue
DURATIONS: Final = {
    "mcp.client.operation.duration": "From when a request was sent to a server until it was answered.",
    "mcp.server.operation.duration": "From when a client's request came until it was answered.",
    "mcp.client.session.duration": "How long a server was connected.",
    "mcp.server.session.duration": "How long a client was here.",
}
Attributes = Mapping[str, str | int | bool]


def _wait_in(place: str) -> str:
    return _WAITED_FOR.get(place, QUEUE)


class _SpanKey(NamedTuple):
    """What calls must have in common to be told of in the same words."""

    method: str
    name: str | None  # of the tool or prompt
    address: Address
    incarnation: int
    version: str | None
    transport: str


class _SpanWords(NamedTuple):
    """`said`: the attributes of their spans; `counted`: those of their durations."""

    title: str
    said: Attributes
    counted: Attributes


class Tracing:
    """What one room tells to OpenTelemetry."""

    def __init__(self, tracers: TracerProvider, meters: MeterProvider) -> None:
        self.tracer: Tracer = tracers.get_tracer("greenroom", VERSION)
        meter = meters.get_meter("greenroom", VERSION)
        self._seconds: dict[str, Histogram] = {
            name: meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=SECONDS)
            for name, what in DURATIONS.items()
        }
        self._shown: dict[tuple[Address | None, str], str] = {}  # names without the secrets known so far
        self._in_common: dict[_SpanKey, _SpanWords] = {}  # of calls, with these names
        self._as_of = changes()  # of what is known, for both
        self._tools: set[str] = set()  # that have durations of their own
        self._moves = OrderedDict[Address, deque[tuple[float, str]]]()  # of the starts, by their end
        self._connected: dict[Address, float] = {}  # since when
        self._epoch = 0  # nanoseconds, when the room's clock was 0
        self._now: Callable[[], float] = time.monotonic
        self._hide: Callable[[Address | None, str], str] = lambda _address, text: text

    @asynccontextmanager
    async def attached(self, room: RoomSeam) -> AsyncGenerator[None]:
        events = room.events
        self._now = events.backend.now
        self._epoch = time.time_ns() - round(self._now() * 1e9)
        self._hide = lambda address, text: events.hide(address, text)  # a room sets it when it is built
        reader = events.listen(self._hear, [Kind.START, Kind.TRANSITION])
        traces = CallTraces(self, lambda server: room.config().servers.get(server))
        room.watchers.add(traces, Order.TRACES)
        room.stamp_with(traces.stamp)
        try:
            yield
        finally:
            reader.close()

    def set_clock(self, now: Callable[[], float], began: float) -> None:
        """Tell of what is over, by a clock that was at 0 at this second since 1970."""
        self._now, self._epoch = now, round(began * 1e9)

    def _hear(self, event: Event) -> None:
        address = event.address
        if address is None:
            return
        if isinstance(event, StartMoved):
            self.start_moved(address, event.at, event.place.value)
        elif isinstance(event, Transition):
            if event.after is State.CONNECTED:
                self._connected[address] = event.at
            elif event.after is State.CLOSED and (since := self._connected.pop(address, None)) is not None:
                attributes: dict[str, Any] = {"greenroom.server": address.server}
                if event.cause in (Cause.LOST, Cause.BUG):
                    attributes["error.type"] = event.cause.value
                self.took("mcp.client.session.duration", event.at - since, attributes)

    def start_moved(self, address: Address, at: float, place: str) -> None:
        """A start of this server has come to another place."""
        moves = self._moves.setdefault(address, deque(maxlen=_MOVES))
        self._moves.move_to_end(address)
        moves.append((at, place))
        if len(self._moves) > _ADDRESSES:
            self._moves.popitem(last=False)

    # ---- what is told ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._now()

    def nanoseconds(self, at: float) -> int:
        """A time of the room's clock, as OpenTelemetry wants it."""
        return self._epoch + round(at * 1e9)

    def shown(self, name: str, address: Address | None) -> str:
        """A name from outside, without secrets."""
        self._forget_old()
        if (known := self._shown.get((address, name))) is not None:
            return known
        shown = one_line(self._hide(address, name[: 8 * _LONGEST_NAME]), _LONGEST_NAME)
        if len(name) <= _LONGEST_NAME:
            self._shown[address, name] = shown
        return shown

    def _forget_old(self) -> None:
        """A secret may have become known, and what is remembered is bounded."""
        is_old = self._as_of != changes()
        self._as_of = changes()
        for known in (self._shown, self._in_common):
            if is_old or len(known) >= _REMEMBERED:
                known.clear()

    def in_common(self, sort: _SpanKey) -> _SpanWords:
        """What the spans and durations of such calls have in common."""
        self._forget_old()
        if (known := self._in_common.get(sort)) is not None:
            return known
        said: dict[str, str | int] = {
            "mcp.method.name": sort.method,
            "network.transport": sort.transport,
            "greenroom.server": sort.address.server,
        }
        if sort.version is not None:
            said["mcp.protocol.version"] = sort.version
        target = None
        if sort.name is not None:
            said[NAMED[sort.method]] = target = self.shown(sort.name, sort.address)
        if sort.method == "tools/call":
            said["gen_ai.operation.name"] = "execute_tool"
        title = f"{sort.method} {target}" if target else sort.method
        counted = said
        if target is not None and sort.method == "tools/call":
            counted = {**said, NAMED[sort.method]: self.counted(target)}
        made = _SpanWords(title, {**said, "greenroom.incarnation": sort.incarnation}, counted)
        if sort.name is None or len(sort.name) <= _LONGEST_NAME:
            self._in_common[sort] = made
        return made

    def counted(self, tool: str) -> str:
        """The tool, as durations name it: there are only so many."""
        if tool not in self._tools:
            if len(self._tools) >= TRACED_TOOLS:
                return OTHER
            self._tools.add(tool)
        return tool

    def took(self, name: str, seconds: float, attributes: Attributes) -> None:
        self._seconds[name].record(seconds, attributes)

    def span(self, name: str, kind: SpanKind, parent: Context, since: float, attributes: Attributes) -> Span:
        """A span that has begun at this time of the room's clock."""
        return self.tracer.start_span(
            name, parent, kind, attributes=attributes, start_time=self.nanoseconds(since)
        )

    def end(self, span: Span, error: str | None = None) -> None:
        """`error`: what kind of error it ended with."""
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR)
        span.end(self.nanoseconds(self._now()))

    def past(
        self, name: str, parent: Context, since: float, until: float, more: Attributes, error: str | None
    ) -> None:
        """A span that is over."""
        span = self.span(name, SpanKind.INTERNAL, parent, since, more)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR)
        span.end(self.nanoseconds(until))

    def waited(
        self, parent: Context, address: Address, since: float, until: float, error: str | None = None
    ) -> None:
        """Somebody has waited for this server. `error`: with what the wait ended."""
        if until - since < _WAIT:
            return
        found = waits(self._moves.get(address, ()), since, until, _wait_in)
        seen = [wait for wait in found if wait[2] - wait[1] >= _WAIT]
        for number, (name, start, end) in enumerate(seen, 1):
            is_last = number == len(seen)
            more = {"greenroom.server": address.server}
            self.past(name, parent, start, end, more, error if is_last else None)


# ---- Contexts --------------------------------------------------------------------------------------------------------


def context_of(trace: TraceContext | None) -> Context:
    """The parent that a trace context names. Its state is passed on to the servers, and not told of our spans: it is a
    client's text, in which a secret could be."""
    if trace is None or not trace.traceparent:
        return Context()
    trace_id, span_id, flags = ids_in(trace.traceparent)
    found = SpanContext(trace_id, span_id, True, TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(found), Context())


def trace_of(span: Span, before: TraceContext | None) -> TraceContext | None:
    """What those are told that work for this span. `before`: what its parent was told."""
    found = span.get_span_context()
    if not found.is_valid:
        return before
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 0xFF:02x}"
    state = found.trace_state.to_header() if found.trace_state else ""
    if before is None:
        return TraceContext(parent, state)
    return TraceContext(parent, state or before.tracestate, before.baggage)


def ambient() -> tuple[Context, TraceContext | None] | None:
    """The span in which the program is now; None: in none."""
    span = get_current_span()
    if not span.get_span_context().is_valid:
        return None
    said = dict[str, str]()
    W3CBaggagePropagator().inject(said)
    return set_span_in_context(span, Context()), trace_of(span, TraceContext(baggage=said.get("baggage", "")))


# ---- Calls -----------------------------------------------------------------------------------------------------------


class CallTraces:
    """The watcher that tells of each call. `definition`: of a server, by its name."""

    def __init__(self, tracing: Tracing, definition: Callable[[str], ServerDefinition | None]) -> None:
        self._tracing = tracing
        self._definition = definition
        self._open: dict[Call, CallSpans] = {}

    def began(self, call: Call) -> None:
        parent, before = _parent_of(call.trace)
        self._open[call] = CallSpans(self._tracing, call, parent, before)

    def released(self, call: Call) -> None:
        self._open[call].allowed(call)

    def held(self, call: Call) -> None:
        self._open[call].is_held = True

    def stamp(self, call: Call) -> TraceContext | None:
        """It is about to be written: what its server is told of its trace."""
        spans = self._open.get(call)
        return call.trace if spans is None else spans.attempt(call, self._transport(call.server))

    def ended(self, call: Call) -> None:
        self._open.pop(call).end(call)

    def _transport(self, server: str | None) -> str:
        definition = None if server is None else self._definition(server)
        return "tcp" if definition is not None and definition.url else "pipe"


def _parent_of(trace: TraceContext | None) -> tuple[Context, TraceContext | None]:
    """Whose child the spans are: as the request says, or the program's own span."""
    if trace is None and (found := ambient()) is not None:
        return found
    return context_of(trace), trace


class CallSpans:
    """The spans of one call, from when it was asked for to its end."""

    def __init__(self, tracing: Tracing, call: Call, parent: Context, before: TraceContext | None) -> None:
        """`before`: what `parent` was told. A call that nobody asked for in a span gets one for all that it does."""
        self._tracing = tracing
        self._parent = parent
        self._before = before
        self._since = tracing.now  # when the wait that is not told yet began
        self._whole: Span | None = None
        if not get_current_span(parent).get_span_context().is_valid:
            name = tracing.shown(str(call.tool or call.method), call.address)
            self._whole = tracing.span(name, SpanKind.INTERNAL, parent, self._since, _at(call))
            self._parent = set_span_in_context(self._whole, parent)
        self._span: Span | None = None
        self._sent_at = 0.0
        self._counted: Attributes = {}  # the attributes of its duration
        self.is_held: bool = False  # somebody has to allow it

    def allowed(self, call: Call) -> None:
        """It may be sent now."""
        self.is_held = False
        self._was_asked_about(None, _at(call))

    def _was_asked_about(self, error: str | None, more: Attributes) -> None:
        tracing, now = self._tracing, self._tracing.now
        if error is not None or now - self._since >= _WAIT:
            tracing.past("approval", self._parent, self._since, now, more, error)
        self._since = now

    def attempt(self, call: Call, transport: str) -> TraceContext | None:
        """It is about to be written. Returns what its server is told."""
        tracing, now, table = self._tracing, self._tracing.now, call.owner
        assert table is not None
        address = table.address
        if self._span is None:
            tracing.waited(self._parent, address, self._since, now)
        else:
            self._span.set_attribute("greenroom.outcome", "sent again")
            tracing.end(self._span)
        params = call.params or {}
        name, uri = params.get("name"), params.get("uri")
        sort = _SpanKey(
            call.method, name if isinstance(name, str) and call.method in NAMED else None, address,
            table.incarnation(), call.protocol_version, transport,
        )  # fmt: skip
        title, more, self._counted = tracing.in_common(sort)
        if isinstance(uri, str):
            more = {**more, "mcp.resource.uri": tracing.shown(uri, address)}
        self._span = tracing.span(title, SpanKind.CLIENT, self._parent, now, more)
        self._sent_at = now
        return trace_of(self._span, self._before)

    def end(self, call: Call) -> None:
        """It has its outcome."""
        error = error_of(call)
        if self._span is not None:
            self._end_attempt(self._span, call, error)
        elif self.is_held:
            self._was_asked_about(error, _at(call))
        elif call.owner is not None:
            self._tracing.waited(self._parent, call.owner.address, self._since, self._tracing.now, error)
        if self._whole is not None:
            self._whole.set_attributes(_at(call))
            self._tracing.end(self._whole, error)

    def _end_attempt(self, span: Span, call: Call, error: str | None) -> None:
        tracing, now = self._tracing, self._tracing.now
        said = {
            "greenroom.outcome": TOOL_ERROR if error == TOOL_ERROR else call.outcome,
            "greenroom.reach": call.reach.value,
        }
        if call.rpc_id:
            said["jsonrpc.request.id"] = str(call.rpc_id)
        counted = self._counted
        if error is not None:
            failed = {"error.type": error}
            if isinstance(call.error, RemoteError):
                failed["rpc.response.status_code"] = said["rpc.response.status_code"] = error
            counted = {**counted, **failed}
        span.set_attributes(said)
        tracing.end(span, error)
        if call.reach is not Reach.NOT_SENT:
            tracing.took("mcp.client.operation.duration", now - self._sent_at, counted)


def _at(call: Call) -> Attributes:
    return {} if call.server is None else {"greenroom.server": call.server}


NAMED: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


def error_of(call: Call) -> str | None:
    """The kind of error that a call ended with; None: it was answered, or its caller left."""
    if isinstance(call.error, RemoteError):
        return str(call.error.rpc_code)
    if call.error is not None:
        return call.error.code
    return TOOL_ERROR if call.result is not None and says_error(call.result) else None
