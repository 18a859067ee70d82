"""What has arrived at the doors of a room and waits there: bodies that still come, requests whose tool has to be found
first, lists that wait until they are complete.

A message is counted from its arrival until it has its answer or a call takes it over. (A call is counted where calls
wait.) A message that would exceed the bound is refused at once. So neither many clients nor a server that never
connects make us hold more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from ..protocol import jsonrpc as rpc
from ..protocol.errors import Busy
from ..protocol.jsonrpc.terms import RpcFault


class InboundBudget:
    """The bytes that wait at all doors of a room together. `most`: how many there may be. While nothing else waits, one
    request is taken even if it is larger: its own size has another bound."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.held: int = 0
        self._most = most

    def take(self, size: int) -> None:
        """Raises `RpcFault` when this would be too much."""
        if self.held and self.held + size > self._most():
            text = (
                f"The gateway is busy: requests that wait at its doors would be over {self._most():,} bytes. "
                "Nothing was called. Retry when some have ended."
            )
            raise RpcFault(rpc.OVERLOADED, text, {"error": Busy.code, "reach": "not_sent"})
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size

    @contextmanager
    def arriving(self) -> Generator[Callable[[int], None]]:
        """A message that comes piece by piece. What is taken for it, as `take` does, counts as long as this is open."""
        size = 0

        def take(more: int) -> None:
            nonlocal size
            self.take(more)
            size += more

        try:
            yield take
        finally:
            self.give_back(size)
