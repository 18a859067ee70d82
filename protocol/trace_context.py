"""The trace context of a request: which trace it belongs to, and which span of it asked.

It is W3C Trace Context and W3C Baggage, in three members of a request's `_meta` (`traceparent`, `tracestate`,
`baggage`), or in HTTP headers of the same names. A value is passed on as it came, or not at all: what is not in the
form of W3C, or is too long, is left out, and the request is carried out without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .bounds import BAGGAGE_CHARACTERS, BAGGAGE_ENTRIES, TRACESTATE_CHARACTERS, TRACESTATE_ENTRIES
from .jsonrpc.encoding import encode_json
from .jsonrpc.terms import TRACE_KEYS
from .lazy_patterns import lazy_pattern

# Version ff is forbidden, and so are ids of zeros only. A version that is not known yet is read in this form alone.
_PARENT: Final = lazy_pattern(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})",
    re.ASCII,
)
_STATE: Final = lazy_pattern(
    r"[a-z0-9][a-z0-9_*/-]{0,255}(@[a-z][a-z0-9_*/-]{0,13})?=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_ENTRY: Final = lazy_pattern(rf"{_WORD}[ \t]*=[ \t]*{_VALUE}([ \t]*;[ \t]*{_WORD}([ \t]*=[ \t]*{_VALUE})?)*+")


class TraceContext(msgspec.Struct, frozen=True):
    """The three values; a missing one is empty."""

    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """The values by their names, as they are sent."""
        said = (self.traceparent, self.tracestate, self.baggage)
        return {name: value for name, value in zip(TRACE_KEYS, said, strict=True) if value}

    @property
    def members(self) -> bytes:
        """The values as members of a JSON object, without its braces."""
        return encode_json(self.fields)[1:-1]


def trace_in(said: Mapping[str, object]) -> TraceContext | None:
    """The trace context among these members, or headers; None when there is none that can be used."""
    parent, state = said.get("traceparent"), said.get("tracestate")
    has_parent = isinstance(parent, str) and _PARENT.fullmatch(parent) is not None
    traceparent = parent if has_parent and isinstance(parent, str) else ""
    # `tracestate` only adds to a `traceparent`, so alone it is dropped.
    tracestate = _listed(state, _STATE, TRACESTATE_CHARACTERS, TRACESTATE_ENTRIES) if traceparent else ""
    baggage = _listed(said.get("baggage"), _ENTRY, BAGGAGE_CHARACTERS, BAGGAGE_ENTRIES)
    return TraceContext(traceparent, tracestate, baggage) if traceparent or baggage else None


def _listed(value: object, entry: re.Pattern[str], characters: int, entries: int) -> str:
    """The value, if it is a list of such entries within these bounds; else empty."""
    if not isinstance(value, str) or not value or len(value) > characters:
        return ""
    parts = [part.strip(" \t") for part in value.split(",")]
    if len(parts) > entries or not all(part == "" or entry.fullmatch(part) for part in parts):
        return ""
    return value


def without_trace(said: Mapping[str, Any]) -> dict[str, Any]:
    """The members, without those of a trace context."""
    return {name: value for name, value in said.items() if name not in TRACE_KEYS}


def ids_in(traceparent: str) -> tuple[int, int, int]:
    """The trace, the span and the flags that a valid `traceparent` names."""
    found = _PARENT.fullmatch(traceparent)
    assert found is not None
    return int(found["trace"], 16), int(found["span"], 16), int(found["flags"], 16)
