"""`/metrics`: numbers about the room for Prometheus.

What happened is counted from the event stream, and what is there now is read off one snapshot at each scrape. The
events of calls cost each call something, so nothing is counted unless `http.metrics` is on. The client library keeps
the numbers and writes the text; it is imported only then. The text is written in a thread, because with many servers
it takes longer than others should wait.

The only labels are a server, words of ours whose number is small (states, causes, outcomes, moves of a circuit
breaker), limits of the configuration, and as many tools as the setting `http.metricsTools` allows. A server that is no
longer configured is left out from the next scrape on.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from anyio import to_thread

from ..protocol.errors import UsageError
from ..protocol.events import (
    BreakerDecision,
    CallEnded,
    Event,
    Eviction,
    Kind,
    Lagged,
    Transition,
    WarmChildMoved,
)
from ..protocol.lifecycle import State
from ..protocol.status import ServerStatus

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric

    from ..supervisor.port import RoomPort


HEALTHY: Final = frozenset(state.value for state in State)  # words of a server of which no trouble is known
HEARD: Final = frozenset({Kind.TRANSITION, Kind.DECISION, Kind.CALL})
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_WAITS: Final = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30)
NOTHING: Final[Mapping[int, int]] = {}
_OTHER: Final = "other"  # stands for all tools of a server over the bound
_LEAST: Final = 1  # the incarnation that begins first


@attrs.frozen
class MetricName:
    """One metric: its name without the prefix, what it is, its labels, and what it says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def exported(self) -> str:
        return f"greenroom_{self.name}"


TRANSITIONS: Final = MetricName(
    "transitions_total", "counter", ("server", "to"), "Steps of servers to another state of their lifecycle."
)
ENDINGS: Final = MetricName(
    "endings_total", "counter", ("server", "cause"), "Connections and attempts that ended, by why."
)
RESTARTS: Final = MetricName(
    "restarts_total", "counter", ("server",), "Starts of a server or session that had run before."
)
BREAKER_MOVES: Final = MetricName(
    "breaker_moves_total", "counter", ("server", "move"), "What happened to a server's circuit breaker."
)
EVICTIONS: Final = MetricName(
    "evictions_total", "counter", ("server",), "Idle servers that made room for others."
)
WARM: Final = MetricName(
    "warm_children_total",
    "counter",
    ("server", "move"),
    "What happened to children that were started ahead: `taken over` is a start that nobody waited for.",
)
CALLS: Final = MetricName(
    "calls_total",
    "counter",
    ("server", "outcome"),
    "Accepted calls that ended: `result`, `cancelled`, or an error.",
)
CALL_SECONDS: Final = MetricName(
    "call_seconds", "histogram", ("server",), "From when a call was sent to its end, in seconds."
)
WAIT_SECONDS: Final = MetricName(
    "call_wait_seconds",
    "histogram",
    ("server",),
    "From when a call was accepted until it was sent, in seconds.",
)
TOOL_CALLS: Final = MetricName(
    "tool_calls_total",
    "counter",
    ("server", "tool", "outcome"),
    "The same of each tool (`http.metricsTools`); `tool_error` is a result that the tool calls an error.",
)
TOOL_SECONDS: Final = MetricName(
    "tool_call_seconds",
    "histogram",
    ("server", "tool"),
    "From when a call of this tool was sent to its end, in seconds.",
)
EVENTS_LOST: Final = MetricName(
    "events_lost_total", "counter", (), "Events that came too fast to be counted."
)
REFUSED: Final = MetricName(
    "refused_total", "counter", ("code",), "Calls that were not accepted, by error code."
)
LIMITED: Final = MetricName(
    "limited_total", "counter", ("limit",), "Calls that a limit or a loop guard refused, by which one."
)
CONNECTIONS: Final = MetricName(
    "connections",
    "gauge",
    ("server", "state"),
    "A server's addresses (shared, of sessions, of calls) in each state.",
)
USABLE: Final = MetricName("server_usable", "gauge", ("server",), "1 when a call would be accepted, else 0.")
BREAKER_OPEN: Final = MetricName(
    "breaker_open", "gauge", ("server",), "1 while the circuit breaker is open and refuses calls, else 0."
)
IN_FLIGHT: Final = MetricName("in_flight", "gauge", ("server",), "Calls that were sent and not answered.")
QUEUED: Final = MetricName("queued", "gauge", ("server",), "Calls that were accepted and not sent.")
POOL_SLOTS: Final = MetricName("pool_slots", "gauge", (), "Slots of the pool (`maxConnections`).")
POOL_HELD: Final = MetricName("pool_held", "gauge", (), "Slots that are held.")
SESSION_SLOTS: Final = MetricName(
    "session_slots", "gauge", (), "Slots for children of sessions (`maxSessionConnections`)."
)
SESSION_SLOTS_HELD: Final = MetricName(
    "session_slots_held", "gauge", (), "Slots that children of sessions hold."
)
POOL_WAITING: Final = MetricName("pool_waiting", "gauge", (), "Servers and sessions that wait for a slot.")
HTTP_REFUSED: Final = MetricName(
    "http_refused_total",
    "counter",
    ("status",),
    "Requests that the HTTP door refused, by the status of the answer.",
)
SESSIONS: Final = MetricName("http_sessions", "gauge", (), "Sessions open at the HTTP door.")
METRICS: Final = (
    *(
        TRANSITIONS,
        ENDINGS,
        RESTARTS,
        BREAKER_MOVES,
        EVICTIONS,
        WARM,
        CALLS,
        CALL_SECONDS,
        WAIT_SECONDS,
        REFUSED,
    ),
    LIMITED,
    *(TOOL_CALLS, TOOL_SECONDS),
    *(EVENTS_LOST, CONNECTIONS, USABLE, BREAKER_OPEN, IN_FLIGHT, QUEUED, POOL_SLOTS, POOL_HELD, POOL_WAITING),
    *(SESSIONS, HTTP_REFUSED, SESSION_SLOTS, SESSION_SLOTS_HELD),
)


