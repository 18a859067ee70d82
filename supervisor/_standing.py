"""The servers that should be live without a call, eager and keep-alive ones: which they are, and how a room begins.

All of them connect at once, and `Standing.wait` waits until each was tried.
"""

from __future__ import annotations

from typing import Final

import anyio

from ..actors import ServerActor
from ..protocol.config import Lifecycle
from ..protocol.lifecycle import State
from ._root import Root

_LIVE: Final = (State.CONNECTING, State.CONNECTED, State.DRAINING)


def standing(root: Root) -> list[ServerActor]:
    """The actors of the eager and keep-alive servers that can be used."""
    return [
        root.actor(name)
        for name, record in root.records.items()
        if record.definition.lifecycle is not Lifecycle.LAZY and record.available.is_usable
    ]


def to_reconnect(root: Root) -> list[str]:
    """What reconnecting everything means: the live ones, and those that should be live."""
    live = {actor.address for actor in root.actors.values() if actor.life.state in _LIVE}
    return [
        name
        for name, record in root.records.items()
        if not record.available.is_by_definition
        and (record.definition.lifecycle is not Lifecycle.LAZY or record.address in live)
    ]


class Standing:
    def __init__(self) -> None:
        self._connecting: set[ServerActor] = set()
        self._over = anyio.Event()

    def connect(self, root: Root) -> None:
        """In parallel: one bad server never delays another."""
        actors = standing(root)
        self._connecting = set(actors)
        for actor in actors:
            actor.on_connected(lambda _error, actor=actor: self._tried(actor))
            root.supervision.starter.request_by_policy(actor)
        if not actors:
            self.release()

    async def wait(self) -> None:
        """Until each has connected or failed to, once."""
        await self._over.wait()

    def release(self) -> None:
        """Nobody waits any more."""
        self._over.set()

    def _tried(self, actor: ServerActor) -> None:
        self._connecting.discard(actor)
        if not self._connecting:
            self.release()
