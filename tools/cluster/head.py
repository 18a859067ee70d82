"""What becomes of a cluster that loses its head: its store alone (Ray's GCS), or all of it.

Without fault tolerance: of its store alone, calls go on, because the directory lives; after a minute Ray ends the
nodes. Of all of it: there is no directory any more, so all leases end, and every server with them, within a lease. In
both cases the fronts stay, and go on when there is a cluster at the same address again.

With fault tolerance (`Kept`), what the store knows is in Redis, or in files, and the head is started again at once: the
nodes and their hosts stay, whatever was lost of the head.
"""

from __future__ import annotations

import enum
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from greenroom.cluster.ray_cluster import LocalCluster
from greenroom.cluster.ray_directory import connect

from . import books, faults
from .course import FRONTS, HOSTS, LIMIT, RAY, TIMES, Run, servers

NODES_END = 90.0  # seconds until Ray has ended nodes that have lost their head: a minute, by its default
GRACE = 10.0  # seconds from SIGTERM to SIGKILL: Ray's store does not end by itself while anybody is connected
FOLLOWED = 30.0  # seconds of calls after a head came back


class Part(enum.Enum):
    STORE = "store"
    ALL = "all"


class Kept(enum.Enum):
    """Where the head's store keeps what it knows, so that another head can go on."""

    REDIS = "redis"
    ROCKSDB = "rocksdb"


@contextmanager
def kept_in(kept: Kept | None, folder: Path) -> Generator[None]:
    """Ray's settings for a store that outlives the head. Ends with what to do where there is no Redis."""
    if kept is None:
        yield
        return
    os.environ.update(RAY_gcs_rpc_server_reconnect_timeout_s="600")
    if kept is Kept.ROCKSDB:
        os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=str(folder / "store"))
        yield
        return
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        sys.exit(
            "There is no redis-server here. Install it (Debian: apt install redis-server), or name it in REDIS_SERVER."
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder))
    redis = subprocess.Popen((program, *words), stdout=subprocess.DEVNULL)
    os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        redis.kill()
        redis.wait()


class HeadRun(Run):
    def __init__(self, part: Part, how: signal.Signals, seed: str, calls: int, folder: Path) -> None:
        super().__init__(seed, 0.0, calls, folder)
        self._part = part
        self._how = how

    def _befall(self, hosts: Callable[[], int]) -> list[str]:
        wrong: list[str] = []
        old, nodes, self._nodes = self._cluster, self._nodes, []
        lost = self._lose_head(old.head)
        self.calm = lost + TIMES.length  # what is answered after that
        goes_on = faults.wait_until(self._all_answer, TIMES.length + self._within(LIMIT), self._tick)
        if goes_on is not (self._part is Part.STORE):
            wrong.append(f"calls {'go' if goes_on else 'do not go'} on without the head")
        if self._part is Part.ALL:
            wrong += self._outlived(lost + TIMES.length + TIMES.drift)
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

    def _lose_head(self, head: Any) -> float:
        """Returns when it was lost."""
        kinds = ("gcs_server",) if self._part is Part.STORE else ("gcs_server", "raylet")
        ended = [each.process for kind in kinds for each in head.all_processes[kind]]
        workers = [] if self._part is Part.STORE else faults.children(faults.raylet_of(head))
        began = time.monotonic()
        for process in ended:
            faults.send(process.pid, self._how)
        if self._how is signal.SIGKILL:
            for pid in workers:
                faults.send(pid, signal.SIGKILL)
        end = time.monotonic() + GRACE
        for process in ended:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()
        now = time.monotonic()
        self._done.append((now, "kill the head"))
        what = "the head" if self._part is Part.ALL else "its store"
        self.say(f"{what} has ended, {now - began:.1f} s after {self._how.name}")
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


class KeptHeadRun(HeadRun):
    """With a store that outlives the head, which is started again at once."""

    _former: LocalCluster | None = None

    def _befall(self, hosts: Callable[[], int]) -> list[str]:
        wrong: list[str] = []
        before = self._hosts_of_nodes()
        lost = self._lose_head(self._cluster.head)
        self._start_head()
        back = time.monotonic()
        self.say(f"the head is back after {back - lost:.1f} s")
        if not faults.wait_until(lambda: hosts() == HOSTS, self._within(60.0), self._tick):
            wrong.append(f"{hosts()} hosts have a lease with the new head, not {HOSTS}")
        self.say(f"{hosts()} hosts have a lease {time.monotonic() - back:.1f} s later")
        self.calm = time.monotonic()
        if not faults.wait_until(self._all_answer, 60.0 + self._within(LIMIT), self._tick):
            wrong.append(f"not every server answers every front again:\n{self._said(FRONTS[0])}")
        self.say(f"every server answers every front {time.monotonic() - lost:.1f} s after the head was lost")
        faults.wait_until(lambda: False, FOLLOWED, self._tick)
        if (after := self._hosts_of_nodes()) != before:
            wrong.append(f"hosts were started again: {before} before, {after} now")
        return wrong

    def _hosts_of_nodes(self) -> dict[str, int | None]:
        return {node.node_id[:6]: self._cluster.host_of(node) for node in self._nodes}

    def _start_head(self) -> None:
        if self._part is Part.STORE:
            head = self._cluster.head
            head.kill_gcs_server(check_alive=False)  # it has ended, which Ray's own account is to know
            head.start_gcs_server()
            return
        port = int(self._cluster.address.rpartition(":")[2])
        self._former, self._cluster = self._cluster, LocalCluster(port=port, **RAY)

    def _close(self) -> None:
        super()._close()
        if self._former is not None:
            self._former.close()  # its nodes, which have gone over to the other head


def _has_ended(node: Any) -> bool:
    return node.all_processes["raylet"][0].process.poll() is not None
