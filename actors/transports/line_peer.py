"""The peer over two descriptors: it reads lines from one and writes lines to the other.

A call is written in its caller's own step and ended by the step that reads its answer. In between it is one dict
entry. The peer does not know what it talks to, so it serves a child's pipes, a socket, and our own stdin and stdout
alike. What a broken pipe or an end of file *means*, the owner of the descriptors decides (`on_over`). The owner also
decides when to call `PeerHooks.on_lost`.

Callers that come together share a write (`LineWriter`): a single caller never waits, and sixty-four at once cost two
system calls, not sixty-four.

Floods from the other side must not delay others. However many lines a read brings, a hundred are taken in a turn and
the rest in the next turns, before anything more is read. A line of a megabyte or more has turns of its own. While one
comes, more is read at once, because each read lets everybody else have a turn first. Lines that nobody
asked for also have a budget. A peer that sends only junk for too long is treated as if it had
closed its stdout (`FloodGuard`). What is queued for a peer that does not read is bounded in number and bytes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel

from ...protocol.bounds import REPLIES
from ...protocol.jsonrpc.incoming import excerpt
from ...protocol.jsonrpc.outgoing import encode_notification, encode_reply
from ...protocol.jsonrpc.terms import RpcError, fault
from ...protocol.safe_text import counted, unhidden
from ..backend import AGAIN, PAUSE, Backend, More
from ..exchanges import ExchangeTable
from ..peer import NOT_SENT, Exchange, PeerHooks
from ..server_notes import ServerNotes
from .flood_guard import FloodGuard
from .lines import LINES_A_TURN, LineSplitter, LineWriter, PendingLines, WriteRules

_CHUNK = 65_536  # what a pipe holds
_LONG = 1 << 19  # bytes of an unfinished line from which on more is read at once
_WIDE = 1 << 18  # bytes read at once then
_SET_PIPE_SIZE: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)  # Linux has it
_LAST_WORDS = (
    32  # chunks read after the end was seen; a pipe holds less, and a grandchild may go on writing for ever
)


class OutgoingLines:
    """The notifications and answers of a line peer. What the other side does not read is dropped, with a note."""

    def __init__(self, writer: LineWriter, notes: ServerNotes) -> None:
        self._writer = writer
        self._notes = notes

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._write(encode_notification(method, params))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        self._write(encode_reply(rpc_id, result, error))

    def withdraw(self, exchange: Exchange) -> None:
        if exchange.reach is NOT_SENT:
            self._writer.withdraw(exchange)

    def _write(self, line: bytes) -> None:
        if not self._writer.send(line):
            why = self._writer.lacking(line)
            self._notes.add("a message was dropped: it does not read its stdin", why)


class LinePeer(ExchangeTable):
    """A `Peer` that reads lines from `read_fd` and writes lines to `write_fd`, both non-blocking, neither owned.

    `max_line` bounds the bytes of a line that comes in, and the bytes that may be queued to go out. `on_over(text)` is
    called once, when the other side stops writing or reading. Run `read` from `Backend.read_forever` and
    `write_forever` in a task.
    """

    channel = "stdout"
    says_no_more = "closed its stdout"
    hears_no_more = "closed its stdin"

    def __init__(
        self,
        backend: Backend,
        hooks: PeerHooks,
        *,
        read_fd: int,
        write_fd: int,
        max_line: int,
        on_over: Callable[[str], None],
    ) -> None:
        rules, notes = WriteRules(max_line, others=REPLIES), ServerNotes(hooks.on_note)
        self._writer = writer = LineWriter(backend, write_fd, rules, on_broken=self._broken)
        super().__init__(backend, hooks, notes, OutgoingLines(writer, notes))
        self._read_fd = read_fd
        self._on_over = on_over
        self._refused: list[Exchange] = []
        self._rest = PendingLines()
        self._lines = LineSplitter(
            max_line,
            self._take_overlong,
            self._rest.put,
            self.note_repaired,
            self._end_overlong,
            "maxLineBytes",
        )
        self._max_line = max_line
        self._flood = FloodGuard(max_line, self.last_heard)
        self._began = self.last_heard
        self._at_once = _CHUNK

    @property
    def has_spoken(self) -> bool:
        """Whether anything has come from the other side."""
        return self.last_heard > self._began

    @property
    def answers(self) -> int:
        """How many requests the other side has answered."""
        return self._requests.answers

    @property
    def said_instead(self) -> str:
        held = self._lines.held
        if (said := super().said_instead) or not held:
            return said
        size = counted(len(held), "byte")
        return f"it wrote {size} to {self.channel}, and no end of the line: {unhidden(excerpt(held))}"

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Send the request, or queue it. On a peer that is over, it stays open and unsent, and its owner sends it
        elsewhere.

        Raises `UsageError` when its params cannot be written as JSON; nothing was sent then.
        """
        line = self._opened(exchange)
        if not self._writer.send(line, exchange):
            self._refuse(exchange)

    # -- what the owner of the descriptors does --

    def read(self) -> More:
        """Read what is there, without blocking. Returns False when the other side has closed its end or sends only
        junk, `AGAIN` when lines are left for another turn, and `PAUSE` when it has sent more than its budget allows."""
        if self._rest:
            return self._take_rest()
        if self._flood.is_shut:
            return False
        try:
            chunk = os.read(self._read_fd, self._at_once)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if not chunk:
            self._on_over(self.says_no_more)
            return False
        self.last_heard: float = self._backend.now()
        self._writer.gathering = False
        lines, guard = self._lines.feed(chunk), self._flood
        if not lines and self._at_once == _CHUNK and len(self._lines.held or b"") >= _LONG:
            self._widen()
        if len(lines) > LINES_A_TURN:
            guard.unheard += len(chunk)
            self._rest.put(lines)
            return self._take_rest()
        junk, unasked = self.junk, self.unasked
        for line in lines:
            self.take_line(line)
        if lines and self.junk == junk and self.unasked == unasked:
            guard.junk = guard.unheard = 0  # only answers, as nearly always: nothing to count against it
            return True
        guard.unheard += len(chunk)
        more = self._judge(len(lines), self.junk - junk, self.unasked - unasked)
        return AGAIN if more is True and self._rest else more

    def _widen(self) -> None:
        """A long line is coming. Read more of it at once from now on, and let the pipe hold more: after each read
        everybody else has a turn, so a long line in small reads takes long where others are busy."""
        self._at_once = _WIDE
        if _SET_PIPE_SIZE is not None:
            with suppress(OSError):  # it is no pipe, or this user has too many wide ones
                fcntl.fcntl(self._read_fd, _SET_PIPE_SIZE, 2 * _WIDE)

    def _take_rest(self) -> More:
        """Take the lines of one turn."""
        junk, unasked = self.junk, self.unasked
        taken = self._rest.take(self.take_line, self.decode_large)
        more = self._judge(taken, self.junk - junk, self.unasked - unasked)
        return AGAIN if more is True and self._rest else more

    def _judge(self, lines: int, junk: int, unasked: int) -> More:
        """Decide what happens after the lines just taken. Returns False when there has been only junk for too long."""
        said = self._flood.count_junk(lines, junk)
        if said:
            self._rest.clear()
            what = f"wrote {said} to {self.channel} without one message of the protocol among them"
            if self._lines.is_dropping_json:
                what = (
                    f"wrote {said} of one line to {self.channel}, and maxLineBytes allows {self._max_line:,}"
                )
            self._on_over(what)
            return False
        uncalled_for = junk + unasked
        return PAUSE if uncalled_for and not self._flood.may_say(uncalled_for, self._backend.now()) else True

    async def read_last(self) -> None:
        """Read what was written before the end: it may hold an answer."""
        for _ in range(_LAST_WORDS):
            while (more := self.read()) and self._rest:
                await anyio.lowlevel.checkpoint()
            if self.is_silent or not more:
                return
            await anyio.lowlevel.checkpoint()

    async def write_forever(self) -> None:
        """Write what could not be written at once. Ends when the write side is closed."""
        await self._writer.run(self._end_refused)

    def silence(self) -> None:
        self._writer.close()  # first: what was gathered was sent before this
        super().silence()
        self._rest.clear()

    # -- out --

    def _refuse(self, exchange: Exchange) -> None:
        """The queue is full. The writer's task ends the exchange, because its owner is in the middle of a step now."""
        self._refused.append(exchange)
        self._writer.wake()

    def _end_refused(self) -> None:
        refused, self._refused = self._refused, []
        for exchange in refused:
            if self._requests.withdraw(exchange) and not self.is_silent:
                why = "the server does not read its stdin; what is queued for it is over the bound"
                exchange.owner.exchange_ended(exchange, None, fault(why))

    def _broken(self) -> None:
        error = self._writer.fault
        assert error is not None
        self._on_over(
            self.hears_no_more if isinstance(error, BrokenPipeError) else f"write failed: {error.strerror}"
        )

    def _take_overlong(self, head: bytes, bound: str) -> None:
        if self.take_overlong(head, bound):
            self._flood.heard()

    def _end_overlong(self, head: bytes, tail: bytes, bound: str) -> None:
        if self.end_overlong(head, tail, bound):
            self._flood.heard()
