"""The events of calls, for the event stream.

A watcher of calls that is there only while somebody reads such events (`EventStream.when_calls_are_read`): an event
that nobody reads is not made, and takes no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.errors import Reach
from ..protocol.events import CallAccepted, CallEnded, CallEvent, CallRefused, CallSent
from ..protocol.result import says_error
from .watchers import Order

if TYPE_CHECKING:
    from .call import Call
    from .event_stream import EventStream
    from .watchers import Watchers


class CallEvents:
    """Makes the events of calls."""

    def __init__(self, events: EventStream) -> None:
        self._events = events

    def accepted(self, call: Call) -> None:
        self._emit(CallAccepted, call)

    def sent(self, call: Call) -> None:
        self._emit(CallSent, call, waited=call.sent_at - call.accepted_at)

    def ended(self, call: Call) -> None:
        if not call.number:
            self._refused(call)
            return
        was_sent = call.reach is not Reach.NOT_SENT
        self._emit(
            CallEnded,
            call,
            outcome=call.outcome,
            is_error=call.result is not None and says_error(call.result),
            reach=call.reach,
            waited=(call.sent_at if was_sent else call.ended_at) - call.accepted_at,
            taken=call.ended_at - call.sent_at if was_sent else None,
        )

    def _refused(self, call: Call) -> None:
        self._events.emit(
            CallRefused,
            call.address,
            method=call.method,
            tool=call.tool,
            client=call.client,
            outcome=call.outcome,
        )

    def _emit(self, what: type[CallEvent], call: Call, **more: Any) -> None:
        table = call.owner
        assert table is not None
        self._events.emit(
            what,
            table.address,
            table.incarnation(),
            call=call.number,
            method=call.method,
            tool=call.tool,
            client=call.client,
            in_flight=table.in_flight,
            queued=table.queued,
            **more,
        )


def tell_calls(events: EventStream, watchers: Watchers) -> None:
    """Have the events of calls made while somebody reads them."""
    made = CallEvents(events)

    def heed(is_read: bool) -> None:
        watchers.remove(made)
        if is_read:
            watchers.add(made, Order.EVENTS)

    events.when_calls_are_read(heed)
