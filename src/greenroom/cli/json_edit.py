"""Changes one value in the text of a JSON file. Comments, order, indentation and line ends of the rest stay.

The text may be JSONC or JSON5. It is cut into tokens, and only the objects on the way to the value are looked at, so a
program's state of megabytes is no problem. A new member follows the indentation of its neighbours; in an object on
one line it stays on that line. If a key stands there twice, the last one counts, as for every reader that we know.

The caller compares what both texts mean (`client_files`): what is not understood here is refused, never damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from .file_edits import CannotEdit

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
        tail = "" if "\n" in text[end : here.close] else newline + outer
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


# ---- what may be shown ----------------------------------------------------------------------------------------
def masked(text: str, ours: str, mask: Callable[[str], str]) -> str:
    """`text` with each value and comment masked, but for the values in an object of the name `ours`."""
    return "".join(_masked(text, ours, mask))


def _masked(text: str, ours: str, mask: Callable[[str], str]) -> Iterator[str]:
    tokens = tokens_of(text)
    depth, shown = 0, 0  # `shown`: the depth outside of which our entry ends; 0 when we are not in it
    last_key = ""
    for place, token in enumerate(tokens):
        raw = text[token.start : token.end]
        if token.kind == "mark":
            if raw in "{[":
                depth += 1
                if not shown and ours and raw == "{" and last_key == ours:
                    shown = depth
            elif raw in "]}":
                shown = 0 if shown == depth else shown
                depth -= 1
            yield raw
        elif token.kind in ("string", "word"):
            is_key = _next_mark(text, tokens, place) == ":"
            last_key = raw.strip("\"'") if is_key else last_key
            yield raw if is_key or shown or raw in ("true", "false", "null") else mask(raw)
        else:
            yield f"{raw[:2]} {mask(raw)}" if token.kind == "comment" else raw


def _next_mark(text: str, tokens: list[JsonToken], place: int) -> str:
    following = (each for each in tokens[place + 1 :] if each.kind not in ("space", "comment"))
    token = next(following, None)
    return text[token.start : token.end] if token is not None else ""
