"""The standing servers, which should be live without a call: the eager and the keep-alive ones.

When a room opens, all of them connect at once, and `Standing.wait` waits until each was tried.
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
    """The servers to reconnect when all are to be reconnected: the live ones, and the standing ones."""
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
        """Connect them in parallel, so that a bad server delays no other."""
        actors = standing(root)
        self._connecting = set(actors)
        for actor in actors:
            actor.on_connected(lambda _error, actor=actor: self._tried(actor))
            root.supervision.starter.request_by_policy(actor)
        if not actors:
            self.release()

    async def wait(self) -> None:
        """Wait until each has connected, or has failed once."""
        await self._over.wait()

    def release(self) -> None:
        """Nobody waits any more."""
        self._over.set()

    def _tried(self, actor: ServerActor) -> None:
        self._connecting.discard(actor)
        if not self._connecting:
            self.release()
