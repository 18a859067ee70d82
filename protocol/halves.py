"""Half characters: text that JSON and Python can hold, but UTF-8 cannot encode.

JavaScript cuts strings between the two halves of an emoji, and its JSON then holds half of a surrogate pair as an
escape (`\\ud83d`). RFC 8259 allows that, our decoder refuses it, and so do many others. A program's arguments and file
names bring halves of their own (PEP 383). The rule everywhere: data of a server that we only pass on stays unchanged.
In data that we read or write ourselves, and in data for a server, U+FFFD replaces each half. (Servers and clients of
the Python SDK do not answer a message with a half in it.) An id is echoed unchanged. Bytes that are not UTF-8 are not
JSON either, so they are replaced as they come in, even in data that is only passed on.

These functions are called only after a decoder or an encoder has refused a text, so plain text costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

# Every half that is not beside its other half. Replace escaped backslashes first.
_HALF: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_BACKSLASH, _OUT_OF_THE_WAY = rb"\\", b"\xff\xfe"  # the second never occurs in UTF-8


def repair_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """The data with every byte that is not UTF-8 replaced; the same object when there is none."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def mend_escapes(data: bytes | bytearray) -> bytes | None:
    """JSON (in UTF-8) with every escaped half replaced by `\\ufffd`, as long as before; None when there is none."""
    if rb"\ud" not in data and rb"\uD" not in data:
        return None
    plain, count = _HALF.subn(rb"\\ufffd", bytes(data).replace(_BACKSLASH, _OUT_OF_THE_WAY))
    return plain.replace(_OUT_OF_THE_WAY, _BACKSLASH) if count else None


def whole(text: str) -> str:
    """The text with every half replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def whole_value(value: Any) -> Any:
    """A JSON value with every half in its texts and keys replaced; other values than texts, lists and mappings stay."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {whole_value(key): whole_value(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [whole_value(each) for each in cast("list[Any]", value)]
    return value
