"""Runs a program and watches its loop: `python -m tests.hostile.watched FILE MODULE [ARGUMENT…]`.

Others wait for a loop at most from one of its looks at its descriptors to the next. That stretch is measured here, from
inside the process, because from outside it cannot be told from the time that a busy machine gives to others. It is the
time that passes, or the processor time that all threads of the process use meanwhile, whichever is less. (A thread that
holds the interpreter's lock stalls a loop just as a step of the loop does.) FILE holds the longest stretch, in eight
bytes, until somebody resets it.

All three loops look at their descriptors with `select.epoll`; Linux only.
"""

from __future__ import annotations

import mmap
import runpy
import select
import struct
import sys
import threading
import time
from typing import Any

_SIZE = 8


def _watch(path: str) -> None:
    with open(path, "r+b") as file:
        told = mmap.mmap(file.fileno(), _SIZE)
    real, loop_thread = select.epoll, threading.main_thread()
    began = [float("inf"), 0.0]  # before its first look the loop is still being made

    class Epoll:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._real = real(*args, **kwargs)

        def poll(self, *args: Any, **kwargs: Any) -> list[tuple[int, int]]:
            if threading.current_thread() is not loop_thread:
                return self._real.poll(*args, **kwargs)
            stretch = min(time.monotonic() - began[0], time.process_time() - began[1])
            if stretch > struct.unpack_from("d", told)[0]:
                struct.pack_into("d", told, 0, stretch)
            found = self._real.poll(*args, **kwargs)
            began[:] = time.monotonic(), time.process_time()
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    setattr(select, "epoll", Epoll)  # noqa: B010  a type checker sees through the other way to say it


class Longest:
    """Reads FILE from another process. `take` returns the longest stretch since the last `take`, in seconds."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.truncate(_SIZE)
            self._told = mmap.mmap(file.fileno(), _SIZE)

    def take(self) -> float:
        (stretch,) = struct.unpack_from("d", self._told)
        struct.pack_into("d", self._told, 0, 0.0)
        return stretch

    def close(self) -> None:
        self._told.close()


if __name__ == "__main__":
    _, path, module, *rest = sys.argv
    _watch(path)
    sys.argv[:] = [module, *rest]
    if module == "greenroom":
        from greenroom.gateway import serve

        # Its alarm comes on a slow machine in the middle of an orderly end, and an orderly end is what is wanted.
        setattr(serve, "_LAST_RESORT", 30.0)  # noqa: B010
    runpy.run_module(module, run_name="__main__", alter_sys=True)
