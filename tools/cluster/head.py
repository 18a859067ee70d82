"""What becomes of a cluster whose head is killed, without fault tolerance of the head.

Of its store alone (Ray's GCS): calls go on, because the directory lives; after a minute Ray ends the nodes. Of all of
it: there is no directory any more, so all leases end, and every server with them, within a lease. In both cases the
fronts stay, and go on when there is a cluster at the same address again.
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from greenroom.cluster.on_ray import LocalCluster
from greenroom.cluster.ray_directory import connect

from . import books, faults
from .course import FRONTS, HOSTS, LIMIT, RAY, TIMES, Run, servers

NODES_END = 90.0  # seconds until Ray has ended nodes that have lost their head: a minute, by its default


class Part(enum.Enum):
    STORE = "store"
    ALL = "all"


class HeadRun(Run):
    def __init__(self, part: Part, seed: str, calls: int, folder: Path) -> None:
        super().__init__(seed, 0.0, calls, folder)
        self._part = part

    def _befall(self, hosts: Callable[[], int]) -> list[str]:
        wrong: list[str] = []
        old, nodes, self._nodes = self._cluster, self._nodes, []
        killed = self._kill_head(old.head)
        self._done.append((killed, "kill the head"))
        self.say("the head is killed")
        self.calm = killed + TIMES.length  # what is answered after that
        goes_on = faults.wait_until(self._all_answer, TIMES.length + self._within(LIMIT), self._tick)
        if goes_on is not (self._part is Part.STORE):
            wrong.append(f"calls {'go' if goes_on else 'do not go'} on without the head")
        if self._part is Part.ALL:
            wrong += self._outlived(killed + TIMES.length + TIMES.drift)
        if not faults.wait_until(lambda: all(map(_has_ended, nodes)), NODES_END, self._tick):
            wrong.append("nodes live without a head")
        self.say("Ray has ended its nodes")
        if not faults.wait_until(lambda: not self._servers(), self._within(5.0), self._tick):
            wrong.append(f"servers are left of nodes that have ended: {self._servers()}")
        port = int(old.address.rpartition(":")[2])
        old.close()
        self._cluster = LocalCluster(port=port, **RAY)
        self._nodes = [self._cluster.add() for _ in range(HOSTS)]
        self.say(f"another head and {HOSTS} nodes at {self._cluster.address}")
        directory, _token = connect(self._cluster.address, TIMES)
        directory.close()
        self.calm = time.monotonic()
        if faults.wait_until(self._all_answer, 60.0 + self._within(LIMIT), self._tick):
            self.say("every server answers every front again")
        else:
            wrong.append(f"not every front has found the cluster again:\n{self._said(FRONTS[0])}")
        return wrong

    def _kill_head(self, head: Any) -> float:
        kinds = ("gcs_server",) if self._part is Part.STORE else ("gcs_server", "raylet")
        ended = [each.process for kind in kinds for each in head.all_processes[kind]]
        workers = [] if self._part is Part.STORE else faults.children(faults.raylet_of(head))
        now = time.monotonic()
        for pid in (*(process.pid for process in ended), *workers):
            faults.send(pid, signal.SIGKILL)
        for process in ended:
            process.wait()
        return now

    def _outlived(self, end: float) -> list[str]:
        """Servers that all share and that lived when another directory could have given them away."""
        persistent = servers()["persistent"]
        return [
            f"{life.server} lived {life.last - end:.2f} s after its lease"
            for life in books.lives(self.folder)
            if life.server in persistent and life.last > end
        ]

    def _servers(self) -> list[int]:
        return [pid for pid in faults.having(str(self.folder)) if "server.py" in faults.command(pid)]


def _has_ended(node: Any) -> bool:
    return node.all_processes["raylet"][0].process.poll() is not None
