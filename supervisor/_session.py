"""Sessions: for callers that must not share a server's state with others.

A session is a name. A server that is isolated per session has one child for each session, started by the
session's first call and used for all its calls. Persistent servers are shared with everybody. A server that
is isolated per call has a child per call, as always. State never crosses between sessions, because the
session is part of the address. When a session ends, its children end, whatever their state: queued calls
fail, and its refs refuse.

A session may bring callbacks of its own. They answer what its children ask, and what shared servers ask during its
calls; they hear the logs of both, at the session's own level (`_routing`). What belongs to the room it cannot reach:
reloads, drains, the answers for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

import anyio

from ..actors import Connector, Host
from ._auditing import caller_of
from ._callbacks import OnApproval
from ._calls import Calls
from ._profile_view import ProfileView
from ._runtime import Runtime

_NOTHING: Final[Mapping[str, str]] = {}


class Session(Calls):
    """One session of a room: `async with room.session("alice") as s: await s.call("memory_read_graph")`."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        variables: Mapping[str, str],
        host: Host | None = None,
        view: ProfileView | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        super().__init__(caller_of(runtime, name, view))
        self.name = name
        self._variables = variables  # until it is opened
        self._host = host
        self._on_approval = on_approval

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (over)' if self._caller.is_over else ''}>"

    @property
    def view(self) -> ProfileView | None:
        """What its profile shows; None: it has none, and sees everything."""
        return self._caller.view

    def came_by(self, door: str, subject: str | None = None) -> None:
        """A door says for an audit that it is the door of this session, and who is behind it, if it knows."""
        self._caller.door, self._caller.subject = door, subject

    def introduced(self, client: object) -> None:
        """What the client of this session says about itself, for an audit."""
        self._caller.client_said = client

    async def connect(self, server: str) -> None:
        """Connect the child that calls of this session go to. Raises as `Greenroom.connect` does."""
        await self._caller.connect_by_name(server)

    def helper(self, name: str, command: Sequence[str], *, max_line: int) -> Connector:
        """What starts a child of ours that is no server, for a door. See `Connectors.helper`."""
        return self._caller.live.connectors.helper(name, command, max_line)

    async def __aenter__(self) -> Session:
        sessions = self._caller.live.sessions
        sessions.open(self.name, self._variables, self._host, self.view, self._on_approval)
        self._variables, host, self._host = _NOTHING, self._host, None
        if host is not None:
            self.restart_outdated()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session and its own children. Bounded; idempotent; finishes even when it is cancelled."""
        caller = self._caller
        if caller.is_over:
            return
        caller.is_over = True
        with anyio.CancelScope(shield=True):
            await caller.runtime.end_session(self.name)
