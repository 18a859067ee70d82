"""Whether a server can be used, and if not, why: one word, for the pages about the room."""

from __future__ import annotations

from ...protocol.lifecycle import State
from ...protocol.status import ServerStatus

USABLE = frozenset(state.value for state in State)  # a lazy server that is not running can be used


def word_of(row: ServerStatus) -> str:
    """The state of a server in one word: why it cannot be used, or where it is in its life."""
    if row.broken is not None:
        return "broken"
    if row.needs_auth:
        return "needs_login"
    if row.down is not None:
        return "down"
    return "failed" if row.retry_in is not None else row.state.value


def is_usable(row: ServerStatus) -> bool:
    """Whether a call to it would be accepted."""
    return not row.disabled and word_of(row) in USABLE
