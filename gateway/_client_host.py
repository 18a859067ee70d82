"""The room's `Host` while a door is open, whatever the door shows: passes servers' requests and notifications
to clients.

A server's question goes to the client if there is exactly one client and it declared that it can answer. When
several clients share a server, nobody can know which of them the server asks. Servers are told the client's
own capabilities, so they ask only what it can answer. How a client is asked depends on its version
(`_suspended`). A client of the handshake era is sent requests. Its servers are greeted by handshake, because
only then can they ask. For a client of 2026-07-28 either kind of greeting will do.

A question names the server that asks (`_signed`), because the person who reads it has to know. Notifications
pass unchanged, except for two kinds that the door sends itself: changes of lists are announced once for all
servers, and updates of resources go to the clients that subscribed to them.
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
    """Stands between one door's clients and the servers. `on_update(server, params)` is called when a
    resource changes."""

    def __init__(self, room: HostedRoom, on_update: OnUpdate = _nobody_watches) -> None:
        self._room = room
        self._on_update = on_update
        self._clients: dict[Client, None] = {}
        self.suspended = SuspendedCalls(room.config.settings.call_total_timeout)
        room.answer_with(self)

    # ---- what clients do -------------------------------------------------------------------------------------

    def came(self, client: Client) -> None:
        """A client declared its capabilities: servers that were told others are connected again."""
        self._clients[client] = None
        self._room.restart_outdated()

    def said(self, method: str) -> None:
        """A client sent a notification."""
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
        # A client of the handshake era that sets no level gets whatever a server chooses to send.
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
