"""Changes one value in the text of a JSON file. Comments, order, indentation and line ends of the rest stay.

The text may be JSONC or JSON5. It is cut into tokens, and only the objects on the way to the value are looked at, so a
program's state of megabytes is no problem. A new member follows the indentation of its neighbours; in an object on
one line it stays on that line. If a key stands there twice, the last one counts, as for every reader that we know.

The caller compares what both texts mean (`client_files`): what is not understood here is refused, never damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from ..config.private_files import make_own_folder, read_own, read_regular, replacing
from ..protocol.errors import GreenroomError, UsageError

_TOKEN: Final = re.compile(
    r"""(?P<space>[\s\ufeff]+)
    | (?P<comment>//[^\r\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<mark>[{}\[\]:,])
    | (?P<word>[^\s{}\[\]:,"'/]+)""",
    re.VERBOSE | re.DOTALL,
)
_AFTER_VALUE: Final = re.compile(r"[ \t]*(?:/\*[^\r\n]*?\*/[ \t]*)*(?://[^\r\n]*)?(?=[\r\n]|$)")
_DEFAULT_INDENT: Final = "  "


class CannotEdit(UsageError):
    """The file has a form that we cannot change without touching the rest of it. Nothing was written."""

    code = "cannot_edit"


@attrs.frozen
class JsonToken:
    """One token: its kind (a group of the pattern), and where it is in the text."""

    kind: str
    start: int
    end: int


@attrs.frozen
class _Member:
    key: str
    start: int
    value: JsonToken  # the whole value
    comma: int | None  # where the comma after it ends


@attrs.frozen
class _Object:
    start: int
    close: int  # where its } is
    members: tuple[_Member, ...]

    def find(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


def put(text: str, path: Sequence[str], value: Any) -> str:
    """`text` with `value` at `path`; objects on the way are made if need be. Raises `CannotEdit`."""
    tokens = _significant(text)
    if not tokens:
        newline = _newline(text)
        between = newline if text.strip("\ufeff \t\r\n") and not text.endswith(("\n", "\r")) else ""
        return text + between + _rendered(_nested(path, value), "", _DEFAULT_INDENT, newline) + newline
    here = _object(text, tokens, 0)
    root = here
    for place, key in enumerate(path):
        member = here.find(key)
        rest = path[place + 1 :]
        if member is None:
            return _added(text, root, here, key, _nested(rest, value))
        if not rest or text[member.value.start : member.value.end] == "null":
            return _replaced(text, root, here, member, _nested(rest, value))
        here = _object(text, tokens, _index(tokens, member.value.start))
    raise AssertionError("the path is empty")


def remove(text: str, path: Sequence[str]) -> str:
    """`text` without the value at `path`, which must be there. Raises `CannotEdit`."""
    while True:  # all of a duplicate key
        tokens = _significant(text)
        here = _object(text, tokens, 0)
        for key in path[:-1]:
            member = here.find(key)
            if member is None:
                return text
            here = _object(text, tokens, _index(tokens, member.value.start))
        member = here.find(path[-1])
        if member is None:
            return text
        text = _without(text, here, member)


def tokens_of(text: str) -> list[JsonToken]:
    """All tokens of `text`. Raises `CannotEdit` at a place that is none."""
    found: list[JsonToken] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            line = text.count("\n", 0, place) + 1
            raise CannotEdit(f"Line {line} is not JSON: correct the file by hand, then try again.")
        found.append(JsonToken(match.lastgroup or "", place, match.end()))
        place = match.end()
    return found


def _significant(text: str) -> list[JsonToken]:
    return [token for token in tokens_of(text) if token.kind not in ("space", "comment")]


# ---- objects -------------------------------------------------------------------------------------------------
def _object(text: str, tokens: Sequence[JsonToken], at: int) -> _Object:
    """The object that starts at the token `at`."""
    if text[tokens[at].start] != "{":
        raise CannotEdit(
            "A section of the file is not an object ({…}): correct it by hand, or remove it, then try again."
        )
    members: list[_Member] = []
    start, at = tokens[at].start, at + 1
    try:
        while text[tokens[at].start] != "}":
            key, colon = tokens[at], tokens[at + 1]
            if key.kind not in ("string", "word") or text[colon.start] != ":":
                raise CannotEdit(
                    "The file is not JSON that we can change: correct it by hand, then try again."
                )
            last = _end_of_value(text, tokens, at + 2)
            value = JsonToken("value", tokens[at + 2].start, tokens[last].end)
            comma = tokens[last + 1].end if text[tokens[last + 1].start] == "," else None
            members.append(_Member(_key(text, key), key.start, value, comma))
            at = last + (1 if comma is None else 2)
        return _Object(start, tokens[at].start, tuple(members))
    except IndexError:
        raise CannotEdit("The file ends too early: correct it by hand, then try again.") from None


def _end_of_value(text: str, tokens: Sequence[JsonToken], at: int) -> int:
    """The index of the last token of the value that begins at the token `at`."""
    depth = 0
    while True:
        if tokens[at].kind == "mark":
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text[tokens[at].start], 0)
        if depth <= 0:
            return at
        at += 1


def _key(text: str, token: JsonToken) -> str:
    raw = text[token.start : token.end]
    if token.kind == "word":
        return raw
    if raw.startswith('"'):
        try:
            return json.loads(raw, strict=False)
        except ValueError:
            return raw
    return raw[1:-1]


def _index(tokens: Sequence[JsonToken], start: int) -> int:
    return next(place for place, token in enumerate(tokens) if token.start == start)


# ---- changes -------------------------------------------------------------------------------------------------
def _added(text: str, root: _Object, here: _Object, key: str, value: Any) -> str:
    newline, unit = _newline(text), _unit(text, root)
    name = json.dumps(key, ensure_ascii=False) + ": "
    on_one_line = "\n" not in text[here.start : here.close] and bool(
        here.members or (root.members and "\n" not in text[root.start : root.close])
    )
    if on_one_line:
        space = " " if not here.members or " " in text[here.start : here.close] else ""
        added = name + json.dumps(value, ensure_ascii=False)
        if not here.members:
            return text[: here.close] + added + text[here.close :]
        last = here.members[-1]
        if last.comma is not None:
            return text[: last.comma] + " " + added + "," + text[last.comma :]
        return text[: last.value.end] + "," + space + added + text[last.value.end :]
    outer = _indent_of_line(text, here.start)
    indent = _indent_of_line(text, here.members[-1].start) if here.members else outer + unit
    if here.members and not _begins_line(text, here.members[-1].start):
        indent = outer + unit
    added = newline + indent + name + _rendered(value, indent, unit, newline)
    if not here.members:
        inside = text[here.start + 1 : here.close]
        if "\n" not in inside:
            return text[: here.close] + added + newline + outer + text[here.close :]
        end = here.start + 1 + len(inside.rstrip())
        return text[:end] + added + text[end:]
    last = here.members[-1]
    has_comma = last.comma is not None
    end = last.comma if last.comma is not None else last.value.end
    rest = _AFTER_VALUE.match(text, end)
    if rest is None:  # something of the object follows on the line, such as its }
        tail = newline + outer if _same_line(text, end, here.close) else ""
        return (
            text[:end] + ("" if has_comma else ",") + added + ("," if has_comma else "") + tail + text[end:]
        )
    before = text[: last.value.end] + ("" if has_comma else ",") + text[last.value.end : rest.end()]
    return before + added + ("," if has_comma else "") + text[rest.end() :]


def _replaced(text: str, root: _Object, here: _Object, member: _Member, value: Any) -> str:
    if "\n" in text[here.start : here.close]:
        indent = _indent_of_line(text, member.start)
        new = _rendered(value, indent, _unit(text, root), _newline(text))
    else:
        new = json.dumps(value, ensure_ascii=False)
    return text[: member.value.start] + new + text[member.value.end :]


def _without(text: str, here: _Object, member: _Member) -> str:
    start, end = member.start, member.comma or member.value.end
    if _begins_line(text, start):
        rest = re.compile(r"[ \t]*(?:\r\n|\n|\r)").match(text, end)
        if rest is not None:
            start, end = start - len(_indent_of_line(text, start)), rest.end()
    elif member.comma is not None:
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    place = here.members.index(member)
    before = here.members[place - 1] if place else None
    if member.comma is None and before is not None and before.comma is not None:
        between = text[before.comma : start]
        if not _begins_line(text, member.start):
            between = between.rstrip(" \t")
        return text[: before.comma - 1] + between + text[end:]
    return text[:start] + text[end:]


# ---- how the text looks --------------------------------------------------------------------------------------
def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _rendered(value: Any, indent: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _newline(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _unit(text: str, root: _Object) -> str:
    """One step of indentation: that of the first member of the file that begins a line."""
    for member in root.members:
        if _begins_line(text, member.start):
            outer, inner = _indent_of_line(text, root.start), _indent_of_line(text, member.start)
            if len(inner) > len(outer):
                return inner[len(outer) :]
    return _DEFAULT_INDENT


def _indent_of_line(text: str, place: int) -> str:
    line = text[_line_start(text, place) : place].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _begins_line(text: str, place: int) -> bool:
    return not text[_line_start(text, place) : place].strip(" \t\ufeff")


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _same_line(text: str, start: int, end: int) -> bool:
    return "\n" not in text[start:end]


# ---- Replaces a file of a person or of another program, keeps what it was, and puts it back -------------------------
#
# A file is replaced atomically (a new file beside it, then a rename); links to it and its mode stay. Right before, it
# is read again: if another program has changed it meanwhile, nothing is written.
#
# What a file was before our change is kept in the state folder of the user, 0600: the bytes, and a record with the hash
# of what we wrote. A second change of ours on top of the first keeps the older bytes, so `undo` always leads back to
# what was there before us. A file that somebody else has changed since is only put back with `force`; then its content
# is kept as well.

_LARGEST: Final = 64 * 1024 * 1024  # bytes
_NEW_FILE: Final = 0o600


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
    _save(backup)
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


def _save(backup: Backup) -> None:
    record = {"file": str(backup.file), "existed": backup.content is not None, "written": backup.written}
    _write_private(backup.record, json.dumps(record).encode())


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
