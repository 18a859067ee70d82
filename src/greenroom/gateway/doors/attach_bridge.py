"""Passes an attached client's lines to its gateway and back, and knows which of its requests are open.

The process that attached outlives its gateway, so what must be known when a gateway is killed is kept here, in plain
variables. Two pipes lead to the gateway. Only whole lines are passed on. Of each only the envelope is read, which tells
what is open, and that in its own time: after every 64 KiB, all at once, and when the gateway is gone. Then:

* what the gateway has answered is still in the pipe from it, and is passed on;
* what the gateway has not read is still in the pipe to it. A gateway acts on whole lines only, so a line that it has
  not read to the end has not run, and is passed to the next gateway;
* the other open requests may have run. Each is answered with an error that says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...protocol.jsonrpc.incoming import (
    BYTE_ORDER_MARK,
    HEAD,
    ClientMessage,
    read_cancel,
    read_client_lines,
    read_head_id,
    read_id,
)
from ...protocol.jsonrpc.outgoing import error_line
from ...protocol.jsonrpc.terms import CANCELLED, INTERNAL_ERROR, INVALID_REQUEST, RpcFault
from .attach_protocol import OF_CLIENT, RoomLines

GIVEN_UP: Final = "given up"  # why it ends: the client has ended, and the gateway does not notice
_CHUNK: Final = 1 << 16  # what a pipe holds
_UNREAD: Final = 1 << 16  # bytes of lines that were passed on, until their envelopes are read
_LONGEST_INITIALIZE: Final = 1 << 15  # bytes of an `initialize` that is said again to the next gateway
_STUCK: Final = 1.2  # seconds after the client's end, until the gateway is no longer waited for
_LAST_ANSWERS: Final = 1.0  # seconds a client has to read what is left at the end
_GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # the client is; EIO: its terminal was closed
_LOST: Final = RpcFault(
    INTERNAL_ERROR,
    "The background gateway ended before it answered. The request was sent to it and may have run.",
    {"error": "room_lost", "reach": "sent"},
)


class LineBuffer:
    """Splits what comes into whole lines, and holds the rest. A line over `most` bytes is dropped, and `on_overlong` is
    given its head."""

    def __init__(self, most: int, on_overlong: Callable[[bytes], object]) -> None:
        self._most = most
        self._on_overlong = on_overlong
        self._held = bytearray()
        self._drops = False

    def feed(self, data: bytes) -> bytes:
        """The lines that end in `data`, each with its newline."""
        if data[-1:] == b"\n" and not self._held and not self._drops:
            return data
        if self._drops:
            _, newline, data = data.partition(b"\n")
            self._drops = not newline
        cut = data.rfind(b"\n") + 1
        whole = data[:cut]
        if cut and self._held:
            self._held += whole
            whole = bytes(self._held)
            self._held.clear()
        if cut < len(data):
            self._held += data[cut:]
            if len(self._held) > self._most:
                head = bytes(self._held[:HEAD])
                self._held, self._drops = bytearray(), True
                self._on_overlong(head)
        return whole


class Pipes:
    """The two pipes between this process and one gateway. `theirs` are the ends that the gateway gets."""

    def __init__(self) -> None:
        reads, requests = os.pipe()
        self.requests: int = requests
        answers, writes = os.pipe()
        self.answers: int = answers
        self.theirs: list[int] = [reads, writes]
        os.set_blocking(self.requests, False)
        os.set_blocking(self.answers, False)
        self.size: int = fcntl.fcntl(reads, fcntl.F_GETPIPE_SZ) if sys.platform == "linux" else _CHUNK

    def unread(self) -> int:
        """How many bytes of requests the gateway has not read. They stay in the pipe, of which we keep an end."""
        return int.from_bytes(fcntl.ioctl(self.theirs[0], termios.FIONREAD, bytes(4)), sys.byteorder)

    def close_requests(self) -> None:
        """The client has closed its end and all its lines were passed on, so close the pipe to the gateway."""
        os.close(self.requests)
        self.requests = -1

    def close(self) -> None:
        for descriptor in (self.requests, self.answers, *self.theirs):
            if descriptor >= 0:
                os.close(descriptor)


class Bridge:
    """A client on a pair of descriptors, with one gateway after another. If `stdout` is a pipe, it must not block."""

    def __init__(self, stdin: int, stdout: int, max_line: int) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._max_line = max_line
        self._requests = LineBuffer(max_line, self._refuse)
        self._answers = LineBuffer(sys.maxsize, lambda _head: None)
        # Ids of the requests that have no answer, in their order, and how often each is open; and the lines of the
        # client that the gateway may not have read. Both are without the news, the lines that were passed on last.
        self._open: Counter[bytes] = Counter()
        self._requested: deque[bytes] = deque()
        self._new_requests: list[bytes] = []
        self._new_answers: list[bytes] = []
        self._news_size = 0
        self._to_room: bytes | memoryview = b""  # waits until the gateway reads
        self._to_client: bytes | memoryview = b""  # waits until the client reads
        self._again = b""  # lines that the next gateway is passed first
        self._initialize: tuple[bytes, bytes] | None = None  # the client's request: its id, and its line
        self._is_ready = False
        self._has_ended = False
        self._until: float | None = None  # how long a gateway is waited for, once the client has ended
        self._poll = select.poll()

    # ---- between two gateways -----------------------------------------------------------------------------------

    @property
    def initialize(self) -> str | None:
        """The line of the client's `initialize`, if a gateway has answered it."""
        if self._initialize is None or self._initialize[0] in self._open:
            return None
        return self._initialize[1].decode("utf-8", "surrogateescape")

    @property
    def initialized(self) -> bool:
        """Whether the client has sent `notifications/initialized`."""
        return self._is_ready

    def lose(self, pipes: Pipes) -> None:
        """The gateway is gone: answer what may have run, and keep for the next gateway what has not. Call it before the
        next `Hello` is made."""
        self._take_last_answers(pipes)
        # The client gets nothing of half an answer.
        self._answers = LineBuffer(sys.maxsize, lambda _head: None)
        self._catch_up(pipes)
        again = self._not_read(pipes)
        for _, message in read_client_lines(again):
            self._take_back(message)
        if self._initialize is not None and self._initialize[0] in self._open:
            again = self._initialize[1] + b"\n" + again  # it changes nothing in any server
            self._close(self._initialize[0])
            self._initialize = None
        lost = (error_line(key, _LOST) for key in self._open.elements())
        self._to_client = b"".join((self._to_client, *lost))
        self._open.clear()
        self._requested.clear()
        self._to_room, self._again = b"", again

    def _not_read(self, pipes: Pipes) -> bytes:
        """The lines of which the gateway has not read all."""
        count = pipes.unread() + len(self._to_room)
        found: list[bytes] = []
        while count > 0:
            text = self._requested.pop()
            read = max(0, len(text) - count)
            found.append(text[text.rfind(b"\n", 0, read) + 1 :])
            count -= len(text)
        return b"".join(reversed(found))

    def _take_back(self, message: ClientMessage) -> None:
        if message.method is not None:
            self._close(bytes(message.id))
        if message.method == "initialize":
            self._initialize = None
        elif message.method == "notifications/initialized":
            self._is_ready = False

    def finish(self) -> None:
        """Give the client some time to read what is left. Never raises."""
        deadline = time.monotonic() + _LAST_ANSWERS
        poll = select.poll()
        poll.register(self._stdout, select.POLLOUT)
        with suppress(OSError):
            while self._to_client and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._write()

    # ---- with a gateway -----------------------------------------------------------------------------------------

    def run(self, line: socket.socket, words: RoomLines, pipes: Pipes) -> str:
        """Pass lines on, until one side has ended. Returns why: what the gateway said or what was found, or an empty
        text for a gateway that was killed."""
        self._poll = poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(self._stdin, select.POLLIN)
        poll.register(pipes.answers, select.POLLIN)
        control = line.fileno()
        self._until = None
        try:
            self._send(b"", pipes)
            self._pass(self._again, pipes)
            self._again = b""
            if self._has_ended:
                self._end_requests(pipes)
            is_told = words.has_more
            while True:
                while is_told:
                    word = words.next()
                    if word is None:
                        return ""
                    if "end" in word:
                        self._take_last_answers(pipes)
                        return str(word["end"])
                    is_told = words.has_more
                until = self._until
                left = None if until is None else max(0.0, until - time.monotonic()) * 1000
                found = poll.poll(left)
                if not found:
                    return GIVEN_UP
                for descriptor, events in found:
                    if descriptor == pipes.answers:
                        self._take_answers(pipes)
                    elif descriptor == self._stdin:
                        self._take_requests(events, pipes)
                    elif descriptor == control:
                        is_told = True
                    elif descriptor == pipes.requests:
                        self._resume(pipes)
                    else:
                        self._send(b"", pipes)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return OF_CLIENT

    def _take_requests(self, events: int, pipes: Pipes) -> None:
        if events & ~select.POLLIN and self._until is None:
            self._until = time.monotonic() + _STUCK
        if self._to_room:  # we only want to know whether the client has ended
            self._poll.unregister(self._stdin)
            return
        data = os.read(self._stdin, _CHUNK)
        if data:
            self._pass(self._requests.feed(data), pipes)
        else:
            self._has_ended = True
            self._end_requests(pipes)

    def _pass(self, text: bytes, pipes: Pipes) -> None:
        """Pass lines to the gateway."""
        if not text:
            return
        try:
            count = os.write(pipes.requests, text)
        except BlockingIOError:
            count = 0
        if count < len(text):
            self._to_room = memoryview(text)[count:]
            self._poll.register(pipes.requests, select.POLLOUT)
            self._poll.register(self._stdin, 0)
        self._remember(text, self._new_requests, pipes)

    def _resume(self, pipes: Pipes) -> None:
        """The gateway reads again."""
        with suppress(BlockingIOError):
            self._to_room = self._to_room[os.write(pipes.requests, self._to_room) :]
        if not self._to_room:
            self._poll.unregister(pipes.requests)
            if self._has_ended:
                self._end_requests(pipes)
            else:
                self._poll.register(self._stdin, select.POLLIN)

    def _end_requests(self, pipes: Pipes) -> None:
        """The client has closed its end."""
        self._until = time.monotonic() + _STUCK
        with suppress(KeyError):
            self._poll.unregister(self._stdin)
        if not self._to_room:
            pipes.close_requests()

    def _take_answers(self, pipes: Pipes) -> None:
        data = os.read(pipes.answers, _CHUNK)
        if not data:
            self._poll.unregister(pipes.answers)  # the gateway says why
            return
        text = self._answers.feed(data)
        if not text:
            return
        self._send(text, pipes)
        self._remember(text, self._new_answers, pipes)

    def _take_last_answers(self, pipes: Pipes) -> None:
        """Take all that the gateway has written. It writes nothing more."""
        found: list[bytes | memoryview] = [self._to_client]
        with suppress(BlockingIOError):
            while data := os.read(pipes.answers, _CHUNK):
                text = self._answers.feed(data)
                self._remember(text, self._new_answers, pipes)
                found.append(text)
        self._to_client = b"".join(found)

    def _send(self, text: bytes, pipes: Pipes) -> None:
        """Write to the client. While it does not read, nothing is read from the gateway."""
        had = bool(self._to_client)
        self._to_client = b"".join((self._to_client, text)) if had else text
        self._write()
        if self._to_client:
            self._poll.register(self._stdout, select.POLLOUT)
            with suppress(KeyError):
                self._poll.unregister(pipes.answers)
        elif had:
            with suppress(KeyError):
                self._poll.unregister(self._stdout)
            self._poll.register(pipes.answers, select.POLLIN)

    def _write(self) -> None:
        text = self._to_client
        if text:
            try:
                count = os.write(self._stdout, text)
            except BlockingIOError:
                return
            self._to_client = memoryview(text)[count:] if count < len(text) else b""

    def _refuse(self, head: bytes) -> None:
        """Answer a line of the client that is too long."""
        text = f"A message over {self._max_line:,} bytes a line was dropped unread."
        line = error_line(read_head_id(head.removeprefix(BYTE_ORDER_MARK)), RpcFault(INVALID_REQUEST, text))
        self._to_client = b"".join((self._to_client, line))
        self._poll.register(self._stdout, select.POLLOUT)

    # ---- what is open ----------------------------------------------------------------------------------------

    def _remember(self, text: bytes, news: list[bytes], pipes: Pipes) -> None:
        """Remember that these lines were passed on."""
        news.append(text)
        self._news_size += len(text)
        if self._news_size >= _UNREAD:
            self._catch_up(pipes)

    def _catch_up(self, pipes: Pipes) -> None:
        """Read the envelopes of the lines that were passed on since this was called last: all requests, then all
        answers, so an id that is used again is counted."""
        requested = self._requested
        requested.extend(self._new_requests)
        for line, message in read_client_lines(b"".join(self._new_requests)):
            self._note_request(line, message)
        for _, message in read_client_lines(b"".join(self._new_answers)):
            if message.method is None:
                self._close(bytes(message.id))
        self._new_requests.clear()
        self._new_answers.clear()
        self._news_size = 0
        size = sum(map(len, requested))
        while requested and size - len(requested[0]) >= pipes.size + len(self._to_room):
            size -= len(requested.popleft())

    def _note_request(self, line: bytes, message: ClientMessage) -> None:
        method = message.method
        if method is None:
            return
        try:
            key = read_id(message)
            cancelled = b"" if key or method != CANCELLED else read_cancel(message.params)
        except RpcFault:
            return
        if key:
            self._open[key] = self._open.get(key, 0) + 1
            if method == "initialize" and len(line) <= _LONGEST_INITIALIZE:
                self._initialize = key, line
        elif cancelled:
            self._close(cancelled)  # it gets no answer
        elif method == "notifications/initialized":
            self._is_ready = True

    def _close(self, key: bytes) -> None:
        """One request with this id is no longer open, if one was."""
        left = self._open.pop(key, 1) - 1
        if left:
            self._open[key] = left
