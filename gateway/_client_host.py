"""The host of a door's clients: servers ask the door's client, and say things unasked; it decides what becomes of it.

It is the room's `Host` for as long as there is a door, whatever the door shows.

A question goes to the client if there is one, and only one, and it declared that it can answer: of a server that
several clients share nobody can know whom it means. Servers are told of the client's own capabilities, so they ask what
it can answer, in the version it said. The client's eras differ in how it is asked (`_suspended`): one that is asked by
requests has servers greeted by handshake, where they can ask; one of 2026-07-28 takes both kinds as they are.

What servers ask says who asks (`_signed`): a person who is shown a question has to know that. What they say passes as
it is, except what the door says itself: changes of lists are announced once for all, and updates of resources are for
who watches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..actors import UPDATED, Greeting, ServerRequest, not_found
from ..protocol.address import Address
from ._signed import question_of, without_ours
from ._suspended import SuspendedCalls

if TYPE_CHECKING:
    from ._exposure import Client
    from ._room import HostedRoom

OnUpdate = Callable[[str, Mapping[str, Any]], None]

_ANSWERABLE: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
_UNASKED_LEVEL: Final = "info"
_OURS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)


def _nobody_watches(_server: str, _params: Mapping[str, Any]) -> None:
    pass


class ClientHost:
    """Between one door's clients and the servers. `on_update(server, params)` hears of resources that changed."""

    def __init__(self, room: HostedRoom, on_update: OnUpdate = _nobody_watches) -> None:
        self._room = room
        self._on_update = on_update
        self._clients: dict[Client, None] = {}
        self.suspended = SuspendedCalls(room.config.settings.call_total_timeout)
        room.answer_with(self)

    # ---- what clients do -------------------------------------------------------------------------------------

    def came(self, client: Client) -> None:
        """It said what it can do: servers that were told otherwise are connected again."""
        self._clients[client] = None
        self._room.restart_outdated()

    def said(self, method: str) -> None:
        """A notification of a client's."""
        if method == "notifications/roots/list_changed":
            self._room.roots_changed()

    def left(self, client: Client) -> None:
        self._clients.pop(client, None)
        self.suspended.left(client)

    # ---- Host ------------------------------------------------------------------------------------------------

    def greeting(self, address: Address) -> Greeting:
        client = self._sole_client()
        if client is None:
            return Greeting()
        said = client.capabilities
        capabilities = {name: said[name] for name in _ANSWERABLE.values() if name in said}
        if client.modern:
            return Greeting(capabilities)
        # Whoever speaks by handshake and names no level is sent what a server thinks fit.
        return Greeting(capabilities, by_handshake=bool(capabilities), log_level=_UNASKED_LEVEL)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        client = self._sole_client()
        if client is None or _ANSWERABLE.get(request.method) not in client.capabilities:
            raise not_found(request.method)
        params = question_of(request.server, request.method, request.params)
        if client.modern:
            asked = {"method": request.method, "params": params}
            return without_ours(await self.suspended.ask(client, request.server, asked))
        meta: Mapping[str, Any] = request.params.get("_meta") or {}
        progress = request.progress if "progressToken" in meta else None
        return without_ours(await client.ask(request.method, params, progress))

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method in _OURS:
            return
        if method == UPDATED:
            self._on_update(address.server, params or {})
            return
        told = None if params is None else without_ours(params)
        for client in tuple(self._clients):
            client.tell(method, told)

    def _sole_client(self) -> Client | None:
        return next(iter(self._clients)) if len(self._clients) == 1 else None
