"""The peer over two descriptors: lines in, lines out.

A call is written in its caller's own step and ended by the step that reads its answer; between the two there is a dict
entry and nothing else. The peer does not know what it talks to, so it serves a child's pipes, a socket, and our own
stdin and stdout alike: what a broken pipe or an end of file *means* is for whoever owns the descriptors (`on_over`),
who also decides when `PeerHooks.on_lost` is called.

Callers that come together share a write (`LineWriter`): a caller alone never waits, and sixty-four at once cost two
system calls, not sixty-four.

What the other side says costs it, not others. However many lines a read brings, a hundred are taken in a turn and the
rest in the next ones, before anything more is read. What nobody asked for has a budget besides, and one that says
nothing but junk for too long is over, as if it had closed its stdout (`FloodGuard`). What it is told, and does not
read, is bounded in number and bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel

from ...protocol.bounds import REPLIES
from ...protocol.jsonrpc import RpcError, encode_notification, encode_reply, fault
from .._backend import AGAIN, PAUSE, Backend, More
from .._exchange_table import ExchangeTable
from .._line_writer import LineWriter, WriteRules
from .._notes import Notes
from .._peer import NOT_SENT, Exchange, PeerHooks
from ._flood import FloodGuard
from ._lines import LINES_A_TURN, LinesLeft, LineSplitter

_CHUNK = 65_536  # what a pipe holds
_LAST_WORDS = (
    32  # chunks read after the end was seen; a pipe holds less, and a grandchild may go on writing for ever
)


class OutgoingLines:
    """The notifications and answers of a line peer. What the other side does not read is dropped, with a note."""

    def __init__(self, writer: LineWriter, notes: Notes) -> None:
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

    `max_line` bounds a line coming in and, in bytes, what may be queued going out. `on_over(text)` is told, once, that
    the other side stopped talking or listening. Run `read` from `Backend.read_forever` and `write_forever` in a task.
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
        rules, notes = WriteRules(max_line, others=REPLIES), Notes(hooks.on_note)
        self._writer = writer = LineWriter(backend, write_fd, rules, on_broken=self._broken)
        super().__init__(backend, hooks, notes, OutgoingLines(writer, notes))
        self._read_fd = read_fd
        self._on_over = on_over
        self._lines = LineSplitter(max_line, self._take_overlong)
        self._refused: list[Exchange] = []
        self._rest = LinesLeft()
        self._flood = FloodGuard(max_line, self.last_heard)
        self._began = self.last_heard

    @property
    def has_spoken(self) -> bool:
        """Anything at all has come from the other side."""
        return self.last_heard > self._began

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Send it, or queue it. On a peer that is over it stays open and unsent, for its owner to place elsewhere.

        Raises `UsageError` when its params cannot be said in JSON; nothing was sent then.
        """
        line = self._opened(exchange)
        if not self._writer.send(line, exchange):
            self._refuse(exchange)

    # -- what the owner of the descriptors does --

    def read(self) -> More:
        """Take what is there to be read, without blocking. False: the other side has closed its end, or says nothing
        of use; `AGAIN` and `PAUSE`: there are lines left for another turn, or it has said too much just now."""
        if self._rest:
            return self._take_rest()
        if self._flood.is_shut:
            return False
        try:
            chunk = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if not chunk:
            self._on_over(self.says_no_more)
            return False
        self.last_heard = self._backend.now()
        self._writer.gathering = False
        lines, guard = self._lines.feed(chunk), self._flood
        if len(lines) > LINES_A_TURN:
            guard.unheard += len(chunk)
            self._rest.put(lines)
            return self._take_rest()
        junk, unasked = self.junk, self.unasked
        for line in lines:
            self.take_line(line)
        if lines and self.junk == junk and self.unasked == unasked:
            guard.junk = guard.unheard = (
                0  # nothing but answers, as nearly always: nothing to be held against it
            )
            return True
        guard.unheard += len(chunk)
        return self._judge(len(lines), self.junk - junk, self.unasked - unasked)

    def _take_rest(self) -> More:
        """The lines of one turn."""
        lines = self._rest.turn()
        junk, unasked = self.junk, self.unasked
        for line in lines:
            self.take_line(line)
        more = self._judge(len(lines), self.junk - junk, self.unasked - unasked)
        return AGAIN if more is True and self._rest else more

    def _judge(self, lines: int, junk: int, unasked: int) -> More:
        """What follows from the lines just taken. False: there has been nothing but junk for too long."""
        said = self._flood.count_junk(lines, junk)
        if said:
            self._rest.clear()
            self._on_over(f"wrote {said} to {self.channel} without one message of the protocol among them")
            return False
        uncalled_for = junk + unasked
        return PAUSE if uncalled_for and not self._flood.may_say(uncalled_for, self._backend.now()) else True

    async def read_last(self) -> None:
        """Read what was written before the end: an answer may be among it."""
        for _ in range(_LAST_WORDS):
            while (more := self.read()) and self._rest:
                await anyio.lowlevel.checkpoint()
            if self._silent or not more:
                return
            await anyio.lowlevel.checkpoint()

    async def write_forever(self) -> None:
        """Write what could not be written at once. Ends when the write side is closed."""
        await self._writer.run(self._end_refused)

    def silence(self) -> None:
        self._writer.close()  # what was gathered was said before this
        super().silence()
        self._rest.clear()

    # -- out --

    def _refuse(self, exchange: Exchange) -> None:
        """The queue is full. The exchange is ended by the writer's task: its owner is in the middle of a step now."""
        self._refused.append(exchange)
        self._writer.wake()

    def _end_refused(self) -> None:
        refused, self._refused = self._refused, []
        for exchange in refused:
            if self._requests.withdraw(exchange) and not self._silent:
                exchange.end(
                    None, fault("the server does not read its stdin; what is queued for it is over the bound")
                )

    def _broken(self) -> None:
        error = self._writer.fault
        assert error is not None
        self._on_over(
            self.hears_no_more if isinstance(error, BrokenPipeError) else f"write failed: {error.strerror}"
        )

    def _take_overlong(self, head: bytes, bound: str) -> None:
        self.take_overlong(head, bound)
