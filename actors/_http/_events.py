"""Server-sent events out of chunks, in linear time and bounded memory.

The format is the WHATWG's: fields on lines that end in LF, CR or CRLF, an empty line after each event. What the
protocol needs of it is little: the data (still bytes: the envelope is decoded once, later), the name, and for resuming
the id and the retry time, which stay until the stream says others. Data over the bound is not kept: its head is told,
at once, and the rest thrown away up to the end of that event. (The parser of our HTTP library decodes to text first,
and gives up the whole stream over one long event.)
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

HEAD = 256  # bytes of over-long data that are kept


@attrs.frozen
class ServerEvent:
    name: str
    data: bytes


class EventParser:
    """Feed it chunks; it returns the events that carry data, and tells `on_overlong(head)` of data over `limit`."""

    __slots__ = (
        "_after_cr", "_data", "_dropping", "_held", "_limit", "_line", "_name", "_on_overlong", "last_id", "retry",
    )  # fmt: skip

    def __init__(self, limit: int, on_overlong: Callable[[bytes], None]) -> None:
        self.last_id = ""
        self.retry: float | None = None  # seconds
        self._limit = limit
        self._on_overlong = on_overlong
        self._line: list[bytes] = []  # the parts of a line that has not ended
        self._data: list[bytes] = []  # of the event that has not ended
        self._name = ""
        self._held = 0
        self._dropping = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in `chunk`."""
        lines = self._normalised(chunk).split(b"\n")
        rest = lines.pop()
        events: list[ServerEvent] = []
        for line in lines:
            event = self._take(self._finished(line))
            if event is not None:
                events.append(event)
        if rest:
            self._hold(rest)
        return events

    def _normalised(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _hold(self, part: bytes) -> None:
        """Part of a line. What is being thrown away keeps one byte: enough to tell it from an empty line."""
        if self._dropping:
            self._line = [part[:1]]
            return
        self._line.append(part)
        self._held += len(part)
        if self._held > self._limit:
            self._drop()

    def _finished(self, part: bytes) -> bytes:
        if not self._line:
            return part
        line = b"".join((*self._line, part))
        self._held -= len(line) - len(part) if not self._dropping else 0
        self._line = []
        return line

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        if self._dropping:
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._take_data(value)
            case b"event":
                self._name = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self.last_id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) < 10:
                self.retry = int(value) / 1000
            case _:
                pass  # a comment, or a field from the future
        return None

    def _take_data(self, value: bytes) -> None:
        self._data.append(value)
        self._held += len(value) + 1
        if self._held > self._limit:
            self._drop()

    def _dispatch(self) -> ServerEvent | None:
        data, name = b"\n".join(self._data), self._name or "message"
        dropped = self._dropping
        self._data, self._name, self._held, self._dropping = [], "", 0, False
        return ServerEvent(name, data) if data and not dropped else None

    def _drop(self) -> None:
        line = b"".join(self._line)
        head = b"\n".join((*self._data, line.removeprefix(b"data:").removeprefix(b" ")))[:HEAD]
        self._data, self._held, self._dropping = [], 0, True
        self._line = [line[:1]] if line else []
        self._on_overlong(head)
