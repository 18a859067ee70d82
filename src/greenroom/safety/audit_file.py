"""The audit file of a room: one line for each call that was asked for, in a chain (`audit`).

* *When it writes.* At once, in the step that ends the call, before its caller is told. So a gateway that is killed has
  written the line of every answer that it gave. The write goes to the system's memory and takes microseconds. Only
  the end and a new file are flushed to the disk (fsync): after a power failure the last seconds may be missing.
  Rejected: a thread that writes, or lines kept back as in the events file. Both would lose the last calls to a kill.
* *When it cannot.* Calls go on. Whoever wants them to end instead has to watch the log: a disk that is full must not
  take every tool away. The log and the status say so once; up to `KEPT` lines are kept and written when it works again;
  how many more there were is a line of its own (`gap`). They are written with the calls that come then, some with
  each, because nobody may wait for thousands of lines. What was written of a line is taken back at once.
* *Whose it is.* One room writes it, under a lock beside it (`FILE.lock`) and one on the file itself, which the system
  frees when the room's process ends. Another room is refused when it is opened. A file that others may write is
  refused, too; a new one is 0600.
* *A new file.* When the file is moved away while the room runs, a new one begins in its place, and the chain goes on in
  it. It is looked for at each line, which costs a microsecond.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..actors.workers import OptionalPart, in_words
from ..config.private_files import open_own
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted
from ..protocol.version import VERSION
from . import audit

if TYPE_CHECKING:
    from filelock import BaseFileLock


KEPT: Final = 4_096  # lines that could not be written yet
AT_ONCE: Final = 50  # of them, with one call
_TAIL: Final = 4 * audit.LONGEST_LINE  # bytes at the end of a file that are read when it is opened
_HOW: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT


class AuditFile:
    """The file at `path`. `clock` gives seconds since 1970."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.path: Path = Path(os.path.abspath(path))  # the program may change its working directory
        self.missed = 0  # lines that are lost and not told in the file yet
        self.last_hash = audit.GENESIS
        self._clock = clock
        self._fd: int | None = None
        self._lock: BaseFileLock | None = None
        self._part: OptionalPart | None = None
        self._seq = 0
        self._size = 0
        self._torn = False  # a part of a line is behind `_size`
        self._pid = 0
        self._kept: deque[Mapping[str, Any]] = deque()

    @property
    def failing(self) -> bool:
        """Whether lines wait that could not be written."""
        return bool(self._kept or self.missed)

    def open(self, tell: Callable[[str], object], now: Callable[[], float]) -> None:
        """Begin to write. `tell` gets what belongs into the log; `now` is the room's clock. Raises `UsageError` when
        another room writes this file, when it cannot be written, and when it does not end as an audit file does."""
        self._pid = os.getpid()
        self._part = OptionalPart(f"the audit file {self.path}", tell, "Calls go on without it.", now)
        try:
            self._take_lock()
            self._fd = self._opened()
            tail, is_all = self._tail()
            self._begin(audit.end_of(tail, is_all=is_all))
        except audit.BadAuditLine as bad:
            self._release()
            text = f"does not end as an audit file: {bad}. Look at it with `greenroom audit verify`, and move it away"
            raise UsageError(f"The audit file {self.path} {text}.") from None
        except OSError as error:
            self._release()
            text = f"{in_words(error)}. Name a file of yours that can be written."
            raise UsageError(f"The audit file {self.path}: {text}") from None
        except BaseException:
            self._release()
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a line, of the kind `call` unless it says another. Never waits or raises."""
        part = self._part
        if (
            part is None or os.getpid() != self._pid
        ):  # in a fork of the room's process the room is only a copy
            return
        try:
            said = {"time": self._stamp(), "kind": audit.CALL, **record}
            if len(self._kept) < KEPT:
                self._kept.append(said)
            else:
                self.missed += 1
            if part.is_due:
                self._write_kept(part, AT_ONCE)
        except Exception as error:  # the call has ended all the same
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """A line could not be made: count it as lost, and say so in the log."""
        self.missed += 1
        if self._part is not None:
            self._part.failed(error)

    def close(self) -> None:
        """Write what is left, and say that the room has ended in order."""
        part, self._part = self._part, None
        if part is None or os.getpid() != self._pid:
            return
        try:
            self._write_kept(part, KEPT)
            if not self.failing:
                self._try(part, {"time": self._stamp(), "kind": audit.CLOSED})
            elif lost := len(self._kept) + self.missed:
                are = f"{counted(lost, 'line')} of the audit file {self.path} {'is' if lost == 1 else 'are'}"
                part.tell(f"{are} lost: it could not be written until the end")
            with suppress(OSError):
                if self._fd is not None:
                    os.fsync(self._fd)
        finally:
            self._release()

    # ---- to the file ------------------------------------------------------------------------------------------------

    def _write_kept(self, part: OptionalPart, most: int) -> None:
        """Write up to `most` of the lines that wait, until one fails."""
        for _ in range(min(most, len(self._kept))):
            try:
                if not self._try(part, self._kept[0]):
                    return
            except Exception:
                self._kept.popleft()  # no line can be made of it
                raise
            self._kept.popleft()
        if (
            self.missed
            and not self._kept
            and self._try(part, {"time": self._stamp(), "kind": audit.GAP, "missed": self.missed})
        ):
            self.missed: int = 0

    def _try(self, part: OptionalPart, record: Mapping[str, Any]) -> bool:
        try:
            self._follow_moves()
            self._append(record)
        except (OSError, UsageError) as error:
            part.failed(error)
            return False
        part.works()
        return True

    def _append(self, record: Mapping[str, Any], before: bytes = b"") -> None:
        """Write one whole line, or nothing. Raises `OSError`."""
        assert self._fd is not None
        if self._torn:
            self._take_back(self._fd)
        line, own = audit.line_of(record, self._seq + 1, self.last_hash)
        data = before + line
        if os.write(self._fd, data) < len(data):
            self._torn = True
            with suppress(OSError):
                self._take_back(self._fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)
        self._seq, self.last_hash = self._seq + 1, own

    def _take_back(self, fd: int) -> None:
        os.ftruncate(fd, min(self._size, os.fstat(fd).st_size))  # somebody may have emptied it
        self._torn = False

    def _begin(self, end: audit.AuditEnd) -> None:
        """Write that a room begins to write, after what is in the file already."""
        self._seq, self.last_hash = end.seq, end.hash
        record: dict[str, Any] = {
            "time": self._stamp(),
            "kind": audit.OPENED,
            "version": VERSION,
            "pid": os.getpid(),
        }
        if end.part:
            record["torn"] = audit.torn_as(end.part)
        self._append(record, b"\n" if end.part or end.lacks_end else b"")

    def _follow_moves(self) -> None:
        """If the file is no longer at its path, go on in a new one there. Raises `OSError`."""
        if self._fd is not None:
            try:
                at_path, ours = os.stat(self.path), os.fstat(self._fd)
                if (at_path.st_ino, at_path.st_dev) == (ours.st_ino, ours.st_dev):
                    self._size = self._size if self._torn else ours.st_size  # somebody may have emptied it
                    return
            except FileNotFoundError:
                pass
            fd, self._fd = self._fd, None
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fd = self._opened()
        self._size = os.fstat(fd).st_size
        if self._size:
            os.close(fd)
            raise FileExistsError(
                errno.EEXIST, "another file was put in its place; move that away", os.fspath(self.path)
            )
        self._fd = fd
        self._begin(audit.AuditEnd(self._seq, self.last_hash))

    def _opened(self) -> int:
        """A descriptor of the file, locked. Raises `OSError`, and `UsageError` when another room has it."""
        fd = open_own(self.path, _HOW)
        try:
            if os.fstat(fd).st_mode & 0o022:
                text = f"may be written by others. Run: chmod go-w {shlex.quote(os.fspath(self.path))}"
                raise UsageError(f"The audit file {self.path} {text}")
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise self._taken_error() from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _taken_error(self) -> UsageError:
        text = "is written by another gateway now. Each needs a file of its own: name another one"
        return UsageError(f"The audit file {self.path} {text}, or end that gateway.")

    def _tail(self) -> tuple[bytes, bool]:
        """The last bytes of the file, and whether these are all. Raises `OSError`."""
        assert self._fd is not None
        self._size = os.fstat(self._fd).st_size
        start = max(0, self._size - _TAIL)
        os.lseek(self._fd, start, os.SEEK_SET)
        return os.read(self._fd, _TAIL), start == 0

    def _stamp(self) -> str:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # ---- the lock ---------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        from filelock import FileLock, Timeout

        place = self.path.with_name(self.path.name + ".lock")
        os.close(open_own(place, os.O_RDWR | os.O_CREAT))  # no link, no pipe, nobody else's
        lock = FileLock(place, timeout=0, mode=0o600, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise self._taken_error() from None
        self._lock = lock

    def _release(self) -> None:
        fd, self._fd = self._fd, None
        lock, self._lock = self._lock, None
        try:
            if fd is not None:
                with suppress(OSError):  # a late error of the disk; there is nothing left to do about it
                    os.close(fd)
        finally:
            if lock is not None:
                lock.release()
