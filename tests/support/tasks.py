"""Tasks that outlive the body of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import sniffio
import trio

T = TypeVar("T")


async def refuse_leftovers(body: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await `body(*args)`; raise `AssertionError` if a task it started still lives."""
    before = _living()
    result = await body(*args)
    leftovers = [name for task, name in _living().items() if task not in before]
    assert not leftovers, f"tasks left running: {', '.join(sorted(leftovers))}"
    return result


def _living() -> dict[object, str]:
    if sniffio.current_async_library() == "trio":
        root = trio.lowlevel.current_root_task()
        assert root is not None
        return {task: task.name for task in _below(root)}
    return {task: task.get_name() for task in asyncio.all_tasks()}


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child)
