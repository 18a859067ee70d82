"""What can be seen of a server from outside while it has an incarnation: for people, and for code that must know how
it was greeted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..protocol.config import Era
from ..protocol.jsonrpc import MODERN_VERSIONS
from ._host import covers

if TYPE_CHECKING:
    from ._host import Greeting
    from ._server import ServerActor


def pid_of(actor: ServerActor) -> int | None:
    """The pid of its process, while it has one."""
    return actor.incarnation.pid if actor.incarnation is not None else None


def last_line(actor: ServerActor) -> str:
    """The last lines of its stderr."""
    return actor.incarnation.last_line if actor.incarnation is not None else ""


def declared_to(actor: ServerActor) -> Mapping[str, Any] | None:
    """The client capabilities the server was told; None when it has not been greeted."""
    greeting = actor.incarnation.greeting if actor.incarnation is not None else None
    return greeting.capabilities if greeting is not None else None


def is_unused(actor: ServerActor) -> bool:
    """Nobody has called this incarnation or subscribed at it, and nobody is about to: it ends without loss."""
    is_listed_only = actor.idling.since <= actor.connected_at and not actor.subscriptions.uris
    return not actor.is_connected or (actor.is_resting and is_listed_only)


def is_outdated(actor: ServerActor, greeting: Greeting) -> bool:
    """Whether it is better met again: it was told other capabilities than these (if several share it: fewer), or cannot
    ask a client that expects to be asked. A server that was offered a handshake and took none is left as it is, and
    one that was used also: nobody's call and nothing that a server remembers is given up for that."""
    told = actor.incarnation.greeting if actor.incarnation is not None else None
    if told is None or told == greeting or actor.address.is_call or not is_unused(actor):
        return False
    if actor.address.is_shared:  # what it was told beside does no harm: who cannot answer is not asked
        if not covers(told.capabilities, greeting.capabilities):
            return True
    elif told.capabilities != greeting.capabilities:
        return True
    is_older = actor.peer is not None and actor.peer.protocol_version not in MODERN_VERSIONS
    may_change = greeting.by_handshake and not told.by_handshake and actor.definition.era is Era.AUTO
    return may_change and not is_older
