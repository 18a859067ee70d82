"""The write side: at once when nothing is queued, else in order, coalesced and bounded.

Nearly every write finds the pipe empty and is done in the step that makes it, so a call costs one system call and no
task. What does not fit, and what is put with `hold`, is queued and written together at the next `flush`; each message
then says when its first byte was accepted, because from there on it may run. A message that was begun is always
completed: half a line would make the server misread all that follows.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice

from ...protocol.bounds import REPLIES
from .._exchange_table import mark_sent
from .._peer import Exchange

_MOST_PIECES = 64  # of one writev


class PendingWrite:
    """One message on its way out."""

    __slots__ = ("begun", "data", "exchange")

    def __init__(self, data: bytes, exchange: Exchange | None) -> None:
        self.data = memoryview(data)
        self.exchange = exchange
        self.begun = False

    def begin(self) -> None:
        """A byte of it was accepted."""
        self.begun = True
        if self.exchange is not None:
            mark_sent(self.exchange)


class Outbox:
    """Writes to a non-blocking descriptor. Nothing here waits: when `backlog`, wait for it and call `flush`.

    `put` and `flush` raise the `OSError` of a pipe that is gone (`BrokenPipeError`).
    """

    __slots__ = ("_fd", "_limit", "_pending", "_queued")

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._pending: deque[PendingWrite] = deque()
        self._queued = 0

    @property
    def backlog(self) -> bool:
        return bool(self._pending)

    def put(
        self, data: bytes, exchange: Exchange | None = None, *, hold: bool = False
    ) -> PendingWrite | None:
        """Write or queue `data`; `hold` queues it in any case. Returns it as a pending write if some of it is still to
        be written.

        Raises `BufferError` when the queue is full (an empty queue takes any one message), or holds very many and this
        is no request: the other side asks, and does not read its answers.
        """
        if hold or self._pending:
            return self._queue(PendingWrite(data, exchange))
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            return self._queue(PendingWrite(data, exchange))
        if exchange is not None:
            mark_sent(exchange)
        if written == len(data):
            return None
        pending = self._queue(PendingWrite(data, None))
        pending.begun = True
        self._take(pending, written)
        return pending

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the message of an exchange back. False when it is not waiting here, or has been begun."""
        for pending in self._pending:
            if pending.exchange is exchange and not pending.begun:
                self._pending.remove(pending)
                self._queued -= len(pending.data)
                return True
        return False

    def flush(self) -> None:
        """Write as much as the descriptor takes."""
        while self._pending:
            try:
                written = os.writev(
                    self._fd, [pending.data for pending in islice(self._pending, _MOST_PIECES)]
                )
            except BlockingIOError:
                return
            self._account(written)

    def clear(self) -> None:
        """Forget all that is queued: nobody reads any more."""
        self._pending.clear()
        self._queued = 0

    def _queue(self, pending: PendingWrite) -> PendingWrite:
        if self._pending and self._queued + len(pending.data) > self._limit:
            raise BufferError(f"{self._queued:,} bytes are queued already")
        if len(self._pending) >= REPLIES and pending.exchange is None:
            raise BufferError(f"{len(self._pending):,} messages are queued already")
        self._pending.append(pending)
        self._queued += len(pending.data)
        return pending

    def _account(self, written: int) -> None:
        """Take what was written off the queue, telling each message that was begun by it."""
        while written:
            pending = self._pending[0]
            if not pending.begun:
                pending.begin()
            if written < len(pending.data):
                self._take(pending, written)
                return
            written -= len(pending.data)
            self._queued -= len(pending.data)
            self._pending.popleft()

    def _take(self, pending: PendingWrite, written: int) -> None:
        pending.data = pending.data[written:]
        self._queued -= written
