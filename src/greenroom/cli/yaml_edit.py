"""Changes one entry of a section in the text of a YAML file, such as `extensions: greenroom:` of Goose. The rest stays
as it is.

Our entry is one line of JSON, which is YAML, too. The section is a block at the top level, or there is none yet; any
other form is refused. The caller (`client_files`) compares what the text means before and after, so a file that is
misread here is not damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Final

from .file_edits import CannotEdit

_Path = tuple[str, str]  # a section, and an entry in it
_KEY: Final = re.compile(r"""( *)(?:"([^"]*)"|'([^']*)'|([^\s#"'\[{&*!-][^:#]*?)) *:(?:\s|$)""")
# Behind the name of a section that is a block.
_EMPTY: Final = re.compile(r" *: *(?:\{ *\}|null|~)?( +#.*)?$")


def put(text: str, path: _Path, value: Mapping[str, object]) -> str:
    """`text` with the entry `path` set to `value`, first in its section. Raises `CannotEdit`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    section, name = path
    entry = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}{newline}"
    lines = [*_lines(remove(text, path))]
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += newline
    at = _place(lines, section, 0, "")
    if at is None:
        return "".join((*lines, f"{section}:{newline}", f"  {entry}"))
    empty = _EMPTY.match(lines[at].rstrip("\r\n")[len(section) :])
    if empty is None:
        raise CannotEdit(f'"{section}" is on one line. Write the entry by hand.')
    lines[at] = f"{section}:{empty[1] or ''}{newline}"
    inside = next((line for line in _block(lines, at) if line.strip() and not _is_comment(line)), "  x")
    lines.insert(at + 1, _indent(inside) + entry)
    return "".join(lines)


def remove(text: str, path: _Path) -> str:
    """`text` without the entry `path` and what is in it."""
    lines = [*_lines(text)]
    at = _place(lines, path[0], 0, "")
    if at is None:
        return text
    inside = next((line for line in _block(lines, at) if line.strip() and not _is_comment(line)), "")
    end = at + 1 + sum(1 for _ in _block(lines, at))
    place = _place(lines[:end], path[1], at + 1, _indent(inside))
    if place is None:
        return text
    last = place + 1 + sum(1 for _ in _block(lines, place))
    del lines[place:last]
    if not any(line.strip() and not _is_comment(line) for line in _block(lines, at)):
        body = lines[at].rstrip("\r\n")
        lines[at] = f"{path[0]}: {{}}{body[len(path[0]) :].partition(':')[2]}{lines[at][len(body) :]}"
    return "".join(lines)


def masked(text: str, ours: str, mask: Callable[[str], str]) -> str:
    """`text` with each value and comment masked, but for those of an entry of the name `ours` on one line."""
    return "".join(_masked(line, ours, mask) for line in _lines(text))


def _masked(line: str, ours: str, mask: Callable[[str], str]) -> str:
    body = line.rstrip("\r\n")
    key = _KEY.match(body)
    if not body.strip() or (key is not None and _name(key) == ours):
        return line
    shown = body[: key.end()] if key is not None else _indent(body)
    return shown + (mask(body[len(shown) :]) if body[len(shown) :].strip() else "") + line[len(body) :]


def _place(lines: list[str], name: str, start: int, indent: str) -> int | None:
    """The line, from `start` on, that begins the member `name` at this depth."""
    for number, line in enumerate(lines[start:], start):
        key = _KEY.match(line)
        if key is not None and key[1] == indent and _name(key) == name:
            return number
    return None


def _block(lines: list[str], at: int) -> Iterator[str]:
    """The lines below this one that belong to it."""
    depth = len(_indent(lines[at]))
    return takewhile(lambda line: not line.strip() or len(_indent(line)) > depth, lines[at + 1 :])


def _name(key: re.Match[str]) -> str:
    return next(each for each in key.groups()[1:] if each is not None)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]