class Metrics:
    """The numbers of one room, and of as many `tools`. Raises `UsageError` when the client library is not installed."""

    def __init__(self, tools: int = 0) -> None:
        try:
            import prometheus_client as library
        except ImportError:
            text = "http.metrics needs a package that is not installed. Run: pip install 'greenroom[metrics]'"
            raise UsageError(text) from None
        library.disable_created_metrics()
        self._registry = library.CollectorRegistry()
        self._by_server: list[MetricWrapperBase] = []

        def counter(named: MetricName) -> library.Counter:
            name = named.exported.removesuffix("_total")
            made = library.Counter(name, named.text, named.labels, registry=self._registry)
            if "server" in named.labels:
                self._by_server.append(made)
            return made

        def histogram(named: MetricName, buckets: Sequence[float]) -> library.Histogram:
            made = library.Histogram(
                named.exported, named.text, named.labels, buckets=buckets, registry=self._registry
            )
            self._by_server.append(made)
            return made

        self._transitions, self._endings = counter(TRANSITIONS), counter(ENDINGS)
        self._restarts, self._evictions = counter(RESTARTS), counter(EVICTIONS)
        self._breaker_moves, self._calls = counter(BREAKER_MOVES), counter(CALLS)
        self._warm = counter(WARM)
        self._taken, self._waited = histogram(CALL_SECONDS, _SECONDS), histogram(WAIT_SECONDS, _WAITS)
        self._tool_calls, self._tool_taken = counter(TOOL_CALLS), histogram(TOOL_SECONDS, _SECONDS)
        self._most_tools = tools
        self._tools: set[tuple[str, str]] = set()  # that are counted each by itself
        self._lost = counter(EVENTS_LOST)
        self._seen: set[str] = set()  # the servers that are counted

    def hear(self, event: Event | Lagged) -> None:
        """Count an event of the room."""
        if isinstance(event, Lagged):
            self._lost.inc(event.missed)
            return
        server = event.server
        if server is None or event.kind not in HEARD:
            return
        self._seen.add(server)
        match event:
            case CallEnded():
                self._calls.labels(server, event.outcome).inc()
                self._waited.labels(server).observe(event.waited)
                if event.taken is not None:
                    self._taken.labels(server).observe(event.taken)
                if self._most_tools and event.tool is not None and event.method == "tools/call":
                    self._count_tool(server, event.tool, event)
            case Transition():
                self._transitions.labels(server, event.after.value).inc()
                if event.after is State.CONNECTING and event.incarnation > _LEAST:
                    self._restarts.labels(server).inc()
                if event.after is State.CLOSED and event.cause is not None:
                    self._endings.labels(server, event.cause.value).inc()
            case BreakerDecision():
                self._breaker_moves.labels(server, event.move.value).inc()
            case Eviction():
                self._evictions.labels(server).inc()
            case WarmChildMoved():
                self._warm.labels(server, event.move.value).inc()
            case _:
                return

    def _count_tool(self, server: str, tool: str, event: CallEnded) -> None:
        if (server, tool) not in self._tools:
            if len(self._tools) < self._most_tools:
                self._tools.add((server, tool))
            else:
                tool = _OTHER
        self._tool_calls.labels(server, tool, "tool_error" if event.is_error else event.outcome).inc()
        if event.taken is not None:
            self._tool_taken.labels(server, tool).observe(event.taken)

    async def text(
        self, room: RoomPort, sessions: int, refused: Mapping[int, int], accept: str
    ) -> tuple[bytes, str]:
        """The numbers as text, in the format that `accept` asks for, and its media type. `sessions` and `refused` are
        those of the HTTP door."""
        from prometheus_client.exposition import choose_encoder

        rows = await room.catalogue.surveyed()
        self._forget(self._seen - room.catalogue.config.servers.keys())
        encode, media_type = choose_encoder(accept)
        shown = _Scrape([*self._registry.collect(), *_snapshot(room, rows, sessions, refused)])
        return await to_thread.run_sync(encode, shown), media_type  # pyright: ignore[reportArgumentType]

    def _forget(self, servers: set[str]) -> None:
        for server in servers:
            for metric in self._by_server:
                metric.remove_by_labels({"server": server})
        self._seen -= servers
        self._tools = {(server, tool) for server, tool in self._tools if server not in servers}


