"""Which trace the work belongs to that is done now.

A door sets it for each request while it begins that request, and for the task that goes on with it. Whatever is asked
of a server meanwhile (through the `mcp` tool, by a program of `mcp_execute`, in a session) belongs to the same trace,
however many hands it passes through. No part in between needs to know of it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ..protocol.trace_context import TraceContext

CURRENT: Final = ContextVar[TraceContext | None]("greenroom_trace", default=None)
current_trace: Final = CURRENT.get  # each call asks, and to look the method up takes longer than the method


@contextmanager
def within(trace: TraceContext | None) -> Generator[None]:
    """What is asked of servers inside this belongs to `trace`; None: to none."""
    token = CURRENT.set(trace)
    try:
        yield
    finally:
        CURRENT.reset(token)
