"""Search patterns that cannot hang the room.

A pattern comes from a model and is run over every tool, in the loop that serves everybody. So it is matched by RE2,
whose time is linear in the text whatever the pattern, and not by a backtracking engine with a timeout around it: a
timeout bounds the harm to one request, linear time leaves none. The price is that look-around and back-references are
not available; a pattern that has them is told apart from one that is simply wrong.
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
    """A case-insensitive "does it occur in this text".

    Raises `UsageError` with code `query_too_long`, `invalid_pattern` or `unsafe_pattern`.
    """
    if len(pattern) > MAX_REGEX:
        text = f"Regex query is too long; maximum length is {MAX_REGEX} characters."
        raise UsageError(text, code="query_too_long")
    engine: Any = importlib.import_module("re2")  # it ships no types
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
    """Valid for a backtracking engine but not here means unsafe; valid for neither means wrong."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return UsageError(f"Invalid regex: {pattern}", code="invalid_pattern")
    reason = error.args[0] if error.args else "not supported"
    if isinstance(reason, bytes):
        reason = reason.decode(errors="replace")
    return UsageError(f"Regex query rejected as unsafe ({reason}).", code="unsafe_pattern")
