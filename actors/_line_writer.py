"""Lines out, over a non-blocking descriptor, for another side that may be slow, silent, or gone.

Nearly every line finds the pipe empty: the first one since the other side was heard is written in the step that made
it, so a call costs one system call and no task. Any other waits, and what waits is written together: at the end of the
loop's pass, or when the other side reads again. So one message never waits, and many at once share a write. A line that
was begun is always completed: half a line would make the other side misread all that follows. A request says when its
first byte was accepted, because from there on it may run; before that it can be withdrawn.

The two sides differ in what is said to them (`WriteRules`). To a server go requests, and little else: only they are
gathered, and beyond the bound each is refused by itself, while of what is no request a number may wait. To a client go
answers, and all of them are gathered. It is owed one for each request, so it is stopped earlier and refused later: over
a small mark the way is `busy`, and no notification should be added; over the next it is `congested`, and no request
should be read; and where even an answer is refused, a short one, which says so, is still taken.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import anyio
import attrs

from ._backend import Backend, Waiter
from ._peer import Exchange
from ._request_table import mark_sent

_MOST_PIECES: Final = 64  # of one write
_BUSY: Final = 1 << 16
CONGESTED: Final = 1 << 20


@attrs.frozen
class WriteRules:
    """What may wait to be written: `size` bytes, though an empty queue takes any one line; a line of up to `short`
    bytes is taken in any case. `others`: lines from which on only requests of ours are added; None: no such bound.
    `gathers_all`: not only requests wait for others to share their write."""

    size: int
    short: int = 0
    others: int | None = None
    gathers_all: bool = False


def _nothing() -> None:
    pass


class LineWriter:
    """The way out. `send` from anywhere in the loop; `run` in a task of whoever owns the descriptor."""

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
        self.gathering = False  # a line was written, and the other side not heard since: who hears it says so
        self.waiting = 0  # bytes
        self.is_over = False  # the other end is closed, or ours: everything sent from here on is dropped
        self.fault: OSError | None = None  # what broke it

    @property
    def congested(self) -> bool:
        return self.waiting > self._low

    @property
    def busy(self) -> bool:
        return self.waiting > _BUSY

    def send(self, line: bytes, exchange: Exchange | None = None) -> bool:
        """Write `line`, the request of `exchange` or no request of ours, now or in its turn. False: it is refused, for
        what `lacking` says."""
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
            if exchange is not None:
                mark_sent(exchange)
            if written != len(line):
                self._wait(memoryview(line)[written:], None)
            return True
        if self.lacking(line, exchange):
            return False
        self._wait(line, exchange)
        return True

    def lacking(self, line: bytes, exchange: Exchange | None = None) -> str:
        """What stands in the way of this line, in words; empty when it can be queued."""
        rules = self._rules
        if self._queue and self.waiting + len(line) > rules.size and len(line) > rules.short:
            return f"{self.waiting:,} bytes are queued already"
        if exchange is None and rules.others is not None and len(self._queue) >= rules.others:
            return f"{len(self._queue):,} messages are queued already"
        return ""

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the request of an exchange back. False when it is not waiting here, or has been begun."""
        for place, (line, whose) in enumerate(self._queue):
            if whose is exchange:
                del self._queue[place]
                self.waiting -= len(line)
                self._tell()
                return True
        return False

    def wake(self) -> None:
        """Have `run` make a pass, also if nothing waits."""
        self._wake.set()

    def flush(self) -> None:
        """Write what waits, as long as it is taken whole."""
        while self._queue and self._write_some():
            pass

    def close(self) -> None:
        """Write what is taken at once, and nothing after it. Idempotent."""
        if not self.is_over:
            self._on_broken = _nothing  # it is we who end it
            self.flush()
            self._end()

    async def run(self, first: Callable[[], object] = _nothing) -> None:
        """Write what waits, as fast as the other side reads. `first()` is called at each pass, before anything is
        written. Runs until cancelled or over."""
        while not self.is_over:
            await self._wake.wait()
            self._wake = self._backend.waiter()
            self.gathering = False
            first()
            self.flush()
            while self._queue:
                try:
                    await anyio.wait_writable(self._fd)
                except anyio.ClosedResourceError:
                    return  # under us, by its owner
                except PermissionError:
                    pass  # a file: it takes what it can at once, or says why not
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
        """One write of what waits, or much of it. False: it was not taken whole."""
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
        """Take what was written off the queue, telling each request that was begun by it."""
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
        self.is_over = True
        self._queue.clear()
        self.waiting = 0
        self._wake.set()
        self._tell()

    def _tell(self) -> None:
        if self._relief is not None and not self.congested:
            self._relief.set()
        if self._empty is not None and not self.waiting:
            self._empty.set()
