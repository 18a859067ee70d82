"""The exchanges with a server: handles each message that comes in.

Every peer has this in common, whatever carries its messages. A message either answers an open exchange
(`RequestTable`) and ends it, or goes to the hooks. Nothing the other side does raises here. A broken message that
names an exchange ends that exchange, as a fault; everything else that is odd becomes a note. After `silence`
nothing is reported any more.

How messages leave differs, so it is handed in: notifications and answers go out through the `MessageSender` that the
table holds. A peer adds `request`: it sends what `_opened` encodes, and reports that through `mark_sent`. Rejected:
one `write` function for everything, because "written" means too many different things (a full pipe, a POST of its
own, a stream that must be opened first).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from ..protocol.bounds import (
    ERROR_BYTES,
    NOTICE_BYTES,
    RECENT_CONTENT,
    SERVER_REQUEST_BYTES,
    SERVER_REQUEST_VALUES,
)
from ..protocol.events import NoteCode
from ..protocol.jsonrpc.incoming import (
    ABSENT,
    HEAD,
    NO_MESSAGE,
    ServerMessage,
    answer_id_at_end,
    answer_id_in,
    as_id,
    decode_error,
    decode_line,
    decode_message,
    decode_params,
    excerpt,
)
from ..protocol.jsonrpc.outgoing import NO_STAMP, Stamp, encode_request
from ..protocol.jsonrpc.terms import (
    CANCELLED,
    INVALID_PARAMS,
    NEVER_CANCELLED,
    PROGRESS,
    RpcError,
    WireFault,
    fault,
)
from ..protocol.safe_text import repair_utf8, unhidden
from ..protocol.value_count import has_more_values
from .backend import Backend
from .last_minutes import without_content
from .message_buffer import LONG
from .open_requests import RequestTable
from .peer import SENT, Exchange, PeerHooks
from .server_notes import ServerNotes, StrayMessages

ReadAnswer = Callable[[ServerMessage], tuple[bytes | None, RpcError | None]]
_SHORT = 80  # characters of an id or a method in a note
_BEGINNING = 1_000  # bytes of an error that is too long


class MessageSender(Protocol):
    """How notifications and replies leave, and how a request is stopped on its way."""

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None: ...

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None: ...

    def withdraw(self, exchange: Exchange) -> None:
        """The owner no longer wants the answer: stop sending the request, if that is still going on."""
        ...


class ExchangeTable:
    """What all peers have in common: the exchanges, and what is done with messages that come in. `channel`: where
    messages come from, in notes ("stdout")."""

    channel = "its stream"
    may_speak_both = False

    def __init__(
        self, backend: Backend, hooks: PeerHooks, notes: ServerNotes, outgoing: MessageSender
    ) -> None:
        self.last_heard: float = backend.now()
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.beside: str | None = None
        self.notes = notes
        self.read_answer: ReadAnswer = answer_in  # a method would cost each call a call more
        self.junk: int = 0  # lines that were no messages
        self._strays = StrayMessages()
        self.unasked: int = 0  # requests and notifications of the other side
        self._backend = backend
        self._hooks = hooks
        self._outgoing = outgoing
        self._stamp = NO_STAMP
        self._stamped: str | None = None  # the version `_stamp` was made for
        # The stamp of the last request for a client, and what it was made of.
        self._for_client: tuple[str | None, Mapping[str, Any], Stamp] = None, {}, NO_STAMP
        self._requests = RequestTable()
        self._given_up: set[int] = (
            set()
        )  # initialize requests without an answer so far: a late one is no news
        self.is_silent: bool = False

    @property
    def said_instead(self) -> str:
        """What came that was no answer to anything, in words for the error of a request that got none; empty if there
        was nothing of the kind."""
        return self._strays.said(self.channel)

    def silence(self) -> None:
        """Send and report nothing from now on: no hook is called and no exchange is ended any more. Idempotent."""
        self.is_silent = True

    # What leaves.

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if not self.is_silent:
            self._outgoing.notify(method, params)

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        if not self.is_silent:
            self._outgoing.reply(rpc_id, result, error)

    def _opened(self, exchange: Exchange) -> bytes:
        """Open the exchange and return its line, stamped as its era requires.

        Raises `UsageError` when its params cannot be written as JSON; then nothing was opened.
        """
        if self.protocol_version != self._stamped:
            self._stamped = self.protocol_version
            self._stamp = Stamp.of(self._stamped, self.client_info, self.client_capabilities)
        requests = self._requests
        line = encode_request(  # by place: on Python 3.11 a name in a call takes as long as the call
            requests.last_id + 1,
            exchange.method,
            exchange.params,
            self._stamp if exchange.declares is None else self._stamp_for(exchange, exchange.declares),
            exchange.on_progress is not None,
            b"" if exchange.trace is None else exchange.trace.members,
        )
        requests.open(exchange)
        exchange.line = line if len(line) <= RECENT_CONTENT else without_content(exchange.params, len(line))
        return line

    def _stamp_for(self, exchange: Exchange, capabilities: Mapping[str, Any]) -> Stamp:
        """The stamp of a request that says what the client of this request can answer."""
        version, (before, same, stamp) = exchange.version or self.protocol_version, self._for_client
        if version != before or capabilities != same:
            stamp = Stamp.of(version, self.client_info, capabilities)
            self._for_client = version, capabilities, stamp
        return stamp

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if not self._requests.withdraw(exchange):
            return
        self._outgoing.withdraw(exchange)
        if exchange.method in NEVER_CANCELLED:
            self._given_up.add(exchange.rpc_id)
        # A request that was spoken beside the connection was carried by a stream of its own, which is closed now.
        if exchange.reach is SENT and exchange.version is None and exchange.method not in NEVER_CANCELLED:
            self.notify(CANCELLED, {"requestId": exchange.rpc_id, "reason": reason})

    # What comes in.

    def take_line(self, line: bytes | bytearray) -> None:
        """One line or event that came in: a message, a batch of them, or junk."""
        if not line.isascii() and (repaired := repair_utf8(line)) is not line:
            self.note_repaired(line)
            line = repaired
        try:
            message = decode_message(line)
        except NO_MESSAGE:
            self._take_other(line)
        else:
            self.take(message)

    def _take_other(self, text: bytes | bytearray) -> None:
        """A line that is not one message."""
        try:
            messages = decode_line(text, self.protocol_version)
        except WireFault as problem:
            self._take_junk(text, str(problem))
        else:
            self._take_all(messages)

    def decode_large(self, line: bytes | bytearray) -> Callable[[], None]:
        """Take a large line, which was repaired as it came, in two steps: this decodes the envelope, and the function
        that it returns takes the message."""
        try:
            messages = decode_line(line, self.protocol_version)
        except WireFault as problem:
            return partial(self._take_junk, line, str(problem))
        return partial(self._take_all, messages)

    def _take_all(self, messages: Iterable[ServerMessage]) -> None:
        for message in messages:
            self.take(message)

    def note_repaired(self, line: bytes | bytearray) -> None:
        """A line came with bytes that are not UTF-8."""
        self.notes.add(f"bad UTF-8 on {self.channel}", lambda: excerpt(line))

    def take(self, message: ServerMessage, during: Exchange | None = None) -> None:
        """Take one message. `during`: the exchange on whose own stream it came, where there are such streams."""
        if self.is_silent:
            return
        if message.method is None:
            answered = message.id
            exchange = self._requests.answered(answered if type(answered) is int else as_id(answered))
            if exchange is None:
                self._note_unasked(message.id, bytes(message.error))
                self._hooks.on_late_answer(bytes(message.result))
            else:
                result, error = self.read_answer(message)
                if error is not None and error.upstream is not None:
                    exchange.reach = error.upstream.reach
                exchange.owner.exchange_ended(exchange, result, error)
        elif message.id is None:
            self.unasked += 1
            self._take_notification(message.method, message.params)
        else:
            self.unasked += 1
            self._take_request(message.id, message.method, message.params, during)

    def _take_notification(self, method: str, params: msgspec.Raw) -> None:
        if (size := memoryview(params).nbytes) > NOTICE_BYTES:
            self.notes.add("an overlong notification", f"{_short(method)}: {size:,} bytes")
            return
        try:
            decoded = decode_params(params)
        except WireFault as problem:
            # Counted as one kind: a server must not be able to add kinds by inventing names.
            self.notes.add("a malformed notification", f"{_short(method)}: {problem}")
            return
        if method == PROGRESS:
            told = decoded or {}
            if not all(_is_in_range(told.get(key)) for key in ("progress", "total")):
                self.notes.add("a malformed notification", f"{method}: its number is out of range")
                return
            if self._requests.progress(as_id(told.get("progressToken")), told):
                return
        self._hooks.on_notification(method, decoded)

    def _take_request(
        self, rpc_id: float | str, method: str, params: msgspec.Raw, during: Exchange | None
    ) -> None:
        if (size := memoryview(params).nbytes) > SERVER_REQUEST_BYTES:
            text = f"Invalid params: {size:,} bytes are more than {SERVER_REQUEST_BYTES:,}."
            self.reply(rpc_id, None, RpcError(INVALID_PARAMS, text))
            return
        if size > LONG and has_more_values(bytes(params), SERVER_REQUEST_VALUES):
            text = f"Invalid params: more than {SERVER_REQUEST_VALUES:,} values and keys."
            self.reply(rpc_id, None, RpcError(INVALID_PARAMS, text))
            return
        if method == "ping":
            self.reply(rpc_id, {})
            return
        try:
            decoded = decode_params(params)
        except WireFault as problem:
            self.reply(rpc_id, None, RpcError(INVALID_PARAMS, f"Invalid params: {problem}"))
        else:
            self._hooks.on_request(rpc_id, method, decoded, during)

    # What cannot be read whole.

    def _take_junk(self, line: bytes | bytearray, why: str) -> None:
        if self.is_silent:
            return
        self.junk += 1
        head = line[:HEAD]
        if head.isspace() or not head:  # it counts as junk, but is not reported
            return
        self._strays.lines += 1
        self._strays.first = self._strays.first or unhidden(excerpt(line))
        if not self._end_by_head(head, f"the answer is not JSON-RPC: {why}"):
            self.notes.add(f"junk on {self.channel}", lambda: excerpt(line), NoteCode.JUNK)

    def take_overlong(self, head: bytes, bound: str) -> bool:
        """A message over the bound has come. Only its head was kept. Returns whether it has ended an exchange."""
        if self.is_silent:
            return False
        has_ended = self._end_by_head(head, f"the answer is over the bound of {bound}")
        if not has_ended:
            self.notes.add(f"a message over the bound of {bound} was thrown away", excerpt(head))
        return has_ended

    def end_overlong(self, head: bytes, tail: bytes, bound: str) -> bool:
        """Such a message has ended, with this tail. Returns whether that has ended an exchange."""
        if self.is_silent:
            return False
        return self._end_broken(answer_id_at_end(head, tail), f"the answer is over the bound of {bound}")

    def _end_by_head(self, head: bytes | bytearray, why: str) -> bool:
        """If the head of a broken answer still names its exchange, end that exchange as a fault."""
        return self._end_broken(answer_id_in(head), why)

    def _end_broken(self, answered_id: int | None, why: str) -> bool:
        exchange = self._requests.answered(answered_id or 0)
        if exchange is None:
            return False
        exchange.owner.exchange_ended(exchange, None, fault(why))
        return True

    def _note_unasked(self, answered_id: object, error: bytes) -> None:
        if answered_id is None:
            self.junk += 1
            kind = "an error about no request" if error else "a message that is neither"
            self._strays.foreign_id = self._strays.foreign_id or "null"
            self.notes.add(kind, lambda: excerpt(error))
        elif (number := as_id(answered_id)) in self._given_up:
            self._given_up.discard(number)  # a second one is news
        elif 0 < number <= self._requests.last_id:
            self.notes.add(
                "a late or second answer", lambda: f"id {_short(answered_id)}", NoteCode.LATE_ANSWER
            )
        else:
            self.junk += 1
            self._strays.foreign_id = self._strays.foreign_id or unhidden(_short(answered_id))
            self.notes.add("an answer nobody asked for", lambda: f"id {_short(answered_id)}")


def answer_in(message: ServerMessage) -> tuple[bytes | None, RpcError | None]:
    """The result of an answer, or its error: exactly one of the two is not None."""
    if message.error is not ABSENT:
        error = bytes(message.error)
        if len(error) > ERROR_BYTES:
            # It says where it was cut, so half a secret is found there.
            return None, fault(f"its error is too long, and begins with {excerpt(error, _BEGINNING)}")
        if error != b"null":
            return None, decode_error(error)
    result = bytes(message.result)
    if result[:1] == b"{":  # `startswith` takes three times as long
        return result, None
    said = excerpt(result) if result else "nothing"
    return None, fault(f"the answer has no result object ({said})")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def _is_in_range(value: object) -> bool:
    """Whether clients can take it as a float. A client of the SDK that cannot loses its whole connection, and with it
    all servers."""
    return not isinstance(value, int) or abs(value) <= sys.float_info.max
