"""Addresses: who an actor is.

The isolation key is part of the identity, so nothing can ever be shared across it by accident: two sessions of
one server are two addresses, two mailboxes, two processes (`docs/decisions/isolation.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

SHARED = "shared"
HANDSHAKE = "handshake"  # the scope of what all clients of the handshake era share, beside the shared one
DISCOVERY = "call:catalogue"  # the scope of a child that is only asked for its lists
DEPTH_KEY = "GREENROOM_DEPTH"  # in a child's environment: how many rooms are above it in the process tree


def depth(environ: Mapping[str, str]) -> int:
    """How many rooms are above a process with this environment; each was started by the one before."""
    told = environ.get(DEPTH_KEY, "")
    return int(told) if told.isdecimal() else 0


class Address(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One process of a server: the server's name, and who shares the process.

    The scope is `shared`, `handshake` (clients of the older era), `session:<id>` or `call:<id>`; `warm:<n>` is a child
    that was started ahead, until somebody takes it over.
    """

    server: str  # its name in the configuration
    scope: str = SHARED  # who shares the process
    owner: str | None = None  # the session of a call's process; it does not count in comparisons

    @cached_property
    def _identity(self) -> tuple[str, str]:
        return self.server, self.scope

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, Address) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    def __lt__(self, other: Address) -> bool:
        return self._identity < other._identity

    @property
    def is_call(self) -> bool:
        """Whether it serves one call, or one discovery."""
        return self.scope.startswith("call:")

    @classmethod
    def of_session(cls, server: str, session: str) -> Address:
        """The address of one session's own child of `server`."""
        return cls(server, f"session:{session}")

    @classmethod
    def of_call(cls, server: str, call: str, session: str | None = None) -> Address:
        """The address of a child that serves one call (or one discovery) and then ends. `session`: the session
        of that call."""
        return cls(server, f"call:{call}", session)

    @classmethod
    def of_warm(cls, server: str, number: int) -> Address:
        """The address of a child that is started before its session or call is known."""
        return cls(server, f"warm:{number}")

    @property
    def is_shared(self) -> bool:
        """Whether everybody calls it."""
        return self.scope == SHARED

    @property
    def is_for_handshakes(self) -> bool:
        """Whether the clients of the older era share it, apart from those of 2026-07-28."""
        return self.scope == HANDSHAKE

    @property
    def is_common(self) -> bool:
        """Whether many clients share what is here: all of them, or all of the handshake era."""
        return self.scope in (SHARED, HANDSHAKE)

    @property
    def is_session(self) -> bool:
        """Whether it belongs to one session."""
        return self.scope.startswith("session:")

    @property
    def session(self) -> str | None:
        """The session for which a child at this address is started."""
        return self.scope.removeprefix("session:") if self.is_session else self.owner

    def __str__(self) -> str:
        scope = "list reader" if self.scope == DISCOVERY else self.scope
        return self.server if self.is_shared else f"{self.server}[{scope}]"
