"""What is told to a server actor: the messages of its system lane.

All but `Stop` carry the number of the incarnation they are about, so a late one is recognised and dropped.
"""

from __future__ import annotations

import attrs

from ..protocol.errors import CallError, ConnectFailed, NeedsAuth
from ..protocol.lifecycle import Ending
from ._connection import Handshake, Listing
from ._peer import LostReason


@attrs.frozen(eq=False)
class Ready:
    """The handshake is done and the lists are in."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # when the reading began, in the room's count: an older answer never overwrites a newer one


@attrs.frozen(eq=False)
class Listed:
    """It said that its lists changed, and they have been read again."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # when the reading began, in the room's count: an older answer never overwrites a newer one


@attrs.frozen(eq=False)
class Failed:
    """The attempt to connect is over."""

    incarnation: int
    error: CallError


@attrs.frozen(eq=False)
class Lost:
    """The connection is over, unasked."""

    incarnation: int
    reason: LostReason


@attrs.frozen(eq=False)
class Gone:
    """The owner task has ended; nothing of the tree is left."""

    incarnation: int


@attrs.frozen(eq=False)
class Stop:
    """Somebody asked for the end: idle, evicted, drained, restarted, shut down …"""

    ending: Ending
    patience: float  # seconds that calls in flight may still take; 0 = none


Message = Ready | Listed | Failed | Lost | Gone | Stop


def describe(reason: LostReason) -> str:
    """A lost connection in one line, the last words of its stderr included."""
    return f"{reason.text} ({' — '.join(reason.stderr_tail)})" if reason.stderr_tail else reason.text


def connect_failed(server: str, reason: LostReason) -> ConnectFailed:
    """The end of an attempt to connect."""
    return ConnectFailed(
        describe(reason),
        server=server,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
    )


def login_needed(server: str, what: str) -> NeedsAuth:
    """The refusal of a server that wants a login; `what` it said."""
    return NeedsAuth(
        f'Server "{server}" needs a login: {what}. Set "bearerToken", "bearerTokenEnv" or "headers" in its entry, '
        "then connect it again.",
        server=server,
    )
