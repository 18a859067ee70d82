"""What the tests share: running an async test on both backends, on the real clock or on a virtual one.

`in_real_time` and `in_virtual_time` make such a test of an `async def`; `run` and `run_virtual` run one body. All
refuse to end while a task the body started still lives, so a forgotten task fails the test that forgot it. Processes
and descriptors are watched by `leaks`, schedules are seeded by `seeds`, both for every test (`conftest`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from .bodies import body_of
from .checked import CheckedLoop
from .tasks import refuse_leftovers

T = TypeVar("T")
_EVER = 1_000_000.0  # virtual seconds

__all__ = ["in_real_time", "in_virtual_time", "run", "run_virtual"]


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


def in_real_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make of an async test one that runs on both backends, real clock. It may ask for any fixture, `backend` too."""
    return body_of(_on(run))(test)


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The same in virtual time, as `run_virtual` has it. What waits for ever fails: its time is long, and soon over."""

    @functools.wraps(test)
    async def limited(**fixtures: Any) -> None:
        with anyio.fail_after(_EVER):
            await test(**fixtures)

    return body_of(_on(run_virtual))(limited)


def _on(runner: Callable[..., None]) -> Callable[..., None]:
    def run_on(body: Callable[..., Awaitable[None]], backend: str) -> None:
        runner(backend, body)

    return run_on
