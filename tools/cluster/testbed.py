"""What a run happens to: a head and three nodes of Ray on this machine, two fronts, and the time that passes there.

How long anything may take follows from what the same run has measured: how long all servers needed to start when there
were no faults, and how much slower the machine has become since (`pace`).
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from greenroom.cluster.directory import DirectorySilent
from greenroom.cluster.leases import LeaseTimes
from greenroom.cluster.ray_cluster import LOCAL_TAG, LocalCluster
from greenroom.cluster.ray_directory import RayDirectory, connect

from ..processes import command, parents
from . import books
from .pace import Pace

TIMES = LeaseTimes()
NODES = 3
FRONTS = ("front-trio", "front-asyncio")
SERVERS = {
    isolation: [f"{word}-{n}" for n in range(10)]
    for isolation, word in (("persistent", "shared"), ("per_session", "session"), ("per_call", "call"))
}
# Ray's own notice of a lost raylet, so that a stopped one is lost within the run.
RAY = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}


class Testbed:
    """`nodes`: those whose raylet lives, as far as is known. `calm`: since when all is to be well. `killed`: the books
    of fronts that were killed. `faults`: what has happened, and when."""

    def __init__(self, seed: str, calls: int, folder: Path) -> None:
        self.folder = folder
        self.calm = 0.0
        self.nodes: list[Any] = []
        self.killed: set[str] = set()
        self.faults: list[tuple[float, str]] = []
        self.began = time.monotonic()
        self._seed, self._calls = seed, calls
        self._pace = Pace()
        self._start = 0.0  # seconds that all servers together took to start, as they do again after a fault
        self._starting = (0.0, 0.0)  # when that was
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._leaving: list[tuple[Any, float]] = []  # nodes, and since when
        self._fronts: dict[str, subprocess.Popen[bytes]] = {}
        self._directory: RayDirectory | None = None
        self.clusters = [LocalCluster(**RAY)]  # the last is the one that runs

    @property
    def cluster(self) -> LocalCluster:
        return self.clusters[-1]

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f}  {text}", flush=True)

    # ---- its beginning and its end -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start everything, and wait until every server has answered every front."""
        self.nodes = [self.cluster.add() for _ in range(NODES)]
        self._directory, _token = connect(self.cluster.address, TIMES)
        self.say(f"a head and {NODES} nodes at {self.cluster.address}")
        plan = {
            "seed": self._seed,
            "address": self.cluster.address,
            "books": str(self.folder),
            "config": _config(self.folder),
            "servers": SERVERS,
            "callers": max(1, self._calls // len(FRONTS) - len(SERVERS["persistent"])),
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        for name in FRONTS:
            self._start_front(name)
        began = time.monotonic()
        if not self.wait(self.all_answer, 60.0 + 4 * (began - self.began)):
            raise RuntimeError(f"not every server has answered every front:\n{self.said(FRONTS[0])}")
        self._starting = (began, time.monotonic())
        self._start = time.monotonic() - began
        self.say(f"every server has answered every front; all together took {self._start:.1f} s to start")

    def end_fronts(self) -> list[str]:
        """As their users do. Returns what went wrong."""
        wrong: list[str] = []
        for name, front in self._fronts.items():
            front.send_signal(signal.SIGTERM)
            limit = self.limit(45.0)
            try:
                code = front.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} has not ended within {limit:.0f} s")
            else:
                wrong += [f"{name} ended with {code}:\n{self.said(name)}"] if code else []
        return wrong

    def close(self) -> list[str]:
        """End what is left. Returns what does not end."""
        for front in self._fronts.values():
            front.kill()
            front.wait()
        if self._directory is not None:
            self._directory.close()
        for cluster in reversed(self.clusters):
            cluster.close()
        self.wait(lambda: not self._own(), self.limit(5.0), tick=False)
        self._pace.close()
        return [f"left over: {pid} {command(pid)}" for pid in self._own()]

    # ---- the time that passes ----------------------------------------------------------------------------------------

    def wait(self, true: Callable[[], bool], seconds: float, *, tick: bool = True) -> bool:
        """Until it is true; whether it is within so many seconds. `tick`: what is due is done meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if tick:
                self._tick()
            if true():
                return True
            time.sleep(0.1)
        return bool(true())

    def pass_(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), do))

    def limit(self, seconds: float, during: tuple[float, float] | None = None) -> float:
        """So many seconds, and what all servers need to start on this machine, as it was during that time (now)."""
        now = time.monotonic()
        slower = self._pace.slower(self._starting, during or (now - TIMES.length, now))
        return seconds + self._start * slower

    def befell(self, fault: str, whom: str = "") -> None:
        """Note what has happened just now."""
        self.faults.append((time.monotonic(), fault))
        self.say(f"{fault}: {whom}" if whom else fault)

    def _tick(self) -> None:
        """What is due, for whom."""
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()
        for node in self.nodes[:]:
            if has_ended(node):
                self.say("a raylet has ended by itself: its head took it for dead")
                self.lose_node(raylet_of(node))
        for node, since in self._leaving[:]:  # a raylet that nobody reaps keeps its workers alive
            if has_ended(node):
                self._leaving.remove((node, since))
                if time.monotonic() - since > 1.0:  # its host has lived until now
                    self.befell("end of a stopped raylet")
                self.cluster.remove(node)
                self.nodes.append(self.cluster.add())
                self.say("another node has joined")
        for name, front in self._fronts.items():
            if (code := front.poll()) is not None and _book(name, front) not in self.killed:
                raise RuntimeError(f"{name} has ended by itself, with {code}:\n{self.said(name)}")

    # ---- what is there -----------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether nothing is due any more, and no node is leaving."""
        return not (self._later or self._leaving)

    def lose_node(self, raylet: int) -> None:
        """Its raylet is ending: another node takes its place once it has gone."""
        [node] = [node for node in self.nodes if raylet_of(node) == raylet]
        self.nodes.remove(node)
        self._leaving.append((node, time.monotonic()))

    def fronts_running(self) -> list[int]:
        return [front.pid for front in self._fronts.values() if front.poll() is None]

    def lose_front(self, pid: int) -> None:
        """It was killed, and is started again."""
        [name] = [name for name, front in self._fronts.items() if front.pid == pid]
        self.killed.add(_book(name, self._fronts[name]))
        self._fronts[name].wait()
        self.later(1.0, lambda: self._start_front(name))

    def said(self, front: str) -> str:
        """The end of its stderr."""
        return (self.folder / f"{front}.err").read_text(errors="replace")[-4000:]

    def hosts(self) -> int:
        """How many have a lease; 0: the directory does not say."""
        assert self._directory is not None
        try:
            view = anyio.run(self._directory.view)
        except DirectorySilent:
            return 0
        return 0 if view is None else sum(not host.is_late for host in view.hosts)

    def servers(self) -> list[int]:
        """The processes of servers."""
        return [pid for pid in self._own() if "server.py" in command(pid)]

    def all_answer(self) -> bool:
        """Whether each front has had an answer of each persistent server, since it was started and since the calm."""
        for name, front in self._fronts.items():
            book = books.calls(self.folder).get(_book(name, front), [])
            good = {call.server for call in book if call.outcome == "ok" and (call.ended or 0) > self.calm}
            if not good >= set(SERVERS["persistent"]):
                return False
        return True

    def _own(self) -> list[int]:
        """The processes whose command names this run's folder, apart from this one."""
        return [pid for pid in parents() if str(self.folder) in command(pid) and pid != os.getpid()]

    def _start_front(self, name: str) -> None:
        untagged = {
            key: value for key, value in os.environ.items() if key != LOCAL_TAG
        }  # it outlives a cluster
        with (self.folder / f"{name}.err").open("ab") as errors:
            self._fronts[name] = subprocess.Popen(
                (sys.executable, "-m", "tools.cluster.front", str(self.folder / "plan.json"), name),
                stderr=errors,
                env=untagged,
            )


def raylet_of(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


def has_ended(node: Any) -> bool:
    return node.all_processes["raylet"][0].process.poll() is not None


def _book(name: str, front: subprocess.Popen[bytes]) -> str:
    """The name of the book of this process of a front."""
    return f"{name}.{front.pid}"


def _config(folder: Path) -> dict[str, Any]:
    program = str(Path(__file__).with_name("server.py"))
    servers = {
        name: {
            "command": sys.executable,
            "args": ["-S", "-E", program, str(folder), name],
            "isolation": isolation,
            "lifecycle": "lazy",
        }
        for isolation, names in SERVERS.items()
        for name in names
    }
    return {"mcpServers": servers, "settings": {"maxConnections": 400, "idleTimeout": 1}}
