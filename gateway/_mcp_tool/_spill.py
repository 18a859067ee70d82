"""Files for texts that are too long for an answer. Each text gets a private file, which is kept for a while.

The directory is the user's own (0700) under the cache directory. So the files outlive the gateway that wrote
them, and an agent may come back to one after a restart. A directory that belongs to another user, or that
others may write to, is not used. The files are bounded by age (24 h) and by the sum of their sizes (100 MiB;
the oldest are removed first). Each write enforces both bounds; there is no timer. Writing is synchronous,
because megabytes are work for a thread.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from ..._own_files import WRITABLE, make_own_folder, open_own

DAY = 24 * 3600.0
MAX_TOTAL = 100 * 1024 * 1024
_AT_ONCE = 1 << 20  # characters


def default_directory() -> Path:
    """`output/` in the user's cache directory for Greenroom."""
    import platformdirs

    return platformdirs.user_cache_path("greenroom", appauthor=False) / "output"


@attrs.frozen
class Spill:
    """Files of long answers in one directory. `max_age` in seconds, `max_total` in bytes."""

    directory: Path = attrs.field(factory=default_directory)
    max_age: float = DAY
    max_total: int = MAX_TOTAL
    clock: Callable[[], float] = time.time  # file stamps are wall clock

    def write(self, text: str) -> Path:
        """Write `text` to a new file of mode 0600, and remove the files that are due. Raises `OSError`."""
        make_own_folder(self.directory, denied=WRITABLE)
        path = self.directory / f"output-{secrets.token_hex(8)}.txt"
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "wb") as file:
            # In pieces, because no other thread runs while a piece is encoded.
            for start in range(0, len(text), _AT_ONCE):
                file.write(text[start : start + _AT_ONCE].encode("utf-8", "replace"))
        self._prune(keep=path)
        return path

    def _prune(self, keep: Path) -> None:
        """Keep the newest files, and remove those that are too old or no longer fit. Another process may
        remove files meanwhile; that is no error."""
        room, oldest = self.max_total, self.clock() - self.max_age
        for path, stamp, size in sorted(self._files(), key=lambda file: (file[0] != keep, -file[1])):
            room -= size
            if path != keep and (stamp < oldest or room < 0):
                path.unlink(missing_ok=True)

    def _files(self) -> Iterable[tuple[Path, float, int]]:
        for path in self.directory.glob("output-*.txt"):
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            yield path, stat.st_mtime, stat.st_size
