"""The bridge: servers ask the door's client, and say things unasked; it decides what becomes of it.

A question goes to the client if there is one, and only one, and it declared that it can answer: of a server that
several clients share nobody can know whom it means. Servers are told of the client's own capabilities, so they ask what
it can answer, in the version it said. The client's eras differ in how it is asked (`_parking`).

What servers say passes as it is, except what the door says itself: changes of lists are announced once for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...actors import UPDATED, ServerRequest, not_found
from ...protocol.address import Address
from ._shown import NEWS

if TYPE_CHECKING:
    from .._exposure import Client
    from ._guest import Guest
    from ._parking import Parking

_ANSWERABLE: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
_OURS: Final = frozenset({*NEWS, "notifications/subscriptions/acknowledged"})


class Bridge:
    """The room's `Host`, for a door."""

    def __init__(self, guests: Mapping[Client, Guest], parking: Parking) -> None:
        self._guests = guests
        self._parking = parking

    def capabilities(self, address: Address) -> Mapping[str, Any]:
        client = self._sole_client()
        if client is None:
            return {}
        said = client.capabilities
        return {name: said[name] for name in _ANSWERABLE.values() if name in said}

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        client = self._sole_client()
        if client is None or _ANSWERABLE.get(request.method) not in client.capabilities:
            raise not_found(request.method)
        if client.modern:
            asked = {"method": request.method, "params": request.params}
            return await self._parking.ask(client, request.server, asked)
        meta: Mapping[str, Any] = request.params.get("_meta") or {}
        progress = request.progress if "progressToken" in meta else None
        return await client.ask(request.method, request.params, progress)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method in _OURS:
            return
        if method == UPDATED:
            for guest in self._guests.values():
                guest.tell_update(address.server, params or {})
            return
        for client in self._guests:
            client.tell(method, params)

    def _sole_client(self) -> Client | None:
        return next(iter(self._guests)) if len(self._guests) == 1 else None
