"""Work that blocks, or takes long, apart from the loop: in a thread that nobody has to wait for.

Workers of anyio are joined when its loop ends or the process does, so a process that is to end within a second could be
held by whatever they read. This thread is a daemon, and tells that it is done by closing a pipe: no loop is asked for
from another thread, and whoever is cancelled meanwhile just leaves. What it does must be of no harm half done: reading,
importing, computing. The interpreter still runs one thread at a time, but gives the loop its turn within milliseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def apart(work: Callable[[], T]) -> T:
    """`work()`, while the loop goes on. Raises what it raises, and `OSError` when there are no descriptors left."""
    done, ours = os.pipe()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it is raised where it is waited for
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
