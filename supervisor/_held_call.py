"""One call that waits for somebody's yes, and whose call it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.approval import ApprovalRequest, Verdict
from ..protocol.events import ApprovalMove

if TYPE_CHECKING:
    import anyio

    from ..actors import Call
    from ..protocol.address import Address
    from ..protocol.index import Index

Key = tuple[str | None, bytes]  # the session, and what an allowance is remembered by


class Told(Protocol):
    def __call__(self, move: ApprovalMove, *, at_terminal: bool = False) -> None: ...


class Caller(Protocol):
    """Whose call it is: the room, or a session."""

    @property
    def session(self) -> str | None: ...

    @property
    def index(self) -> Index: ...

    def lease(self, server: str) -> Callable[[], None]:
        """Keep the server's connection from being evicted. Returns the function that ends this."""
        ...

    def submit(self, server: str, call: Call, *, allowed: bool) -> None:
        """Hand the call to its actor. Raises the `CallError` with which it is refused."""
        ...


class HeldCall:
    """One call that waits for a yes. It is the call's owner as long as no actor is."""

    protocol_version: str | None = None
    connected_at = -math.inf  # no server has been started for it
    scope: anyio.CancelScope | None = None  # of the task that asks
    answered: anyio.Event  # set when the question about it is over, if somebody is asked about it
    verdict: Verdict | None = None
    since = 0.0
    until = 0.0  # when it is refused, if nobody has answered
    number = 0  # of its question at the desk; 0: there was none yet
    is_over = False
    at_terminal = False  # whether it was answered there

    def __init__(
        self,
        leave: Callable[[HeldCall], None],
        caller: Caller,
        address: Address,
        call: Call,
        request: ApprovalRequest,
        key: Key,
        told: Told,
    ) -> None:
        self._leave = leave
        self.caller = caller
        self.address = address
        self.call = call
        self.request = request
        self.key = key
        self.told = told
        self.release: Callable[[], None] = _nothing

    def cancel(self, call: Call, reason: str) -> None:
        """The caller leaves."""
        self._leave(self)

    def exchange_sent(self, exchange: Any, /) -> None:
        """Never called, as no peer knows the call yet; so are the next two."""

    def exchange_ended(self, exchange: Any, result: bytes | None, error: Any, /) -> None: ...

    def exchange_progressed(self, exchange: Any, params: Mapping[str, Any], /) -> None: ...


def _nothing() -> None:
    pass
