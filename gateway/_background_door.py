"""The door of one attached client: its own standard input and output, which it has passed to the room.

The room reads and writes the client's pipes itself, so an attached call costs what a call costs at the stdio door, and
the process that attached only waits. What must survive the room's death is noted in the client's ledger, and the door
of the next room begins with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from ..actors import Backend, More
from ..protocol import jsonrpc as rpc
from ..protocol.jsonrpc import RpcFault, read_head_id
from ..protocol.slices import Slices
from ._answers import OpenJobs
from ._background_ledger import Ledger, Left
from ._jobs import Job
from ._stdio_door import CHUNK, Receiving, StdioDoor

_LONGEST_KEPT: Final = (
    1 << 15
)  # bytes of an introduction that is said again to the next room: a socket takes it whole
_INITIALIZE: Final = b'"initialize"'
_INITIALIZED: Final = b'"notifications/initialized"'
_LOST: Final = "The background room ended before it answered. The request was sent to it and may have run."
_LOST_DATA: Final = {"error": "room_lost", "reach": "sent"}
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
    itself, and again when it says that it is ready. `initialize` is how it did that to the room before."""

    def __init__(
        self,
        backend: Backend,
        stdin: int,
        stdout: int,
        ledger: Ledger,
        on_introduction: Callable[[bytes, bool], None],
        *,
        max_line: int,
        initialize: bytes = b"",
    ) -> None:
        super().__init__(backend, stdin, stdout, max_line=max_line)
        self._ledger = ledger
        self._on_introduction = on_introduction
        self.initialize = initialize
        self._behind = anyio.Event()  # something waits to be written
        self._put = self._writer.send
        self.send = self._send_recorded
        self._take_over(ledger.left)

    def _take_over(self, left: Left) -> None:
        """Begin with what the room before had read and not handled."""
        if left.head is not None and not left.has_end:
            self._splitter.skip()
        again = b"".join(line + b"\n" for line in left.lines if _id_of(line) not in left.keys) + left.fragment
        if again:
            self._ledger.took(again, b"")
            self._rest.put(self._splitter.feed(again))

    def answer_what_was_lost(self) -> None:
        """Answer the requests that the room before had begun. Call it before anything is read."""
        left = self._ledger.left
        if left.cut_out:
            self.send(b"\n")
        for key in (*left.keys, read_head_id(left.head or b"")):
            if key:
                self._ledger.began(key)
                self._ledger.ended(key)
                self.send(rpc.error_line(key, RpcFault(rpc.INTERNAL_ERROR, _LOST, _LOST_DATA)))

    async def write(self) -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(self._note_written)
            await super().write()
            both.cancel_scope.cancel()

    async def read(
        self,
        receive: Callable[[bytes], None],
        refuse: Callable[[bytes, str], None] | None = None,
        receiving: Receiving | None = None,
    ) -> None:
        """As `StdioDoor.read`, but the ledger counts what is handled."""
        handled, say_refused = self._ledger.handled, refuse or self._refuse

        def take(line: bytes) -> None:
            receive(line)
            handled()

        def look_first(line: bytes) -> None:
            if self._introduces(line):
                self._receive = take
            take(line)

        def count_refused(head: bytes, text: str) -> None:
            say_refused(head, text)
            handled()

        def taking(line: bytearray) -> Slices[None]:
            assert receiving is not None
            yield from receiving(line)
            self._ledger.handled_large()

        await super().read(look_first, count_refused, taking if receiving is not None else None)

    def shut(self) -> None:
        """Send nothing more: what is not written yet is dropped."""
        self._writer.close()

    def _introduces(self, line: bytes) -> bool:
        """Whether the introduction of a client ends with this line."""
        head = line[:_FEW]
        if _INITIALIZE in head and len(line) <= _LONGEST_KEPT:
            self.initialize = line
            self._on_introduction(line, False)
        elif self.initialize and _INITIALIZED in head:
            self._on_introduction(self.initialize, True)
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

    def _read(self) -> bytes:
        return self._ledger.read(self._stdin, CHUNK, self._splitter.held)

    def _on_readable(self) -> More:
        more = super()._on_readable()
        if self._ledger.is_over:
            self._keep_rest()
        return more

    def _keep_rest(self) -> None:
        """What was read did not fit into the inbox: note what of it is still to be handled."""
        rest = self._rest
        if rest and type(rest[-1]) is bytearray:  # its end has come, and it is read in slices
            behind = b"".join(line + b"\n" for line in rest[-2::-1]) + (self._splitter.held or b"")
            self._ledger.took_large(rest[-1], behind)
        else:
            self._ledger.cut_in(self._splitter.unfinished)


def _id_of(line: bytes | bytearray) -> bytes:
    try:
        envelope = rpc.read_client_line(bytes(line))
        return rpc.read_id(envelope) if envelope.method is not None else b""
    except RpcFault:
        return b""
