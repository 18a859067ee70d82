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
# What encoding an answer may raise when it holds parts of a server's answer.
UNWRITABLE: Final = (*UNREADABLE, UnicodeEncodeError, OverflowError)
REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)  # what the encoder raises

plainly = msgspec.json.Encoder().encode  # without mending anything


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
    """Bytes of a request's parameters as they would be sent; 0 when they cannot be written as JSON: then sending them
    will be refused."""
    try:
        return len(encode_json(params))
    except UsageError:
        return 0
