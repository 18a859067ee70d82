"""Parses server-sent events from pieces, in linear time and bounded memory.

The format is the WHATWG's: fields on lines that end in LF, CR or CRLF, and an empty line after each event. MCP needs
little of it: the data (kept as bytes, because the envelope is decoded once, later) and the name, and for resuming the
id and the retry time, which stay until the stream sends new ones. The data of an event is gathered in one buffer,
however it is cut into pieces and lines, and that buffer is handed on. So an event costs little more than its bytes. An
event over a bound is not kept: its head is reported at once, and the rest is thrown away up to the event's end. (The
parser of our HTTP library decodes to text first, and gives up the whole stream over one long event.)
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ...protocol.bounds import EVENT_ID_BYTES, EVENT_LINE_BYTES
from ...protocol.jsonrpc.incoming import BYTE_ORDER_MARK
from ..message_buffer import MessageBuffer

HEAD = 256  # bytes of over-long data that are kept
SHORTEST_RETRY = 0.02  # seconds; a server that asks for less would be asked without a pause
_DATA = b"data:"


@attrs.frozen
class ServerEvent:
    name: str
    data: bytes | bytearray


class EventParser:
    """Feed it pieces; it returns the events that carry data. It calls `on_overlong(head, bound)` for an event that has
    over `limit` bytes, or more values than a message may have."""

    __slots__ = (
        "_after_cr", "_data", "_dropping", "_in_data", "_limit", "_line", "_lines", "_name", "_new", "_on_overlong",
        "last_id", "retry",
    )  # fmt: skip

    def __init__(self, limit: int, on_overlong: Callable[[bytes, str], None]) -> None:
        self.last_id = ""
        self.retry: float | None = None  # seconds
        self._limit = limit
        self._on_overlong = on_overlong
        self._line = bytearray()  # the line that has not ended; empty when it is a data line
        self._in_data = False  # the line that has not ended is a data line; what came of it is in `_data`
        self._data = MessageBuffer()  # of the event that has not ended
        self._new = bytearray()  # what the piece at hand has brought of it
        self._lines = 0  # data lines of that event
        self._name = b""
        self._dropping = False
        self._after_cr = False

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that end in `piece`."""
        lines = self._normalised(piece).split(b"\n")
        rest = lines.pop()
        events: list[ServerEvent] = []
        for line in lines:
            if self._in_data:
                self._in_data = False
                self._add(line)
                continue
            if self._line:
                line = bytes(self._line + line)
                self._line = bytearray()
            if line:
                self._take(line)
            elif self._dropping or self._lines or self._name:
                event = self._dispatch()
                if event is not None:
                    events.append(event)
        if rest:
            self._hold(rest)
        self._gather()
        return events

    def _normalised(self, piece: bytes) -> bytes:
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece

    def _hold(self, part: bytes) -> None:
        """Keep part of a line. One byte of a line that is thrown away is kept, to tell it from an empty line."""
        if self._dropping:
            self._line[:] = part[:1]
        elif self._in_data:
            self._add(part)
        elif len(self._line) <= EVENT_LINE_BYTES:
            self._line += part
            if len(self._line) > len(_DATA) and self._line.startswith(_DATA):
                line, self._line, self._in_data = bytes(self._line), bytearray(), True
                self._take(line)

    def _take(self, line: bytes) -> None:
        if self._dropping:
            return
        field, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                if self._lines:
                    self._new += b"\n"
                self._lines += 1
                self._add(value)
            case b"event":
                self._name = value[:HEAD]
            case b"id" if b"\0" not in value:
                self.last_id: str = _id(value)
            case b"retry" if value.isdigit() and len(value) < 10:
                self.retry = max(int(value) / 1000, SHORTEST_RETRY)
            case _:
                pass  # a comment, or a field from the future

    def _add(self, value: bytes) -> None:
        self._new += value
        if len(self._data.data) + len(self._new) > self._limit:
            self._drop()

    def _gather(self) -> None:
        """Add to the data what is new. Once for each piece, however many lines it has, because each time has its
        cost."""
        new, self._new = self._new, bytearray()
        over = self._data.add(new) if new else ""
        if over:
            self._drop(over)

    def _dispatch(self) -> ServerEvent | None:
        self._gather()
        held, name, dropped = self._data, self._name.decode(errors="replace") or "message", self._dropping
        self._data, self._lines, self._name, self._dropping = MessageBuffer(), 0, b"", False
        data = b"" if dropped else held.end()
        return ServerEvent(name, data) if data else None

    def _drop(self, bound: str = "") -> None:
        head = bytes((self._data.data[:HEAD] + self._new[:HEAD])[:HEAD] or self._line[:HEAD])
        self._line[:] = b":" if self._line or self._in_data else b""
        self._data, self._new, self._in_data, self._dropping = MessageBuffer(), bytearray(), False, True
        self._on_overlong(head, bound or f"{self._limit:,} bytes an event")


def _id(value: bytes) -> str:
    """The id of an event; empty when it cannot be sent back in a header, because then we cannot resume from it."""
    text = value.decode(errors="replace")
    return text if len(value) <= EVENT_ID_BYTES and text.isprintable() else ""
