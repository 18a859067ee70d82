"""The requests from one other side, a server or a client, that we have not answered yet.

It is the counterpart of `RequestTable`. A request is admitted under the id that the other side gave it. It is taken off
in the step that answers it, or when it is cancelled. The number of open requests is bounded. Servers and clients differ
only in data: the bound, and the texts of the refusals.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

import attrs

from ..protocol.jsonrpc import INVALID_REQUEST, OVERLOADED, RpcFault


class Cancellable(Protocol):
    """An open request: the work on its answer."""

    def cancel(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Cancellable)


@attrs.frozen
class Refusals:
    """Why a request is not admitted. `{open}` stands for the number of open requests."""

    full: str
    same_id: str
    closing: str


class IncomingTable(dict[K, V]):
    """Open requests by their ids. `limit` bounds their number; once `closing`, none is admitted.

    To admit one is `check(id)` and `table[id] = request`; to answer it, `pop(id)`.
    """

    def __init__(self, limit: int, refusals: Refusals) -> None:
        super().__init__()
        self.limit = limit
        self.closing = False
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
        """The other side no longer wants an answer. An unknown id is no error: the answer and the cancellation may
        have crossed."""
        request = self.pop(rpc_id, None)
        if request is not None:
            request.cancel()

    def cancel_all(self) -> None:
        """The other side is gone."""
        requests = list(self.values())
        self.clear()
        for request in requests:
            request.cancel()
