"""Visits: the servers that are to be asked what they have, a few dozen at a time.

A server that nobody knows anything of is started once to say what it has. With thousands of them in a configuration,
most wait here as nothing but a name: an actor for each, queued and with timers, would make a room slow to begin and to
end. Whoever is called meanwhile does not wait for a visit; it is started by its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import anyio

AT_ONCE: Final = 50  # visits that have begun and were not tried yet


class Visits:
    """`begin(server)` asks one server, or says False when it cannot be asked any more; `tried` tells that it was."""

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
        """Visit them, in this order, after those that were asked for before."""
        for server in servers:
            if server in self._begun:
                self._begin(server)  # a visit under way is joined
            else:
                self._later[server] = None
        if self and self._all_tried.is_set():
            self._all_tried = anyio.Event()
        self._go_on()

    def tried(self, server: str) -> None:
        """It has said what it has, or failed to, once. Harmless for one that was not asked."""
        self._begun.discard(server)
        self._later.pop(server, None)
        self._go_on()

    def close(self) -> None:
        """Nobody is asked any more, and nobody waits for it."""
        self._begun.clear()
        self._later.clear()
        self._all_tried.set()

    async def wait(self) -> None:
        """Until every server was tried once."""
        while self:
            await self._all_tried.wait()

    def _go_on(self) -> None:
        if self._is_beginning:  # beginning one may bring the end of it: the loop below goes on
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
