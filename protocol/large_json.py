"""Decodes large JSON in slices, because a decoder does not pause once it has begun, and megabytes take it long.

A text is walked once, token by token: brackets, commas and whole strings, at most a twentieth of a microsecond for each
byte. After every few thousand bytes, the complete members among them are given to the decoder as one array or object.
The decoded values go into the array or object that is being filled. A member that is longer is entered. A long string
is decoded piece by piece, and joined. So no step takes longer than a millisecond or two. The one exception is joining a
string, which copies it: ten milliseconds for the longest string that is allowed.

The walk alone does not validate anything. Every byte is either read by the decoder or checked here, where a member was
entered or left. The result is the same as if the decoder had read the whole text, also for repeated keys, where the
last one counts. There are two differences: a text may not be nested deeper than `DEEPEST`, while the decoder goes as
deep as its caller's stack allows; and a number may not be longer than 64 KiB, because the decoder reads four megabytes
of digits for ten milliseconds before it says that they are too many.

Rejected: a thread, because the decoder keeps the interpreter's lock. Another process, because what it sends back must
be decoded here again. Decoding one level at a time into raw members: it takes six times as long as decoding, and is
still one piece.
"""

from __future__ import annotations

import re
from collections.abc import Set
from itertools import pairwise
from typing import Any, Final, cast

import msgspec

from .bounds import LONG_DEPTH, LONG_KEY_BYTES, LONG_NUMBER_BYTES
from .cooperative import Pace, Slices
from .jsonrpc import encoding
from .jsonrpc.incoming import NO_MESSAGE, decode_result
from .jsonrpc.terms import WireFault

