"""The room's `Host`: it passes what servers ask and say to the hosts of the sessions, or to the room's own.

To whom something belongs is decided in `_routing`, for the sessions of an embedder and for the clients of every door
alike. Updates of resources go to their subscribers, too. Every notification of a server passes here once.

A server is told once, at its greeting, what its client can answer. A session's child is told what that session can
answer. A shared server is told what anybody can who is there. Where clients come and go (`Sessions.for_many`) that
would depend on who came first, and nothing may be lost to tell it of one who comes later. So there it is told from the
start that everything can be asked, and for a client that cannot answer the room does: it declines, and has no roots.
From 2026-07-28 on none of this matters, because each request says what its own client can answer.

A question to one who cannot answer it is never passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from ..actors import ASKED_FOR, UPDATED, Greeting, ServerRequest, joined, lacking
from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import METHOD_NOT_FOUND, MODERN_VERSIONS
from ._routing import Routing
from ._sessions import Sessions

Subscriber = Callable[[Mapping[str, Any]], None]
_EVERYTHING: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "sampling": {"tools": {}},
}
_REJECTED: Final = -1  # the specification's example of a sampling request that a user has rejected


def _declined(request: ServerRequest, who: str) -> Mapping[str, Any]:
    """The answer in place of a client that cannot answer. Raises `RpcRefusal` where the protocol has no other no."""
    match request.method:
        case "elicitation/create":
            return {"action": "decline"}
        case "roots/list":
            return {"roots": []}
        case _:
            raise RpcRefusal(_REJECTED, f"{request.method} was declined: {who} cannot answer it.")


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
        greetings = [self._sessions.host(who).greeting(address) for who in everybody]
        if not self._sessions.for_many:
            return joined(greetings)
        if (
            not address.is_shared
        ):  # it only shows what it has; what it has for a client, that one's child says
            return greetings[0]
        return attrs.evolve(joined([*greetings, Greeting(_EVERYTHING)]), for_many=True)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        is_declined = self._may_be_declined(request)
        if is_declined and not self.routing.able(request.address, request.method):
            return _declined(request, "no client that is here")
        host = self._sessions.host(self.routing.asked(request))
        missing = lacking(host.greeting(request.address).capabilities, request.method, request.params)
        if missing is None:
            return await host.answer(request)
        if is_declined:
            return _declined(request, "the client that it is for")
        text = f"Method not found: {request.method} (the client that it is for did not declare {missing})"
        raise RpcRefusal(METHOD_NOT_FOUND, text)

    def _may_be_declined(self, request: ServerRequest) -> bool:
        """Whether the server was told that this can be asked, because there may be clients that can be."""
        is_told_each_time = request.call is not None and request.call.protocol_version in MODERN_VERSIONS
        is_told = self._sessions.for_many and request.address.session is None and not is_told_each_time
        return is_told and not request.is_ours and request.method in ASKED_FOR

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
