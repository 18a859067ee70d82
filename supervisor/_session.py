"""Sessions: whoever must not share a server's state with others.

A session is a name. Servers that are isolated per session have a child of its own for each, started by its first call
and reused for all its calls; persistent servers are shared with everybody, and a server isolated per call has a child
per call here as elsewhere. State never crosses: the session is part of the address. When the session ends, so do its
children, in whatever state they are: queued calls fail, its refs refuse.

A session has only what is its own: its children, and the log level and the news of roots that these are told. What is
the room's (who answers, reloads, drains) is not to be reached from here.
"""

from __future__ import annotations

from types import TracebackType

import anyio

from ._caller import Caller
from ._calls import Calls
from ._runtime import Runtime


class Session(Calls):
    """One session of a room: `async with room.session("alice") as s: await s.call("memory_read_graph")`."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        super().__init__(Caller(runtime, name))
        self.name = name

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (over)' if self._caller.is_over else ''}>"

    async def connect(self, server: str) -> None:
        """Connect the child that calls of this session go to. Raises as `Greenroom.connect` does."""
        await self._caller.connect_by_name(server)

    async def __aenter__(self) -> Session:
        self._caller.live.open_session(self.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session and everything that is its own. Bounded; idempotent; finishes also when cancelled."""
        caller = self._caller
        if caller.is_over:
            return
        caller.is_over = True
        with anyio.CancelScope(shield=True):
            await caller.runtime.end_session(self.name)
