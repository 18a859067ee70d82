"""Files for what does not fit an answer: long text, binary content, and what a result says beside its content.

The directory is the user's own (0700) under the cache directory. So the files outlive the gateway that wrote
them, and an agent may come back to one after a restart. A directory that belongs to another user, or that
others may write to, is not used. The files are bounded by age and by the sum of their sizes; the oldest are
removed first. Each write enforces both bounds; there is no timer. Reading and writing are synchronous,
because megabytes are work for a thread.

A file's id is a random number that nobody can guess. Whoever was told the id may read the text page by page,
also without access to files, and nobody else finds it: no client can list the ids.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ...config.private_files import WRITABLE, cache_folder, make_own_folder, open_own
from ...protocol.lazy_patterns import lazy_pattern

DAY = 24 * 3600.0
MAX_TOTAL = 100 * 1024 * 1024
_AT_ONCE = 1 << 20  # characters; a multiple of four, as base64 needs it
_ID: Final = lazy_pattern(r"[0-9a-f]{16}")
_NAME: Final = lazy_pattern(rf"output-(?P<id>{_ID.pattern})(?P<suffix>\.[a-z0-9]{{1,8}})")
_SUFFIX: Final = lazy_pattern(r"\.[a-z0-9]{1,8}")


def default_directory() -> Path:
    """`output/` in the user's cache directory for Greenroom."""
    return cache_folder() / "output"


class OutputPage(msgspec.Struct, frozen=True):
    """A part of a kept text, from byte `start` to before byte `end` of `size`."""

    text: str
    start: int
    end: int
    size: int


class OutputFile(msgspec.Struct, frozen=True):
    """One kept file. `stamp`: when it was written, in seconds since 1970. `size` in bytes."""

    id: str
    path: Path
    stamp: float
    size: int


class Spill(msgspec.Struct, frozen=True):
    """The files in one directory. `max_age` in seconds, `max_total` in bytes."""

    directory: Path = msgspec.field(default_factory=default_directory)
    max_age: float = DAY
    max_total: int = MAX_TOTAL
    clock: Callable[[], float] = time.time  # file stamps are wall clock

    def write(self, text: str, suffix: str = ".txt") -> Path:
        """Write `text` to a new file of mode 0600, and remove the files that are due. Raises `OSError`."""
        pieces = (text[start : start + _AT_ONCE] for start in range(0, len(text), _AT_ONCE))
        return self._write((piece.encode("utf-8", "replace") for piece in pieces), suffix)

    def write_base64(self, data: str, mime: str) -> Path:
        """Write base64 content to a new file, decoded, as `write` does. Its MIME type decides the suffix. Raises
        `OSError`, and `ValueError` when it is not base64."""
        suffix = mimetypes.guess_extension(mime.partition(";")[0].strip().lower()) or ".bin"
        return self._write(decoded_base64(data), suffix if _SUFFIX.fullmatch(suffix) else ".bin")

    def page(self, output: str, offset: int, max_bytes: int, max_lines: int) -> OutputPage | None:
        """The part of a kept text that begins at byte `offset`, or at the character that has this byte, within these
        bounds. None when no text has this id. Raises `OSError`."""
        if _ID.fullmatch(output) is None:
            return None
        try:
            descriptor = open_own(self.directory / f"output-{output}.txt", os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            start = min(offset, size)
            file.seek(start)
            data = file.read(max_bytes)
        skipped = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
        lines = data[skipped:].decode(errors="ignore").split("\n", max_lines)
        text = "\n".join(lines[:max_lines])
        if len(lines) > max_lines:
            text += "\n"
        return OutputPage(text, start + skipped, start + skipped + len(text.encode()), size)

    def kept(self) -> list[OutputFile]:
        """All files, newest first."""
        return sorted(self._files(), key=lambda file: -file.stamp)

    def clear(self) -> int:
        """Remove all files. Returns how many. Raises `OSError`."""
        files = self.kept()
        for file in files:
            file.path.unlink(missing_ok=True)
        return len(files)

    def _write(self, pieces: Iterable[bytes], suffix: str) -> Path:
        """Write the pieces one by one, because no other thread runs while a piece is encoded."""
        make_own_folder(self.directory, denied=WRITABLE)
        path = self.directory / f"output-{secrets.token_hex(8)}{suffix}"
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        self._prune(keep=path)
        return path

    def _prune(self, keep: Path) -> None:
        """Keep the newest files, and remove those that are too old or no longer fit. Another process may
        remove files meanwhile; that is no error."""
        room, oldest = self.max_total, self.clock() - self.max_age
        for file in sorted(self._files(), key=lambda file: (file.path != keep, -file.stamp)):
            room -= file.size
            if file.path != keep and (file.stamp < oldest or room < 0):
                file.path.unlink(missing_ok=True)

    def _files(self) -> Iterator[OutputFile]:
        for path in self.directory.glob("output-*.*"):
            found = _NAME.fullmatch(path.name)
            if found is None:
                continue
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            yield OutputFile(found["id"], path, stat.st_mtime, stat.st_size)


def decoded_base64(data: str) -> Iterator[bytes]:
    """The bytes, in pieces. Raises `ValueError` when it is not base64."""
    pieces = (data[start : start + _AT_ONCE] for start in range(0, len(data), _AT_ONCE))
    return (base64.b64decode(piece, validate=True) for piece in pieces)


def id_of(path: Path) -> str:
    """The id of a kept file."""
    return path.stem.removeprefix("output-")
