"""The events file: each event as one line of JSON, appended to the file that `--events` names.

It is an optional part. It is opened and written without waiting, even with a full disk, a pipe that nobody
reads, or a file that is gone. Events that cannot be written are counted. When writing works again, the file
says how many are missing (`{"kind": "lagged", …}`). Only its owner can read a file made here (0600), because
events tell whose servers do what.

There are thousands of call events a second. They are kept back and written with the next event of another
kind, or when 64 KiB of them have gathered. So when a gateway is killed, the file lacks at most the last
calls.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Final

from ..actors.workers import OptionalPart
from ..config.private_files import open_own
from ..protocol.errors import UsageError
from ..protocol.event_records import record_of
from ..protocol.events import Event, Kind, Lagged
from ..protocol.safe_text import seen_in_json

_AT_ONCE: Final = 1 << 16  # bytes of kept call events from which on they are written anyway
_MOST: Final = 1 << 20  # the most bytes kept for a pipe that is read slowly
_END: Final = ord("\n")
# Errors that are no mistake of the person who named the file: it may work later.
_PASSING: Final = frozenset(
    {
        errno.ENXIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EIO,
        errno.EAGAIN,
    }
)


class EventsFile:
    """Writes each event to a file, as a line of JSON. `close` it at the end."""

    def __init__(self, path: Path, part: OptionalPart) -> None:
        """Open the file. Raises `UsageError` when `path` can never be written to."""
        self._path = path
        self._part = part
        self._fd: int | None = None
        self._kept = bytearray()
        self._events = 0  # how many events are missing if `_kept` is lost
        self._missed = 0
        self._is_torn = False  # the last line in the file is incomplete
        try:
            self._open()
        except OSError as error:
            if error.errno not in _PASSING:
                text = f"--events {path}: {error.strerror}. Name a file that can be written."
                raise UsageError(text) from None
            self._failed(error)

    def __call__(self, event: Event | Lagged) -> None:
        """Take one event. Never waits, never raises."""
        if self._fd is None and not self._opened_again():
            self._missed += 1
            return
        if len(self._kept) > _MOST:
            self._missed += 1
        else:
            self._say_gap()
            self._kept += _line(record_of(event))
            self._events += 1
        if isinstance(event, Lagged) or event.kind is not Kind.CALL or len(self._kept) > _AT_ONCE:
            self._write()

    def close(self) -> None:
        if self._fd is not None:
            self._write()
        self._close()

    def _open(self) -> None:
        self._fd = open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, is_named=True)

    def _opened_again(self) -> bool:
        if self._part.is_due:
            try:
                self._open()
            except OSError as error:
                self._failed(error)
        return self._fd is not None

    def _say_gap(self) -> None:
        if self._missed:
            if self._is_torn and not self._kept:
                self._kept += b"\n"
            self._kept += _line(record_of(Lagged(self._missed)))
            self._events += self._missed
            self._missed = 0

    def _write(self) -> None:
        """Write as much as is taken without waiting."""
        assert self._fd is not None
        while self._kept:
            try:
                written = os.write(self._fd, self._kept)
            except BlockingIOError:
                return
            except OSError as error:
                self._failed(error)
                return
            self._is_torn = self._kept[written - 1] != _END
            del self._kept[:written]
        self._events = 0
        self._part.works()

    def _failed(self, error: OSError) -> None:
        self._missed += self._events
        self._events = 0
        self._kept.clear()
        self._close()
        self._part.failed(error)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _line(record: object) -> bytes:
    text = seen_in_json(json.dumps(record, separators=(",", ":"), ensure_ascii=False))
    return text.encode("utf-8", "replace") + b"\n"
