"""The room's `Host`: it passes what servers ask and say to the hosts of the sessions, or to the room's own.

To whom something belongs is decided in `_routing`, for the sessions of an embedder and for the clients of every door
alike. Updates of resources go to their subscribers, too. Every notification of a server passes here once.

A server is told once, at its greeting, what its client can answer. A session's child is told what that session can
answer. A shared server is told what anybody can, and a question to one who cannot answer it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..actors import UPDATED, Greeting, ServerRequest, joined, lacking
from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import METHOD_NOT_FOUND
from ._routing import Routing
from ._sessions import Sessions

Subscriber = Callable[[Mapping[str, Any]], None]


@attrs.frozen(eq=False)
class _Subscription:
    subscriber: Subscriber
    over: Callable[[], None] | None


class RoomHost:
    def __init__(
        self, sessions: Sessions, routing: Routing, on_bug: Callable[[Address, Exception], None]
    ) -> None:
        self.routing = routing
        self._sessions = sessions
        self._on_bug = on_bug
        self._subscribers: dict[Address, list[_Subscription]] = {}

    def subscribe(
        self, address: Address, subscriber: Subscriber, over: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Call `subscriber(params)` for each resource update of this address, and `over()` when the room has
        ended. Returns a function that ends the subscription."""
        subscription = _Subscription(subscriber, over)
        self._subscribers.setdefault(address, []).append(subscription)

        def unsubscribe() -> None:
            subscribers = self._subscribers.get(address, [])
            if subscription in subscribers:
                subscribers.remove(subscription)
            if not subscribers:
                self._subscribers.pop(address, None)

        return unsubscribe

    def close(self) -> None:
        """The room has ended: no server says anything any more."""
        for subscriptions in tuple(self._subscribers.values()):
            for subscription in tuple(subscriptions):
                if subscription.over is not None:
                    subscription.over()

    # ---- Host -------------------------------------------------------------------------------------------------------

    def greeting(self, address: Address) -> Greeting:
        if address.session is not None:
            return self._sessions.greeting(address.session, address)
        everybody = (None, *self._sessions.who_see(address.server))
        return joined(self._sessions.host(who).greeting(address) for who in everybody)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        host = self._sessions.host(self.routing.asked(request))
        missing = lacking(host.greeting(request.address).capabilities, request.method, request.params)
        if missing is not None:
            text = f"Method not found: {request.method} (the client that it is for did not declare {missing})"
            raise RpcRefusal(METHOD_NOT_FOUND, text)
        return await host.answer(request)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method == UPDATED:
            for subscription in tuple(self._subscribers.get(address, ())):
                self._tell(address, subscription.subscriber, params or {})
        for who in self.routing.hearers(address, method, params or {}):
            self._tell(address, self._sessions.host(who).heard, address, method, params)

    def _tell(self, address: Address, hear: Callable[..., object], *said: Any) -> None:
        """Let one of them hear it. If that raises, the others hear it all the same."""
        try:
            hear(*said)
        except Exception as error:
            self._on_bug(address, error)
