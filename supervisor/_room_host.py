"""The room's `Host`. It knows who answers requests for which address, and who subscribed to which resource.

Every notification of a server passes here once. Updates of resources go to their subscribers, and all
notifications go to the callbacks of the address's owner. A door with a client of its own replaces the
callbacks with `answer_with`. Then servers that were told other capabilities connect again, because a server
can be told only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..actors import UPDATED, Greeting, Host, ServerRequest
from ..protocol.address import Address
from ._callbacks import Callbacks

Subscriber = Callable[[Mapping[str, Any]], None]


@attrs.frozen(eq=False)
class _Subscription:
    subscriber: Subscriber
    over: Callable[[], None] | None


class RoomHost:
    def __init__(self, callbacks: Callbacks, on_bug: Callable[[Address, Exception], None]) -> None:
        self._callbacks = callbacks
        self._on_bug = on_bug
        self._host: Host | None = None
        self._subscribers: dict[Address, list[_Subscription]] = {}

    def answer_with(self, host: Host | None) -> None:
        self._host = host

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
        return (self._host or self._callbacks).greeting(address)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        return await (self._host or self._callbacks).answer(request)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        try:
            if method == UPDATED:
                for subscription in tuple(self._subscribers.get(address, ())):
                    subscription.subscriber(params or {})
            (self._host or self._callbacks).heard(address, method, params)
        except Exception as error:
            self._on_bug(address, error)
