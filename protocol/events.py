"""Events: one ordered stream that the log, the metrics, the status page, the trace and the tests all read.

Every transition, every policy decision and every call (accepted, sent, ended) is one `Event`. The sequence number
counts every event of a room without gaps, whoever listens; `at` is the room's monotonic time in seconds.
"""

from __future__ import annotations

import enum

import attrs

from .address import Address
from .lifecycle import Cause, State


class Kind(enum.Enum):
    TRANSITION = "transition"
    STEP = (
        "step"  # a connecting server got further; detail is started (there is somebody to talk to) or greeted
    )
    DECISION = "decision"  # a policy decided: gate, restart, idle, pool
    CALL = "call"  # detail is accepted, sent or ended
    CATALOGUE = "catalogue"  # what is known of a server changed
    NOTE = "note"  # something worth a log line: junk on stdout, a late answer, a bug's traceback


@attrs.frozen
class Event:
    seq: int
    at: float
    kind: Kind
    address: Address | None
    incarnation: int
    before: State | None = None
    after: State | None = None
    cause: Cause | None = None
    detail: str = ""
    in_flight: int = 0
    queued: int = 0
    call: int | None = None  # the room-wide number of the call, for Kind.CALL
    outcome: str | None = None  # result, error code, or cancelled; for an ended call


@attrs.frozen
class Lagged:
    """Stands in a slow subscriber's stream for the `missed` events that were dropped to keep the room going."""

    missed: int
