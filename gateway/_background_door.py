"""The door of one attached client: its own standard input and output, which it has passed to the room.

The room reads and writes the client's pipes itself, so an attached call costs what a call costs at the stdio door, and
the process that attached only waits. What must survive the room's death is noted in the client's ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from ..actors import Backend, More
from ..protocol import jsonrpc as rpc
from ..protocol.jsonrpc import RpcFault
from ._answers import OpenJobs
from ._background_ledger import Ledger
from ._jobs import Job
from ._stdio_door import StdioDoor

_LONGEST_KEPT: Final = (
    1 << 15
)  # bytes of an introduction that is said again to the next room: a socket takes it whole
_INITIALIZE: Final = b'"initialize"'
_INITIALIZED: Final = b'"notifications/initialized"'
_FEW: Final = 1 << 12  # an introduction is searched in lines up to this length, and in the heads of others


class RecordedJobs(OpenJobs):
    """A client's table of open requests that keeps a ledger."""

    ledger: Ledger

    def __setitem__(self, key: bytes, job: Job) -> None:
        self.ledger.began(key)
        super().__setitem__(key, job)

    def pop(self, key: bytes, default: Job | None = None) -> Job | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.ledger.ended(key)
        return super().pop(key, default)


class AttachedDoor(StdioDoor):
    """A stdio door that keeps a ledger. `on_introduction(initialize, greeted)` is called when the client introduces
    itself, and again when it says that it is ready."""

    def __init__(
        self,
        backend: Backend,
        stdin: int,
        stdout: int,
        ledger: Ledger,
        on_introduction: Callable[[bytes, bool], None],
        *,
        max_line: int,
        cut_in: bool,
    ) -> None:
        super().__init__(backend, stdin, stdout, max_line=max_line)
        self._ledger = ledger
        self._on_introduction = on_introduction
        self._initialize = b""
        self._behind = anyio.Event()  # something waits to be written
        self._put = self._writer.send
        self._kept: list[bytes] = []  # ids of lines that were read and wait for their turn
        self.jobs: RecordedJobs | None = None
        self.send = self._send_recorded
        if cut_in:
            self._splitter.skip()

    async def write(self) -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(self._note_written)
            await super().write()
            both.cancel_scope.cancel()

    async def read(
        self, receive: Callable[[bytes], None], refuse: Callable[[bytes, str], None] | None = None
    ) -> None:
        def look_first(line: bytes) -> None:
            if self._introduces(line):
                self._receive = receive
            receive(line)

        await super().read(look_first, refuse)

    def shut(self) -> None:
        """Send nothing more: what is not written yet is dropped."""
        self._writer.close()

    def _introduces(self, line: bytes) -> bool:
        """Whether the introduction of a client ends with this line."""
        head = line[:_FEW]
        if _INITIALIZE in head and len(line) <= _LONGEST_KEPT:
            self._initialize = line
            self._on_introduction(line, False)
        elif self._initialize and _INITIALIZED in head:
            self._on_introduction(self._initialize, True)
            return True
        return False

    def _send_recorded(self, line: bytes) -> bool:
        taken = self._put(line)
        if not self._writer.waiting:
            self._ledger.written()
        elif not self._behind.is_set():
            self._ledger.cut_out(True)
            self._behind.set()
        return taken

    async def _note_written(self) -> None:
        while True:
            await self._behind.wait()
            await self._writer.flushed()
            self._behind = anyio.Event()
            self._ledger.cut_out(False)
            self._ledger.written()

    def _on_readable(self) -> More:
        more = super()._on_readable()
        self._ledger.cut_in(self._splitter.unfinished)
        if self._rest or self._kept:
            self._note_rest()
        return more

    def _note_rest(self) -> None:
        """Note the requests among lines that wait for their turn, as long as one of them does."""
        if self._rest and not self._kept:
            self._kept = [key for line in self._rest if (key := _id_of(line))]
            for key in self._kept:
                self._ledger.began(key)
        elif not self._rest:
            for key in self._kept:
                if self.jobs is None or key not in self.jobs:
                    self._ledger.ended(key)
            self._kept = []
            if not self._writer.waiting:
                self._ledger.written()


def _id_of(line: bytes | bytearray) -> bytes:
    try:
        envelope = rpc.read_client_line(bytes(line))
        return rpc.read_id(envelope) if envelope.method is not None else b""
    except RpcFault:
        return b""
