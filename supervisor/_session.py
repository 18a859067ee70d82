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
from contextlib import suppress
from types import TracebackType
from typing import Final

import anyio

from ..actors import Connector, Host, is_unused
from ..protocol.catalogue import ServerEntry
from ..protocol.errors import CallError, UsageError
from ._auditing import caller_of
from ._callbacks import OnApproval
from ._calls import Calls
from ._profile_view import ProfileView
from ._runtime import Runtime
from ._visiting import VISIT_IDLE

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

    def own_entry(self, server: str) -> ServerEntry | None:
        """What this session's own child has listed; None: it has listed nothing, or there is none."""
        return self._caller.runtime.own_lists.entry(self.name, server)

    def unlisted(self) -> list[str]:
        """The servers whose lists belong to this session, because they are started with values that it gives, and that
        have not been asked yet."""
        if self._caller.is_over:
            return []
        live = self._caller.live
        return [
            name
            for name in live.of_sessions()
            if self.own_entry(name) is None
            and (self.view is None or self.view.shows(name))
            and live.root.records[name].available.is_usable
            and live.root.records[name].definition.bootstrap
            and not live.sessions.missing(live.root.records[name].definition, self.name)
        ]

    async def list_own(self) -> None:
        """Connect those, so that they list what they have. Who cannot be connected is left out."""

        async def connect(server: str) -> None:
            with suppress(CallError, UsageError):  # the latter: the session is over by now
                await self._caller.connect(server)
                actor = self._caller.actor(server)
                if actor.is_connected and is_unused(actor):  # nobody has called it, and perhaps nobody will
                    actor.idling.shorten(VISIT_IDLE)
                    actor.idling.rest(actor.connected_at)

        if self._caller.is_over:
            return
        async with anyio.create_task_group() as tasks:
            for server in self.unlisted():
                tasks.start_soon(connect, server)

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
