"""The stdio door: one client, on our own standard input and output.

The two descriptors are taken over before anything else runs. The protocol keeps private duplicates, standard
input becomes the null device, and standard output becomes standard error. So a stray `print` of any library
goes to the log and can never corrupt the protocol.

Reading waits in the loop, not in a thread, and can be cancelled at any moment. So the door ends on a signal
while standard input is still open. A file or the null device cannot be waited for; it is simply read, which
never blocks. While the client does not read its answers, we do not read its requests.

It is no error when the client disconnects. It is an error when a descriptor cannot be used: a full disk, a
directory, a file opened in the wrong direction. `serve` reports it at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import anyio
import anyio.lowlevel

from ...actors.backend import AGAIN, Backend, More
from ...actors.timers import at_most
from ...actors.transports.lines import FEW_LINES, LineSplitter, LineWriter, PendingLines, WriteRules
from ...protocol.errors import GreenroomError
from ...protocol.jsonrpc.incoming import BYTE_ORDER_MARK, read_head_id
from ...protocol.jsonrpc.outgoing import error_line
from ...protocol.jsonrpc.terms import INVALID_REQUEST, RpcFault

CHUNK: Final = 65_536  # what a pipe holds; a larger buffer would be mapped and unmapped for each read
_LEFT: Final = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # the client is gone; EIO: its terminal was closed
Receive = Callable[[bytes | bytearray], None]
ReceiveLarge = Callable[[bytearray], Awaitable[None]]
TO_A_CLIENT: Final = WriteRules(128 << 20, short=4096, gathers_all=True)


class StreamFault(GreenroomError):
    """Standard input or output cannot be used."""

    code = "stdio_failed"


@contextlib.contextmanager
def taken_over_stdio() -> Generator[tuple[int, int]]:
    """Private duplicates of standard input and output. At the end both are restored."""
    sys.stdout.flush()
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield stdin, stdout
    finally:
        sys.stdout.flush()
        for private, standard in ((stdin, 0), (stdout, 1)):
            os.dup2(private, standard)
            os.close(private)


class StdioDoor:
    """One client on a pair of descriptors. It is the outlet of its client session: `send`, `busy`."""

    def __init__(self, backend: Backend, stdin: int, stdout: int, *, max_line: int) -> None:
        self._backend = backend
        self._stdin = stdin
        self._stdout = stdout
        self._max_line = max_line
        self._rest = PendingLines()
        self._splitter = LineSplitter(max_line, self._refuse_line, self._rest.put)
        self._writer = LineWriter(backend, stdout, TO_A_CLIENT, on_broken=self._client_gone)
        self.send: Callable[[bytes], bool] = self._writer.send  # see `Outlet`
        self._reading: anyio.CancelScope | None = None
        self._eof = False
        self._receive: Receive = lambda _line: None
        self._refuse = self._say_refused
        self._unreadable: OSError | None = None

    @property
    def busy(self) -> bool:
        return self._writer.busy

    @property
    def fault(self) -> str | None:
        """Why a descriptor could not be used. None: it could, or the client is gone."""
        ends = ("input cannot be read", self._unreadable), ("output cannot be written", self._writer.fault)
        for what, error in ends:
            if error is not None and error.errno not in _LEFT:
                return f"Standard {what} ({error.strerror}). Start this from an MCP client, which gives it pipes."
        return None

    @contextlib.contextmanager
    def opened(self) -> Generator[None]:
        """While this is open, the descriptors do not block. Afterwards they are as they were."""
        changed = [fd for fd in (self._stdin, self._stdout) if _is_pipe(fd) and os.get_blocking(fd)]
        for fd in changed:
            os.set_blocking(fd, False)
        try:
            yield
        finally:
            for fd in changed:
                os.set_blocking(fd, True)

    async def write(self) -> None:
        """Write what is sent. Runs until cancelled or until the client is gone."""
        await self._writer.run()

    async def read(
        self,
        receive: Receive,
        refuse: Callable[[bytes, str], None] | None = None,
        receive_large: ReceiveLarge | None = None,
    ) -> None:
        """Give each line of the client to `receive`, and a line of megabytes to `receive_large`; meanwhile no other
        line is read. Give the head of a line that is too long, and the reason, to `refuse`. Returns when no more lines
        will come, because the client has closed its end or no longer reads."""
        self._refuse = refuse or self._refuse

        def receive_first(line: bytes | bytearray) -> None:
            self._receive = receive
            if line := line.removeprefix(BYTE_ORDER_MARK):
                receive(line)

        self._receive = receive_first
        waits = _is_pipe(self._stdin) or os.isatty(self._stdin)
        with anyio.CancelScope() as self._reading:
            while (self._rest or not self._eof) and not self._writer.is_over:
                if self._rest.is_large:
                    await self._take_large(self._rest.pop(), receive_large)
                elif waits and not self._rest:
                    await self._backend.read_forever(self._stdin, self._on_readable)
                else:
                    await anyio.lowlevel.checkpoint()
                    self._on_readable()
                await self._writer.relieved()

    async def _take_large(self, line: bytes | bytearray, receive_large: ReceiveLarge | None) -> None:
        """Take a large line. When this returns, nobody holds it: its client may be idle for long."""
        if receive_large is not None and isinstance(line, bytearray):
            await receive_large(line)
        else:
            self._take(line)

    async def flush(self, within: float) -> None:
        """Give the client up to `within` seconds to read what was sent."""
        async with at_most(within):
            await self._writer.flushed()

    def _on_readable(self) -> More:
        if self._rest:
            return self._take_rest()
        try:
            data = os.read(self._stdin, CHUNK)
        except BlockingIOError:
            return True
        except OSError as error:
            self._unreadable = error
            data = b""
        if not data:
            self._eof = True
            return False
        writer = self._writer
        writer.gathering = False  # the first answer is written at once
        lines = self._splitter.feed(data)
        if len(lines) > FEW_LINES:
            self._rest.put(lines)
        if self._rest:
            return self._take_rest()
        for line in lines:
            if line and not line.isspace():
                self._receive(line)
        # False: nothing more is read from the client until it reads its answers.
        return not (writer.is_over or (writer.waiting and writer.congested))

    def _take_rest(self) -> More:
        """Take the remaining lines of one turn, up to a large line, which `read` takes."""
        if self._rest.is_large:
            return False
        for line in self._rest.turn():
            self._take(line)
        if self._writer.is_over or self._writer.congested:
            return False
        return AGAIN if self._rest else True

    def _take(self, line: bytes | bytearray) -> None:
        if line and not line.isspace():
            self._receive(line)

    def _refuse_line(self, head: bytes, bound: str) -> None:
        self._refuse(head, f"A message over {bound} was dropped unread.")

    def _say_refused(self, head: bytes, text: str) -> None:
        self.send(error_line(read_head_id(head), RpcFault(INVALID_REQUEST, text)))

    def _client_gone(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
