"""Tasks of a world that wait in the background: callers, delays, everything that does not end within its step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ..protocol.errors import GreenroomError
from ._virtual_run import VirtualRun


class Background:
    """`waiting`: how many of the tasks have not ended. `unexpected`: errors that no caller of a room should see."""

    def __init__(self, run: VirtualRun) -> None:
        self.waiting = 0
        self.unexpected: list[str] = []
        self._run = run

    def start(self, body: Callable[[], Awaitable[object]]) -> None:
        """Run `body` in a task of its own. It may fail with an error of ours."""

        async def job() -> None:
            try:
                await body()
            except GreenroomError:
                pass
            except Exception as error:
                self.unexpected.append(f"{error!r} came out of the room")
            finally:
                self.waiting -= 1

        async def go() -> None:
            self.waiting += 1
            self._run.nursery.start_soon(job)

        self._run.run(go)

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Call `act` in `delay` seconds."""

        async def body() -> None:
            await anyio.sleep(delay)
            act()

        self.start(body)
