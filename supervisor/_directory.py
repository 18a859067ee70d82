"""What the parts of the supervisor ask of the directory of servers and actors (`_root`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..actors import ServerActor
from ..protocol.address import Address
from ..protocol.errors import CallError
from ._records import ServerRecord


class Directory(Protocol):
    @property
    def records(self) -> Mapping[str, ServerRecord]: ...

    @property
    def actors(self) -> Mapping[Address, ServerActor]: ...

    @property
    def closing(self) -> CallError | None:
        """Why nothing is accepted or started any more: the room is closing."""
        ...

    def record(self, server: str) -> ServerRecord:
        """Raises `UnknownServer`."""
        ...

    def actor(self, server: str, scope: str = ...) -> ServerActor:
        """The actor of an address, made on first use. Raises `UnknownServer`."""
        ...

    def shared_actor(self, server: str) -> ServerActor | None:
        """The actor of its shared address, if it was needed yet."""
        ...

    def kept(self) -> Collection[str]:
        """The servers that have a slot set aside."""
        ...

    def bring_back(self, server: str) -> None:
        """It was taken down, and is asked for by name. Raises what cannot be helped by that."""
        ...

    def has_standing_address(self, server: str, session: str | None) -> bool:
        """Whether there is an actor that outlives one call, seen from this session or from none."""
        ...

    def in_reach(self, session: str | None) -> list[ServerActor]:
        """The actors that a session may change: its own; out of none: all."""
        ...

    def forget(self, actor: ServerActor) -> None:
        """Its address is gone."""
        ...
