"""What the doors use of a room.

The doors are written against these protocols and not against `Greenroom` itself, for two reasons: a room that only has
the cache (no actors, no loop) can stand behind the same `mcp` tool, and the list below is everything a door can do to a
room. A door never reaches further in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ..protocol.lifecycle import State

if TYPE_CHECKING:
    from ..actors import Host
    from ..protocol.catalogue import ServerEntry
    from ..protocol.config import Config
    from ..protocol.errors import CallError
    from ..protocol.events import Kind
    from ..protocol.index import Index, Place, Target
    from ..protocol.result import ToolResult

OnProgress = Callable[[Mapping[str, Any]], None]


class CallLike(Protocol):
    """A call that was accepted: ended exactly once, by callback."""

    @property
    def result(self) -> bytes | None:
        """The raw JSON of the result, when it ended well."""
        ...

    @property
    def error(self) -> CallError | None: ...

    def cancel(self) -> object: ...


class WholeCall(CallLike, Protocol):
    """A call whose result goes on as it is."""

    @property
    def protocol_version(self) -> str | None:
        """What its server speaks; to be asked while the call ends."""
        ...


class StatusRow(Protocol):
    """One address, as `Greenroom.status` reports it. Times in seconds."""

    @property
    def server(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def waiting_for(self) -> str | None: ...
    @property
    def waiting(self) -> float | None: ...
    @property
    def last_line(self) -> str | None: ...
    @property
    def tool_count(self) -> int | None: ...
    @property
    def cached(self) -> bool: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def failed_ago(self) -> float | None: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def retry_in(self) -> float | None: ...
    @property
    def needs_auth(self) -> bool: ...
    @property
    def disabled(self) -> bool: ...
    @property
    def broken(self) -> str | None: ...
    @property
    def down(self) -> str | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def lifecycle(self) -> str: ...
    @property
    def faults(self) -> Sequence[str]: ...
    @property
    def connecting(self) -> bool: ...


@attrs.frozen
class PlainRow:
    """A server as far as it can be known without an actor of its own."""

    server: str
    lifecycle: str
    tool_count: int | None = None
    cached: bool = False
    problems: Sequence[str] = ()
    disabled: bool = False
    broken: str | None = None
    scope: str = "shared"
    state: State = State.IDLE
    incarnation: int = 0
    in_flight: int = 0
    queued: int = 0
    waiting_for: str | None = None
    waiting: float | None = None
    last_line: str | None = None
    failed_ago: float | None = None
    failure: str | None = None
    retry_in: float | None = None
    needs_auth: bool = False
    down: str | None = None
    pid: int | None = None
    faults: tuple[str, ...] = ()
    connecting: bool = False


class Catalogue(Protocol):
    """What is known without asking anybody: enough for status, list, search, describe and instructions."""

    @property
    def config(self) -> Config: ...
    @property
    def index(self) -> Index: ...

    def status(self) -> Sequence[StatusRow]: ...

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
        arguments: Mapping[str, Any] | None,
        on_end: Callable[[Any], None],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallLike: ...

    async def connect(self, server: str, *, force: bool = False) -> None: ...

    def refresh(self, server: str | None = None) -> list[str]: ...

    async def reconnect(self, server: str | None = None) -> Sequence[tuple[str, Any]]: ...


class HostedRoom(Room, Protocol):
    """A room for whose servers a door answers and listens."""

    def set_log_level(self, level: str, server: str | None = None) -> None: ...

    def roots_changed(self) -> None: ...

    def answer_with(self, host: Host | None) -> None: ...

    def restart_outdated(self) -> None: ...


class DirectRoom(HostedRoom, Protocol):
    """A room with the rest of the protocol: what the `direct` door uses."""

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

    def events(self, kinds: Iterable[Kind] | None = None) -> Any: ...

    async def settled(self) -> Index: ...

    @property
    def is_learning(self) -> bool: ...

    async def catalogued(self) -> None: ...
