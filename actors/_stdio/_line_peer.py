"""The peer over two descriptors: lines in, lines out, and the exchanges that are open.

A call is written in its caller's own step and ended by the step that reads its answer; between the two there is a dict
entry and nothing else. Nothing the other side does raises here: what is broken but names an exchange ends that one, as
a fault, and everything else that is odd becomes a note. The peer does not know what it talks to, so it serves a child's
pipes and our own stdin and stdout alike: what a broken pipe or an end of file *means* is for whoever owns the
descriptors (`on_over`), who also decides when `PeerHooks.on_lost` is called.

Callers that come together share a write. The first request after something was heard is written at once; those that
follow before anything else is heard are gathered, and go out together at the end of the loop's pass. So a caller alone
never waits, and sixty-four at once cost two system calls, not sixty-four.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from ...protocol.errors import Reach
from .._peer import Exchange, PeerHooks, RpcError
from .._rim import Rim
from .._wire import (
    NO_STAMP,
    Envelope,
    Stamp,
    WireFault,
    answer_id_in,
    decode_error,
    decode_line,
    decode_params,
    encode_notification,
    encode_reply,
    encode_request,
    excerpt,
    fault,
    repair_utf8,
)
from ._lines import LineSplitter
from ._notes import Notes
from ._outbox import Outbox

_CHUNK = 65_536  # what a pipe holds

# The negotiation may not be cancelled (the specification says so): a late answer to it is simply dropped.
_NEVER_CANCELLED = frozenset({"initialize", "server/discover"})


class LinePeer:
    """A `Peer` that reads lines from `read_fd` and writes lines to `write_fd`, both non-blocking, neither owned.

    `max_line` bounds a line coming in and, in bytes, what may be queued going out. `on_over(text)` is told, once, that
    the other side stopped talking or listening. Run `read` from `Rim.read_forever` and `write_forever` in a task.
    """

    def __init__(
        self,
        rim: Rim,
        hooks: PeerHooks,
        *,
        read_fd: int,
        write_fd: int,
        max_line: int,
        on_over: Callable[[str], None],
    ) -> None:
        self.last_heard = rim.now()
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.notes = Notes(hooks.on_note)
        self._rim = rim
        self._hooks = hooks
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_over = on_over
        self._max_line = max_line
        self._lines = LineSplitter(max_line, self._take_overlong)
        self._outbox = Outbox(write_fd, max_line)
        self._wake_writer = rim.waiter()
        self._stamp = NO_STAMP
        self._stamped: str | None = None  # the version `_stamp` was made for
        self._last_id = 0
        self._open: dict[int, Exchange] = {}
        self._gathering = False  # a request was written, and nothing heard since
        self._refused: list[Exchange] = []
        self._silent = False

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Send it, or queue it. On a peer that is over it stays open and unsent, for its owner to place elsewhere.

        Raises `UsageError` when its params cannot be said in JSON; nothing was sent then.
        """
        if self.protocol_version != self._stamped:
            self._stamped = self.protocol_version
            self._stamp = Stamp.of(self._stamped, self.client_info, self.client_capabilities)
        rpc_id = self._last_id + 1
        line = encode_request(
            rpc_id, exchange.method, exchange.params, self._stamp, progress=exchange.wants_progress
        )
        self._last_id = exchange.rpc_id = rpc_id
        self._open[rpc_id] = exchange
        self._send(line, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        rpc_id = exchange.rpc_id
        if self._open.get(rpc_id) is not exchange:
            return
        del self._open[rpc_id]
        if exchange.reach is Reach.NOT_SENT:
            self._outbox.withdraw(exchange)
            return
        if exchange.reach is Reach.SENT and exchange.method not in _NEVER_CANCELLED:
            self.notify("notifications/cancelled", {"requestId": rpc_id, "reason": reason})

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self._send(encode_notification(method, params))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        self._send(encode_reply(rpc_id, result, error))

    # -- what the owner of the descriptors does --

    def read(self) -> bool:
        """Take what is there to be read, without blocking. False: the other side has closed its end."""
        try:
            chunk = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if not chunk:
            self._on_over("closed its stdout")
            return False
        self.last_heard = self._rim.now()
        self._gathering = False
        for line in self._lines.feed(chunk):
            self._take_line(line)
        return True

    async def write_forever(self) -> None:
        """Write what could not be written at once. Ends when the write side is closed."""
        while not self._silent:
            await self._wake_writer.wait()
            self._wake_writer = self._rim.waiter()
            self._end_refused()
            try:
                await self._flush()
            except anyio.ClosedResourceError:
                return
            except OSError as error:
                self._break(error)

    @property
    def is_silent(self) -> bool:
        return self._silent

    def silence(self) -> None:
        """Say and hear nothing from now on: no hook is called and no exchange is ended any more."""
        with suppress(OSError):
            self._outbox.flush()  # what was gathered was said before this
        self._silent = True
        self._outbox.clear()
        self._wake_writer.set()

    # -- out --

    def _send(self, line: bytes, exchange: Exchange | None = None) -> None:
        if self._silent:
            return
        try:
            letter = self._outbox.put(line, exchange, hold=self._gathering and exchange is not None)
        except BufferError as error:
            self._refuse(exchange, str(error))
        except OSError as error:
            self._break(error)
        else:
            self._gathering = self._gathering or exchange is not None
            if letter is not None:
                self._wake_writer.set()

    async def _flush(self) -> None:
        self._gathering = False
        self._outbox.flush()
        while self._outbox.backlog:
            await anyio.wait_writable(self._write_fd)  # not the rim's: this one may be closed under the wait
            self._outbox.flush()

    def _refuse(self, exchange: Exchange | None, why: str) -> None:
        """The queue is full. The exchange is ended by the writer's task: its owner is in the middle of a step now."""
        if exchange is None:
            self.notes.add("a message was dropped: it does not read its stdin", why)
            return
        self._refused.append(exchange)
        self._wake_writer.set()

    def _end_refused(self) -> None:
        refused, self._refused = self._refused, []
        for exchange in refused:
            if self._open.pop(exchange.rpc_id, None) is exchange and not self._silent:
                exchange.end(
                    None, fault("the server does not read its stdin; what is queued for it is over the bound")
                )

    def _break(self, error: OSError) -> None:
        self._outbox.clear()
        self._on_over(
            "closed its stdin" if isinstance(error, BrokenPipeError) else f"write failed: {error.strerror}"
        )

    # -- in --

    def _take_line(self, line: bytes) -> None:
        text = repair_utf8(line)
        if text is not line:
            self.notes.add("bad UTF-8 on stdout", excerpt(line))
        try:
            messages = decode_line(text)
        except WireFault as problem:
            self._take_junk(text, str(problem))
        else:
            for message in messages:
                self._take(message)

    def _take(self, message: Envelope) -> None:
        if self._silent:
            return
        if message.method is None:
            self._take_answer(message)
        elif message.id is None:
            self._take_notification(message.method, message.params)
        else:
            self._take_request(message.id, message.method, message.params)

    def _take_answer(self, message: Envelope) -> None:
        exchange = self._close_exchange(message.id)
        error = bytes(message.error)
        if exchange is None:
            self._note_unasked(message.id, error)
        elif error and error != b"null":
            exchange.end(None, decode_error(error))
        else:
            result = bytes(message.result)
            if result.startswith(b"{"):
                exchange.end(result, None)
            else:
                exchange.end(
                    None,
                    fault(f"the answer has no result object ({excerpt(result) if result else 'nothing'})"),
                )

    def _take_notification(self, method: str, params: msgspec.Raw) -> None:
        try:
            decoded = decode_params(params)
        except WireFault as problem:
            self.notes.add(f"a malformed {method}", str(problem))
            return
        if method == "notifications/progress":
            self._take_progress(decoded or {})
        else:
            self._hooks.on_notification(method, decoded)

    def _take_progress(self, params: Mapping[str, Any]) -> None:
        exchange = self._open.get(_as_id(params.get("progressToken")))
        if exchange is not None:  # else it is late: its call has ended
            exchange.progress(params)

    def _take_request(self, rpc_id: float | str, method: str, params: msgspec.Raw) -> None:
        if method == "ping":
            self.reply(rpc_id, {})
            return
        try:
            decoded = decode_params(params)
        except WireFault as problem:
            self.reply(rpc_id, None, RpcError(-32602, f"Invalid params: {problem}"))
        else:
            self._hooks.on_request(rpc_id, method, decoded)

    # -- what cannot be read whole --

    def _take_junk(self, line: bytes, why: str) -> None:
        if self._silent or not line.strip():
            return
        if not self._end_by_head(line, f"the answer is not JSON-RPC: {why}"):
            self.notes.add("junk on stdout", excerpt(line))

    def _take_overlong(self, head: bytes) -> None:
        if self._silent:
            return
        bound = f"over the bound of {self._max_line:,} bytes"
        if not self._end_by_head(head, f"the answer is {bound} a line"):
            self.notes.add(f"a line {bound} was thrown away", excerpt(head))

    def _end_by_head(self, head: bytes, why: str) -> bool:
        """End, as a fault, the one exchange that a broken answer belongs to, if its head still says which."""
        exchange = self._close_exchange(answer_id_in(head))
        if exchange is None:
            return False
        exchange.end(None, fault(why))
        return True

    def _close_exchange(self, answered_id: object) -> Exchange | None:
        """Take the exchange off the open ones. What was not sent cannot be answered: that id is a guess."""
        rpc_id = answered_id if type(answered_id) is int else _as_id(answered_id)
        exchange = self._open.get(rpc_id)
        if exchange is None or exchange.reach is Reach.NOT_SENT:
            return None
        del self._open[rpc_id]
        exchange.reach = Reach.ANSWERED
        return exchange

    def _note_unasked(self, answered_id: object, error: bytes) -> None:
        if answered_id is None:
            self.notes.add(
                "an error about no request" if error else "a message that is neither", excerpt(error)
            )
        elif 0 < _as_id(answered_id) <= self._last_id:
            self.notes.add("a late or second answer", f"id {answered_id!r}")
        else:
            self.notes.add("an answer nobody asked for", f"id {answered_id!r}")


def _as_id(value: object) -> int:
    """An id as we gave it, also if it comes back as a string or a float. 0, which we never give, if it is none."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else 0
    if isinstance(value, float):
        return int(value) if value.is_integer() else 0
    return value if type(value) is int else 0
