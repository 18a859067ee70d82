"""Subscriptions: what a server has been asked to report, and how the next incarnation is asked again.

The subscribed resources and the log level belong to the actor and outlive incarnations, so the next incarnation is
asked at once. Changes while nobody listened are unknown. So each subscribed resource is then reported as changed:
a needless read is cheaper than a missed change.

The eras ask differently. Until 2025-11-25 there is one request per resource and one for the level. From 2026-07-28
on nothing is reported without a `subscriptions/listen`, whose answer is the stream itself. One is kept open for
everything that we want to hear. It is replaced by another when that changes, and opened again, at growing
intervals, when the server ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..protocol.events import NoteCode
from ..protocol.jsonrpc import LISTEN, METHOD_NOT_FOUND, MODERN_VERSIONS, RpcError
from ._peer import Exchange, WhenEnded

if TYPE_CHECKING:
    from ._connection import Handshake
    from ._incarnation import Incarnation
    from ._timers import Timer

_AGAIN: Final = (1.0, 60.0)  # seconds before asking again for a stream that ended: at first, at most
UPDATED: Final = "notifications/resources/updated"
_LISTS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


@attrs.define(eq=False)
class Subscriptions:
    """The subscriptions of one address."""

    uris: dict[str, int] = attrs.field(factory=dict[str, int])  # subscribers of each, by the server's own URI

    def add(self, uri: str) -> bool:
        """True for the first subscriber."""
        self.uris[uri] = self.uris.get(uri, 0) + 1
        return self.uris[uri] == 1

    def drop(self, uri: str) -> bool:
        """True when that was the last subscriber."""
        left = self.uris.pop(uri, 1) - 1
        if left > 0:
            self.uris[uri] = left
        return left <= 0


class Listening:
    """The subscriptions of one incarnation: tells its server what is subscribed to."""

    def __init__(self, incarnation: Incarnation, handshake: Handshake) -> None:
        self._incarnation = incarnation
        self._actor = incarnation.actor
        self._handshake = handshake
        self._stream: Exchange | None = None  # the open `subscriptions/listen`
        self._again: Timer | None = None
        self._pause = _AGAIN[0]
        self._level: str | None = None
        self.is_modern = handshake.protocol_version in MODERN_VERSIONS

    def listen(self) -> None:
        """The server has just been greeted: hear of changes from here on, and of logs before the first call."""
        if self.is_modern:
            self._listen()
        else:
            self.tell_level()

    def start(self) -> None:
        """The server's lists are known: send it the other subscriptions."""
        if not self.is_modern:
            for uri in self._actor.subscriptions.uris:
                self._send("resources/subscribe", {"uri": uri})
            self.tell_level()
        if self._incarnation.number > 1:
            self.presume_changed()

    def refresh(self) -> None:
        """The subscriptions have changed. Older servers were told by the request that changed them."""
        if self.is_modern:
            self._listen()

    def tell_level(self) -> None:
        """Send an older server the level; newer ones read it in each request."""
        level = self._actor.record.log_level
        if (
            level is None
            or level == self._level
            or self.is_modern
            or "logging" not in self._handshake.capabilities
        ):
            return
        self._level = level
        self._send("logging/setLevel", {"level": level})

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _note_failure(self, asked: Exchange, _result: bytes | None, error: RpcError | None) -> None:
        """A request of which only a failure is reported."""
        if error is not None:
            self._incarnation.note(NoteCode.UNREAD, f"{asked.method}: {error.message} ({error.code})")

    def _stream_ended(self, stream: Exchange, result: bytes | None, error: RpcError | None) -> None:
        """The server ended the stream. A server that does not know streams is not asked again."""
        if stream is not self._stream:
            return
        self._stream = None
        self._note_failure(stream, result, error)
        if error is not None and error.code == METHOD_NOT_FOUND:
            return
        context = self._actor.context
        self._again = context.timers.at(context.backend.now() + self._pause, self._listen_again)
        self._pause = min(self._pause * 2, _AGAIN[1])

    def _listen_again(self) -> None:
        self._again = None
        self._listen()
        self.presume_changed()
        self._incarnation.look_again()

    def _listen(self) -> None:
        """Open a stream for everything to be heard; the previous one is closed once the new one is requested."""
        self.stop()
        before, self._stream = self._stream, None
        wanted = self._wanted()
        if wanted:
            self._stream = Exchange(WhenEnded(self._stream_ended), LISTEN, {"notifications": wanted})
            self._incarnation.peer.request(self._stream)
        if before is not None:
            self._incarnation.peer.abandon(before, "replaced by a newer subscription")

    def _wanted(self) -> dict[str, Any]:
        said = self._handshake.capabilities
        wanted: dict[str, Any] = {flag: True for kind, flag in _LISTS.items() if _changes(said.get(kind))}
        if self._actor.subscriptions.uris:
            wanted["resourceSubscriptions"] = sorted(self._actor.subscriptions.uris)
        return wanted

    def presume_changed(self) -> None:
        """Nobody listened for a while: each subscribed resource may have changed."""
        for uri in tuple(self._actor.subscriptions.uris):
            self._actor.context.host.heard(self._actor.address, UPDATED, {"uri": uri})

    def _send(self, method: str, params: Mapping[str, Any]) -> None:
        self._incarnation.peer.request(Exchange(WhenEnded(self._note_failure), method, params))


def _changes(capability: object) -> bool:
    return (
        isinstance(capability, Mapping) and cast("Mapping[str, Any]", capability).get("listChanged") is True
    )
