"""Reads lists as they come in: a page is taken apart item by item. A page of megabytes is work for a thread.

Each item is decoded alone. An item that is too long, is too deep, has too many parts or has no name costs only
itself. No objects are made of it first: its depth is known from its bytes, or from a bounded number of parts.

A small page is split by the decoder. A larger page is split here, because a decoder keeps the interpreter's lock until
it has all of it, however many items there are. A piece that looks like the end of an item is given to the decoder as if
the item ended there. JSON can be read in one way only, so if the decoder accepts the piece, the item does end there. If
no end is found in this way (in one enormous item, for example), brackets are counted. That is ten times slower.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ..protocol import bounds
from ..protocol.jsonrpc import encoding
from ..protocol.jsonrpc.incoming import excerpt
from ..protocol.jsonrpc.terms import WireFault
from ..protocol.lazy_patterns import lazy_pattern
from .definition_secrets import names_credential, without_credentials
from .entries import Raw

if TYPE_CHECKING:
    from ..config.scrubbing import Secrets

AT_ONCE: Final = 32 * bounds.KIB  # a page or a piece this short is split in one go
_TRIES: Final = 3  # places where a piece may end
_LONGEST_PLAIN: Final = 16 * bounds.KIB  # bytes of a number or a word
_BETWEEN: Final = lazy_pattern(rb"\}[ \t\r\n]*,[ \t\r\n]*\{")
_MARK: Final = lazy_pattern(rb'["\[\]{}]')
_REST_OF_TEXT: Final = lazy_pattern(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BLACK: Final = lazy_pattern(rb"[^ \t\r\n]")
_END_OF_PLAIN: Final = lazy_pattern(rb"[\s,\]}]")
_QUOTE, _ARRAY, _END_OF_ARRAY, _OBJECT, _END_OF_OBJECT = b'"[]{}'
_COMMA, _COLON = b",:"
_any = msgspec.json.Decoder()
_as_raws = msgspec.json.Decoder(list[msgspec.Raw])


def take_object(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """An object that is kept for long or shown to many, as the server sent it.

    Raises `WireFault`, in words that continue "an item …", when it is no object or over a bound of
    `protocol/bounds`.
    """
    data = bytes(raw)
    if len(data) > bounds.ITEM_BYTES:
        raise WireFault(f"longer than {bounds.ITEM_BYTES:,} bytes")
    if parts_of(data) > bounds.ITEM_PARTS:
        raise WireFault(f"of more than {bounds.ITEM_PARTS:,} parts")
    try:
        value = encoding.decode(_any, data)
    except RecursionError:
        raise WireFault(_TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeError):
        raise WireFault("that cannot be read") from None
    if not isinstance(value, dict):
        raise WireFault(_NO_OBJECT)
    found = cast("dict[str, Any]", value)
    if bounds.is_too_deep(data, found):
        raise WireFault(_TOO_DEEP)
    return found


def parts_of(data: bytes) -> int:
    """The objects and arrays in this JSON, at most: a bracket in a text counts, too."""
    return data.count(b"{") + data.count(b"[")


_NO_OBJECT: Final = "that is not an object"
_TOO_DEEP: Final = f"nested deeper than {bounds.DEPTH}"


class Items(msgspec.Struct, eq=False):
    """The items of one list so far. `field` names the array of a page; `key` is a field that every item must have."""

    field: str
    key: str
    most: int  # items at most; omitted ones count too, for they cost as much
    parts: int = bounds.LIST_PARTS  # that further items may have
    fault_of: Callable[[Raw], str] | None = None  # why an item cannot be used, in words; empty: it can
    secrets: Secrets | None = None  # those that are looked for in the items (`definition_secrets`)
    found: list[Raw] = msgspec.field(default_factory=list[Raw])
    is_full: bool = False  # there was more than `most`, or than `parts`
    is_heavy: bool = False  # it was more than `parts`
    left_out: Counter[str] = msgspec.field(default_factory=Counter[str])
    _examples: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def read(self, page: bytes) -> object:
        """Take the items of a page. Returns its `nextCursor` (None: it has none, or nothing more can be taken).

        Raises `WireFault` when the page is not an object with that array.
        """
        if len(page) <= AT_ONCE:
            try:
                parts = encoding.decode_parts(page)
                raws = _as_raws.decode(parts[self.field]) if self.field in parts else None
            except (msgspec.MsgspecError, RecursionError):
                pass  # it can be read, but not in one go: look closer
            else:
                if raws is None:
                    raise self._lacks_array()
                self._take_all(raws)
                return None if self.is_full else _cursor(bytes(parts.get("nextCursor", b"null")))
        return self._read_large(page)

    def in_words(self) -> list[str]:
        """What was left out and why: one sentence for each reason."""
        said: list[str] = []
        for reason, count in self.left_out.items():
            what = f"an item {reason} was" if count == 1 else f"{count:,} items {reason} were"
            example = self._examples.get(reason)
            said.append(f"{what} left out" + (f" ({example})" if example else ""))
        return said

    def bound_in_words(self, items: int) -> str:
        """What bound it is full by. `items`: how many all lists of one server may have."""
        return (
            f"{bounds.LIST_PARTS:,} objects and arrays"
            if self.is_heavy
            else f"{items:,} items (maxListItems)"
        )

    def _lacks_array(self) -> WireFault:
        return WireFault(f'the result has no array "{self.field}"')

    # -- one item --

    def _take_all(self, raws: list[msgspec.Raw]) -> None:
        for raw in raws:
            if not self._has_room():
                return
            self._take(bytes(raw))

    def _has_room(self) -> bool:
        self.is_full = self.is_full or len(self.found) + self.left_out.total() >= self.most
        return not self.is_full

    def _take(self, raw: bytes) -> None:
        try:
            item = take_object(raw)
        except WireFault as fault:
            if str(fault) == _NO_OBJECT:
                self._leave_out(f'without a "{self.key}"')
            else:
                self._leave_out(str(fault), excerpt(raw))
            return
        name, parts = item.get(self.key), parts_of(raw)
        if parts > self.parts:
            self.is_full = self.is_heavy = True
            return
        self.parts -= parts
        if not isinstance(name, str) or not name:
            self._leave_out(f'without a "{self.key}"')
        elif len(name) > bounds.NAME_CHARACTERS:
            self._leave_out(f'with a "{self.key}" of more than {bounds.NAME_CHARACTERS:,} characters')
        elif self.fault_of is not None and (fault := self.fault_of(item)):
            self._leave_out(f"whose {fault}", name)
        elif self.secrets is None:
            self.found.append(item)
        else:
            self._take_without(self.secrets, item)

    def _take_without(self, secrets: Secrets, item: Raw) -> None:
        shown = without_credentials(secrets, item)
        if shown is not item and names_credential(item, shown):
            self._leave_out("with a credential of its server in a name or URI")
        else:
            self.found.append(shown)

    def _leave_out(self, reason: str, example: str = "") -> None:
        self.left_out[reason] += 1
        self._examples.setdefault(reason, example)

    # -- a large page --

    def _read_large(self, page: bytes) -> object:
        cursor, has_array = b"null", False
        at, mark = _next(page, 0)
        if mark != _OBJECT:
            raise self._lacks_array()
        at += 1
        while not self.is_full:
            at, mark = _next(page, at)
            if mark == _END_OF_OBJECT:
                break
            if mark == _COMMA:
                at += 1
                continue
            end, _ = _skip(page, at)
            key = page[at:end]
            at, _ = _next(page, end)  # the colon
            at, mark = _next(page, at + 1)
            if key == b'"%b"' % self.field.encode() and mark == _ARRAY:
                has_array = True
                at = self._read_array(page, at + 1)
                continue
            end, _ = _skip(page, at)
            if key == b'"nextCursor"':
                cursor = page[at:end]
            at = end
        if not has_array:
            raise self._lacks_array()
        return None if self.is_full else _cursor(cursor)

    def _read_array(self, page: bytes, at: int) -> int:
        """Take the items from `at` on; returns where the array ends."""
        look_again = 0
        while True:
            at, mark = _next(page, at)
            if mark == _END_OF_ARRAY:
                return at + 1
            if mark == _COMMA:
                at += 1
                continue
            if not self._has_room():
                return at
            if at >= look_again:
                end, raws = self._split(page, at)
                if raws:
                    self._take_all(raws)
                    at = end
                    continue
                look_again = at + AT_ONCE
            end, deepest = _skip(page, at)
            if deepest > bounds.DEPTH:
                self._leave_out(_TOO_DEEP, excerpt(page[at : at + 200]))
            else:
                self._take(page[at:end])
            at = end

    def _split(self, page: bytes, at: int) -> tuple[int, list[msgspec.Raw]]:
        """Split a piece of the array that begins with an item. Returns its items and where it ends; empty where no
        end was found."""
        look = at + AT_ONCE // 2
        for _ in range(_TRIES):
            found = _BETWEEN.search(page, look, at + AT_ONCE)
            if found is None:
                break
            end = look = found.start() + 1
            try:
                return end, _as_raws.decode(b"[%b]" % page[at:end])
            except (msgspec.MsgspecError, RecursionError):
                continue
        return at, []


def split_object(data: bytes) -> list[tuple[bytes, bytes, int]]:
    """The members of an object, however deep: each raw key and value, and the depth of the value.

    Raises `WireFault` when it is not an object.
    """
    members = list[tuple[bytes, bytes, int]]()
    at, mark = _next(data, 0)
    if mark != _OBJECT:
        raise WireFault(_NO_OBJECT)
    at += 1
    while True:
        at, mark = _next(data, at)
        if mark == _END_OF_OBJECT:
            return members
        if mark == _COMMA:
            at += 1
            continue
        end, _ = _skip(data, at)
        key = data[at:end]
        at, _ = _next(data, end)  # the colon
        at, _ = _next(data, at + 1)
        end, depth = _skip(data, at)
        members.append((key, data[at:end], depth))
        at = end


def _cursor(raw: bytes) -> object:
    if len(raw) > 6 * bounds.NAME_CHARACTERS:  # each character may be escaped
        return False
    try:
        found = encoding.decode(_any, raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return False if bounds.is_too_deep(raw, found) else found


def _next(page: bytes, at: int) -> tuple[int, int]:
    """The next character that is not a space: its position, and the character."""
    found = _BLACK.search(page, at)
    if found is None:
        raise WireFault("the page is torn")
    return found.start(), page[found.start()]


def _skip(page: bytes, at: int) -> tuple[int, int]:
    """Where the value that begins at `at` ends, and how deep it is nested."""
    first = page[at]
    if first == _QUOTE:
        return _skip_text(page, at + 1), 0
    if first not in (_ARRAY, _OBJECT):
        found = _END_OF_PLAIN.search(page, at, at + _LONGEST_PLAIN)
        if found is None or found.start() == at:
            raise WireFault("the page is torn")
        return found.start(), 0
    depth = deepest = 0
    while True:
        found = _MARK.search(page, at)
        if found is None:
            raise WireFault("the page is torn")
        at = found.end()
        mark = page[at - 1]
        if mark == _QUOTE:
            at = _skip_text(page, at)
        elif mark in (_ARRAY, _OBJECT):
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
            if not depth:
                return at, deepest


def _skip_text(page: bytes, at: int) -> int:
    """Where the string ends whose first character is at `at`."""
    found = _REST_OF_TEXT.match(page, at)
    if found is None:
        raise WireFault("the page is torn")
    return found.end()
