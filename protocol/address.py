"""Addresses: who an actor is.

The isolation key is part of the identity, so nothing can ever be shared across it by accident: two sessions of
one server are two addresses, two mailboxes, two processes (`docs/decisions/isolation.md`).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

SHARED = "shared"
HANDSHAKE = "handshake"  # the scope of what all clients of the handshake era share, beside the shared one
DISCOVERY = "call:catalogue"  # the scope of a child that is only asked for its lists
DEPTH_KEY = "GREENROOM_DEPTH"  # in a child's environment: how many rooms are above it in the process tree


def depth(environ: Mapping[str, str]) -> int:
    """How many rooms are above a process with this environment; each was started by the one before."""
    told = environ.get(DEPTH_KEY, "")
    return int(told) if told.isdecimal() else 0


@attrs.frozen(order=True, cache_hash=True)
class Address:
    """`(server, scope)`; scope is `shared`, `handshake`, `session:<id>` or `call:<id>`."""

    server: str
    scope: str = SHARED
    owner: str | None = attrs.field(default=None, eq=False, order=False, repr=False)  # of a call: its session
    is_call: bool = attrs.field(
        init=False, eq=False, repr=False
    )  # read at the end of each call, so computed once

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "is_call", self.scope.startswith("call:"))

    @classmethod
    def of_session(cls, server: str, session: str) -> Address:
        """The address of one session's own child of `server`."""
        return cls(server, f"session:{session}")

    @classmethod
    def of_call(cls, server: str, call: str, session: str | None = None) -> Address:
        """The address of a child that serves one call (or one discovery) and then ends. `session`: the session
        of that call."""
        return cls(server, f"call:{call}", session)

    @property
    def is_shared(self) -> bool:
        return self.scope == SHARED

    @property
    def is_for_handshakes(self) -> bool:
        return self.scope == HANDSHAKE

    @property
    def is_common(self) -> bool:
        """Whether many clients share what is here: all of them, or all of the handshake era."""
        return self.scope in (SHARED, HANDSHAKE)

    @property
    def is_session(self) -> bool:
        return self.scope.startswith("session:")

    @property
    def session(self) -> str | None:
        """The session for which a child at this address is started."""
        return self.scope.removeprefix("session:") if self.is_session else self.owner

    def __str__(self) -> str:
        return self.server if self.is_shared else f"{self.server}[{self.scope}]"