LARGE: Final = 1 << 18  # bytes from which on a text is decoded in slices: it takes a millisecond or two
DEEPEST: Final = LONG_DEPTH
_STEP: Final = 1 << 14  # bytes walked, and given to the decoder, at once
_TOKENS: Final = 1_500  # the same in tokens, because each may become an object
_PIECE: Final = 1 << 18  # bytes of a long string that are decoded at once
_LONGEST_KEY: Final = LONG_KEY_BYTES
_LONGEST_NUMBER: Final = LONG_NUMBER_BYTES
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{},]', re.DOTALL)
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\(?:[^u]|u.{4})[^"\\]*+)*+', re.DOTALL)  # only complete escapes
_BLANK: Final = re.compile(rb"[ \t\r\n]*+")
_AFTER: Final = re.compile(rb"[ \t\r\n]*+(.?)", re.DOTALL)
_KEY: Final = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_FIRST_HALF: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_OPEN_ARRAY, _OPEN_OBJECT, _END_OBJECT, _COMMA, _QUOTE, _BACKSLASH = b'[{},"\\'
_ESCAPE: Final = 6  # bytes of the longest one
_any = msgspec.json.Decoder()


def decoding_result(result: bytes) -> Slices[dict[str, Any]]:
    """`decode_result`, in slices. Raises `WireFault` when it is not a JSON object."""
    if first_mark(result) != _OPEN_OBJECT:
        return decode_result(result)  # it says in its error what the result is instead
    return cast("dict[str, Any]", (yield from decoding(result)))


def decoding(data: bytes) -> Slices[Any]:
    """Decode any JSON, in slices. Raises `WireFault` when it is not JSON."""
    if first_mark(data) not in (_OPEN_ARRAY, _OPEN_OBJECT):
        return _decoded(data)
    return (yield from _Walk(data).run())


def first_mark(data: bytes | bytearray) -> int:
    """The first character that is not a space; 0: there is none."""
    blank = _BLANK.match(data)
    return data[blank.end()] if blank is not None and blank.end() < len(data) else 0


def _decoded(data: bytes | bytearray, decoder: msgspec.json.Decoder[Any] = _any) -> Any:
    try:
        return encoding.decode(decoder, data)
    except NO_MESSAGE as error:
        raise WireFault(f"not JSON: {error}") from None


def outlining(data: bytes | bytearray, names: Set[str] | None = None) -> Slices[dict[str, bytes]]:
    """The members of an object that have one of these names, each as it came. All others are checked, but no objects
    are made of them. Raises `WireFault` when it is not an object."""
    if first_mark(data) != _OPEN_OBJECT:
        raise WireFault("not a JSON object")
    outline = _Outline(data, names)
    yield from outline.run()
    return outline.parts


class _Walk:
    """The walk through one text. The members from `_at` on are not decoded yet."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._filled: list[Any] = []  # the arrays and objects that are entered, the outermost first
        self._root: Any = None
        self._at = 0
        self._lacks_member = False  # a comma is before `_at`
        # About the part from `_at` on that was walked but not decoded. `_opened`: the places of brackets that are still
        # open. `_commas`: the last comma before the first of them, then the last comma between the first and the
        # second, and so on; -1: there is none.
        self._opened: list[int] = []
        self._commas: list[int] = [-1]
        self._gaps: list[tuple[int, int]] = []  # stretches that hold only spaces
        self._digits = 0  # bytes of the last steps without any mark or space

    def run(self) -> Slices[Any]:
        data = self._data
        blank = _BLANK.match(data)
        self._opened.append(blank.end() if blank is not None else 0)
        self._enter_first()
        at = self._at
        while self._filled:
            if at >= len(data):
                raise WireFault("not JSON: it ends too early")
            at = yield from self._walk(at)
            self._decode_whole_members(at)
            yield
        if _BLANK.sub(b"", data[at : at + 100]):
            raise WireFault("not JSON: something follows its end")
        return self._root

    def _walk(self, at: int) -> Slices[int]:
        """Pass over some tokens from `at` on. Returns the place behind them."""
        data, opened, commas = self._data, self._opened, self._commas
        end = at + _STEP
        for tokens, token in enumerate(_TOKEN.finditer(data, at, end)):
            start = token.start()
            mark = data[start]
            if mark == _COMMA:
                commas[-1] = start
            elif mark in b"[{":
                opened.append(start)
                commas.append(-1)
                if len(opened) + len(self._filled) > DEEPEST:
                    raise WireFault(f"nested deeper than {DEEPEST}")
            elif mark in b"]}":
                if opened:
                    opened.pop()
                    commas.pop()
                else:
                    self._leave(start)
                    return self._at
            elif not token[1]:
                return (yield from self._pass_string(start))
            if tokens >= _TOKENS:
                return start + 1 if mark != _QUOTE else token.end()
            at = token.end()
        rest = data[at:end]
        if rest.isspace():
            self._gaps.append((at, end))
        is_number = at == end - _STEP and len(rest.split(maxsplit=1)) == 1  # or a piece of one, or no JSON
        self._digits = self._digits + _STEP if is_number else 0
        if self._digits > _LONGEST_NUMBER:
            raise WireFault(f"a number is longer than {_LONGEST_NUMBER:,} bytes")
        return min(end, len(data))

    # -- members --

    def _decode_whole_members(self, at: int) -> None:
        """Once enough was walked, decode all complete members of the array or object that was entered last. If it has
        none, enter the next one and look there."""
        if at - self._at < _STEP // 2:
            return
        while self._filled:
            if self._commas[0] >= 0:
                self._take(self._commas[0])
                self._at = self._commas[0] + 1
                self._commas[0] = -1
                self._lacks_member = True
                return
            if not self._opened:
                if self._is_blank(at):
                    self._at = at
                    self._gaps.clear()
                return
            self._enter_first()

    def _take(self, end: int) -> None:
        """Decode the members from `_at` to `end`, which ends the last of them."""
        if not self._read(self._without_gaps(end)):
            raise WireFault("not JSON: a member is missing")

    def _read(self, piece: bytes | bytearray) -> bool:
        """Decode some members of the array or object that was entered last. False: there are none."""
        into = self._filled[-1]
        if isinstance(into, dict):
            members = _decoded(b"{%b}" % piece)
            cast("dict[str, Any]", into).update(members)
        else:
            members = _decoded(b"[%b]" % piece)
            cast("list[Any]", into).extend(members)
        return bool(members)

    def _without_gaps(self, end: int) -> bytes | bytearray:
        """The text between `_at` and `end`, without long stretches of spaces."""
        if not self._gaps:
            return self._data[self._at : end]
        parts: list[bytes | bytearray] = []
        for start, stop in self._gaps:
            if self._at <= start < end:
                parts.append(self._data[self._at : start])
                self._at = stop
        self._gaps = [gap for gap in self._gaps if gap[0] >= end]
        return b" ".join((*parts, self._data[self._at : end]))

    def _enter_first(self) -> None:
        """Enter the first bracket that is still open."""
        start = self._opened.pop(0)
        self._commas.pop(0)
        made: Any = {} if self._data[start] == _OPEN_OBJECT else []
        if self._filled:
            self._put(made, start)
        else:
            self._root = made
        self._filled.append(made)
        self._at, self._lacks_member = start + 1, False
        if not self._commas:
            self._commas.append(-1)

    def _put(self, value: Any, start: int) -> None:
        """Put a value that begins at `start` into the current array or object. Only its key may be before it."""
        into = self._filled[-1]
        if isinstance(into, dict):
            key = _KEY.fullmatch(self._data, self._at, start) if start - self._at < 2 * _LONGEST_KEY else None
            if key is None:
                raise WireFault("not JSON: a value has no key")
            self._name(_decoded(key[1]), value, start)
        elif self._is_blank(start):
            cast("list[Any]", into).append(value)
        else:
            raise WireFault("not JSON: between two values is no comma")

    def _name(self, key: str, value: Any, start: int) -> None:
        """Put a value that begins at `start` into the object that was entered last."""
        cast("dict[str, Any]", self._filled[-1])[key] = value

    def _leave(self, end: int) -> None:
        """Leave the array or object that was entered last; it ends with the bracket at `end`."""
        filled = self._filled[-1]
        if isinstance(filled, dict) is not (self._data[end] == _END_OBJECT):
            raise WireFault("not JSON: a bracket is closed by one of another kind")
        if self._lacks_member or not self._is_blank(end):
            self._take(end)
        self._filled.pop()
        self._go_on(end + 1)

    def _go_on(self, at: int) -> None:
        """Continue after a value that was not decoded with its neighbours. It ends at `at`; a comma or the closing
        bracket must follow."""
        self._at, self._lacks_member = at, False
        self._commas[0] = -1
        after = _AFTER.match(self._data, at, at + _LONGEST_KEY)
        assert after is not None
        if not self._filled:
            return
        if after[1] == b",":
            self._at, self._lacks_member = after.end(), True
        elif after[1] in (b"]", b"}"):
            self._at = after.end() - 1
        elif after.end() == len(self._data):
            raise WireFault("not JSON: it ends too early")
        else:
            raise WireFault("not JSON: between two values is no comma")

    def _is_blank(self, end: int) -> bool:
        return _BLANK.fullmatch(self._data, self._at, end) is not None

    # -- long strings --

    def _pass_string(self, start: int) -> Slices[int]:
        """Pass over a string that is longer than one step of the walk. Returns where the walk goes on."""
        data, at, pace = self._data, start + 1, Pace()
        cuts = [at]
        while True:
            at = self._inside(at)
            if at < len(data) and data[at] == _QUOTE:
                break
            if at == cuts[-1]:  # the end of the text, or a backslash with nothing behind it
                raise WireFault("not JSON: a string ends too early")
            at = self._between_characters(at, cuts[-1])
            cuts.append(at)
            if pace.due(self._cost(cuts[-2], at)):
                yield
        if len(cuts) == 1:
            return at + 1
        if self._is_key(start, at):
            if at - start > _LONGEST_KEY:
                raise WireFault(f"a key is longer than {_LONGEST_KEY:,} bytes")
            return at + 1
        if cuts[-1] != at:
            cuts.append(at)
        while self._commas[0] >= 0 or self._opened:
            self._decode_before(start)
        parts: list[str] = []
        with memoryview(data) as view:
            for begin, end in pairwise(cuts):
                parts.append(self._read_text(view[begin:end]))
                if pace.due(self._cost(begin, end)):
                    yield
        self._put("".join(parts), start)
        self._go_on(at + 1)
        return self._at

    def _cost(self, begin: int, end: int) -> int:
        """Of a piece, in tenths of a millisecond: escapes make it slow."""
        return 3 if self._data.find(b"\\", begin, end) < 0 else 10

    def _inside(self, at: int) -> int:
        """How far to pass in a string from `at` on: to its end, or about a piece further, but not into an escape.
        Searching for a quote nearly always tells, in a tenth of the time that the expression takes."""
        data, end = self._data, min(at + _PIECE, len(self._data))
        quote = data.find(b'"', at, end)
        if quote < 0 and data.find(b"\\", max(at, end - _ESCAPE), end) < 0:
            return end
        if quote == at or (quote > at and data[quote - 1] != _BACKSLASH):
            return quote
        inside = _INSIDE.match(data, at, end)
        assert inside is not None
        return inside.end()

    def _read_text(self, piece: memoryview) -> str:
        """Decode a piece of a long string."""
        return _decoded(b"".join((b'"', piece, b'"')))

    def _decode_before(self, start: int) -> None:
        if self._commas[0] >= 0:
            self._take(self._commas[0])
            self._at, self._lacks_member = self._commas[0] + 1, True
            self._commas[0] = -1
        else:
            self._enter_first()

    def _is_key(self, start: int, end: int) -> bool:
        """Whether the string between the two places is a key: a colon comes next."""
        after = _AFTER.match(self._data, end + 1)
        return after is not None and after[1] == b":"

    def _between_characters(self, at: int, begin: int) -> int:
        """A place at or a little before `at` that does not split a character or its two escaped halves."""
        data = self._data
        while at > begin and at < len(data) and data[at] & 0xC0 == 0x80:
            at -= 1
        half = _FIRST_HALF.search(data[max(begin, at - 64) : at])
        return at - 6 if half is not None and at - 6 > begin else at


class _Nothing(msgspec.Struct):
    """Stands for an object of which no member is wanted: the decoder checks it like any other, and makes nothing."""


class _NothingInArray(msgspec.Struct, array_like=True):
    pass


_no_object = msgspec.json.Decoder(_Nothing)
_no_array = msgspec.json.Decoder(_NothingInArray)


class _Outline(_Walk):
    """The same walk, but it keeps only some members of the outermost object, as bytes."""

    def __init__(self, data: bytes | bytearray, names: Set[str] | None) -> None:
        super().__init__(data)
        self.parts: dict[str, bytes] = {}
        self._names = names
        self._entered = "", 0  # the outermost member that was entered: its name, and where it begins

    def _read(self, piece: bytes | bytearray) -> bool:
        if isinstance(self._filled[-1], list):
            _decoded(b"[%b]" % piece, _no_array)
        elif len(self._filled) > 1:
            _decoded(b"{%b}" % piece, _no_object)
        else:
            self._read_outermost(b"{%b}" % piece)
        return _BLANK.fullmatch(piece) is None

    def _read_outermost(self, piece: bytes) -> None:
        try:
            members = encoding.decode_parts(piece)
        except NO_MESSAGE as error:
            raise WireFault(f"not JSON: {error}") from None
        for name, member in members.items():
            if self._names is None or name in self._names:
                self.parts[name] = bytes(member)

    def _read_text(self, piece: memoryview) -> str:
        _decoded(b"".join((b'["', piece, b'"]')), _no_array)
        return ""

    def _name(self, key: str, value: Any, start: int) -> None:
        if len(self._filled) == 1:
            self._entered = key, start

    def _go_on(self, at: int) -> None:
        name, start = self._entered
        if len(self._filled) == 1 and (self._names is None or name in self._names):
            self.parts[name] = bytes(memoryview(self._data)[start:at])
        super()._go_on(at)
