"""How much code of `mcp_execute` may run at once in one room. Each run is two processes, so it is little."""

from __future__ import annotations

from typing import Final

import anyio

from ...protocol.bounds import EXECUTE_RUNS, EXECUTE_WAITING

_WAIT: Final = 30.0  # seconds for another run to end


class Runs:
    """The runs of one room, of all its clients: how many there may be at once."""

    def __init__(self) -> None:
        self._slots = anyio.Semaphore(EXECUTE_RUNS)

    async def take(self) -> bool:
        """Wait for a slot. False: there is none for too long, or too many wait already."""
        if self._slots.statistics().tasks_waiting >= EXECUTE_WAITING:
            return False
        with anyio.move_on_after(_WAIT):
            await self._slots.acquire()
            return True
        return False

    def give_back(self) -> None:
        self._slots.release()
