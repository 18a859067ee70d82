"""Connections: how an owner task opens, greets and ends what carries a peer.

A `Connector` is made for one incarnation of one address. Its `open` is an async context manager. The actor's owner
task enters and leaves it, and no other task may (leaving an SDK client in another task ends a whole trio run).
Inside, the pumps run in a task group of the connection's own. A fault of the other side never comes out as an
exception: it is reported through `PeerHooks.on_lost`. Leaving the context, by whatever path, leaves nothing of the
process tree behind: it ends politely if `stop` was awaited, and by force, synchronously, if not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs

from ..protocol.catalogue import Raw
from ..protocol.jsonrpc import MODERN_VERSIONS
from ._peer import Peer, PeerHooks


@attrs.frozen(eq=False)
class Handshake:
    """What the two sides agreed on."""

    protocol_version: str
    capabilities: Raw
    server_info: Raw
    instructions: str | None = None
    is_its_choice: bool = True  # False: it accepted the only era that was tried; it may speak the other too

    @property
    def is_stateless(self) -> bool:
        """It speaks the era in which each request is complete by itself: there is no session to hold."""
        return self.protocol_version in MODERN_VERSIONS


@attrs.frozen(eq=False)
class Listing:
    """What the server has. None: it does not have the capability, or the list failed (unknown)."""

    tools: tuple[Raw, ...] | None
    resources: tuple[Raw, ...] | None = None
    templates: tuple[Raw, ...] | None = None
    prompts: tuple[Raw, ...] | None = None
    problems: tuple[str, ...] = ()  # lists that failed or were cut, in words
    prints: Mapping[str, str] = attrs.field(
        factory=dict[str, str]
    )  # by tool (`protocol.pinning`); "": not pinned


class Connection(Protocol):
    @property
    def peer(self) -> Peer: ...

    @property
    def pid(self) -> int | None:
        """The process id, where it is a process."""
        ...

    @property
    def last_line(self) -> str:
        """The last line of its stderr; empty where it has none."""
        ...

    def signs(self) -> object:
        """Signs that change while it works, to be compared with earlier ones; None where nothing can be seen."""
        ...

    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, for an error message; empty where it has none."""
        ...

    async def stop(self, grace: float) -> None:
        """End the other side and everything it started, within about `grace` seconds; returns when nothing of the
        tree is left. Idempotent. Call it shielded."""
        ...

    def kill_now(self) -> None:
        """The same by force, at once, without waiting: for a `finally` that may not await. Idempotent."""
        ...


class NoProcess:
    """The part of a `Connection` that is the same for every server that we did not start as a process."""

    pid: int | None = None

    @property
    def last_line(self) -> str:
        return ""

    def signs(self) -> object:
        return None

    def stderr_tail(self) -> tuple[str, ...]:
        return ()


class Connector(Protocol):
    def open(self, hooks: PeerHooks) -> AbstractAsyncContextManager[Connection]:
        """Start the other side. Raises `ConnectFailed` when it cannot be started (the message says why and what to
        do). No handshake yet: that is `shake_hands`, over the connection's peer."""
        ...


class ConnectorFactory(Protocol):
    """Made by the room, called by the actor at each incarnation."""

    def __call__(self, definition: Any, address: Any, incarnation: int) -> Connector: ...
