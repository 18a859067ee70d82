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
from .._conversation import mark_sent
from .._peer import Exchange

_MOST_PIECES = 64  # of one writev


class Letter:
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

    __slots__ = ("_fd", "_letters", "_limit", "_queued")

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._letters: deque[Letter] = deque()
        self._queued = 0

    @property
    def backlog(self) -> bool:
        return bool(self._letters)

    def put(self, data: bytes, exchange: Exchange | None = None, *, hold: bool = False) -> Letter | None:
        """Write or queue `data`; `hold` queues it in any case. Returns the letter if some of it is still to be written.

        Raises `BufferError` when the queue is full (an empty queue takes any one message), or holds very many and this
        is no request: the other side asks, and does not read its answers.
        """
        if hold or self._letters:
            return self._queue(Letter(data, exchange))
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            return self._queue(Letter(data, exchange))
        if exchange is not None:
            mark_sent(exchange)
        if written == len(data):
            return None
        letter = self._queue(Letter(data, None))
        letter.begun = True
        self._take(letter, written)
        return letter

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the message of an exchange back. False when it is not waiting here, or has been begun."""
        for letter in self._letters:
            if letter.exchange is exchange and not letter.begun:
                self._letters.remove(letter)
                self._queued -= len(letter.data)
                return True
        return False

    def flush(self) -> None:
        """Write as much as the descriptor takes."""
        while self._letters:
            try:
                written = os.writev(self._fd, [letter.data for letter in islice(self._letters, _MOST_PIECES)])
            except BlockingIOError:
                return
            self._account(written)

    def clear(self) -> None:
        """Forget all that is queued: nobody reads any more."""
        self._letters.clear()
        self._queued = 0

    def _queue(self, letter: Letter) -> Letter:
        if self._letters and self._queued + len(letter.data) > self._limit:
            raise BufferError(f"{self._queued:,} bytes are queued already")
        if len(self._letters) >= REPLIES and letter.exchange is None:
            raise BufferError(f"{len(self._letters):,} messages are queued already")
        self._letters.append(letter)
        self._queued += len(letter.data)
        return letter

    def _account(self, written: int) -> None:
        """Take what was written off the queue, telling each letter that was begun by it."""
        while written:
            letter = self._letters[0]
            if not letter.begun:
                letter.begin()
            if written < len(letter.data):
                self._take(letter, written)
                return
            written -= len(letter.data)
            self._queued -= len(letter.data)
            self._letters.popleft()

    def _take(self, letter: Letter, written: int) -> None:
        letter.data = letter.data[written:]
        self._queued -= written
