"""What carries requests over HTTP: the interface of Streamable HTTP and of the older event stream.

An `Attempt` is one sending of a request. A `Carrier` sends it and has its answer taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from ...protocol.errors import Reach
from ...protocol.jsonrpc import MODERN_VERSIONS
from .._peer import Exchange


@attrs.frozen(eq=False)
class Attempt:
    """An exchange and the id it has now. Its owner may send the same exchange again before the task of this attempt
    has ended."""

    exchange: Exchange
    rpc_id: int
    line: bytes
    version: str | None = None  # the protocol version that it is spoken in

    @property
    def is_modern(self) -> bool:
        return self.version in MODERN_VERSIONS

    @property
    def method(self) -> str:
        return self.exchange.method

    def did_not_run(self) -> None:
        """The server itself says that it did not run the request."""
        self.exchange.reach = Reach.NOT_SENT


class Carrier(Protocol):
    """Brings messages to the server and back. Raises only `ExchangeFault`s for anything that a server does."""

    @property
    def may_speak_both(self) -> bool:
        """See `Peer`."""
        ...

    async def carry(self, attempt: Attempt) -> None:
        """Send a request, and have its answer taken: here, or by a stream that is read elsewhere."""
        ...

    async def deliver(self, line: bytes) -> None:
        """Send a notification, or a reply to one of the server's requests."""
        ...

    async def listen(self, settled: Callable[[], object]) -> None:
        """Read the server's messages that answer no request, for as long as their stream lasts. Starts after the
        handshake. Calls `settled()`, any number of times, when the stream is open or cannot be opened now."""
        ...

    async def leave(self) -> None:
        """Tell the server that the session is over."""
        ...
