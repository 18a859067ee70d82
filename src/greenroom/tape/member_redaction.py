"""Removes members by their names from a JSON text, without reading it: what is left stays byte for byte as it was.

A name that stands between quotes and is followed by a colon is that of a member: within a text its quotes would be
escaped. A name may be spelled with escapes. A text inside the text that has quotes may be JSON itself, as most answers
of tools are: it is looked through in the same way, and written anew if it has such members.

A text may be large, and another thread waits for the interpreter's lock meanwhile. So it is looked through in steps;
only a text inside it in which a name stands is decoded at once. Rejected: to decode the whole and encode the rest. That
holds the lock for as long as it takes, and changes numbers beyond 64 bits and names that are there twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Final

HIDDEN: Final = b'"[REDACTED]"'
_STEP: Final = 1 << 18  # bytes passed over at once
_COLON: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_BARE: Final = re.compile(rb"[^\s,\[\]{}\"]++")  # a number, true, false, null
_QUOTE_OR_BRACKET: Final = re.compile(rb"[\"\[\]{}]")
_TEXT: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")([ \t\r\n]*+:)?+', re.DOTALL)  # a name, if a colon follows
_ESCAPED: Final = b'\\"'
_LONGEST_ESCAPE: Final = 12  # bytes of one character


class MemberRedaction:
    """Members of these names, of which there is one at least."""

    def __init__(self, names: Collection[str]) -> None:
        spelled = b"|".join(b"".join(_spelled(name)) for name in sorted(names))
        self._named = re.compile(rb'"(?<!\\")(?:%b)"' % spelled)
        self._longest = max(map(len, names)) * _LONGEST_ESCAPE + 2
        # One of these is in a text that has one of the names, unless it is written in an unusual way.
        self._plainly = [name.encode() for name in names if name.isidentifier() and name.isascii()]
        self._are_plain = len(self._plainly) == len(names)

    def without(self, raw: bytes) -> bytes:
        """The text with `[REDACTED]` in the place of their values; the same object if there are none."""
        raw = self._outside_texts(raw)
        return self._in_texts(raw) if _ESCAPED in raw and self._may_be_in(raw) else raw

    def _may_be_in(self, raw: bytes) -> bool:
        return not self._are_plain or b"\\u" in raw or any(name in raw for name in self._plainly)

    def _in_texts(self, raw: bytes) -> bytes:
        out = bytearray()
        done = 0
        for found in _TEXT.finditer(raw):
            if found[2] or _ESCAPED not in found[1] or not self._may_be_in(found[1]):
                continue
            try:
                text: str = json.loads(found[1].decode(errors="surrogatepass"), strict=False)
            except ValueError:  # no JSON: what looks like a text in some prose
                continue
            inner = text.encode(errors="surrogatepass")
            cleaned = self.without(inner)
            if cleaned is not inner:
                written = json.dumps(cleaned.decode(errors="surrogatepass"), ensure_ascii=False)
                out += raw[done : found.start()] + written.encode(errors="surrogatepass")
                done = found.end(1)
        return bytes(out + raw[done:]) if done else raw

    def _outside_texts(self, raw: bytes) -> bytes:
        out = bytearray()
        done = at = 0
        while at < len(raw):
            found = self._named.search(raw, at, at + _STEP + self._longest)
            if found is None:
                at += _STEP
            elif (colon := _COLON.match(raw, found.end())) is None:
                at = found.end()
            else:
                out += raw[done : colon.end()]
                out += HIDDEN
                done = at = _end_of_value(raw, colon.end())
        return bytes(out + raw[done:]) if done else raw


def _end_of_value(raw: bytes, at: int) -> int:
    bare = _BARE.match(raw, at)
    if bare is not None:
        return bare.end()
    depth = 0
    while at < len(raw):
        found = _QUOTE_OR_BRACKET.search(raw, at, at + _STEP)
        if found is None:
            at += _STEP
            continue
        at = found.end()
        if found[0] == b'"':
            at = _end_of_string(raw, at)
        else:
            depth += 1 if found[0] in b"[{" else -1
        if depth <= 0:
            return at
    return len(raw)


def _end_of_string(raw: bytes, at: int) -> int:
    """Behind the quote that ends the string which begins here."""
    while (quote := raw.find(b'"', at)) >= 0:
        backslashes = 0
        while quote - backslashes > at and raw[quote - backslashes - 1] == ord("\\"):
            backslashes += 1
        at = quote + 1
        if backslashes % 2 == 0:
            return at
    return len(raw)


def _spelled(name: str) -> Iterator[bytes]:
    """Each character of a name, or an escape of it."""
    for character in name:
        plain = {character, json.dumps(character)[1:-1], "\\/" if character == "/" else character}
        units = character.encode("utf-16-be", "surrogatepass")
        numbered = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        written = [re.escape(each.encode(errors="surrogatepass")) for each in sorted(plain)]
        yield b"(?:%b|(?i:%b))" % (b"|".join(written), re.escape(numbered.encode()))
