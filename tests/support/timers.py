"""Timers as a room has them, at work in a test that has no room."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from greenroom.actors.backend import pump_group
from greenroom.actors.timers import Timers


def _fail(error: BaseException) -> None:
    pytest.fail(repr(error))


@asynccontextmanager
async def timers_at_work(on_bug: Callable[[BaseException], None] = _fail) -> AsyncGenerator[Timers]:
    timers = Timers(anyio.current_time, on_bug)
    async with pump_group() as tasks:
        tasks.start_soon(timers.run)
        yield timers
