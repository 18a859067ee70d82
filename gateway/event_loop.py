"""An event loop for a process between clients and servers: asyncio's loop, but readers run inside the selector.

In each pass asyncio lists the ready keys, makes a handle for each, runs each handle in a context, and reads the clock
twice. Our readers are plain steps that need none of this. A gateway does little else than read: one call is two
reads. So these readers are called inside the selector's `select`. It keeps waiting, without returning to asyncio,
until asyncio has something to do: another descriptor is ready, the next timer is due, or a step has scheduled
something. So tasks and timers wait at most for the steps of one poll longer than before.

The readers have a poll of their own. asyncio's own selector is one descriptor in it (an epoll can be polled). Only
public interfaces are used: a selector passed to `SelectorEventLoop`, and `call_soon` and `call_at`, which see
everything that is scheduled in this thread. Other threads and signals wake the loop through asyncio's own descriptor.
This works on Linux only. Elsewhere `new_loop` returns asyncio's own loop, and `Backend` finds no `add_step` there.

Names are resolved in threads that nobody waits for. At its end asyncio waits for its own resolver threads, and a
resolver may hang for half a minute.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_MOST: Final = 64  # descriptors reported by one poll at most; the others come first in the next
Step = Callable[[], object]


if sys.platform == "linux":

    class _Selector(selectors.EpollSelector):
        """asyncio's selector, which also runs the steps. `is_awaited`: asyncio has something to do."""

        def __init__(self) -> None:
            super().__init__()
            self.is_awaited = False
            self._asyncio = self.fileno()
            self._poll = select.epoll()
            self._poll.register(self._asyncio, select.EPOLLIN)
            self._steps: dict[int, Step] = {}

        def add_step(self, fd: int, step: Step) -> None:
            self._poll.register(fd, select.EPOLLIN)
            self._steps[fd] = step

        def remove_step(self, fd: int) -> None:
            if self._steps.pop(fd, None) is not None:
                with suppress(OSError):  # it may be closed already
                    self._poll.unregister(fd)

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self.is_awaited = False  # `timeout` already takes account of what was scheduled before this
            is_ready = False
            until = None if timeout is None else time.monotonic() + timeout
            while True:
                for fd, _ in self._poll.poll(timeout, _MOST):
                    step = self._steps.get(fd)
                    if step is not None:
                        step()
                    elif fd == self._asyncio:
                        is_ready = True
                if is_ready or self.is_awaited:
                    break
                if until is not None and (timeout := until - time.monotonic()) <= 0:
                    break
            return super().select(0) if is_ready else []

        def close(self) -> None:
            self._poll.close()
            super().close()

    class StepLoop(asyncio.SelectorEventLoop):
        def __init__(self) -> None:
            self._steps = _Selector()
            super().__init__(self._steps)

        def add_step(self, fd: int, step: Step) -> None:
            """Call `step()` whenever `fd` is readable. It must neither wait nor raise."""
            self._steps.add_step(fd, step)

        def remove_step(self, fd: int) -> None:
            self._steps.remove_step(fd)

        async def getaddrinfo(
            self,
            host: bytes | str | None,
            port: bytes | str | int | None,
            *,
            family: int = 0,
            type: int = 0,
            proto: int = 0,
            flags: int = 0,
        ) -> Any:
            found: asyncio.Future[Any] = self.create_future()

            def tell(settle: Callable[[Any], object], value: object) -> None:
                if not found.done():
                    settle(value)

            def resolve() -> None:
                try:
                    settle, value = (
                        found.set_result,
                        socket.getaddrinfo(host, port, family, type, proto, flags),
                    )
                except Exception as error:
                    settle, value = found.set_exception, error
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    self.call_soon_threadsafe(tell, settle, value)

            threading.Thread(target=resolve, name="resolver", daemon=True).start()
            return await found

        def call_soon(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
            self._steps.is_awaited = True
            return super().call_soon(*args, **kwargs)

        def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            self._steps.is_awaited = True
            return super().call_at(*args, **kwargs)

    new_loop: Callable[[], asyncio.AbstractEventLoop] = StepLoop
else:
    new_loop = asyncio.new_event_loop
