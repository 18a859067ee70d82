"""Visits: servers that will be asked what they have, a few dozen at a time.

A server with unknown tools is started once so that it lists them. A configuration may have thousands of such
servers, so most wait here as a name only: an actor for each, with a queue entry and timers, would make a room
slow to start and to end. A server that is called meanwhile does not wait for its visit; the call starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import anyio

AT_ONCE: Final = 50  # visits that have begun and were not tried yet


class Visits:
    """`begin(server)` starts one visit, or returns False when that is no longer possible; `tried` reports its
    end."""

    def __init__(self, begin: Callable[[str], bool]) -> None:
        self._begin = begin
        self._begun: set[str] = set()
        self._later: dict[str, None] = {}  # in order
        self._is_beginning = False
        self._all_tried = anyio.Event()

    def __bool__(self) -> bool:
        """Whether there are servers that were not tried yet."""
        return bool(self._begun or self._later)

    def ask(self, servers: Iterable[str]) -> None:
        """Visit them in this order, after those that were requested earlier."""
        for server in servers:
            if server in self._begun:
                self._begin(server)  # a visit under way is joined
            else:
                self._later[server] = None
        if self and self._all_tried.is_set():
            self._all_tried = anyio.Event()
        self._go_on()

    def tried(self, server: str) -> None:
        """The server has been tried once, with or without success. Does nothing for a server that was not
        asked."""
        self._begun.discard(server)
        self._later.pop(server, None)
        self._go_on()

    def close(self) -> None:
        """Start no more visits, and release everybody who waits."""
        self._begun.clear()
        self._later.clear()
        self._all_tried.set()

    async def wait(self) -> None:
        """Wait until every server was tried once."""
        while self:
            await self._all_tried.wait()

    def _go_on(self) -> None:
        if self._is_beginning:  # a visit may end while it is begun; the loop that runs then goes on
            return
        self._is_beginning = True
        try:
            while self._later and len(self._begun) < AT_ONCE:
                server = next(iter(self._later))
                del self._later[server]
                self._begun.add(server)
                if not self._begin(server):
                    self._begun.discard(server)
        finally:
            self._is_beginning = False
        if not self:
            self._all_tried.set()
