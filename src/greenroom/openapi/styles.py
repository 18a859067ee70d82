"""How values become text in a URL, a header or a cookie: one table for all styles.

OpenAPI takes its styles from URI templates (RFC 6570), and a row of the table is an operator of those: what comes
first, what separates exploded parts, whether parts carry their name, and what separates parts that are not exploded.
Swagger 2.0's `collectionFormat` is a row of the same table. `deepObject` is none, because its names are paths.

What is undefined is written as most servers read it. Nested names under `deepObject` go on in brackets
(`f[a][b]=1`), lists as `f[a][]=1`, and lists of objects by number (`f[a][0][b]=1`): Rack, PHP and qs read that, and
Stripe asks for it. A list or an object where a style has room for a plain value only is written as JSON. null is no
value: it is left out.

A name may be written once for each item, and a place in a path as often as the document likes: what is written is
refused when it grows beyond `WRITTEN`, before it is put together.

Whatever is written can be read back: a value that holds what separates values is encoded, or refused where the place
has no encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from ..protocol.bounds import MIB
from ..protocol.json_values import is_array, is_object
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.safe_text import whole

Encode = Callable[
    [str], str
]  # a plain value as it is written at its place; raises ValueError, whose text says why not


class Style(NamedTuple):
    """One row of the table."""

    first: str
    separator: str  # between exploded parts
    named: bool  # whether parts that are no pairs carry the parameter's name
    delimiter: str  # between parts that are not exploded
    bare: bool = False  # whether an empty value is its name alone

    def expanded(self, name: str, value: Any, encode: Encode, *, explode: bool) -> str | None:
        """The value in this style; None when it is no value (null, or a list or an object of nothing). `name` is
        written as it is. Raises ValueError."""
        if is_object(value):
            pairs = [(key, each) for key, each in value.items() if each is not None]
            mark = (self.separator if explode else self.delimiter, "=" if explode else "")
            parts = [
                tuple(_part(text, encode, mark) for text in (str(key), plain(each))) for key, each in pairs
            ]
            return self._joined(
                name, ["=".join(pair) for pair in parts] if explode else list(chain(*parts)), explode
            )
        if is_array(value):
            mark = (self.separator if explode else self.delimiter,)
            items = [_part(plain(each), encode, mark) for each in value if each is not None]
            if explode and self.named:
                named = within_bounds(self._named(name, each) for each in items)
                return self.first + self.separator.join(named) if items else None
            return self._joined(name, items, explode)
        return None if value is None else self._joined(name, [encode(plain(value))], False)

    def _joined(self, name: str, parts: list[str], explode: bool) -> str | None:
        if not parts:
            return None
        if explode:
            return self.first + self.separator.join(parts)
        joined = self.delimiter.join(parts)
        return self.first + (self._named(name, joined) if self.named else joined)

    def _named(self, name: str, part: str) -> str:
        return name if self.bare and not part else f"{name}={part}"


STYLES: Final[Mapping[str, Style]] = {
    "simple": Style("", ",", False, ","),
    "label": Style(".", ".", False, ","),
    "matrix": Style(";", ";", True, ",", bare=True),
    "form": Style("", "&", True, ","),
    "cookie": Style("", "; ", True, ","),
    "spaceDelimited": Style("", "&", True, "%20"),
    "pipeDelimited": Style("", "&", True, "%7C"),
    "tabDelimited": Style("", "&", True, "%09"),
}
DEEP: Final = "deepObject"
_RESERVED: Final = ":/?@!$'()*,;"  # what may stand in a query as it is, without meaning anything to a form
WRITTEN: Final = 64 * MIB  # characters of one argument, or of a URL, as they are sent
_DEEPEST: Final = 32
_EXACT: Final = 2**53


def deep(name: str, value: Any, encode: Encode) -> list[str]:
    """The pairs of a value under `deepObject`. Raises ValueError."""
    return within_bounds(f"{encode(place)}={encode(plain(each))}" for place, each in _leaves(name, value, 0))


def within_bounds(parts: Iterable[str]) -> list[str]:
    """The parts, if they are not too long together. Raises ValueError before there are too many of them."""
    found, left = list[str](), WRITTEN
    for part in parts:
        left -= len(part)
        if left < 0:
            raise ValueError(f"it would be sent as more than {WRITTEN:,} characters")
        found.append(part)
    return found


def plain(value: Any) -> str:
    """A value as text: a whole number without a point, what has parts of its own as JSON."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if value.is_integer() and abs(value) < _EXACT:
            return str(int(value))
        case _:
            return encode_json(value).decode()


def encoded(text: str) -> str:
    """The text in a URL or a form, with everything encoded that is not a plain character of both."""
    return quote(whole(text), safe="")


def encoded_path(text: str) -> str:
    """The text as several parts of a path: all that may stand in one stays as it is."""
    return quote(whole(text), safe="/:@!$&'()*+,;=")


def encoded_reserved(text: str) -> str:
    """The text of a query under `allowReserved`: reserved characters stay, unless they would end the query or the
    pair."""
    return quote(whole(text), safe=_RESERVED)


def _part(text: str, encode: Encode, marks: tuple[str, ...]) -> str:
    """One of several parts, encoded so that none of the marks between them is in it."""
    part = encode(text)
    for mark in marks:
        if mark == ".":
            part = part.replace(".", "%2E")
        elif mark and mark.strip() in part:
            raise ValueError(f"it holds {unquote(mark).strip() or 'a space'!r}, which separates values there")
    return part


def _leaves(place: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if is_object(value):
        for key, each in value.items():
            if "[" in str(key) or "]" in str(key):
                raise ValueError(f"the key {str(key)[:100]!r} in it has brackets, which mean a place there")
            yield from _leaves(f"{place}[{key}]", each, depth + 1)
    elif is_array(value):
        items = [each for each in value if each is not None]
        is_plain = not any(isinstance(each, Mapping | list | tuple) for each in items)
        for number, each in enumerate(items):
            yield from _leaves(f"{place}[{'' if is_plain else number}]", each, depth + 1)
    elif value is not None:
        yield place, value
