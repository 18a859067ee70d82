"""The messages of a server actor's system lane.

All but `Stop` carry the number of their incarnation, so a late message is recognised and dropped.
"""

from __future__ import annotations

import attrs

from ..protocol.errors import CallError, ConnectFailed, NeedsAuth
from ..protocol.lifecycle import Ending
from ..protocol.plain_text import typed
from ._connection import Handshake, Listing
from ._peer import LostReason


@attrs.frozen(eq=False)
class Ready:
    """The handshake is done and the lists are in."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # the room's count when the reading began: an older answer never overwrites a newer one


@attrs.frozen(eq=False)
class Listed:
    """The server said that its lists changed, and they have been read again."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # the room's count when the reading began: an older answer never overwrites a newer one


@attrs.frozen(eq=False)
class Failed:
    """The attempt to connect has failed."""

    incarnation: int
    error: CallError


@attrs.frozen(eq=False)
class Lost:
    """The connection ended, and nobody had asked for that."""

    incarnation: int
    reason: LostReason


@attrs.frozen(eq=False)
class Gone:
    """The owner task has ended; nothing of the process tree is left."""

    incarnation: int


@attrs.frozen(eq=False)
class Stop:
    """Somebody asked for the end: idle, evicted, drained, restarted, shut down …"""

    ending: Ending
    patience: float  # seconds that calls in flight may still take; 0 = none


Message = Ready | Listed | Failed | Lost | Gone | Stop


def describe(reason: LostReason) -> str:
    """A lost connection in one line, including the last words of its stderr."""
    return f"{reason.text} ({' — '.join(reason.stderr_tail)})" if reason.stderr_tail else reason.text


def connect_failed(server: str, reason: LostReason) -> ConnectFailed:
    """How an attempt to connect ended."""
    return ConnectFailed(
        describe(reason),
        server=server,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
    )


def login_needed(server: str, what: str) -> NeedsAuth:
    """The error for a server that wants a login; `what` is its own text."""
    return NeedsAuth(
        f'Server "{server}" needs a login: {what}. Run: greenroom auth {typed(server)} - or set "bearerToken" '
        'or "headers" in its entry, then connect it again.',
        server=server,
    )
