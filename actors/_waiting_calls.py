"""The calls of one address that wait to be sent: for a connection, for a free place, or for the gate.

They stay in the user lane of the actor's mailbox, in order, and outlive incarnations there. `Load` counts them
over all scopes of the server, and the room counts their bytes. Both bounds are checked before a call is accepted,
never after.

Places (calls in flight) belong to the server, over all its scopes. An address that finds no free place is listed
in `Load.held`; the next free place goes to the address that has waited longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.errors import Busy, CallError
from ..protocol.jsonrpc import weigh
from ..protocol.lifecycle import State
from . import _call_errors as errors

if TYPE_CHECKING:
    from ._call import Call
    from ._call_table import CallTable


class WaitingCalls:
    __slots__ = ("_actor", "_context", "_load", "_serving", "_table", "calls")

    def __init__(self, table: CallTable, calls: deque[Call]) -> None:
        self.calls = calls
        self._table = table
        self._actor = table.actor
        self._context = table.context
        self._load = table.record.load
        self._serving = False

    # ---- in and out -------------------------------------------------------------------------------------------------

    def refusal(self, call: Call) -> Busy | None:
        """Why this call may not wait; None when it may."""
        definition, settings = self._actor.definition, self._context.settings
        if self._load.queued >= (definition.max_queued or settings.max_queued):
            return self._busy()
        call.weight = weigh(call.params)
        most = settings.max_queued_bytes
        if self._context.queued_bytes + call.weight > most:
            return self._busy(f"the parameters of waiting calls would be over {most:,} bytes")
        return None

    def _busy(self, why: str = "") -> Busy:
        return errors.busy(
            self._actor.address.server,
            (*self._table.open, *self.calls),
            self._context.backend.now(),
            in_flight=self._load.in_flight,
            queued=self._load.queued,
            why=why,
        )

    def add(self, call: Call, *, first: bool = False) -> None:
        """The call waits, behind the others or before them, and needs a connection."""
        now = self._context.backend.now()
        call.queue_deadline = min(now + self._context.settings.queue_timeout, call.wait_by)
        self._load.queued += 1
        self._context.queued_bytes += call.weight
        if first:
            self.calls.appendleft(call)
        else:
            self.calls.append(call)
        self._actor.alarm.wake_by(call.queue_deadline)
        self._actor.request_start()

    def end(self, call: Call, error: CallError | None = None) -> None:
        """The call ends while it waits. With the last one, no call here needs a connection."""
        self.calls.remove(call)
        self._uncount(call)
        try:
            if not self.calls:
                self._table.supervisor.withdraw_start(self._actor)
        finally:
            self._table.end(call, error)

    def _uncount(self, call: Call) -> None:
        self._load.queued -= 1
        self._context.queued_bytes -= call.weight

    # ---- sending ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Send what waits, as far as there are places. A place that becomes free meanwhile is used by this same
        loop."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._may_send_next():
                call = self.calls.popleft()
                self._uncount(call)
                self._table.send(call)
        finally:
            self._serving = False

    def _may_send_next(self) -> bool:
        if not self.calls or self._actor.life.state is not State.CONNECTED:
            return False
        if self._load.in_flight >= self._table.record.most_in_flight(self._context.settings):
            self.hold_back()
            return False
        return not self._table.record.guarded or self._table.supervisor.may_send(self._actor, self.calls[0])

    def hold_back(self) -> None:
        """All places are taken: wait for the next free one, in whatever scope that is."""
        self._load.held.setdefault(self)

    # ---- how long ---------------------------------------------------------------------------------------------------

    @property
    def since(self) -> float:
        """Since when the oldest waiting call has waited; `inf` when there is none."""
        return min(map(self._since, self.calls), default=float("inf"))

    def _since(self, call: Call) -> float:
        return call.queue_deadline - self._context.settings.queue_timeout

    @property
    def next_deadline(self) -> float:
        """`inf` when none waits."""
        return min((call.queue_deadline for call in self.calls), default=float("inf"))

    def expire(self, now: float) -> None:
        """End the calls that have waited for all their time."""
        expired = [call for call in self.calls if call.queue_deadline <= now]
        for call in expired:
            if call not in self.calls:
                continue  # cancelled by the callback of an earlier one
            waited = self._context.settings.queue_timeout
            self.end(call, errors.not_ready(self._actor.address.server, waited, self._actor.doing))
        if expired:
            self._table.call_over()

    def refuse(self, error: CallError, since: float) -> None:
        """End the calls that have waited since `since` or longer; the others wait on."""
        for call in [call for call in self.calls if self._since(call) <= since]:
            if call in self.calls:
                self.end(call, error.copy())

    def refuse_each(self, why: Callable[[Call], CallError | None]) -> None:
        """End the waiting calls for which `why` gives an error."""
        for call, error in [(call, why(call)) for call in self.calls]:
            if error is not None and call in self.calls:
                self.end(call, error)

    def fail(self, error: CallError) -> None:
        """End the calls that wait now. A call that a callback adds meanwhile is new, and accepted or refused on
        its own."""
        failed = list(self.calls)
        self.calls.clear()
        for call in failed:
            self._uncount(call)
        for call in failed:
            self._table.end(call, error.copy())
