"""The requests between us and one other side, a server or a client, that have no answer yet.

Those that we have sent (`RequestTable`) have ids of ours, counted from one, in whatever form they are written. Each is
ended once: whoever takes it off the table ends it, or leaves it to its owner. A request that was not sent cannot be
answered, so an answer to it counts as guessed.

Those that came (`IncomingTable`) have the id that the other side gave them. Each is taken off in the step that answers
it, or when it is cancelled. Their number is bounded. Servers and clients differ only in data: the bound, and the texts
of the refusals.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import msgspec

from ..protocol.jsonrpc.terms import INVALID_REQUEST, OVERLOADED, RpcFault
from .peer import ANSWERED, NOT_SENT, SENT, Cancellable, Exchange


class RequestTable(dict[int, Exchange]):
    """Open requests by their ids. `last_id`: the last id given. `withdrawn`: how many were taken off without an answer.

    A request gets its id when its line has been encoded: one that cannot be encoded is not opened.
    """

    __slots__ = ("last_id", "withdrawn")

    def __init__(self) -> None:
        super().__init__()
        self.last_id: int = 0
        self.withdrawn: int = 0

    @property
    def answers(self) -> int:
        """How many requests were answered. Counted so, it costs none of them anything."""
        return self.last_id - len(self) - self.withdrawn

    def open(self, exchange: Exchange) -> None:
        """Give the request the next id."""
        self.last_id = exchange.rpc_id = rpc_id = self.last_id + 1
        self[rpc_id] = exchange

    def answered(self, rpc_id: int) -> Exchange | None:
        """Take off the request that this answers, so that the answer can end it. None: it has ended, or was never
        sent."""
        exchange = self.get(rpc_id)
        if exchange is None or exchange.reach is NOT_SENT:
            return None
        del self[rpc_id]
        exchange.reach = ANSWERED
        return exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Take the request off without an answer. Returns False if it is not open, or has another id by now."""
        if self.get(exchange.rpc_id) is not exchange:
            return False
        del self[exchange.rpc_id]
        self.withdrawn += 1
        return True

    def progress(self, rpc_id: int, params: Mapping[str, Any]) -> bool:
        """Tell the request of its progress. False: no such request is open."""
        exchange = self.get(rpc_id)
        if exchange is None:
            return False
        exchange.owner.exchange_progressed(exchange, params)
        return True


def mark_sent(exchange: Exchange) -> None:
    """The first byte of the request was accepted: from here on it may run. The request is told once."""
    if exchange.reach is NOT_SENT:
        exchange.reach = SENT
        exchange.owner.exchange_sent(exchange)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Cancellable)


class Refusals(msgspec.Struct, frozen=True):
    """Why a request is not admitted. `{open}` stands for the number of open requests."""

    full: str
    same_id: str
    closing: str


class IncomingTable(dict[K, V]):
    """Open requests by their ids. `limit` bounds their number; once `closing`, none is admitted.

    To admit one is `check(id)` and `table[id] = request`; to answer it, `pop(id)`.
    """

    __slots__ = ("_refusals", "closing", "limit")

    def __init__(self, limit: int, refusals: Refusals) -> None:
        super().__init__()
        self.limit: int = limit
        self.closing: bool = False
        self._refusals = refusals

    def check(self, rpc_id: K) -> None:
        """Raises `RpcFault` when no request with this id can be admitted now."""
        if self.closing:
            raise RpcFault(OVERLOADED, self._refusals.closing)
        if rpc_id in self:
            raise RpcFault(INVALID_REQUEST, self._refusals.same_id)
        if len(self) >= self.limit:
            raise RpcFault(OVERLOADED, self._refusals.full.format(open=len(self)))

    def cancel(self, rpc_id: K) -> None:
        """The other side does not want an answer any more. An unknown id is no error: the answer and the cancellation
        may have crossed."""
        request = self.pop(rpc_id, None)
        if request is not None:
            request.cancel()

    def cancel_all(self) -> None:
        """The other side is gone."""
        requests = list(self.values())
        self.clear()
        for request in requests:
            request.cancel()
