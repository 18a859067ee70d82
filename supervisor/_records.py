"""What is kept of one configured server, independent of its addresses.

Each configured server has a `ServerRecord`. It holds what outlives every actor of the server: its gatekeeper,
and whether the server can be used. A session's actor has a record of its own below it, which shares the
server's load. What the session's child does counts in its own gate; what keeps any child from starting counts
in the server's.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from ..actors import ServerActor
from ..protocol.address import Address
from ..protocol.config import Lifecycle
from ..protocol.errors import CallError
from ._availability import USABLE, Availability, Use
from ._gatekeeper import GuardedRecord

_KEEP_ALIVE: Final = Lifecycle.KEEP_ALIVE


@attrs.define(eq=False)
class ServerRecord(GuardedRecord):
    parent: ServerRecord | None = None  # for a session's record: the server's own
    address: Address = attrs.field(init=False)  # made once, because every call needs it
    available: Availability = USABLE  # a session's own says more: its child may need a login, or be down
    visit: ServerActor | None = None  # the actor that visits the server; None once its lists are known
    failure: str | None = None  # why it last failed (for a server: in any scope); cleared when it connects
    failed_at: float = -math.inf
    failed_starts: int = 0  # in a row; 0: it was lost while it ran
    start_took: float | None = None  # seconds; for a server: of the last start in any scope

    @property
    def server(self) -> ServerRecord:
        """The server's own record; from a session's record, too."""
        return self.parent or self

    @property
    def is_kept(self) -> bool:
        """Whether the server is kept alive, and may run."""
        may_live = self.available.use not in (Use.DISABLED, Use.BROKEN)
        return self.definition.lifecycle is _KEEP_ALIVE and may_live

    @property
    def refusal(self) -> CallError | None:
        """The error that refuses every call, because of the definition or because the server was taken down."""
        return self.available.refusal or (self.parent.available.refusal if self.parent is not None else None)

    def note_failure(self, why: str, at: float, failed_starts: int) -> None:
        """Keep how it failed, until it works."""
        self.failure, self.failed_at, self.failed_starts = why, at, failed_starts

    def note_success(self) -> None:
        self.failure, self.failed_starts = None, 0

    def remark(self, words: str | None) -> None:
        super().remark(words)
        if self.parent is not None:
            self.parent.remark(words)

    def __attrs_post_init__(self) -> None:
        self.address = Address(self.definition.name)


def record_of(actor: ServerActor) -> ServerRecord:
    assert isinstance(actor.record, ServerRecord)
    return actor.record
