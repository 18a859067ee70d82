"""What the parts of the supervisor may ask the directory of servers and actors (`_root`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..actors import ServerActor
from ..protocol.address import Address
from ..protocol.errors import CallError
from ._records import ServerRecord
from ._sessions import Sessions


class Levels(Protocol):
    """The log levels of the room (session None) and its sessions."""

    def wanted(self, session: str | None, server: str) -> str | None:
        """The level that this session itself has set for the server."""
        ...

    def least(self, session: str | None, server: str) -> str | None:
        """The level at which this session hears the server: its own, else the room's."""
        ...

    def shared(self, server: str) -> str | None:
        """What a server is told that all share: the most talkative level that anybody wants."""
        ...


class Directory(Protocol):
    @property
    def records(self) -> Mapping[str, ServerRecord]: ...

    @property
    def actors(self) -> Mapping[Address, ServerActor]: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def log_levels(self) -> Levels: ...

    @property
    def closing(self) -> CallError | None:
        """Why nothing is accepted or started any more. None: the room is not closing."""
        ...

    def record(self, server: str) -> ServerRecord:
        """Raises `UnknownServer`."""
        ...

    def actor(self, server: str, scope: str = ...) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        ...

    def actor_at(self, address: Address) -> ServerActor:
        """The same, by address."""
        ...

    def actors_of(self, server: str) -> list[ServerActor]:
        """The existing actors of a server, in all scopes. Raises `UnknownServer`."""
        ...

    def shared_actor(self, server: str) -> ServerActor | None:
        """The actor of the server's shared address, if it exists already."""
        ...

    def kept(self) -> Collection[str]:
        """The servers that have a slot set aside."""
        ...

    def bring_back(self, server: str) -> None:
        """Let a server that was taken down be used again. Raises the refusal if its definition forbids that,
        or the room is closing."""
        ...

    def has_standing_address(self, server: str, session: str | None) -> bool:
        """Whether calls of this session (None: calls in no session) share an actor, which outlives each call."""
        ...

    def in_reach(self, session: str | None) -> list[ServerActor]:
        """The actors that a session may change: its own. None: all actors."""
        ...

    def forget(self, actor: ServerActor) -> None:
        """Remove an actor whose address is gone."""
        ...


def shared_actors(directory: Directory) -> list[ServerActor]:
    """The actors that all sessions share."""
    found = (directory.shared_actor(name) for name in directory.records)
    return [actor for actor in found if actor is not None]
