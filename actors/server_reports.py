"""What a server has been asked to report, and how the next incarnation is asked again.

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

import msgspec

from ..protocol.events import NoteCode
from ..protocol.jsonrpc.terms import LISTEN, METHOD_NOT_FOUND, RpcError
from .peer import EndCallback, Exchange, Handshake

if TYPE_CHECKING:
    from .connection import Incarnation
    from .timers import Timer

UPDATED: Final = "notifications/resources/updated"
_AGAIN: Final = (1.0, 60.0)  # seconds before asking again for a stream that ended: at first, at most
_FLAGS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


class Subscriptions(msgspec.Struct, eq=False):
    """The subscriptions of one address."""

    uris: dict[str, int] = msgspec.field(
        default_factory=dict[str, int]
    )  # subscribers of each, by the server's own URI

    def add(self, uri: str) -> bool:
        """Count a subscriber. Returns whether it is the first of this resource."""
        self.uris[uri] = self.uris.get(uri, 0) + 1
        return self.uris[uri] == 1

    def drop(self, uri: str) -> bool:
        """A subscriber has gone. Returns whether it was the last of this resource."""
        left = self.uris.pop(uri, 1) - 1
        if left > 0:
            self.uris[uri] = left
        return left <= 0


class ServerReports:
    """Tells the server of one incarnation what it shall report."""

    __slots__ = ("_again", "_handshake", "_incarnation", "_level", "_pause", "_stream")

    def __init__(self, incarnation: Incarnation, handshake: Handshake) -> None:
        self._incarnation = incarnation
        self._handshake = handshake
        self._stream: Exchange | None = None  # the open `subscriptions/listen`
        self._again: Timer | None = None
        self._pause = _AGAIN[0]
        self._level: str | None = None

    def begin(self) -> None:
        """The handshake is done: listen to changes from now on, and set the log level before the first call."""
        if self._handshake.is_stateless:
            self._listen()
        else:
            self.tell_level()

    def start(self) -> None:
        """The server's lists are known: send it the other subscriptions."""
        if not self._handshake.is_stateless:
            for uri in self._incarnation.actor.subscriptions.uris:
                self._send("resources/subscribe", {"uri": uri})
            self.tell_level()
        if self._incarnation.number > 1:
            self.presume_changed()

    def refresh(self) -> None:
        """The subscriptions have changed, so open the stream anew. Older servers were told by the request that changed
        them."""
        if self._handshake.is_stateless:
            self._listen()

    def tell_level(self) -> None:
        """Send an older server the level; newer ones read it in each request."""
        level, handshake = self._incarnation.actor.record.log_level, self._handshake
        if level is None or level == self._level:
            return
        if "logging" in handshake.capabilities and not handshake.is_stateless:
            self._level = level
            self._send("logging/setLevel", {"level": level})

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def presume_changed(self) -> None:
        """Report each subscribed resource as changed: nobody listened for a while, so any of them may have changed."""
        actor = self._incarnation.actor
        for uri in tuple(actor.subscriptions.uris):
            actor.context.host.heard(actor.address, UPDATED, {"uri": uri})

    def _send(self, method: str, params: Mapping[str, Any]) -> None:
        self._incarnation.peer.request(Exchange(EndCallback(self._note_failure), method, params))

    def _note_failure(self, asked: Exchange, _result: bytes | None, error: RpcError | None) -> None:
        """Note that this request failed. Its result is not needed."""
        if error is not None:
            self._incarnation.note(NoteCode.UNREAD, f"{asked.method}: {error.message} ({error.code})")

    def _listen(self) -> None:
        """Open a stream for everything that is subscribed to. The previous stream is closed once this one is
        requested."""
        self.stop()
        before, self._stream = self._stream, None
        wanted = self._wanted()
        if wanted:
            self._stream = Exchange(EndCallback(self._stream_ended), LISTEN, {"notifications": wanted})
            self._incarnation.peer.request(self._stream)
        if before is not None:
            self._incarnation.peer.abandon(before, "replaced by a newer subscription")

    def _wanted(self) -> dict[str, Any]:
        said, incarnation = self._handshake.capabilities, self._incarnation
        wanted: dict[str, Any] = {flag: True for kind, flag in _FLAGS.items() if _changes(said.get(kind))}
        if incarnation.actor.subscriptions.uris:
            wanted["resourceSubscriptions"] = sorted(incarnation.actor.subscriptions.uris)
        if incarnation.tasks is not None and (tasks := incarnation.tasks.watched):
            wanted["taskIds"] = tasks
        return wanted

    def _stream_ended(self, stream: Exchange, result: bytes | None, error: RpcError | None) -> None:
        """The server ended the stream: open it again later, unless the server does not know streams."""
        if stream is not self._stream:
            return
        self._stream = None
        self._note_failure(stream, result, error)
        if error is not None and error.code == METHOD_NOT_FOUND:
            return
        context = self._incarnation.actor.context
        self._again = context.timers.at(context.backend.now() + self._pause, self._listen_again)
        self._pause = min(self._pause * 2, _AGAIN[1])

    def _listen_again(self) -> None:
        self._again = None
        self._listen()
        self.presume_changed()
        self._incarnation.look_again()


def _changes(capability: object) -> bool:
    return (
        isinstance(capability, Mapping) and cast("Mapping[str, Any]", capability).get("listChanged") is True
    )
