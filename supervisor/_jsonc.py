"""JSON as people write it: with comments, trailing commas, a byte order mark. Mistakes have line and column.

Most files are plain JSON, so the standard library is tried first: it costs no import and quickly reads megabytes of a
client's state. Only text that it refuses goes to pyjson5, whose JSON5 includes all of JSONC. (Rejected: json5, which at
40 KB/s needs a second for a larger file; json-with-comments, which counts lines without the comments.)

A key that an object has twice is no mistake in JSON, and the last one counts. The standard library tells us of it, so
we can tell the owner; pyjson5 does not.

A mistake is reported by the parser that got further, for the other one may have stopped at the first comment.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from typing import Any, Final

_EMPTY: Final = "is empty: write {} for no servers"
_NEAR: Final = re.compile(r"near (\d+)")
_BYTES: Final = re.compile(r"b'([^']+)'")
_CODE_POINT: Final = re.compile(r"U\+([0-9a-fA-F]{4,6})")


class NotJsonError(ValueError):
    """The text is no JSON, JSONC or JSON5. The message ends with line and column."""


def loads(text: str, repeated: dict[str, None] | None = None) -> Any:
    """The value of `text`. Keys that one object of a plain JSON text has more than once go to `repeated`. Raises
    `NotJsonError`, whose message quotes at most one character."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise NotJsonError(_EMPTY)
    try:
        return json.loads(text, object_pairs_hook=None if repeated is None else partial(_object, repeated))
    except RecursionError:
        raise NotJsonError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        return _loads_relaxed(text, error)
    except ValueError:  # an integer longer than Python will read
        raise NotJsonError("holds a number that is too long") from None


def _object(repeated: dict[str, None], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated |= dict.fromkeys(key for key, count in counts.items() if count > 1)
    return found


def _loads_relaxed(text: str, strict: json.JSONDecodeError) -> Any:
    import pyjson5

    try:
        return pyjson5.decode(text)
    except pyjson5.Json5DecoderException as error:
        if str(error.args[:1]).startswith("('No JSON data"):
            raise NotJsonError(_EMPTY) from None
        what, offset = _what_and_where(error, text)
    if strict.pos >= offset:
        what, offset = strict.msg, strict.pos
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    raise NotJsonError(f"is no valid JSON: {_lower(what).removesuffix(' at')} (line {line}, column {column})")


def _what_and_where(error: Exception, text: str) -> tuple[str, int]:
    """pyjson5 says `Expected b'colon' near 15`, counting characters from 1."""
    said = str(error.args[0]) if error.args else "cannot be read"
    found = _NEAR.search(said)
    offset = min(max(int(found[1]) - 1, 0), len(text)) if found else 0
    what = _BYTES.sub(r"\1", said.split(" near ")[0].split(" starting")[0])
    return _CODE_POINT.sub(lambda code: repr(chr(int(code[1], 16))), what), offset


def _lower(what: str) -> str:
    return what[:1].lower() + what[1:]
