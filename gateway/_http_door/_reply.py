"""What goes back to one POST: one JSON answer, or an event stream that ends with the answer.

Which of them is decided late. If the answer comes first, it is sent as `application/json`. If a notification or a
question for the client comes before it, or if it takes long, the reply becomes an event stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from ._stream import Stream


class Reply:
    """`key` is the id of the request, as the client wrote it. `token` is its progress token, None without one."""

    def __init__(self, key: bytes, open_stream: Callable[[], Stream], token: object = None) -> None:
        self.key = key
        self.token = token
        self.wants_logs = False
        self.stream: Stream | None = None
        self.answer: bytes | None = None
        self._open_stream = open_stream
        self.tells: Callable[[Reply], None] | None = None  # who waits for it without a task (`_turn`)
        self._decided: asyncio.Event | None = None

    def become_stream(self) -> Stream:
        stream = self.stream
        if stream is None:
            stream = self.stream = self._open_stream()
            self._decide()
        return stream

    def add(self, line: bytes) -> None:
        """A message that comes before the answer."""
        self.become_stream().put(line)

    def finish(self, line: bytes) -> None:
        """The answer."""
        if self.stream is not None:
            self.stream.put(line)
            self.stream.end()
        else:
            self.answer = line
        self._decide()

    def _decide(self) -> None:
        if self.tells is not None:
            self.tells(self)
        if self._decided is not None:
            self._decided.set()

    def __await__(self) -> Generator[Reply, None, None]:
        """Wait until it is decided, without a task."""
        if self.answer is None and self.stream is None:
            yield self

    async def decided(self, within: float) -> None:
        """Wait until it has an answer or is an event stream, but no longer than `within`."""
        if self.answer is None and self.stream is None:
            decided = self._decided = asyncio.Event()
            # Every call waits here. A cancel scope with a deadline would take five times as long as this timer.
            timer = asyncio.get_running_loop().call_later(within, decided.set)
            try:
                await decided.wait()
            finally:
                timer.cancel()
