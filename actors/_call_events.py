"""The fields of an event about a call, apart from its caller and its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.events import CallAccepted, CallEvent, CallSent
from ._peer import NOT_SENT

if TYPE_CHECKING:
    from ._call import Call


def measured(call: Call, what: type[CallEvent], now: float) -> dict[str, Any]:
    """Its seconds so far, and how it ended if it has."""
    if what is CallAccepted:
        return {}
    was_sent = call.reach is not NOT_SENT
    waited = (call.sent_at if was_sent else now) - call.accepted_at
    if what is CallSent:
        return {"waited": waited}
    taken = now - call.sent_at if was_sent else None
    return {"outcome": call.outcome, "reach": call.reach, "waited": waited, "taken": taken}
