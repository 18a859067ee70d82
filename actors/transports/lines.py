"""Lines over a descriptor: `LineSplitter` reads them and `LineWriter` writes them.

Chunks are split in linear time and bounded memory.
Only new bytes are searched for the newline, and the held part of a line grows in place (`message_buffer`). A large
line is handed over without a copy, as a `bytearray` that then belongs to its receiver: a copy would stall the loop by a
millisecond per megabyte. Only the head and the tail of a line over the bound are kept, so that the exchange it answers
can be named: some write the id first, and the SDK for TypeScript writes it last. (The loop of the Python SDK searches
and copies all it has at each chunk: 40 MB took it seven seconds.)
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import anyio
import msgspec

from ..backend import Backend, Waiter
from ..message_buffer import MessageBuffer
from ..open_requests import mark_sent
from ..peer import SENT, Exchange

HEAD = 256  # bytes of an over-long line that are kept, and as many of its end
LINES_A_TURN: Final = 100
FEW_LINES: Final = 10  # of a client: they are taken in one turn, however long that takes
_TURN: Final = 0.01  # seconds after which a turn ends
_MOST_PIECES: Final = 64  # lines in one write
_BUSY: Final = 1 << 16
CONGESTED: Final = 1 << 20


class LineSplitter:
    """Feed it chunks; it returns the complete lines, without their newline, and reports lines over a bound.

    A chunk that ends a large line goes to `on_large` instead, if there is one: that line and the lines behind it.
    `on_overlong(head, bound)` is called as soon as a bound is crossed, not when the line ends: it may never end.
    `bound` says in words which one: a number of bytes, or of values. When such a line has ended,
    `on_overlong_end(head, tail, bound)` is called. `on_repaired(line)` is given a line that was repaired while it came.
    `setting`: what the bound of bytes is called.
    """

    __slots__ = (
        "_held",
        "_limit",
        "_on_large",
        "_on_overlong",
        "_on_overlong_end",
        "_on_repaired",
        "_over",
        "_setting",
        "_tail",
    )

    def __init__(
        self,
        limit: int,
        on_overlong: Callable[[bytes, str], None],
        on_large: Callable[[list[bytes | bytearray]], None] | None = None,
        on_repaired: Callable[[bytes | bytearray], None] | None = None,
        on_overlong_end: Callable[[bytes, bytes, str], None] | None = None,
        setting: str = "",
    ) -> None:
        self._setting = f" ({setting})" if setting else ""
        self._on_overlong_end = on_overlong_end
        self._on_large = on_large
        self._on_repaired = on_repaired
        self._limit = limit
        self._on_overlong = on_overlong
        self._held = MessageBuffer()
        self._over: tuple[bytes, str] | None = None  # head and bound of the line that is thrown away
        self._tail = b""  # the latest bytes of it

    @property
    def held(self) -> bytearray | None:
        """The part of the line that has no end yet; None: that line is dropped. Not to be changed."""
        return None if self._over is not None else self._held.data

    @property
    def is_dropping_json(self) -> bool:
        """Whether the line that comes is thrown away, and may be a message."""
        return self._over is not None and self._over[0].lstrip().startswith((b"{", b"["))

    def feed(self, chunk: bytes) -> list[bytes | bytearray]:
        """The lines that end in `chunk`; a large one as a `bytearray`."""
        # One whole line, as nearly always, is found in half the time that `split` takes, which looks at each byte.
        line, ending, rest = chunk.partition(b"\n")
        if not ending:
            self._hold(chunk)
            return []
        lines: list[Any] = [line]
        if rest:
            lines += rest.split(b"\n")
            rest = lines.pop()
        if self._held.data or self._over is not None:
            lines[0:1] = self._finish(lines[0])
            if self._on_large is not None and lines and type(lines[0]) is bytearray:
                self._on_large(lines)
                lines = []
        if rest:
            self._hold(rest)
        if len(chunk) > self._limit:  # only then can a line that came in one piece be too long
            lines = [line for line in lines if self._fits(line)]
        return lines

    def _hold(self, part: bytes | bytearray) -> None:
        if self._over is not None:
            self._tail = (self._tail + part[-HEAD:])[-HEAD:]
            return
        over = self._held.add(part)
        if len(self._held.data) > self._limit:
            over = self._bytes()
        if over:
            self._drop(over)

    def _bytes(self) -> str:
        return f"{self._limit:,} bytes a line{self._setting}"

    def _finish(self, part: bytes | bytearray) -> list[bytes | bytearray]:
        """The line that ends with `part`; an empty list when the line is over the bound."""
        self._hold(part)
        if self._over is not None:
            (head, bound), self._over = self._over, None
            self._end_overlong(head, self._tail, bound)
            return []
        held, self._held = self._held, MessageBuffer()
        line = held.end()
        if held.repaired and self._on_repaired is not None:
            self._on_repaired(line)
        return [line]

    def _drop(self, bound: str) -> None:
        held, self._held = self._held.data, MessageBuffer()
        head, self._tail = bytes(held[:HEAD]), bytes(held[-HEAD:])
        self._over = head, bound
        self._on_overlong(head, bound)

    def _end_overlong(self, head: bytes, tail: bytes, bound: str) -> None:
        if self._on_overlong_end is not None:
            self._on_overlong_end(head, tail, bound)

    def _fits(self, line: bytes | bytearray) -> bool:
        if len(line) <= self._limit:
            return True
        head, bound = bytes(line[:HEAD]), self._bytes()
        self._on_overlong(head, bound)
        self._end_overlong(head, bytes(line[-HEAD:]), bound)
        return False


class PendingLines(list["bytes | bytearray"]):
    """Lines that came and were not yet taken, the last one first. However many lines a read brings, a turn takes a
    hundred of them, or those that it can take in ten milliseconds, and others get their turn in between. A large line
    is decoded in one turn and taken in the next. Nothing more is read before all are taken."""

    _decoded: Callable[[], object] | None = None  # takes the next line, which is large and decoded

    def put(self, lines: list[bytes | bytearray]) -> None:
        """Fill it with `lines`; it must be empty."""
        self[:] = lines[::-1]

    @property
    def is_large(self) -> bool:
        """Whether the next line is large."""
        return bool(self) and type(self[-1]) is bytearray

    def turn(self) -> Iterator[bytes | bytearray]:
        """Remove the lines of one turn, in their order, each when it is taken. A large line ends it."""
        ends = time.monotonic() + _TURN
        for _ in range(LINES_A_TURN):
            if not self or self.is_large:
                return
            yield self.pop()
            if time.monotonic() > ends:
                return

    def take(
        self,
        take: Callable[[bytes | bytearray], object],
        decode_large: Callable[[bytearray], Callable[[], object]],
    ) -> int:
        """Take one turn's share of the lines. `decode_large(line)` returns the function that takes a large line.
        Returns how many lines were taken."""
        first = self[-1]
        if not isinstance(first, bytearray):
            taken = 0
            for line in self.turn():
                take(line)
                taken += 1
            return taken
        if self._decoded is None:
            self._decoded = decode_large(first)
            return 0
        take_decoded, self._decoded = self._decoded, None
        take_decoded()
        del self[-1:]  # nothing, if what was taken has cleared all lines
        return 1

    def clear(self) -> None:
        super().clear()
        self._decoded = None


class WriteRules(msgspec.Struct, frozen=True):
    """What may wait to be written: `size` bytes, though an empty queue takes any one line. A line of up to `short`
    bytes is always taken. `others`: from this number of lines on only requests of ours are added; None: no such bound.
    `gathers_all`: other lines than requests also wait to share a write.

    They hold what differs between the two sides. A server is sent requests, and little else: only requests are
    gathered. Beyond the bound each request is refused by itself, while a number of other lines may still wait. A client
    is sent answers, and all lines to it are gathered. A client is owed one answer for each request, so there are two
    marks. Over the small one the writer is `busy`, and no notification should be added. Over the next it is
    `congested`, and no request should be read. Where even an answer is refused, a short one that says so is still
    taken.
    """

    size: int
    short: int = 0
    others: int | None = None
    gathers_all: bool = False


def _nothing() -> None:
    pass


class LineWriter:
    """The write side. Call `send` anywhere in the loop; `run` it in a task of the descriptor's owner.

    Nearly every line finds the pipe empty. The first line after the other side was last heard is written in the step
    that made it, so a call costs one system call and no task. Every other line waits, and waiting lines are written
    together: at the end of the loop's pass, or when the other side reads again. So a single message never waits, and
    many at once share a write. A line that was begun is always completed: after half a line the other side would
    misread everything that follows. A request records when its first byte was accepted, because from then on it may
    run. Before that it can be withdrawn.
    """

    def __init__(
        self,
        backend: Backend,
        fd: int,
        rules: WriteRules,
        *,
        congested: int = CONGESTED,
        on_broken: Callable[[], object] = _nothing,
    ) -> None:
        self._backend = backend
        self._fd = fd
        self._rules = rules
        self._gathers_all = rules.gathers_all
        self._low = congested
        self._on_broken = on_broken
        self._queue: deque[tuple[bytes | memoryview, Exchange | None]] = deque()
        self._wake = backend.waiter()
        self._relief: Waiter | None = None
        self._empty: Waiter | None = None
        self._full: anyio.CancelScope | None = None  # while `run` waits for a full pipe
        self.gathering = (
            False  # a line was written since the other side was last heard; the reader resets this
        )
        self.waiting = 0  # bytes
        self.is_over = False  # the other end is closed, or ours: everything sent from now on is dropped
        self.fault: OSError | None = None  # what broke the connection

    @property
    def congested(self) -> bool:
        return self.waiting > self._low

    @property
    def busy(self) -> bool:
        return self.waiting > _BUSY

    def send(self, line: bytes, exchange: Exchange | None = None) -> bool:
        """Write `line` now or in its turn. `exchange`: the exchange whose request it is, if it is one. Returns False if
        the line is refused, for the reason that `lacking` gives."""
        if self.is_over:
            return True
        gathered = exchange is not None or self._gathers_all
        if not (self.waiting or (gathered and self.gathering)):
            self.gathering = gathered or self.gathering
            try:
                written = os.write(self._fd, line)
            except BlockingIOError:
                self._wait(line, exchange)
                return True
            except OSError as error:
                self._break(error)
                return True
            if exchange is not None:  # as `mark_sent`, for nearly every call comes here, just opened
                exchange.reach = SENT
                exchange.owner.exchange_sent(exchange)
            if written != len(line):
                self._wait(memoryview(line)[written:], None)
            return True
        if self.lacking(line, exchange):
            return False
        self._wait(line, exchange)
        return True

    def lacking(self, line: bytes, exchange: Exchange | None = None) -> str:
        """Why this line cannot be queued, in words; empty when it can."""
        rules = self._rules
        if self._queue and self.waiting + len(line) > rules.size and len(line) > rules.short:
            return f"{self.waiting:,} bytes are queued already"
        if exchange is None and rules.others is not None and len(self._queue) >= rules.others:
            return f"{len(self._queue):,} messages are queued already"
        return ""

    def withdraw(self, exchange: Exchange) -> bool:
        """Withdraw the request of an exchange. Returns False when it does not wait here, or its writing has begun."""
        for place, (line, whose) in enumerate(self._queue):
            if whose is exchange:
                del self._queue[place]
                self.waiting -= len(line)
                self._tell()
                return True
        return False

    def wake(self) -> None:
        """Have `run` make a pass, even if nothing waits, or if the other side reads nothing."""
        self._wake.set()
        if self._full is not None:
            self._full.cancel()

    def flush(self) -> None:
        """Write what waits, as long as each write is taken whole."""
        while self._queue and self._write_some():
            pass

    def close(self) -> None:
        """Write as much of what waits as the pipe takes at once; nothing is written afterwards. Idempotent."""
        if not self.is_over:
            self._on_broken = _nothing  # we end it ourselves
            self.flush()
            self._end()

    async def run(self, first: Callable[[], object] = _nothing) -> None:
        """Write what waits, as fast as the other side reads. `first()` is called at each pass: before anything is
        written, and whenever the pipe has room again or `wake` was called. Runs until cancelled or over."""
        while not self.is_over:
            await self._wake.wait()
            self._wake = self._backend.waiter()
            self.gathering: bool = False
            first()
            self.flush()
            while self._queue:
                with anyio.CancelScope() as self._full:
                    try:
                        await anyio.wait_writable(self._fd)
                    except anyio.ClosedResourceError:
                        return  # closed under us, by its owner
                    except PermissionError:
                        pass  # a file: it takes what it can at once, or raises
                self._full = None
                first()
                if self._queue:
                    self._write_some()

    async def relieved(self) -> None:
        """Wait until no longer congested (or over)."""
        while self.congested and not self.is_over:
            self._relief = self._backend.waiter()
            await self._relief.wait()

    async def flushed(self) -> None:
        """Wait until nothing waits (or over)."""
        while self.waiting and not self.is_over:
            self._empty = self._backend.waiter()
            await self._empty.wait()

    def _wait(self, line: bytes | memoryview, exchange: Exchange | None) -> None:
        self._queue.append((line, exchange))
        self.waiting += len(line)
        self._wake.set()

    def _write_some(self) -> bool:
        """Write once what waits, or much of it. Returns False if not all of that was accepted."""
        batch = [line for line, _ in islice(self._queue, _MOST_PIECES)]
        try:
            written = os.writev(self._fd, batch)
        except BlockingIOError:
            return False
        except OSError as error:
            self._break(error)
            return False
        whole = written == sum(map(len, batch))
        self._take(written)
        self._tell()
        return whole

    def _take(self, written: int) -> None:
        """Take what was written off the queue, and tell each request whose writing that began."""
        self.waiting -= written
        while written:
            line, exchange = self._queue.popleft()
            if written < len(line):
                self._queue.appendleft((memoryview(line)[written:], None))
                written = 0
            else:
                written -= len(line)
            if exchange is not None:
                mark_sent(exchange)

    def _break(self, error: OSError) -> None:
        self.fault = error
        self._end()
        self._on_broken()

    def _end(self) -> None:
        self.is_over: bool = True
        self._queue.clear()
        self.waiting: int = 0
        self.wake()
        self._tell()

    def _tell(self) -> None:
        if self._relief is not None and not self.congested:
            self._relief.set()
        if self._empty is not None and not self.waiting:
            self._empty.set()
