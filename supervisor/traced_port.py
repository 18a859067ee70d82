"""The port of a room that is traced: each call is watched from when it is asked for to its end (`tracing`).

It stands where every request to a server passes, as `AuditedPort` does, and hears of its end by the call's own
`on_end`.
"""

from __future__ import annotations

import math
from contextlib import suppress

from opentelemetry.context import Context

from ..actors.call import Call
from ..actors.current_trace import CURRENT
from ..protocol.address import DISCOVERY, Address
from ..protocol.errors import CallError, GreenroomError
from ..protocol.trace_context import TraceContext
from .audit_trail import AuditedPort
from .room_port import RoomPort
from .tracing import TracedCall, Tracing, ambient, context_of


class TracedPort(RoomPort):
    """A `RoomPort` whose requests are spans."""

    tracing: Tracing

    def submit(self, server: str, call: Call, *, allowed: bool = False) -> None:
        watch = call.watch
        if allowed:
            if isinstance(watch, TracedCall):
                watch.allowed()
            super().submit(server, call, allowed=True)
            return
        address = Address(server)
        context, said = _asked_by(call.trace if call.trace is not None else CURRENT.get())
        call.trace = said
        if call.on_end is None and self.runtime.is_built:  # as its table would, for a call without a callback
            call.waiter = self.runtime.context.backend.waiter()
        call.watch = watch = TracedCall(self.tracing, call, context, said, address, self._transport(server))
        call.on_end = watch.ended
        try:
            super().submit(server, call)
        except GreenroomError as error:
            watch.refused(error.code)
            raise
        watch.is_held = call.number == 0 and not call.ended

    async def connect(self, server: str, *, by_name: bool = False, wait_by: float = math.inf) -> bool:
        tracing, error = self.tracing, None
        context, said = _asked_by(CURRENT.get())
        since = tracing.now
        try:
            return await super().connect(server, by_name=by_name, wait_by=wait_by)
        except CallError as problem:
            error = problem.code
            raise
        finally:
            if said is not None and said.traceparent:  # else nobody asked: the room wants to know its lists
                with suppress(GreenroomError):  # it is gone by now
                    tracing.waited(context, self._address_of(server), since, tracing.now, error)

    def _transport(self, server: str) -> str:
        definition = self.runtime.config.servers.get(server)
        return "tcp" if definition is not None and definition.url else "pipe"

    def _address_of(self, server: str) -> Address:
        """Where this server is connected to be looked at."""
        root = self.runtime.root
        if root.has_standing_address(server, self.session):
            return root.address(server, self.session)
        return Address(server, DISCOVERY, self.session)


def _asked_by(trace: TraceContext | None) -> tuple[Context, TraceContext | None]:
    """Whose child the spans are: as the request says, or the program's own span."""
    if trace is None and (found := ambient()) is not None:
        return found
    return context_of(trace), trace


class TracedAuditedPort(TracedPort, AuditedPort):
    """The same for a room with an audit file."""
