"""Runs blocking or long work in a separate thread for which nobody has to wait.

anyio joins its worker threads when the loop or the process ends. So a blocked read in a worker could delay the end of
a process that must end within a second. The thread used here is a daemon thread. It closes a pipe when it is done, so
it never calls into the loop, and a task that is cancelled simply stops waiting.

Only work that does no harm when it is left half done may run here: reading, importing, computing. The interpreter
still runs one thread at a time, but the loop gets its turn within milliseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def apart(work: Callable[[], T]) -> T:
    """Run `work()` in the thread while the loop goes on. Raises what `work` raises, and `OSError` when there are no
    descriptors left."""
    done, ours = os.pipe()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the task that waits
            errors.append(error)
        finally:
            os.close(ours)

    try:
        threading.Thread(target=run, name="greenroom apart", daemon=True).start()
    except BaseException:
        os.close(ours)
        os.close(done)
        raise
    try:
        await anyio.wait_readable(done)
    finally:
        os.close(done)
    if errors:
        raise errors[0]
    return results[0]
