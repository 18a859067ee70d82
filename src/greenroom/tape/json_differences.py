"""What differs between two JSON texts, in few words. Pure.

Members are compared by name, items of arrays and lines of texts by what they are (`alignment`), so one that was put in
does not change all behind it. A text that is JSON itself, as most answers of tools are, is compared as JSON. Members
that `ignore` names count for nothing wherever they are, and neither does one that is hidden on either side: nothing is
known of it.

What is shown is bounded: so many differences, each so long. A text that is too large, or nested too deeply, only
differs or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import msgspec

from ..protocol.json_values import is_array, is_object
from .alignment import aligned
from .call_matching import CUT_OUT, text_of
from .tape_lines import value_in

MOST: Final = 20  # differences of one answer that are shown
LARGEST: Final = 4 << 20  # bytes of a text that is looked into
_SHOWN: Final = 500  # characters of a value
_NAME: Final = re.compile(r"[\w-]{1,80}", re.ASCII)
_BEFORE: Final = 20  # characters of a long text that are shown before its first difference


@attrs.frozen
class Change:
    """A part that differs. `path`: its place, such as `content[0].text`. `before`, `after`: the beginning of its JSON;
    None: it is missing."""

    path: str
    before: str | None
    after: str | None


@attrs.define
class Changes:
    """The first differences, and how many more there are."""

    shown: list[Change] = attrs.field(factory=list[Change])
    more: int = 0

    def add(self, path: str, before: str | None, after: str | None) -> None:
        if len(self.shown) < MOST:
            self.shown.append(Change(path, before, after))
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self.shown)


def read_json(raw: bytes) -> Any:
    """The value; the bytes themselves if they are too many or cannot be read."""
    if len(raw) > LARGEST:
        return raw
    try:
        return value_in(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw


def changes(before: Any, after: Any, ignore: Collection[str] = ()) -> Changes:
    """What differs between two JSON values, as `read_json` returns them."""
    finder = _DifferenceFinder(frozenset(ignore))
    try:
        if not isinstance(before, bytes) and not isinstance(after, bytes):
            finder.compare("", before, after)
            return finder.found
        is_same = before == after
    except RecursionError:  # nested too deeply
        is_same = False
    found = Changes()
    if not is_same:
        found.add("", shown(before), shown(after))
    return found


class _DifferenceFinder:
    def __init__(self, ignore: frozenset[str]) -> None:
        self.found = Changes()
        self._ignore = ignore

    def compare(self, path: str, before: Any, after: Any) -> None:
        if any(isinstance(value, str) and CUT_OUT.fullmatch(value) for value in (before, after)):
            return
        if is_object(before) and is_object(after):
            self._members(path, before, after)
        elif is_array(before) and is_array(after):
            self._items(path, before, after)
        elif isinstance(before, str) and isinstance(after, str):
            self._texts(path, before, after)
        elif before != after or isinstance(before, bool) != isinstance(after, bool):
            self.found.add(path, shown(before), shown(after))

    def _members(self, path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for name in {**before, **after}:
            if name in self._ignore:
                continue
            where = f"{path}{_member(name)}" if path else _member(name).removeprefix(".")
            if name not in after:
                self.found.add(where, shown(before[name]), None)
            elif name not in before:
                self.found.add(where, None, shown(after[name]))
            else:
                self.compare(where, before[name], after[name])

    def _items(self, path: str, before: Sequence[Any], after: Sequence[Any]) -> None:
        texts = [[text_of(item, self._ignore) for item in items] for items in (before, after)]
        for at, end, other, other_end in _gaps(*texts):
            both = min(end - at, other_end - other)
            for step in range(both):
                self.compare(f"{path}[{at + step}]", before[at + step], after[other + step])
            for left in range(at + both, end):
                self.found.add(f"{path}[{left}]", shown(before[left]), None)
            for new in range(other + both, other_end):
                self.found.add(f"{path}[{new}]", None, shown(after[new]))

    def _texts(self, path: str, before: str, after: str) -> None:
        if before == after:
            return
        inner = as_json(before), as_json(after)
        if inner[0] is not None and inner[1] is not None:
            self.compare(path, *inner)
        elif "\n" in before.strip("\n") or "\n" in after.strip("\n"):
            self._lines(path, before.split("\n"), after.split("\n"))
        else:
            self.found.add(path, *_from_where_they_differ(before, after))

    def _lines(self, path: str, before: Sequence[str], after: Sequence[str]) -> None:
        for at, end, other, other_end in _gaps(before, after):
            old, new = "\n".join(before[at:end]), "\n".join(after[other:other_end])
            self.found.add(
                f"{path} line {(at if end > at else other) + 1}",
                shown(old) if end > at else None,
                shown(new) if other_end > other else None,
            )


def shown(value: Any) -> str:
    """The beginning of a value as JSON, or of the bytes of one that was not read."""
    if isinstance(value, bytes):
        return f"{value[:_SHOWN].decode(errors='replace')}… ({len(value):,} bytes)"
    try:
        text = json.dumps(value[:_SHOWN] if isinstance(value, str) else value, ensure_ascii=False)
    except RecursionError:  # nested too deeply
        return "…"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _gaps(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Where the two differ: from and to, on both sides."""
    marks = [(-1, -1), *aligned(before, after), (len(before), len(after))]
    spans = ((a + 1, b, c + 1, d) for (a, c), (b, d) in pairwise(marks))
    return [span for span in spans if span[0] < span[1] or span[2] < span[3]]


def _member(name: str) -> str:
    return f".{name}" if _NAME.fullmatch(name) else f"[{shown(name[:80])}]"


def as_json(text: str) -> Any:
    """The object or array that the text is; None: it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text.encode(errors="surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _from_where_they_differ(before: str, after: str) -> tuple[str, str]:
    """Both texts, without most of what is the same at their beginning."""
    if max(len(before), len(after)) <= 4 * _BEFORE:
        return shown(before), shown(after)
    same = next(
        (at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new),
        min(len(before), len(after)),
    )
    begin = max(0, same - _BEFORE)
    mark = "…" if begin else ""
    return shown(mark + before[begin:]), shown(mark + after[begin:])
