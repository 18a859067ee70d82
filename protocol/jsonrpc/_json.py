"""Values as JSON bytes, on one line. Half characters are replaced (`protocol/halves`).

There are two ways. What a caller gives us for a server is refused, with the reason, when it cannot be written
(`encode_json`): the caller can correct it. What we answer is written if there is any way (`encode`): a server's
number of thirty digits is not the client's fault.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from ..errors import UsageError
from ..halves import whole_value

UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
# What an answer made of a server's may raise.
UNWRITABLE: Final = (*UNREADABLE, UnicodeEncodeError, OverflowError)
REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)  # by the encoder

plainly = msgspec.json.Encoder().encode  # without mending anything


def encode(value: Any) -> bytes:
    """Numbers beyond 64 bits, which msgspec refuses to write, are written by Python's own encoder. Raises one of
    `UNWRITABLE`, or `TypeError`."""
    try:
        return plainly(value)
    except UnicodeEncodeError:
        return encode(whole_value(value))
    except OverflowError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def encode_json(value: Any) -> bytes:
    """Raises `UsageError`: what cannot be said in JSON is the caller's to mend."""
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
    """Bytes of a request's parameters as they would be sent; 0 for what is no JSON, which is refused in its turn."""
    try:
        return len(encode_json(params))
    except UsageError:
        return 0
