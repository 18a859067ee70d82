"""Hearing of changes since 2026-07-28: one request that stays open, and carries what the server says unasked.

Before, a server said so whenever it liked; now it is asked to, once, for what it declares. The request is answered when
the server ends the subscription; it breaks when its stream does. Either way it is made anew, after a time that doubles
while that is in vain, and what changed meanwhile was not heard: a gap, after which the lists are read again. A server
that refuses is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import anyio

from ..protocol.catalogue import Raw
from ._connection import Hello
from ._peer import Exchange, Peer, RpcError
from ._rim import Rim

LISTEN = "subscriptions/listen"
_FIRST_PAUSE = 1.0
_LAST_PAUSE = 60.0
_LISTS = {"tools": "toolsListChanged", "resources": "resourcesListChanged", "prompts": "promptsListChanged"}


def changes_told_by(hello: Hello) -> dict[str, bool]:
    """What to ask a server to tell of; nothing where it need not be asked, or has nothing to tell."""
    if not hello.is_stateless:
        return {}
    return {word: True for kind, word in _LISTS.items() if _declares(hello.capabilities.get(kind))}


def _declares(capability: object) -> bool:
    return isinstance(capability, Mapping) and cast("Raw", capability).get("listChanged") is True


class _Subscription(Exchange):
    """Open for as long as the server tells."""

    __slots__ = ("error", "over")

    def __init__(self, rim: Rim, wanted: Mapping[str, bool]) -> None:
        super().__init__(LISTEN, {"notifications": wanted})
        self.over = rim.waiter()
        self.error: RpcError | None = None

    def end(self, result: bytes | None, error: RpcError | None) -> None:
        self.error = error
        self.over.set()

    @property
    def is_refused(self) -> bool:
        return self.error is not None and not self.error.broken


async def listen_forever(
    peer: Peer, rim: Rim, wanted: Mapping[str, bool], on_gap: Callable[[], None]
) -> None:
    """Keep a subscription to `wanted` open, until the server refuses it. What it brings goes to the peer's hooks."""
    pause = _FIRST_PAUSE
    while True:
        began = rim.now()
        subscription = _Subscription(rim, wanted)
        peer.request(subscription)
        try:
            await subscription.over.wait()
        finally:
            peer.abandon(subscription, "no longer listening")
        if subscription.is_refused:
            return
        pause = _FIRST_PAUSE if rim.now() - began > pause else min(2 * pause, _LAST_PAUSE)
        await anyio.sleep(pause)
        on_gap()
