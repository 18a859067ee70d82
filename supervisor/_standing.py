"""The eager and keep-alive servers of a room that begins: all connect at once, and who asks for it waits for them."""

from __future__ import annotations

import anyio

from ..actors import ServerActor
from ._root import Root


class Standing:
    def __init__(self) -> None:
        self._connecting: set[ServerActor] = set()
        self._over = anyio.Event()

    def connect(self, root: Root) -> None:
        """In parallel: one bad server never delays another."""
        actors = root.standing()
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
