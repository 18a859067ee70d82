"""Lines out, over a raw descriptor, for a client that may be slow, silent, or gone.

The first line since the client was heard is written in the step that made it, when nothing is waiting. Any other waits,
and what waits is written together: at the end of the loop's pass, or when the client reads again. So one answer never
waits, and many at once share a write. Marks bound what may wait. Over a small one the outlet is `busy`: no notification
is added, so that no answer waits behind a flood of them. Over the low one the outlet is `congested`: the door stops
reading requests. Over the high one a long line is refused (its sender answers something short instead), so memory is
bounded by that mark and by the requests that were already in flight.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ..actors import Backend, Waiter

_CHUNK: Final = 1 << 18
_SHORT: Final = 4096
_BUSY: Final = 1 << 16
CONGESTED: Final = 1 << 20
FULL: Final = 128 << 20


class LineWriter:
    """The way out. `send` from anywhere in the loop; `run` in a task of the door's."""

    def __init__(
        self,
        backend: Backend,
        fd: int,
        *,
        congested: int = CONGESTED,
        full: int = FULL,
        on_broken: Callable[[], object] = lambda: None,
    ) -> None:
        self._backend = backend
        self._fd = fd
        self._low, self._high = congested, full
        self._on_broken = on_broken
        self._queue: deque[bytes | memoryview] = deque()
        self._wake = backend.waiter()
        self._relief: Waiter | None = None
        self._empty: Waiter | None = None
        self.gathering = False  # a line was written, and the client not heard since: who hears it says so
        self.waiting = 0  # bytes
        self.broken = False  # the other end is closed; everything sent from here on is dropped
        self.fault: OSError | None = None  # what broke it

    @property
    def congested(self) -> bool:
        return self.waiting > self._low

    @property
    def busy(self) -> bool:
        return self.waiting > _BUSY

    def send(self, line: bytes) -> bool:
        """Write `line`, now or in its turn. False: too much is waiting already, and it is not a short one."""
        if self.broken:
            return True
        if not (self.waiting or self.gathering):
            self.gathering = True
            try:  # as in `_write`: nearly every line goes out here
                written = os.write(self._fd, line)
            except OSError:
                written = self._write(line)
            if written == len(line) or self.broken:
                return True
            self._wait(memoryview(line)[written:])
            return True
        if self.waiting + len(line) > self._high and len(line) > _SHORT:
            return False
        self._wait(line)
        return True

    async def run(self) -> None:
        """Write what waits, as fast as the client reads. Runs until cancelled or broken."""
        while not self.broken:
            await self._wake.wait()
            self._wake = self._backend.waiter()
            self.gathering = False
            self._write_waiting()
            while self._queue:
                with suppress(PermissionError):  # a file: it takes what it can at once, or says why not
                    await self._backend.wait_writable(self._fd)
                self._write_some()

    async def relieved(self) -> None:
        """Wait until no longer congested (or broken)."""
        while self.congested and not self.broken:
            self._relief = self._backend.waiter()
            await self._relief.wait()

    async def flushed(self) -> None:
        """Wait until nothing waits (or broken)."""
        while self.waiting and not self.broken:
            self._empty = self._backend.waiter()
            await self._empty.wait()

    def _wait(self, line: bytes | memoryview) -> None:
        self._queue.append(line)
        self.waiting += len(line)
        self._wake.set()

    def _write_waiting(self) -> None:
        """What waits, as long as it is taken whole."""
        while self._queue and self._write_some():
            pass

    def _write_some(self) -> bool:
        """One write of up to a chunk, taken from as many lines as it holds. False: it was not taken whole."""
        batch = self._batch()
        written = self._write(batch)
        if self.broken:
            return False
        whole = written == len(batch)
        self.waiting -= written
        while written:
            head = self._queue[0]
            if written < len(head):
                self._queue[0] = memoryview(head)[written:]
                break
            written -= len(head)
            self._queue.popleft()
        self._tell()
        return whole

    def _batch(self) -> bytes | memoryview:
        head = self._queue[0]
        if len(head) >= _CHUNK or len(self._queue) == 1:
            return head
        size, parts = 0, list[bytes | memoryview]()
        for part in self._queue:
            parts.append(part)
            size += len(part)
            if size >= _CHUNK:
                break
        return b"".join(parts)

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.fault = error
            self._break()
            return 0

    def _break(self) -> None:
        self.broken = True
        self._queue.clear()
        self.waiting = 0
        self._wake.set()
        self._tell()
        self._on_broken()

    def _tell(self) -> None:
        if self._relief is not None and not self.congested:
            self._relief.set()
        if self._empty is not None and not self.waiting:
            self._empty.set()
