"""The requests we have made of one other side and that it has not answered: of a server, or of a client.

The ids are ours, counted from one, whatever form they take on the line. Each request is ended once: whoever takes it
off the table ends it, or leaves it to its owner. What was not sent cannot be answered, so an answer to it is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._peer import ANSWERED, NOT_SENT, SENT, Exchange


class RequestTable:
    """Open requests by their ids. `last_id`: the last that was given."""

    __slots__ = ("_open", "last_id")

    def __init__(self) -> None:
        self.last_id = 0
        self._open: dict[int, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, exchange: Exchange) -> None:
        """Give it the next id. Its line is made before: what cannot be said is not opened."""
        self.last_id = exchange.rpc_id = rpc_id = self.last_id + 1
        self._open[rpc_id] = exchange

    def find(self, rpc_id: int) -> Exchange | None:
        return self._open.get(rpc_id)

    def answered(self, rpc_id: int) -> Exchange | None:
        """Take off the one that is answered, for the answer to end it. None: it has ended, or was never sent."""
        exchange = self._open.get(rpc_id)
        if exchange is None or exchange.reach is NOT_SENT:
            return None
        del self._open[rpc_id]
        exchange.reach = ANSWERED
        return exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Take it off without an answer. False: it is not open, or no longer by the id it has."""
        if self._open.get(exchange.rpc_id) is not exchange:
            return False
        del self._open[exchange.rpc_id]
        return True

    def progress(self, rpc_id: int, params: Mapping[str, Any]) -> None:
        """Tell the request of its progress; it is late for one that has ended."""
        exchange = self._open.get(rpc_id)
        if exchange is not None:
            exchange.progress(params)

    def drop(self, rpc_id: int) -> Exchange | None:
        """Take off whatever has this id."""
        return self._open.pop(rpc_id, None)

    def clear(self) -> list[Exchange]:
        """Take all off: the other side is gone."""
        exchanges = list(self._open.values())
        self._open.clear()
        return exchanges


def mark_sent(exchange: Exchange) -> None:
    """The first byte of it was accepted: it may run from here on. Says so once."""
    if exchange.reach is NOT_SENT:
        exchange.reach = SENT
        exchange.sent()
