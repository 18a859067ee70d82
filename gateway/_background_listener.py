"""The socket of the background room, while the room takes clients."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from .._own_files import bind_own, make_own_folder

_BACKLOG: Final = 1024  # clients may all start at once; a full backlog would keep some waiting


class Listener:
    """The room's socket, while it takes clients."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`. A socket that a killed room left is replaced: only the holder of the lock gets here."""
        make_own_folder(path.parent)
        self._path = path
        self.line = bind_own(path, _BACKLOG)
        self._inode = os.stat(path, follow_symlinks=False).st_ino

    @property
    def is_open(self) -> bool:
        return self.line.fileno() >= 0

    def shut(self) -> None:
        """Take no more clients. First the socket is removed and then it is closed, so whoever was not taken finds no
        room and starts another. Idempotent; never waits, never raises."""
        if not self.is_open:
            return
        anyio.notify_closing(self.line)
        with suppress(OSError):
            if os.stat(self._path, follow_symlinks=False).st_ino == self._inode:
                self._path.unlink()
        self.line.close()
