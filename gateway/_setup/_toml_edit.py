"""Changes one table in the text of a TOML file, such as `[mcp_servers.greenroom]` of Codex. The rest stays as it is.

A table may stand anywhere in TOML, so a new one goes to the end. Values are only told from headers here, never read;
the caller compares what both texts mean (`_entries`), so a form that this does not know (an inline table) is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ._json_edit import CannotEdit, Token

_TOKEN: Final = re.compile(
    r'''(?P<string>"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')
    | (?P<comment>\#[^\r\n]*)
    | (?P<newline>\r?\n)
    | (?P<space>[ \t\ufeff]+)
    | (?P<mark>[\[\]{}=,.])
    | (?P<word>[^\s\[\]{}=,.\#"']+)
    | (?P<odd>.)''',
    re.VERBOSE | re.DOTALL,
)
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def put(text: str, path: Sequence[str], value: Mapping[str, Any]) -> str:
    """`text` with the table `path` set to `value`: where it stood, or at the end."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{'.'.join(map(_name, path))}]", *_lines(value)]
    table = newline.join(lines)
    found = _sections(text, path)
    if found:
        start, end = found[0]
        text = text[:start] + table + text[end:]
        for other_start, other_end in reversed(_sections(text, path)[1:]):
            text = text[:other_start] + text[other_end:].lstrip("\r\n")
        return text
    before = "" if not text.strip("\ufeff \t\r\n") else newline if text.endswith("\n") else newline * 2
    return text + before + table + newline


def remove(text: str, path: Sequence[str]) -> str:
    """`text` without the table `path` and the tables in it."""
    for start, end in reversed(_sections(text, path)):
        text = text[:start] + text[end:].removeprefix("\r").removeprefix("\n")
    return text


def tokens_of(text: str) -> list[Token]:
    """All tokens of `text`; what is not understood is a token, too (`odd`)."""
    return [Token(match.lastgroup or "", match.start(), match.end()) for match in _TOKEN.finditer(text)]


def _sections(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Where the table `path` and its sub-tables are: from the header to the end of the last line with a value."""
    headers = _headers(text)
    found: list[tuple[int, int]] = []
    for place, (name, start) in enumerate(headers):
        if name[: len(path)] == list(path):
            end = headers[place + 1][1] if place + 1 < len(headers) else len(text)
            found.append((start, _end_of_values(text, start, end)))
    return found


def _end_of_values(text: str, start: int, end: int) -> int:
    """The end of the last line that is neither empty nor only a comment: those belong to what follows."""
    last = start
    for token in tokens_of(text[start:end]):
        if token.kind not in ("newline", "space", "comment"):
            last = start + token.end
    rest = _REST_OF_LINE.match(text, last, end)
    return rest.end() if rest is not None else last


def _headers(text: str) -> list[tuple[list[str], int]]:
    """Each header: the keys of its path, and where it starts."""
    found: list[tuple[list[str], int]] = []
    depth, begins = 0, True
    for token in tokens_of(text):
        mark = text[token.start : token.end] if token.kind == "mark" else ""
        if begins and depth == 0 and mark == "[":
            found.append((_path_of(text, token.start), token.start))
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0)
        begins = token.kind == "newline" or (begins and token.kind == "space")
    return found


def _path_of(text: str, start: int) -> list[str]:
    line = text[start:].split("\n", 1)[0].rstrip("\r")
    try:
        found: Any = tomllib.loads(line)
    except ValueError:
        raise CannotEdit(
            "The file is no TOML that we can change: correct it by hand, then try again."
        ) from None
    keys: list[str] = []
    while isinstance(found, dict) and found:
        key, found = next(iter(found.items()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        keys.append(str(key))  # pyright: ignore[reportUnknownArgumentType]
    return keys


def _lines(value: Mapping[str, Any]) -> list[str]:
    return [f"{_name(key)} = {json.dumps(each, ensure_ascii=False)}" for key, each in value.items()]


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
