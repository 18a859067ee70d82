"""The requests that we have sent to one other side, a server or a client, and that are still open.

The ids are ours, counted from one, in whatever form they are written. Each request is ended once: whoever takes it
off the table ends it, or leaves it to its owner. A request that was not sent cannot be answered, so an answer to
it counts as guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._peer import ANSWERED, NOT_SENT, SENT, Exchange


class RequestTable:
    """Open requests by their ids. `last_id`: the last id given."""

    __slots__ = ("_open", "last_id")

    def __init__(self) -> None:
        self.last_id = 0
        self._open: dict[int, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, exchange: Exchange) -> None:
        """Give the request the next id. Its line is encoded first: a request that cannot be encoded is not opened."""
        self.last_id = exchange.rpc_id = rpc_id = self.last_id + 1
        self._open[rpc_id] = exchange

    def find(self, rpc_id: int) -> Exchange | None:
        return self._open.get(rpc_id)

    def answered(self, rpc_id: int) -> Exchange | None:
        """Take off the request that is answered, for the answer to end it. None: it has ended, or was never sent."""
        exchange = self._open.get(rpc_id)
        if exchange is None or exchange.reach is NOT_SENT:
            return None
        del self._open[rpc_id]
        exchange.reach = ANSWERED
        return exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the request off without an answer. False: it is not open, or no longer under this id."""
        if self._open.get(exchange.rpc_id) is not exchange:
            return False
        del self._open[exchange.rpc_id]
        return True

    def progress(self, rpc_id: int, params: Mapping[str, Any]) -> None:
        """Tell the request of its progress. Progress for a request that has ended is late, and dropped."""
        exchange = self._open.get(rpc_id)
        if exchange is not None:
            exchange.progress(params)

    def drop(self, rpc_id: int) -> Exchange | None:
        """Take off whatever has this id."""
        return self._open.pop(rpc_id, None)

    def clear(self) -> list[Exchange]:
        """Take off all requests: the other side is gone."""
        exchanges = list(self._open.values())
        self._open.clear()
        return exchanges


def mark_sent(exchange: Exchange) -> None:
    """The first byte of the request was accepted: from here on it may run. The request is told once."""
    if exchange.reach is NOT_SENT:
        exchange.reach = SENT
        exchange.owner.exchange_sent(exchange)
