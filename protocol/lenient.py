"""Decode JSON with half characters (`protocol/halves`): first unchanged, and after a failure mended.

Decoded values have U+FFFD in place of halves. Parts that stay bytes are returned unchanged: mending keeps every length,
so each part is at the same position in the original.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from .halves import mend_escapes

T = TypeVar("T")

_as_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = re.compile(
    rb'[\s{,]*"(?:[^"\\]++|\\.)*+"\s*:\s*'
)  # a key in valid JSON, with the punctuation around it


def decode(decoder: msgspec.json.Decoder[T], data: bytes | bytearray | msgspec.Raw) -> T:
    """The value that `decoder` reads from `data`. Raises what `decoder` raises."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        mended = mend_escapes(bytes(data))
        if mended is None:
            raise
    return decoder.decode(mended)


def decode_parts(data: bytes | bytearray | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """An object by its keys, the values as they came. Raises as a decoder does."""
    try:
        return _as_parts.decode(data)
    except msgspec.DecodeError:
        came = bytes(data)
        mended = mend_escapes(came)
        if mended is None:
            raise
    parts = _as_parts.decode(mended)
    end = 0
    for key, part in parts.items():
        value = bytes(part)
        before = _KEY.match(mended, end)  # mended, a key may look like a value
        if before is None or not mended.startswith(value, before.end()):
            break  # a key occurs twice: the rest stays mended
        end = before.end() + len(value)
        parts[key] = msgspec.Raw(came[before.end() : end])
    return parts
