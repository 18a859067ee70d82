"""Changes one table in the text of a TOML file, such as `[mcp_servers.greenroom]` of Codex. The rest stays as it is.

tomlkit keeps what it reads as it was written, but takes the comments after a table for a part of that table. To a
reader they belong to what follows, so they stay here when the table goes. A new table goes to the end, and so does one
that was written in dotted keys or in braces.

The caller compares what both texts mean (`client_files`): what is not understood here is refused, never damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, AoT, Comment, InlineTable, Integer, Item, Key, Table, Whitespace

from .file_edits import CannotEdit

_Body = list[tuple[Key | None, Item]]
_Path = tuple[str, str]  # a section, and a table in it


def put(text: str, path: _Path, value: Mapping[str, object]) -> str:
    """`text` with the table `path` set to `value`, in its old place or at the end."""
    section, name = path
    newline = "\r\n" if "\r\n" in text else "\n"
    table = tomlkit.dumps({section: {name: value}}).replace("\n", newline)
    document = _read(text)
    holder = _inline(document, section)
    if holder is None and not _has_header(document, path):
        text = remove(text, path) if any(_places(document.body, path)) else text
        before = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
        return text + before + table
    _be_exact(document, text)
    if holder is not None:
        holder[name] = dict(value)
        return document.as_string()
    ((body, index),) = _places(_read(table).body, path)
    return _replaced(document, path, body[index][1])


def remove(text: str, path: _Path) -> str:
    """`text` without the table `path` and the tables in it."""
    document = _read(text)
    _be_exact(document, text)
    holder = _inline(document, path[0])
    if holder is not None:
        holder.remove(path[1])
    return _replaced(document, path, None)


def masked(text: str, ours: str, mask: Callable[[str], str]) -> str:
    """`text` with each value and comment masked, but for the values in tables of the name `ours`."""
    document = _read(text)
    _hide(document.body, ours, mask)
    return document.as_string()


def _read(text: str) -> tomlkit.TOMLDocument:
    """What can be changed and written again. Raises `CannotEdit`."""
    try:
        return tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError):
        raise CannotEdit(
            "The file is not TOML that we can change: correct it by hand, then try again."
        ) from None


def _be_exact(document: tomlkit.TOMLDocument, text: str) -> None:
    """tomlkit moves an array of tables that stands between the parts of another table."""
    if document.as_string() != text:
        raise CannotEdit("The file has a form that we cannot change safely. Change it by hand.")


def _inline(document: tomlkit.TOMLDocument, section: str) -> InlineTable | None:
    """The section, if it is written in braces; else None."""
    found = (body[index][1] for body, index in _places(document.body, (section,)))
    return next((item for item in found if isinstance(item, InlineTable)), None)


def _has_header(document: tomlkit.TOMLDocument, path: _Path) -> bool:
    """Whether the table begins with a line `[section.name]`. If it is written in dotted keys or in braces, a new one
    cannot stand in its place, because the lines behind it would become a part of it."""
    for body, index in _places(document.body, path):
        key, item = body[index]
        return key is not None and isinstance(item, Table) and not key.is_dotted()
    return False


def _replaced(document: tomlkit.TOMLDocument, path: _Path, new: Item | None) -> str:
    """The text with `new` in the first place of the table, and nothing in its others."""
    for body, index in _places(document.body, path):
        key, old = body[index]
        body[index] = None, _comments_after(old)
        if isinstance(new, Table):
            new.value.body.append(body[index])
            body[index], new = (key, new), None
    return document.as_string()


def _places(body: _Body, path: tuple[str, ...]) -> Iterator[tuple[_Body, int]]:
    """The places of the table in the file, which may have several parts."""
    for index, (key, item) in enumerate(body):
        if key is not None and key.key == path[0]:
            if len(path) == 1:
                yield body, index
            elif isinstance(item, Table):
                yield from _places(item.value.body, path[1:])


def _comments_after(item: Item) -> Whitespace:
    """The lines at the end of a table that hold no value."""
    while isinstance(item, Table | AoT):
        body: _Body = item.value.body if isinstance(item, Table) else [(None, each) for each in item.body]
        after = [
            *takewhile(lambda each: isinstance(each, Comment | Whitespace), (it for _, it in body[::-1]))
        ]
        if after or not body:
            return Whitespace("".join(each.as_string() for each in after[::-1]))
        item = body[-1][1]
    return Whitespace("")


def _hide(body: _Body, ours: str, mask: Callable[[str], str]) -> None:
    for index, (key, item) in enumerate(body):
        for part in item.body if isinstance(item, AoT) else () if isinstance(item, Whitespace) else (item,):
            if part.trivia.comment:
                part.trivia.comment = "# …"
            if key is not None and isinstance(part, AbstractTable):
                _hide(part.value.body, ours, str if ours and key.key == ours else mask)
            elif key is not None:
                body[index] = key, Integer(0, part.trivia, mask(part.as_string()))
