"""How fast this machine is at present: the seconds that the smallest Python program takes, tried twice a second. What
takes long because others use the machine is not a fault of a cluster, so the limits of a run follow it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from statistics import fmean

_EVERY = 0.5  # seconds


class Pace:
    def __init__(self) -> None:
        self._took: list[tuple[float, float]] = []  # when, and how long
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_EVERY):
            began = time.monotonic()
            subprocess.run((sys.executable, "-S", "-E", "-c", ""), check=True)
            self._took.append((began, time.monotonic() - began))

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def slower(self, than: tuple[float, float], during: tuple[float, float]) -> float:
        """How many times slower the machine was during one span of time than during another; 1 if it was faster."""
        before, then = self._mean(*than), self._mean(*during)
        return 1.0 if before is None or then is None else max(1.0, then / before)

    def _mean(self, begin: float, end: float) -> float | None:
        took = [seconds for at, seconds in self._took if begin <= at <= end]
        return fmean(took) if took else None