@attrs.frozen
class _Scrape:
    """What is shown at one scrape."""

    metrics: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def _snapshot(
    room: RoomPort, rows: Iterable[ServerStatus], sessions: int, http_refused: Mapping[int, int] = NOTHING
) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(named: MetricName) -> GaugeMetricFamily:
        return GaugeMetricFamily(named.exported, named.text, labels=named.labels)

    def single(named: MetricName, value: float) -> GaugeMetricFamily:
        return GaugeMetricFamily(named.exported, named.text, value=value)

    connections, usable, breakers = gauge(CONNECTIONS), gauge(USABLE), gauge(BREAKER_OPEN)
    states, in_flight, queued, waiting = Count[tuple[str, str]](), Count[str](), Count[str](), 0
    for row in rows:
        states[row.server, row.state.value] += 1
        in_flight[row.server] += row.in_flight
        queued[row.server] += row.queued
        waiting += row.waiting_for == "slot"
        if row.scope == "shared":
            usable.add_metric((row.server,), is_usable(row))
            breakers.add_metric((row.server,), row.retry_in is not None)
    for labels, count in states.items():
        connections.add_metric(labels, count)
    yield from (connections, usable, breakers)
    for named, counts in ((IN_FLIGHT, in_flight), (QUEUED, queued)):
        family = gauge(named)
        for server, count in counts.items():
            family.add_metric((server,), count)
        yield family
    yield single(POOL_SLOTS, room.catalogue.config.settings.max_connections)
    yield single(POOL_HELD, room.services.slots_held)
    yield single(SESSION_SLOTS, room.catalogue.config.settings.max_session_connections)
    yield single(SESSION_SLOTS_HELD, room.services.session_slots_held)
    yield single(POOL_WAITING, waiting)
    yield single(SESSIONS, sessions)
    refused = CounterMetricFamily(REFUSED.exported, REFUSED.text, labels=REFUSED.labels)
    for code, count in room.services.refusals.items():
        refused.add_metric((code,), count)
    yield refused
    limited = CounterMetricFamily(LIMITED.exported, LIMITED.text, labels=LIMITED.labels)
    for limit, count in room.services.limited.items():
        limited.add_metric((limit,), count)
    yield limited
    by_door = CounterMetricFamily(HTTP_REFUSED.exported, HTTP_REFUSED.text, labels=HTTP_REFUSED.labels)
    for status, count in http_refused.items():
        by_door.add_metric((str(status),), count)
    yield by_door


def word_of(row: ServerStatus) -> str:
    """The state of a server in one word: why it cannot be used, or where it is in its life. A server that was
    lost, and is started again by its next call, is "failed" until that start succeeds."""
    if row.broken is not None:
        return "broken"
    if row.needs_auth:
        return "needs_login"
    if row.down is not None:
        return "down"
    has_failed = row.failed_ago is not None and row.state is not State.CONNECTED
    return "failed" if has_failed or row.retry_in is not None else row.state.value


def is_usable(row: ServerStatus) -> bool:
    """Whether a call to it would be accepted."""
    refusals = (row.broken, row.down, row.retry_in)
    return not row.disabled and not row.needs_auth and all(each is None for each in refusals)
