"""Decode JSON with half characters (`safe_text`): first unchanged, and after a failure mended.

Decoded values have U+FFFD in place of halves. Parts that stay bytes are returned unchanged: mending keeps every length,
so each part is at the same position in the original.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ..bounds import LARGE_MESSAGE
from ..errors import UsageError
from ..lazy_patterns import lazy_pattern
from ..safe_text import mend_escapes, whole_value

# ---- Values as JSON bytes, on one line -------------------------------------------------------------------------------
#
# Half characters are replaced (`safe_text`).
#
# There are two ways. What a caller gives us for a server is refused, with the reason, when it cannot be written
# (`encode_json`): the caller can correct it. What we answer is written if there is any way (`encode`): a server's
# number of thirty digits is not the client's fault.

UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
# What encoding an answer may raise when it holds parts of a server's answer.
UNWRITABLE: Final = (*UNREADABLE, UnicodeEncodeError, OverflowError)
REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)  # what the encoder raises
plainly: Callable[[Any], bytes] = msgspec.json.Encoder().encode  # without mending anything


def encode(value: Any) -> bytes:
    """The value as JSON. Python's own encoder writes numbers beyond 64 bits, because msgspec refuses them. Raises one
    of `UNWRITABLE`, or `TypeError`."""
    try:
        return plainly(value)
    except UnicodeEncodeError:
        return encode(whole_value(value))
    except OverflowError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def encode_json(value: Any) -> bytes:
    """The value as JSON. Raises `UsageError` for what cannot be written as JSON: the caller has to correct it."""
    try:
        try:
            return plainly(value)
        except UnicodeEncodeError:
            return plainly(whole_value(value))
    except REFUSED as error:
        raise UsageError(
            f"This cannot be sent as JSON: {error}. Use objects, arrays, strings and numbers."
        ) from None


def weigh(params: Any) -> int:
    """The size in bytes of a request's parameters as they would be sent. 0 when they cannot be written as JSON, for
    then sending is refused."""
    try:
        return len(encode_json(params))
    except UsageError:
        return 0


T = TypeVar("T")
_as_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = lazy_pattern(
    rb'[\s{,]*"(?:[^"\\]++|\\.)*+"\s*:\s*'
)  # a key in valid JSON, with the punctuation around it


def decode(decoder: msgspec.json.Decoder[T], data: bytes | bytearray | msgspec.Raw) -> T:
    """The value that `decoder` reads from `data`. Raises what `decoder` raises."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        mended = _mended(bytes(data))
        if mended is None:
            raise
    return decoder.decode(mended)


def _mended(data: bytes) -> bytes | None:
    """The text with its half characters mended. (A large text was mended as it came.)"""
    return mend_escapes(data) if len(data) < LARGE_MESSAGE else None


def decode_parts(data: bytes | bytearray | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """An object by its keys, the values as they came. Raises as a decoder does."""
    try:
        return _as_parts.decode(data)
    except msgspec.DecodeError:
        came = bytes(data)
        mended = _mended(came)
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
