"""The room's `Host`, which knows who answers for which address, and who watches what.

Everything a server says of itself unasked passes here once. Updates of resources go to whoever watches them; all of it
goes to the callbacks of the address's owner. A door that speaks for a client of its own takes the callbacks' place with
`answer_with`; servers that were told otherwise are then connected again, because a server cannot be told twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..actors import UPDATED, Greeting, Host, ServerRequest
from ..protocol.address import Address
from ._callbacks import Callbacks

Watcher = Callable[[Mapping[str, Any]], None]


class RoomHost:
    def __init__(self, callbacks: Callbacks, on_bug: Callable[[Address, Exception], None]) -> None:
        self._callbacks = callbacks
        self._on_bug = on_bug
        self._host: Host | None = None
        self._watchers: dict[Address, list[Watcher]] = {}

    def answer_with(self, host: Host | None) -> None:
        self._host = host

    def watch(self, address: Address, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher(params)` for each resource update of this address. Returns how to stop."""
        self._watchers.setdefault(address, []).append(watcher)

        def forget() -> None:
            watchers = self._watchers.get(address, [])
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(address, None)

        return forget

    # ---- Host -------------------------------------------------------------------------------------------------------

    def greeting(self, address: Address) -> Greeting:
        return (self._host or self._callbacks).greeting(address)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        return await (self._host or self._callbacks).answer(request)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        try:
            if method == UPDATED:
                for watcher in tuple(self._watchers.get(address, ())):
                    watcher(params or {})
            (self._host or self._callbacks).heard(address, method, params)
        except Exception as error:
            self._on_bug(address, error)
