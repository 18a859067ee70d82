"""The event stream that carries the answer of one exchange. It is resumed when it ends too early.

A stream that broke or was closed before the answer is opened again from the id of its last event, after the time
that the server asked for. Without an id it cannot be resumed. The number of attempts in a row that bring nothing
is bounded. The call's own timeout bounds how long it waits.

Once the answer has come, the stream gets a moment to end by itself, because a connection that we close in the
middle of a body cannot be used again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio

from ._carrier import Attempt
from ._events import EventParser
from ._faults import BadAnswer, Broken
from ._peer import HttpPeer

if TYPE_CHECKING:
    import httpx2

FIRST_RETRY = 1.0  # seconds before a stream is opened again, when the server does not set them
_FRUITLESS = 3  # attempts in a row that bring nothing
_LINGER = 0.05  # seconds


class AnswerStream:
    """`take(attempt, data)` is called with each message that comes."""

    def __init__(
        self, attempt: Attempt, peer: HttpPeer, take: Callable[[Attempt, bytes | bytearray], Awaitable[None]]
    ) -> None:
        self._attempt = attempt
        self._peer = peer
        self._take = take
        self._parser = EventParser(peer.max_size, self._overlong)
        self._is_overlong = False
        self._events = 0

    @property
    def last_id(self) -> str:
        return self._parser.last_id

    @property
    def is_resumable(self) -> bool:
        return bool(self.last_id) and not self._attempt.is_modern

    async def read(self, response: httpx2.Response) -> None:
        """Take messages until the stream ends. A moment after the answer we end it ourselves."""
        with anyio.CancelScope() as scope:
            async with aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    self._peer.heard()
                    await self._feed(piece)
                    if not self._peer.is_open(self._attempt) and scope.deadline == math.inf:
                        scope.deadline = anyio.current_time() + _LINGER

    async def resume(self, open_again: Callable[[AnswerStream], Awaitable[None]]) -> None:
        """Open the stream again and again, until the answer is there. Raises `Broken` when it cannot be resumed."""
        fruitless = 0
        while self._peer.is_open(self._attempt):
            if not self.is_resumable:
                raise Broken("the event stream ended without an answer")
            if fruitless == _FRUITLESS:
                raise Broken("the event stream ended without an answer, and could not be resumed")
            await anyio.sleep(FIRST_RETRY if self._parser.retry is None else self._parser.retry)
            events = self._events
            try:
                await open_again(self)
            except Broken as problem:
                self._peer.notes.add("resuming an event stream failed", str(problem))
            fruitless = 0 if self._events > events else fruitless + 1

    async def _feed(self, piece: bytes) -> None:
        last_id = self.last_id
        for event in self._parser.feed(piece):
            self._events += 1
            if event.name == "message":
                await self._take(self._attempt, event.data)
        if self.last_id != last_id:
            self._events += 1
        if self._is_overlong:
            raise BadAnswer(f"the answer is over the bound of {self._peer.max_size:,} bytes an event")

    def _overlong(self, head: bytes, bound: str) -> None:
        self._is_overlong = True
