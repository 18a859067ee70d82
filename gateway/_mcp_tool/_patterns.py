"""Search patterns that cannot hang the room.

A pattern comes from a model and is matched against every tool, in the loop that serves everybody. So RE2
matches it: its time is linear in the length of the text, whatever the pattern. Rejected: a backtracking
engine with a timeout. A timeout only limits the harm that one request does, while linear time does none. The
price is that look-around and back-references are not available. The error for a pattern that uses them
differs from that for an invalid one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from ...protocol.errors import UsageError
from ._definition import MAX_REGEX

_MEMORY = 1 << 20  # bytes a compiled pattern may take


def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether the pattern occurs in a text, ignoring case.

    Raises `UsageError` with code `query_too_long`, `invalid_pattern` or `unsafe_pattern`.
    """
    if len(pattern) > MAX_REGEX:
        text = f"Regex query is too long; maximum length is {MAX_REGEX} characters."
        raise UsageError(text, code="query_too_long")
    engine: Any = importlib.import_module("re2")  # it has no type hints
    options = engine.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        search = engine.compile(pattern, options).search
    except UnicodeEncodeError:
        raise UsageError(f"Invalid regex: {pattern!a}", code="invalid_pattern") from None
    except engine.error as error:
        raise _refusal(pattern, error) from None
    return lambda text: search(text) is not None


def _refusal(pattern: str, error: Exception) -> UsageError:
    """The error for a pattern that RE2 refuses: unsafe if a backtracking engine accepts it, invalid
    otherwise."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return UsageError(f"Invalid regex: {pattern}", code="invalid_pattern")
    reason = error.args[0] if error.args else "not supported"
    if isinstance(reason, bytes):
        reason = reason.decode(errors="replace")
    return UsageError(f"Regex query rejected as unsafe ({reason}).", code="unsafe_pattern")
