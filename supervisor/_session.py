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

from ..actors import Sync
from ..protocol.errors import UsageError
from ..protocol.index import Index
from ._calls import Calls
from ._runtime import Runtime


class Session(Calls):
    """One session of a room: `async with room.session("alice") as s: await s.call("memory_read_graph")`."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self._session = name
        self._runtime = runtime
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (over)' if self._is_over else ''}>"

    @property
    def index(self) -> Index:
        """The room's index of all names."""
        return self._runtime.router.index

    async def connect(self, server: str) -> None:
        """Connect the child that calls of this session go to. Raises as `Greenroom.connect` does."""
        await self._connect(server, by_name=True)
        await self._live.router.ref.ask(Sync)

    @property
    def _live(self) -> Runtime:
        if self._is_over:
            raise UsageError(f"The session {self.name!r} is over; open another with `room.session(...)`.")
        return self._runtime

    async def __aenter__(self) -> Session:
        self._live.open_session(self.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session and everything that is its own. Bounded; idempotent; finishes also when cancelled."""
        if self._is_over:
            return
        self._is_over = True
        runtime = self._runtime
        with anyio.CancelScope(shield=True):
            await runtime.end_session(self.name)
