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
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice
from typing import Final

import anyio
import attrs
from starlette.requests import Request as PageRequest
from starlette.responses import Response, StreamingResponse

from ...protocol import jsonrpc as rpc
from ...protocol.event_records import record_of
from ...protocol.events import Event, Lagged
from ...protocol.safe_text import without_stderr
from ..event_log import TOLD
from .http_request import PIECE, STREAM_HEADERS, Deadlines, DoorRequest, Rules


@attrs.frozen
class _LongFrame:
    """A large message: the beginning of its event, and its line. The event is made when it is written."""

    head: bytes
    line: bytes

    def __len__(self) -> int:
        return len(self.head) + len(self.line) + 1

    def pieces(self) -> Iterator[bytes]:
        yield self.head
        for start in range(0, len(self.line), PIECE):
            yield self.line[start : start + PIECE].replace(b"\r", b" ")
        yield b"\n"


class SseStream:
    """The numbered messages of one stream. `name` is unique in its session, and part of the events' ids:
    `name-number`."""

    def __init__(self, name: int, rules: Rules) -> None:
        self.name = name
        self.ended = False
        self.size: int = 0  # bytes kept
        self.read = 0  # the number of the last message that was written to a reader
        self._rules = rules
        self._first = 1  # the number of the oldest message kept
        self._frames: deque[bytes | _LongFrame] = deque()
        self._news: anyio.Event | None = None
        self._reader: DoorRequest | None = None

    @property
    def last(self) -> int:
        """The number of the latest message; 0: there is none."""
        return self._first + len(self._frames) - 1

    @property
    def has_reader(self) -> bool:
        return self._reader is not None

    @property
    def unread(self) -> int:
        """The bytes of messages that no reader has been given."""
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
        """Add an event without a message, so that the client has an id with which it can come back."""
        self._add(b"id: %d-%d\ndata: \n\n" % (self.name, self.last + 1))

    def end(self) -> None:
        """There will be no more messages. A reader still gets the rest."""
        self.ended: bool = True
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

    async def pump(self, request: DoorRequest, after: int | None = None) -> None:
        """Write the messages after number `after` (None: those that nobody has read) to an event stream that has
        begun, until this stream ends, another reader comes or the client disconnects."""
        if after is not None:
            self.read = min(after, self.last)
        previous, self._reader = self._reader, request
        if previous is not None:
            self._wake()
        request.when_over(self._wake)
        try:
            await self._write_to(request)
        finally:
            if self._reader is request:
                self._reader = None

    async def _write_to(self, request: DoorRequest) -> None:
        # What comes after that waits for the next reader.
        while self._reader is request and not request.is_over:
            if self.read < self.last:
                for frames in self._unread_frames():
                    await request.write(frames)
                    if self._reader is not request or request.is_over:
                        break
            elif self.ended:
                return
            else:
                await self._more(request)

    def _unread_frames(self) -> Iterator[bytes]:
        """The frames that the reader has not seen, which count as read from now on. A large message comes in several
        pieces, all others in one."""
        missed = self._first - 1 - self.read
        frames = tuple(islice(self._frames, max(0, -missed), None))
        small = (
            [b": the events up to %d-%d are gone\n\n" % (self.name, self._first - 1)] if missed > 0 else []
        )
        self.read: int = self.last
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

    async def _more(self, request: DoorRequest) -> None:
        if self._news is None:
            self._news = anyio.Event()
        with anyio.move_on_after(self._rules.keep_alive) as waiting:
            await self._news.wait()
        if waiting.cancelled_caught:
            await request.write(b": \n\n")


# ---- What goes back to one POST: one JSON answer, or an event stream that ends with the answer ----------------------
#
# Which of them is decided late. If the answer comes first, it is sent as `application/json`. If a notification or a
# request to the client comes before it, or if it takes long, the reply becomes an event stream.


class PostReply:
    """What goes back to one POST. `key` is the id of the request, as the client wrote it. `token` is its progress
    token, None without one."""

    wants_logs: bool = False
    stream: SseStream | None = None
    answer: bytes | None = None
    _on_decided: Callable[[], object] | None = None
    _time: Deadlines[PostReply] | None = None

    def __init__(self, key: bytes, open_stream: Callable[[], SseStream], token: object = None) -> None:
        self.key = key
        self.token = token
        self._open_stream = open_stream

    def become_stream(self) -> SseStream:
        stream = self.stream
        if stream is None:
            stream = self.stream = self._open_stream()
            self._decide()
        return stream

    def finish(self, line: bytes) -> None:
        """Add the answer."""
        if self.stream is not None:
            self.stream.put(line)
            self.stream.end()
        else:
            self.answer = line
        self._decide()

    def _decide(self) -> None:
        if self._time is not None:
            self._time.end(self)
        then, self._on_decided = self._on_decided, None
        if then is not None:
            then()

    def when_decided(self, then: Callable[[], object], time: Deadlines[PostReply]) -> None:
        """Call `then` when the reply has an answer, or is an event stream; at once if it is. It becomes one when its
        `time` is over."""
        if self.answer is not None or self.stream is not None:
            then()
        else:
            self._on_decided, self._time = then, time
            time.begin(self)


def reply_time(seconds: float) -> Deadlines[PostReply]:
    """A time limit for replies, after which they become event streams."""
    return Deadlines(seconds, PostReply.become_stream)


# ---- The room's events as server-sent events, with the sequence number as the id ------------------------------------
#
# The latest are kept for readers that come back. A reader that is too slow, or comes back too late, is told before
# which number it has missed some. Events of single calls are left out: making them would cost each call something.

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

    async def show(self, request: PageRequest) -> Response:
        """Answer a GET: what came after `Last-Event-ID`, or from now on without one."""
        given = request.headers.get("last-event-id")
        at = self._count
        if given is not None and given.isascii() and given.isdigit() and len(given) < _DIGITS:
            at -= sum(event.seq > int(given) for event in self._events) + (int(given) < self._dropped)
        headers = {name.decode(): value.decode() for name, value in STREAM_HEADERS}
        return StreamingResponse(self._after(at, request.state.caller.is_owner), headers=headers)

    async def _after(self, at: int, is_owner: bool) -> AsyncGenerator[bytes]:
        """What a reader that has had `at` events has not had, piece by piece, and a sign of life now and then. What
        servers wrote to their stderr is an owner's alone."""
        yield b": \n\n"
        while True:
            news = self._news
            if at < self._count:
                piece, at = self._piece(at, record_of if is_owner else _for_readers)
                yield piece
            elif self._is_over:
                return
            else:
                with anyio.move_on_after(self._keep_alive) as waiting:
                    await news.wait()
                if waiting.cancelled_caught:
                    yield b": \n\n"

    def _piece(self, at: int, told: Callable[[Event], object]) -> tuple[bytes, int]:
        """What comes after the first `at` events, as far as it is one piece, and how many a reader has had with it."""
        oldest = self._count - len(self._events)
        parts: list[bytes] = []
        if at < oldest:
            parts.append(b"event: lagged\ndata: %b\n\n" % rpc.encode({"before": self._events[0].seq}))
            at = oldest
        piece = list(islice(self._events, at - oldest, at - oldest + _AT_ONCE))
        parts += (b"id: %d\ndata: %b\n\n" % (event.seq, rpc.encode(told(event))) for event in piece)
        return b"".join(parts), at + len(piece)


def _for_readers(event: Event) -> object:
    return without_stderr(record_of(event))
