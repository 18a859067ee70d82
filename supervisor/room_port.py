"""The parts of a room that the doors use.

The doors are written against these protocols and not against `Greenroom` itself, for two reasons. A catalogue
from the cache alone (no actors, no loop) can stand behind the same `mcp` tool. And the list below is
everything that a door can do with a room: a door never reaches further in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ..protocol.cooperative import Slices, finish

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from msgspec import Raw

    from ..actors.host import Host
    from ..actors.peer import Connector
    from ..catalogue.entries import ServerEntry
    from ..catalogue.index import Index
    from ..catalogue.namespace import Place, Target
    from ..config.model import Config, Scrub
    from ..protocol.errors import CallError, GreenroomError
    from ..protocol.result import ToolResult
    from ..protocol.status import ServerStatus
    from ..safety.audit import Asked
    from .room import Greenroom, Session


class Scrubber(Protocol):
    def scrub(self, raw: bytes) -> bytes: ...

    def scrubbing(self, raw: bytes) -> Slices[bytes]: ...


OnProgress = Callable[[Mapping[str, Any]], None]


class CallLike(Protocol):
    """A call that was accepted. It ends exactly once, by callback."""

    @property
    def result(self) -> bytes | None:
        """The raw JSON of the result, if the call ended with one."""
        ...

    @property
    def error(self) -> CallError | None: ...

    @property
    def met_a_start(self) -> bool:
        """Whether its server was connected only after it was accepted. Only valid inside the callback that ends it."""
        ...

    def cancel(self) -> object: ...


class WholeCall(CallLike, Protocol):
    """A call whose result is passed on as it is."""

    @property
    def protocol_version(self) -> str | None:
        """The protocol version of its server. Only valid inside the callback that ends the call."""
        ...


class Catalogue(Protocol):
    """What is known without asking a server: enough for status, list, search, describe and instructions."""

    @property
    def config(self) -> Config: ...
    @property
    def index(self) -> Index: ...

    def surveying(self, server: str | None = None) -> Slices[Sequence[ServerStatus]]:
        """A row for each server and for each further live address of a server, in slices. `server`: only its
        rows."""
        ...

    def entry(self, server: str) -> ServerEntry | None: ...


class Room(Catalogue, Protocol):
    """A catalogue whose servers can be called and connected."""

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolResult: ...

    def start_call(
        self,
        target: Target,
        arguments: Mapping[str, Any] | Raw | None,
        on_end: Callable[[Any], None],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallLike: ...

    def noting(self, asked: Asked) -> AbstractContextManager[None]:
        """What a door puts around its own search for the server of a request, for an audit."""
        ...

    def turned_away(self, asked: Asked, why: GreenroomError | str) -> None:
        """The door answers a request by itself, with this error or code. For an audit."""
        ...

    def scrubber(self, server: str, door: Scrub, /) -> Scrubber | None:
        """What removes credentials from the server's results at this door."""
        ...

    async def connect(self, server: str) -> None: ...

    @property
    def is_learning(self) -> bool: ...

    async def catalogued(self) -> None: ...


class RefreshedRoom(Room, Protocol):
    """A room whose servers can be visited to learn what they have; a session has no such command."""

    def refresh(self, server: str | None = None) -> list[str]: ...


class HostedRoom(Room, Protocol):
    """A room in which a door answers the servers' requests and hears their notifications."""

    def set_log_level(self, level: str, server: str | None = None) -> None: ...

    def roots_changed(self) -> None: ...

    def answer_with(self, host: Host | None) -> None: ...

    def restart_outdated(self) -> None: ...


class AwaitedCall(CallLike, Protocol):
    """A call for whose end a task waits."""

    async def wait(self) -> bytes: ...


