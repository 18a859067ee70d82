"""The end of a room's servers: in parallel, under one deadline.

Calls in flight may take as long as whoever asks for the end has patience. A later request counts only if it is less
patient; then the deadline comes forward, also while the servers are being stopped.
"""

from __future__ import annotations

import anyio

from ..actors import RoomContext, ServerActor
from ._root import Root

IMPATIENT = (
    0.8  # seconds for every tree, when the client has gone (SDK clients terminate us two seconds after)
)


class Closing:
    def __init__(self) -> None:
        self.patience: float | None = None  # seconds for calls in flight, once the end is asked for
        # Once the servers are being stopped: which, and until when.
        self._begun: tuple[RoomContext, Root, anyio.CancelScope] | None = None

    @property
    def is_asked_for(self) -> bool:
        return self.patience is not None

    def ask(self, patience: float | None, default: float) -> None:
        """`patience`: seconds for calls in flight; None: `default`, unless the end was asked for before."""
        if self.patience is not None and (patience is None or patience >= self.patience):
            return
        self.patience = default if patience is None else patience
        if self._begun is not None:
            context, root, scope = self._begun
            scope.deadline = self._stop_by(context)
            root.close_all(self._patience_left(context))

    async def close_servers(self, context: RoomContext, root: Root) -> None:
        """Stop them all; returns when they have closed, or when the time is up."""
        with anyio.CancelScope(deadline=self._stop_by(context)) as scope:
            self._begun = context, root, scope
            remaining = set(root.close_all(self._patience_left(context)))
            done = anyio.Event()

            def closed(actor: ServerActor) -> None:
                remaining.discard(actor)
                if not remaining:
                    done.set()

            for actor in tuple(remaining):
                root.supervision.on_closed(actor, lambda actor=actor: closed(actor))
            if remaining:
                await done.wait()

    def _stop_by(self, context: RoomContext) -> float:
        """The one deadline, from now; a later, less patient request only brings it forward."""
        limit = context.settings.shutdown_timeout
        if not self.patience:
            limit = min(limit, IMPATIENT)
        context.stop_by = min(context.stop_by, context.backend.now() + limit)
        return context.stop_by

    def _patience_left(self, context: RoomContext) -> float:
        """Seconds for calls in flight: the trees need their stop time out of the same deadline."""
        left = context.stop_by - context.backend.now() - context.settings.stop_timeout
        return max(0.0, min(self.patience or 0.0, left))
