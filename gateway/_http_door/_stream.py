"""One event stream to a client: numbered messages, of which the latest are kept for a client that comes back.

A stream outlives its connections. `put` adds a message; `pump` writes what the reader has not seen, waits for
more, and writes a comment now and then, so that nothing in between takes the connection for dead. A stream has
one reader: a new one takes the place of an older one, whose connection may be dead without our knowing.

What is kept is bounded in events and in bytes; the last message is always kept. When a message is thrown away
that its connected reader has not read, this reader is too slow, and its connection is cut. A reader that asks for
messages that are gone is told so by a comment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice

import anyio
import attrs

from ._request import PIECE, Request
from ._rules import Rules


@attrs.frozen
class _LongFrame:
    """A large message: what comes before it in its event, and its line. It is made an event when it is written."""

    head: bytes
    line: bytes

    def __len__(self) -> int:
        return len(self.head) + len(self.line) + 1

    def pieces(self) -> Iterator[bytes]:
        yield self.head
        for start in range(0, len(self.line), PIECE):
            yield self.line[start : start + PIECE].replace(b"\r", b" ")
        yield b"\n"


class Stream:
    """`name` is unique in its session, and part of the events' ids: `name-number`."""

    def __init__(self, name: int, rules: Rules) -> None:
        self.name = name
        self.ended = False
        self.size = 0  # bytes kept
        self.read = 0  # the number of the last message that was written to a reader
        self._rules = rules
        self._first = 1  # the number of the oldest message kept
        self._frames: deque[bytes | _LongFrame] = deque()
        self._news: anyio.Event | None = None
        self._reader: Request | None = None

    @property
    def last(self) -> int:
        """The number of the latest message; 0: none."""
        return self._first + len(self._frames) - 1

    @property
    def has_reader(self) -> bool:
        return self._reader is not None

    @property
    def unread(self) -> int:
        """The bytes that no reader has been given."""
        count = min(self.last - self.read, len(self._frames))
        return sum(map(len, islice(reversed(self._frames), count))) if count else 0

    def put(self, line: bytes) -> None:
        """Add a message."""
        if len(line) > PIECE:
            head = b"id: %d-%d\nevent: message\ndata: " % (self.name, self.last + 1)
            self._add(_LongFrame(head, line))
            return
        data = line.rstrip(b"\n")
        if b"\r" in data:  # in JSON it can only be white space, but here it would end the line
            data = data.replace(b"\r", b" ")
        self._add(b"id: %d-%d\nevent: message\ndata: %b\n\n" % (self.name, self.last + 1, data))

    def prime(self) -> None:
        """Add an event without a message. From then on the client has an id to come back with."""
        self._add(b"id: %d-%d\ndata: \n\n" % (self.name, self.last + 1))

    def end(self) -> None:
        """There will be no more messages. A reader is given the rest."""
        self.ended = True
        self._wake()

    def leave(self) -> None:
        """Send the reader away."""
        self._reader = None
        self._wake()

    def _add(self, frame: bytes | _LongFrame) -> None:
        self._frames.append(frame)
        self.size += len(frame)
        rules, is_behind = self._rules, False
        while len(self._frames) > 1 and (
            self.size > rules.replay_bytes or len(self._frames) > rules.replay_events
        ):
            is_behind = is_behind or self._first > self.read
            self.size -= len(self._frames.popleft())
            self._first += 1
        if is_behind and self._reader is not None:
            self._reader.abort()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def pump(self, request: Request, after: int | None = None) -> None:
        """Write the messages after number `after` (None: those that nobody has read) to an event stream that has
        begun, until this stream ends, another reader comes or the client disconnects."""
        if after is not None:
            self.read = min(after, self.last)
        previous, self._reader = self._reader, request
        if previous is not None:
            self._wake()
        left, hangup = partial(self._left, request), request.hangup
        hangup.tell(left)
        try:
            while self._reader is request:
                if self.read < self.last:
                    for frames in self._unread_frames():
                        await request.write(frames)
                        if self._reader is not request:
                            break
                elif self.ended:
                    return
                else:
                    await self._more(request)
        finally:
            hangup.forget(left)
            if self._reader is request:
                self._reader = None

    def _left(self, request: Request) -> None:
        """The client has disconnected. What comes from now on waits for the next reader."""
        if self._reader is request:
            self.leave()

    def _unread_frames(self) -> Iterator[bytes]:
        """What the reader has not seen, from now on as read; a large message in pieces, others in one piece."""
        missed = self._first - 1 - self.read
        frames = tuple(islice(self._frames, max(0, -missed), None))
        small = (
            [b": the events up to %d-%d are gone\n\n" % (self.name, self._first - 1)] if missed > 0 else []
        )
        self.read = self.last
        for frame in frames:
            if isinstance(frame, bytes):
                small.append(frame)
                continue
            if small:
                yield b"".join(small)
                small = []
            yield from frame.pieces()
        if small:
            yield b"".join(small)

    async def _more(self, request: Request) -> None:
        if self._news is None:
            self._news = anyio.Event()
        with anyio.move_on_after(self._rules.keep_alive) as waiting:
            await self._news.wait()
        if waiting.cancelled_caught:
            await request.write(b": \n\n")