class SandboxRoom(HostedRoom, Protocol):
    """A room whose doors may start children of their own, and whose calls may be waited for."""

    def helper(self, name: str, command: Sequence[str], *, max_line: int) -> Connector: ...

    async def find(self, name: str, server: str | None = None) -> Target: ...

    def start_call(
        self,
        target: Target,
        arguments: Mapping[str, Any] | Raw | None,
        on_end: Callable[[Any], None] | None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> AwaitedCall: ...


class DirectRoom(HostedRoom, Protocol):
    """A room with the rest of the protocol, for the `direct` door."""

    def start_request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None,
        on_end: Callable[[Any], None],
        *,
        tool: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        replayable: bool = False,
        takes_inputs: bool = False,
    ) -> WholeCall: ...

    async def find(self, name: str, server: str | None = None) -> Target: ...

    async def find_prompt(self, name: str, server: str | None = None) -> Target: ...

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]: ...

    def locate(self, uri: str, server: str | None = None) -> Place: ...

    async def watch_resource(self, place: Place) -> None: ...

    def unwatch_resource(self, place: Place) -> None: ...

    def is_stateless(self, server: str) -> bool: ...

    async def settled(self) -> Index: ...


# --------------------------------------------------------------------------------------------------------------
#
#
# A room as one session sees it. Doors make their calls through it.
#
# Each client of a door has a session. A server that is isolated per session has a child of its own for each
# session, which ends with the session. So requests to servers go through the session, which finds the child.
# Everything else goes to the room.


class InSession:
    """A `DirectRoom` made of the methods of an open session and of its room.

    The bound methods are taken once. So a call through here is a call of the session's method and costs
    nothing more.
    """

    def __init__(self, room: Greenroom, session: Session) -> None:
        self._room = room
        self._session = session
        self._view = session.view
        self._scope = f"session:{session.name}"
        # Requests to servers.
        self.call = session.call
        self.connect = session.connect
        self.find = session.find
        self.find_prompt = session.find_prompt
        self.find_reference = session.find_reference
        self.helper = session.helper
        self.is_stateless = session.is_stateless
        self.locate = session.locate
        self.noting = session.noting
        self.scrubber = session.scrubber
        self.start_call = session.start_call
        self.start_request = session.start_request
        self.turned_away = session.turned_away
        self.unwatch_resource = session.unwatch_resource
        self.watch_resource = session.watch_resource
        # What the client can answer and wants to hear.
        self.answer_with = session.answer_with
        self.restart_outdated = session.restart_outdated
        self.roots_changed = session.roots_changed
        self.set_log_level = session.set_log_level
        # Everything else.
        self.settled = room.settled

    @property
    def config(self) -> Config:
        return self._room.config if self._view is None else self._view.config

    @property
    def index(self) -> Index:
        return self._session.index

    def entry(self, server: str) -> ServerEntry | None:
        entry = self._session.own_entry(server)
        if self._view is None:
            return entry or self._room.entry(server)
        self._view.check(server)
        return self._view.entry(entry or self._room.entry(server))

    @property
    def is_learning(self) -> bool:
        """Whether something is not known yet that this session would see: of the room, or of its own servers."""
        return self._room.is_learning or bool(self._session.unlisted())

    async def catalogued(self) -> None:
        """Wait until all of that was asked once, and the answers are in the index."""
        await self._session.list_own()
        await self._room.catalogued()

    def status(self) -> list[ServerStatus]:
        """The room's rows. Where this session has a child of its own, that child's row stands in place of the
        server's."""
        return finish(self.surveying())

    def surveying(self, server: str | None = None) -> Slices[list[ServerStatus]]:
        """The same in slices, for all servers or for one."""
        rows = yield from self._room.surveying(server)
        view = self._view
        if view is not None:
            rows = [view.row(row) for row in rows if view.shows(row.server)]
        own = {row.server for row in rows if row.scope == self._scope}
        return [self._as_seen(row) for row in rows if row.scope == self._scope or row.server not in own]

    def _as_seen(self, row: ServerStatus) -> ServerStatus:
        """The row with what this session's own child has listed."""
        if self._session.own_entry(row.server) is None:
            return row
        counts, faults = self.index.counts(row.server), self.index.faults(row.server)
        if counts is None:
            return attrs.evolve(row, tool_count=None, changed=(), hidden=(), faults=faults)
        return attrs.evolve(
            row, tool_count=counts.callable, changed=counts.changed, hidden=counts.hidden, faults=faults
        )
