"""Whether somebody takes part in what a room tells to OpenTelemetry, and the ports of a room.

A room where nobody does loads nothing for it. A provider that a program has set for its whole process counts, if it is
set when the room is made.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..protocol.errors import UsageError
from .audit_trail import AuditedPort
from .room_port import RoomPort

if TYPE_CHECKING:
    from .profiles import ProfileView
    from .runtime import Runtime
    from .tracing import Tracing


def tracing_of(tracers: Any, meters: Any) -> Tracing | None:
    """What these providers are told. None stands for the provider of the process. Raises `UsageError` for what is no
    provider."""
    for given, name, method in (
        (tracers, "tracer_provider", "get_tracer"),
        (meters, "meter_provider", "get_meter"),
    ):
        if given is not None and not callable(getattr(given, method, None)):
            raise UsageError(f"{name} must be a provider of OpenTelemetry, got {type(given).__name__}.")
    if tracers is None and meters is None and "opentelemetry" not in sys.modules:
        return None  # nobody can have set one
    from opentelemetry import metrics, trace

    tracers, meters = tracers or trace.get_tracer_provider(), meters or metrics.get_meter_provider()
    if not (_is_real(tracers) or _is_real(meters)):
        return None
    from .tracing import Tracing

    return Tracing(tracers, meters)


def _is_real(provider: object) -> bool:
    """Whether somebody has set it. The API's own providers stand for none."""
    home = type(provider).__module__
    return not home.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def telling(runtime: Runtime) -> AbstractContextManager[None]:
    """Put this around the room's life."""
    return nullcontext() if runtime.tracing is None else runtime.tracing.listening(runtime.events)


def make_port(runtime: Runtime, session: str | None = None, view: ProfileView | None = None) -> RoomPort:
    """The port of a room or of a session."""
    audit, tracing = runtime.audit, runtime.tracing
    if tracing is None:
        return (
            RoomPort(runtime, session, view) if audit is None else AuditedPort(audit, runtime, session, view)
        )
    from .traced_port import TracedAuditedPort, TracedPort

    if audit is None:
        port: TracedPort = TracedPort(runtime, session, view)
    else:
        port = TracedAuditedPort(audit, runtime, session, view)
    port.tracing = tracing
    return port
