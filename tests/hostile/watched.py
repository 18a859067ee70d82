"""Runs a program and watches its loop: `python -m tests.hostile.watched FILE MODULE [ARGUMENT…]`.

Others wait for a loop at most from one of its looks at its descriptors to the next. That stretch is measured here, from
inside the process, because from outside it cannot be told from the time that a busy machine gives to others. It is the
time that passes, or the processor time that all threads of the process use meanwhile, whichever is less. (A thread that
holds the interpreter's lock stalls a loop just as a step of the loop does.) FILE holds the longest stretch, in eight
bytes, until somebody resets it.

Trio and asyncio look at their descriptors with `select.epoll`; Linux only. uvloop does that in C, where nobody can
watch it: there a timer that is due again after a millisecond shows how long others wait for the loop.
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
_BEAT = 0.001  # seconds


class _Stretch:
    """The stretch that goes on now. FILE is told it when it ends, if it is the longest."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._told = mmap.mmap(file.fileno(), _SIZE)
        self._began = float("inf"), 0.0  # before the first look the loop is still being made

    def begin(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def end(self) -> None:
        passed, used = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        stretch = min(passed, used)
        if stretch > struct.unpack_from("d", self._told)[0]:
            struct.pack_into("d", self._told, 0, stretch)


def _watch_selectors(stretch: _Stretch) -> None:
    real, loop_thread = select.epoll, threading.main_thread()

    class Epoll:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._real = real(*args, **kwargs)

        def poll(self, *args: Any, **kwargs: Any) -> list[tuple[int, int]]:
            if threading.current_thread() is not loop_thread:
                return self._real.poll(*args, **kwargs)
            stretch.end()
            found = self._real.poll(*args, **kwargs)
            stretch.begin()
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    setattr(select, "epoll", Epoll)  # noqa: B010  a type checker sees through the other way to say it


def _watch_uvloop(stretch: _Stretch) -> None:
    from greenroom.gateway.event_loop import (
        GatewayLoop,
    )  # it imports `selectors`, which must find the other epoll

    run_forever = GatewayLoop.run_forever

    def beat(loop: GatewayLoop) -> None:
        stretch.end()
        stretch.begin()
        loop.call_later(_BEAT, beat, loop)

    def run_watched(loop: GatewayLoop) -> None:
        loop.call_soon(beat, loop)
        stretch.begin()
        run_forever(loop)
        stretch.end()

    setattr(GatewayLoop, "run_forever", run_watched)  # noqa: B010


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
    stretch = _Stretch(path)
    _watch_selectors(stretch)
    _watch_uvloop(stretch)
    sys.argv[:] = [module, *rest]
    if module == "greenroom":
        from greenroom.gateway import serve

        # Its alarm comes on a slow machine in the middle of an orderly end, and an orderly end is what is wanted.
        setattr(serve, "_LAST_RESORT", 30.0)  # noqa: B010
    runpy.run_module(module, run_name="__main__", alter_sys=True)
