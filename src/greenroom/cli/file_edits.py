"""Replaces a file of a person or of another program, keeps what it was, and puts it back.

A file is replaced atomically (a new file beside it, then a rename); links to it and its mode stay. Right before, it
is read again: if another program has changed it meanwhile, nothing is written.

What a file was before our change is kept in the state folder of the user, 0600: the bytes, and a record with the hash
of what we wrote. A second change of ours on top of the first keeps the older bytes, so `undo` always leads back to
what was there before us. A file that somebody else has changed since is only put back with `force`; then its content
is kept as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from ..config.private_files import make_own_folder, read_own, read_regular, replacing
from ..protocol.errors import GreenroomError, UsageError

_LARGEST: Final = 64 * 1024 * 1024  # bytes
_NEW_FILE: Final = 0o600


class CannotEdit(UsageError):
    """The file has a form that we cannot change without touching the rest of it. Nothing was written."""

    code = "cannot_edit"


class FileChanged(GreenroomError):
    """Another program has changed the file. Nothing was written."""

    code = "file_changed"


class NothingToUndo(GreenroomError):
    """No change of ours to this file is known."""

    code = "nothing_to_undo"


@attrs.frozen
class Backup:
    """What `file` was before our change (`content`; None: it did not exist), and the hash of what we wrote."""

    record: Path
    content: Path | None
    file: Path
    written: str

    def save(self) -> None:
        """Write its record."""
        record = {"file": str(self.file), "existed": self.content is not None, "written": self.written}
        _write_private(self.record, json.dumps(record).encode())


def read(path: Path) -> bytes | None:
    """The bytes of the file, or None when there is none. Raises `OSError`, or `OverflowError` above 64 MiB."""
    try:
        return read_regular(path, _LARGEST)
    except FileNotFoundError:
        return None


def replace(path: Path, before: bytes | None, after: bytes | None) -> None:
    """Make `after` the content of the file that `path` leads to (None: remove it). Raises `FileChanged` when its
    content is no longer `before`, or `OSError`."""
    real = Path(os.path.realpath(path))
    if after is None:
        _check(path, before)
        real.unlink(missing_ok=True)
        return
    real.parent.mkdir(parents=True, exist_ok=True)
    with replacing(real) as file:
        file.write(after)
        file.flush()
        os.fsync(file.fileno())
        _copy_rights(real, file.name)
        _check(path, before)


def change(path: Path, before: bytes | None, after: bytes, state: Path) -> Backup:
    """Like `replace`, with a backup in the folder `state`."""
    older = last_backup(path, state)
    if older is not None and before is not None and older.written == _hash(before):
        backup = attrs.evolve(older, written=_hash(after))
    else:
        backup = _new_backup(path, before, after, state)
    backup.save()
    replace(path, before, after)
    return backup


def undo(path: Path, state: Path, *, force: bool = False) -> Path | None:
    """Put the file back to what it was before us. Returns where its present content was kept, when `force` was needed.

    Raises `NothingToUndo`, `FileChanged` or `OSError`.
    """
    backup = last_backup(path, state)
    if backup is None:
        raise NothingToUndo(f"{path}: no change of ours is known, so there is nothing to undo.")
    now = read(path)
    kept: Path | None = None
    if now is None or _hash(now) != backup.written:
        if not force:
            raise FileChanged(
                f"{path} has changed since. Take our entry out by hand, or put back the old file with --force; "
                "the present one is kept then."
            )
        kept = backup.record.with_suffix(".replaced") if now is not None else None
        if kept is not None and now is not None:
            _write_private(kept, now)
    replace(path, now, None if backup.content is None else read_own(backup.content))
    for file in (backup.record, backup.content):
        if file is not None:
            file.unlink(missing_ok=True)
    return kept


def last_backup(path: Path, state: Path) -> Backup | None:
    """The newest backup of the file; None when there is none that can be read."""
    records = sorted(state.glob(f"{_stem(path)}-*.json"))
    if not records:
        return None
    raw: Any = json.loads(read_own(records[-1]))
    content = records[-1].with_suffix(".backup")
    return Backup(records[-1], content if raw["existed"] else None, Path(raw["file"]), str(raw["written"]))


# ---- details -------------------------------------------------------------------------------------------------
def _new_backup(path: Path, before: bytes | None, after: bytes, state: Path) -> Backup:
    make_own_folder(state)
    number = len([*state.glob(f"{_stem(path)}-*.json")]) + 1
    record = state / f"{_stem(path)}-{number:04}.json"
    content = record.with_suffix(".backup") if before is not None else None
    if content is not None and before is not None:
        _write_private(content, before)
    return Backup(record, content, path, _hash(after))


def _write_private(path: Path, data: bytes) -> None:
    replace(path, read(path), data)


def _check(path: Path, before: bytes | None) -> None:
    if read(path) != before:
        raise FileChanged(
            f"{path} was changed by another program just now, so nothing was written. Try again."
        )


def _copy_rights(real: Path, name: str) -> None:
    try:
        old = os.stat(real)
    except FileNotFoundError:
        os.chmod(name, _NEW_FILE)
        return
    with suppress(OSError, AttributeError):  # only root may give a file away
        os.chown(name, old.st_uid, old.st_gid)
    os.chmod(name, old.st_mode & 0o7777)


def _stem(path: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:16]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
