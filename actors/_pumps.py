"""The task group of one connection: its pumps live exactly as long as the connection does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def pump_group() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """A task group that is cancelled when the body is done. The body's own error, or a bug in a pump, is raised as
    itself and not as a group of one."""
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
