"""The end of a room's servers: in parallel, under one deadline.

Each request to end the room says how long calls in flight may still take: its patience. A later request counts only if
it has less patience. Then the deadline comes earlier, even while the servers are being stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ..actors.timers import TimeLimit

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..actors.server import ServerActor
    from .servers import ServerList

# Seconds for all trees when the client is gone. The SDK's clients terminate us two seconds after that.
IMPATIENT = 0.8


class Shutdown:
    def __init__(self) -> None:
        self.patience: float | None = None  # seconds for calls in flight; None: the end is not asked for
        # Set while the servers are being stopped: the room, its servers, and the limit.
        self._begun: tuple[RoomContext, ServerList, TimeLimit] | None = None

    @property
    def is_asked_for(self) -> bool:
        return self.patience is not None

    def ask(self, patience: float | None, default: float) -> None:
        """Ask for the end. `patience`: seconds for calls in flight. None: `default`, unless an earlier
        request set it."""
        if self.patience is not None and (patience is None or patience >= self.patience):
            return
        self.patience = default if patience is None else patience
        if self._begun is not None:
            context, servers, limit = self._begun
            limit.move(self._stop_by(context))
            servers.close_all(self._patience_left(context))

    async def close_servers(self, context: RoomContext, servers: ServerList) -> None:
        """Stop all servers. Returns when they have closed, or when the time is up."""
        with context.timers.limited(self._stop_by(context)) as limit:
            self._begun = context, servers, limit
            remaining = set(servers.close_all(self._patience_left(context)))
            done = anyio.Event()

            def closed(actor: ServerActor) -> None:
                remaining.discard(actor)
                if not remaining:
                    done.set()

            for actor in tuple(remaining):
                servers.on_closed(actor, lambda actor=actor: closed(actor))
            if remaining:
                await done.wait()
            await servers.starts.wait_gone()

    def _stop_by(self, context: RoomContext) -> float:
        """The deadline for all, counted from now. A later request with less patience only makes it earlier."""
        limit = context.settings.shutdown_timeout
        if not self.patience:
            limit = min(limit, IMPATIENT)
        context.stop_by = min(context.stop_by, context.backend.now() + limit)
        return context.stop_by

    def _patience_left(self, context: RoomContext) -> float:
        """The seconds left for calls in flight. The trees need their time to stop before the same deadline."""
        left = context.stop_by - context.backend.now() - context.settings.stop_timeout
        return max(0.0, min(self.patience or 0.0, left))
