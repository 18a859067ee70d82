"""The room's events as server-sent events, with the sequence number as the id.

The latest are kept for readers that come back. A reader that is too slow, or comes back too late, is told before
which number it has missed some. Events of single calls are left out: making them would cost each call something.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

import anyio

from ...protocol import jsonrpc as rpc
from ...protocol.events import Event, Lagged
from .._event_log import TOLD, record_of
from ._request import Request

_KEPT: Final = 1_000  # events
_AT_ONCE: Final = 100
_DIGITS: Final = 18


class Feed:
    def __init__(self, keep_alive: float) -> None:
        self._keep_alive = keep_alive
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._count = 0  # events that came
        self._dropped = 0  # the number of the latest that is no longer kept
        self._news = anyio.Event()
        self._is_over = False

    def hear(self, event: Event | Lagged) -> None:
        """Take an event of the room."""
        if isinstance(event, Event) and event.kind in TOLD:
            if len(self._events) == _KEPT:
                self._dropped = self._events[0].seq
            self._events.append(event)
            self._count += 1
            self._wake()

    def close(self) -> None:
        """There will be no more: readers are given the rest and sent away."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def show(self, request: Request) -> None:
        """Answer a GET: what came after `Last-Event-ID`, or from now on without one."""
        given = request.text(b"last-event-id")
        at = self._count
        if given is not None and given.isascii() and given.isdigit() and len(given) < _DIGITS:
            at -= sum(event.seq > int(given) for event in self._events) + (int(given) < self._dropped)
        await request.begin_stream()
        await request.write(b": \n\n")
        while True:
            if at < self._count:
                at = await self._write(request, at)
            elif self._is_over:
                break
            else:
                await self._more(request)
        await request.end_stream()

    async def _write(self, request: Request, at: int) -> int:
        """Write what a reader that has had `at` events has not had, as far as it is one piece."""
        oldest = self._count - len(self._events)
        parts: list[bytes] = []
        if at < oldest:
            parts.append(b"event: lagged\ndata: %b\n\n" % rpc.encode({"before": self._events[0].seq}))
            at = oldest
        piece = list(islice(self._events, at - oldest, at - oldest + _AT_ONCE))
        parts += (b"id: %d\ndata: %b\n\n" % (event.seq, rpc.encode(record_of(event))) for event in piece)
        await request.write(b"".join(parts))
        return at + len(piece)

    async def _more(self, request: Request) -> None:
        news = self._news
        with anyio.move_on_after(self._keep_alive) as waiting:
            await news.wait()
        if waiting.cancelled_caught:
            await request.write(b": \n\n")
