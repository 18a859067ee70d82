"""A file that several rooms write: read, changed and replaced whole, under a lock.

Reading takes no lock, because the file is only ever replaced in one step. A file that is not ours (torn, of another
version, or put there by another user of the machine) is set aside, not deleted. There is no fsync: after a power
failure the file is the old one or unreadable. Everything here blocks; call it from a thread.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .._own_files import NotOurs, open_own, read_own, replacing
from ..protocol import bounds

LOCK_TIMEOUT: Final = 5.0
MAX_BROKEN: Final = 5  # files set aside and kept; the last one is replaced


class Broken(Exception):
    """The file is not one of ours; says why."""


class LockedFile:
    """The file at `path`. A writer waits at most `lock_timeout` seconds for another. Nothing else is held."""

    def __init__(self, path: Path, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self.path = path
        self.lock_timeout = lock_timeout

    def read(self) -> bytes:
        """The file's bytes; none if there is no file. Raises `OSError`, and `Broken` for something that another user
        may have put there, or that is not a file."""
        try:
            size = self.path.lstat().st_size
            data = read_own(self.path) if size <= bounds.CACHE_BYTES else b""
        except FileNotFoundError:
            return b""
        except NotOurs as error:
            raise Broken(f"is not used ({(error.strerror or '').partition(':')[0]})") from None
        if size > bounds.CACHE_BYTES:
            raise Broken(f"has more than {bounds.CACHE_BYTES:,} bytes")
        return data

    def replace(self, data: bytes) -> None:
        """Replace the file in one step, readable for its owner only. Only under the lock."""
        self._sweep()
        with replacing(self.path) as file:
            file.write(data)

    def set_aside(self) -> str:
        """Move a broken file out of the way. Returns its new name. Only under the lock."""
        names = [self.path.with_name(f"{self.path.name}.broken-{n}") for n in range(1, MAX_BROKEN + 1)]
        aside = next((name for name in names if not name.exists()), names[-1])
        os.replace(self.path, aside)
        return aside.name

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the writers' lock. Raises `TimeoutError`, an `OSError`, when the lock is not free in time. When the
        task of a worker thread is cancelled, raises that cancellation: nobody who ends waits for a writer that
        hangs."""
        from filelock import FileLock

        place = self.path.with_name(self.path.name + ".lock")
        os.close(open_own(place, os.O_RDWR | os.O_CREAT))  # no link, no pipe, nobody else's to hold for ever
        lock = FileLock(place, timeout=self.lock_timeout, mode=0o600)
        with lock.acquire(poll_interval=0.01, cancel_check=_check_cancelled):
            yield

    def _sweep(self) -> None:
        """Remove what a killed writer left. Under the lock no temporary file is in use."""
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            with suppress(OSError):
                leftover.unlink()


def _check_cancelled() -> bool:
    """False; raises in a worker thread whose task was cancelled."""
    from anyio import from_thread  # a command that only reads the file has no threads, and starts without it

    with suppress(RuntimeError):  # this is not a worker thread
        from_thread.check_cancelled()
    return False
