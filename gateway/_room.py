"""The parts of a room that the doors use.

The doors are written against these protocols and not against `Greenroom` itself, for two reasons. A catalogue
from the cache alone (no actors, no loop) can stand behind the same `mcp` tool. And the list below is
everything that a door can do with a room: a door never reaches further in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from msgspec import Raw

    from ..actors import Connector, Host
    from ..protocol.audit import Asked
    from ..protocol.catalogue import ServerEntry
    from ..protocol.config import Config, Scrub
    from ..protocol.errors import CallError, GreenroomError
    from ..protocol.index import Index, Place, Target
    from ..protocol.result import ToolResult
    from ..protocol.slices import Slices
    from ..protocol.status import ServerStatus


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
