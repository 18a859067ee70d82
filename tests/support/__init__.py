"""What the tests share: running one body on both backends, on the real clock or on a virtual one.

Both runners refuse to end while a task the body started still lives, so a forgotten task fails the test that forgot it.
Processes and descriptors are watched by `leaks`, schedules are seeded by `seeds`, both for every test (`conftest`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from .checked import CheckedLoop
from .tasks import refuse_leftovers

T = TypeVar("T")

__all__ = ["run", "run_virtual"]


def run(backend: str, body: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run `body(*args)` to its end on `backend` ("trio" or "asyncio"), real clock.

    Raises `AssertionError` naming the tasks that outlived the body.
    """
    options: dict[str, Any] = {}
    if backend == "asyncio":
        options = {"debug": True, "loop_factory": CheckedLoop}
    return anyio.run(refuse_leftovers, body, *args, backend=backend, backend_options=options)


def run_virtual(backend: str, body: Callable[..., Awaitable[T]], *args: Any) -> T:
    """The same in virtual time, from 0.0: when everything waits, the clock jumps to the next deadline.

    Not for bodies that use threads, sockets or processes: their waiting is invisible to a virtual clock.
    """
    from .virtual import virtual_options  # with it comes pytest, which the servers of the tests do not need

    return anyio.run(refuse_leftovers, body, *args, backend=backend, backend_options=virtual_options(backend))
