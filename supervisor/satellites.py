"""What may be attached to a room, by the options that ask for it. This is the one place where the core names what
stands around it, and a room that wants nothing of it loads nothing.

A provider of OpenTelemetry that a program has set for its whole process counts, if it is set when the room is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any

from ..config.argument_checks import file_of, texts
from ..protocol.errors import UsageError
from .attachments import AUDIT, RECORDING_ALL, TAPE, TRACES, Attachment, tape_place


def wanted(
    audit: str | os.PathLike[str] | None,
    record: str | os.PathLike[str] | None,
    redact: Collection[str],
    tracers: Any,
    meters: Any,
) -> dict[str, Attachment]:
    """What these options of `Greenroom.open` want to be attached, none of it opened yet. Raises `UsageError`."""
    found = dict[str, Attachment]()
    if audit is not None:
        from ..observe.audit_trail import AuditTrail

        found[AUDIT] = AuditTrail(file_of(audit, "audit"))
    recorder_for_all = RECORDING_ALL.get()
    if record is not None:
        from ..tape.recorder import Recorder

        found[TAPE] = Recorder(tape_place(record), texts(redact, "redact"))
    elif recorder_for_all is not None:
        found[TAPE] = recorder_for_all(texts(redact, "redact"))
    if (tracing := _tracing(tracers, meters)) is not None:
        found[TRACES] = tracing
    return found


def _tracing(tracers: Any, meters: Any) -> Attachment | None:
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
    from ..observe.tracing import Tracing

    return Tracing(tracers, meters)


def _is_real(provider: object) -> bool:
    """Whether somebody has set it. The API's own providers stand for none."""
    home = type(provider).__module__
    return not home.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
