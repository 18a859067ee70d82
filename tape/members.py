"""Removes members by their names from a JSON text, without reading it: what is left stays byte for byte as it was.

A name that stands between quotes and is followed by a colon is that of a member: within a text its quotes would be
escaped. A name may be spelled with escapes. A text inside the text that has quotes may be JSON itself, as most answers
of tools are: it is looked through in the same way, and written anew if it has such members.

Rejected: to decode the text and encode the rest. That holds the interpreter's lock for as long as a large result takes,
and changes numbers beyond 64 bits and names that are there twice. Here the longest step passes over one string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Final

HIDDEN: Final = b'"[REDACTED]"'
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_VALUE: Final = re.compile(_STRING + rb"|[^\s,\[\]{}\"]++", re.DOTALL)
_TEXT: Final = re.compile(rb"(%b)([ \t\r\n]*+:)?+" % _STRING, re.DOTALL)  # a name, if a colon follows
_ESCAPED: Final = b'\\"'
_NEXT: Final = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)


class Members:
    """Members of these names, of which there is one at least."""

    def __init__(self, names: Collection[str]) -> None:
        spelled = b"|".join(b"".join(_spelled(name)) for name in sorted(names))
        self._named = re.compile(rb'(?<!\\)"(?:%b)"[ \t\r\n]*+:[ \t\r\n]*+' % spelled)

    def without(self, raw: bytes) -> bytes:
        """The text with `[REDACTED]` in the place of their values; the same object if there are none."""
        raw = self._outside_texts(raw)
        return self._in_texts(raw) if _ESCAPED in raw else raw

    def _in_texts(self, raw: bytes) -> bytes:
        out = bytearray()
        done = 0
        for found in _TEXT.finditer(raw):
            if found[2] or _ESCAPED not in found[1]:
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
        done = 0
        while (found := self._named.search(raw, done)) is not None:
            out += raw[done : found.end()]
            out += HIDDEN
            done = _end_of_value(raw, found.end())
        return bytes(out + raw[done:]) if done else raw


def _end_of_value(raw: bytes, at: int) -> int:
    value = _VALUE.match(raw, at)
    if value is not None:
        return value.end()
    depth = 0
    for each in _NEXT.finditer(raw, at):
        if each[0] in b"[{":
            depth += 1
        elif each[0] in b"]}":
            depth -= 1
            if depth <= 0:
                return each.end()
    return len(raw)


def _spelled(name: str) -> Iterator[bytes]:
    """Each character of a name, or an escape of it."""
    for unit in name:
        plain = {unit, json.dumps(unit)[1:-1], "\\/" if unit == "/" else unit}
        units = unit.encode("utf-16-be", "surrogatepass")
        numbered = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        written = [re.escape(each.encode(errors="surrogatepass")) for each in sorted(plain)]
        yield b"(?:%b|(?i:%b))" % (b"|".join(written), re.escape(numbered.encode()))
