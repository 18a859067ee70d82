"""Addresses: who an actor is.

The isolation key is part of the identity, so nothing can ever be shared across it by accident: two sessions of
one server are two addresses, two mailboxes, two processes (DESIGN, Words).
"""

from __future__ import annotations

import attrs

SHARED = "shared"


@attrs.frozen(order=True, cache_hash=True)
class Address:
    """`(server, scope)`; scope is `shared`, `session:<id>` or `call:<id>`."""

    server: str
    scope: str = SHARED

    @classmethod
    def of_session(cls, server: str, session: str) -> Address:
        """The address of one session's own child of `server`."""
        return cls(server, f"session:{session}")

    @classmethod
    def of_call(cls, server: str, call: str) -> Address:
        """The address of a child that serves one call (or one catalogue visit) and goes."""
        return cls(server, f"call:{call}")

    @property
    def is_shared(self) -> bool:
        return self.scope == SHARED

    @property
    def is_session(self) -> bool:
        return self.scope.startswith("session:")

    @property
    def is_call(self) -> bool:
        return self.scope.startswith("call:")

    def __str__(self) -> str:
        return self.server if self.is_shared else f"{self.server}[{self.scope}]"
