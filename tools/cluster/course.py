"""The course of a run: the cluster, the fronts, the faults, the calm, and what the books say.

How long anything may take follows from what the same run has measured: how long all servers needed to start when there
were no faults, and how much slower the machine has become since (`pace`).
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
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
from greenroom.cluster.ray_cluster import LocalCluster
from greenroom.cluster.ray_directory import RayDirectory, connect

from . import books, faults
from .pace import Pace

TIMES = LeaseTimes()
HOSTS = 3
FRONTS = ("front-trio", "front-asyncio")
LIMIT = (
    TIMES.length + TIMES.drift + 2.0
)  # seconds to the next answer of an address that moves, if its start takes none
# What a fault of another kind may take from those who call a server that all share: a directory that was started again
# grants nothing for a lease, and without any directory all leases end.
_OF_ANOTHER = {
    "kill the directory": LIMIT + 2.0,
    "stop the directory": faults.STOPPED * TIMES.length + LIMIT,
    "kill a front": 0.0,
    "stop a front": faults.STOPPED * TIMES.length,
    "kill a front's driver": 0.0,
    "kill the head": math.inf,  # until there is another
}
# Ray's own notice of a lost raylet, so that a stopped one is lost within the run.
RAY = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}


def servers() -> dict[str, list[str]]:
    kinds = {"persistent": "shared", "per_session": "session", "per_call": "call"}
    return {isolation: [f"{word}-{n}" for n in range(10)] for isolation, word in kinds.items()}


def config(folder: Path) -> dict[str, Any]:
    program = str(Path(__file__).with_name("server.py"))
    return {
        "mcpServers": {
            name: {
                "command": sys.executable,
                "args": ["-S", "-E", program, str(folder), name],
                "isolation": isolation,
                "lifecycle": "lazy",
            }
            for isolation, names in servers().items()
            for name in names
        },
        "settings": {"maxConnections": 400, "idleTimeout": 1},
    }


class Run:
    def __init__(self, seed: str, seconds: float, calls: int, folder: Path) -> None:
        self.seed, self.seconds, self.calls, self.folder = seed, seconds, calls, folder
        self.lease = TIMES.length
        self._pace = Pace()
        self._began = time.monotonic()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._leaving: list[tuple[Any, float]] = []  # nodes, and since when
        self._fronts: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        self._done: list[tuple[float, str]] = []

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f}  {text}", flush=True)

    # ---- what the faults happen to -----------------------------------------------------------------------------------

    def nodes(self) -> list[Any]:
        return list(self._nodes)

    def lose(self, node: Any) -> None:
        self._nodes.remove(node)
        self._leaving.append((node, time.monotonic()))

    def fronts(self) -> list[int]:
        return [front.pid for front in self._fronts.values() if front.poll() is None]

    def lose_front(self, pid: int) -> None:
        name = next(name for name, front in self._fronts.items() if front.pid == pid)
        self._killed.add(f"{name}.{pid}")
        self._fronts[name].wait()
        self.later(1.0, lambda: self._start_front(name))

    def head(self) -> int:
        return faults.raylet_of(self._cluster.head)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), do))

    def _tick(self, until: float = 0.0) -> None:
        """What is due, for whom."""
        while self._later and self._later[0][0] <= max(time.monotonic(), until):
            heapq.heappop(self._later)[2]()
        for node in self._nodes[:]:
            if node.all_processes["raylet"][0].process.poll() is not None:
                self.say("a raylet has ended by itself: its head took it for dead")
                self.lose(node)
        for node, since in self._leaving[:]:  # a raylet that nobody reaps keeps its workers alive
            if node.all_processes["raylet"][0].process.poll() is not None:
                self._leaving.remove((node, since))
                if time.monotonic() - since > 1.0:  # it was stopped, and its host has lived until now
                    self._done.append((time.monotonic(), "end of a stopped raylet"))
                self._cluster.remove(node)
                self._nodes.append(self._cluster.add())
                self.say("another node has joined")
        for name, front in self._fronts.items():
            if (code := front.poll()) is not None and f"{name}.{front.pid}" not in self._killed:
                raise RuntimeError(f"{name} has ended by itself, with {code}:\n{self._said(name)}")

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text(errors="replace")[-4000:]

    def _start_front(self, name: str) -> None:
        with (self.folder / f"{name}.err").open("ab") as errors:
            self._fronts[name] = subprocess.Popen(
                (sys.executable, "-m", "tools.cluster.front", str(self.folder / "plan.json"), name),
                stderr=errors,
            )

    # ---- the course --------------------------------------------------------------------------------------------------

    def course(self) -> list[str]:
        self._cluster = LocalCluster(**RAY)
        try:
            self._nodes = [self._cluster.add() for _ in range(HOSTS)]
            directory, _token = connect(self._cluster.address, TIMES)
            self.say(f"a head and {HOSTS} nodes at {self._cluster.address}")
            try:
                plan = {
                    "seed": self.seed,
                    "address": self._cluster.address,
                    "books": str(self.folder),
                    "config": config(self.folder),
                    "servers": servers(),
                    "callers": max(1, self.calls // len(FRONTS) - len(servers()["persistent"])),
                }
                (self.folder / "plan.json").write_text(json.dumps(plan))
                for name in FRONTS:
                    self._start_front(name)
                self._first_answers()
                wrong = self._befall(lambda: _hosts(directory)) + self._end_fronts()
            finally:
                directory.close()
                for front in self._fronts.values():
                    front.kill()
                    front.wait()
        finally:
            self._close()
        left = faults.wait_until(lambda: not faults.having(str(self.folder)), self._within(5.0))
        self._pace.close()
        if not left:
            wrong += [f"left over: {pid} {faults.command(pid)}" for pid in faults.having(str(self.folder))]
        return wrong + self._books()

    def _close(self) -> None:
        self._cluster.close()

    def _first_answers(self) -> None:
        began = time.monotonic()
        if not faults.wait_until(self._all_answer, 60.0 + 4 * (began - self._began), self._tick):
            raise RuntimeError(f"not every server has answered every front:\n{self._said(FRONTS[0])}")
        self._starting = (began, time.monotonic())
        self.start = time.monotonic() - began
        self.say(f"every server has answered every front; all together took {self.start:.1f} s to start")

    def _befall(self, hosts: Callable[[], int]) -> list[str]:
        """Let the faults happen, until all is well again. Returns what was not well."""
        end = time.monotonic() + self.seconds
        for fault in faults.drawn(self.seed):
            if time.monotonic() > end:
                break
            if done := faults.do(fault, self):
                self._done.append((time.monotonic(), done))
                self.say(done)
                faults.wait_until(lambda: False, fault.pause * self.lease, self._tick)
        self.say("calm")
        faults.wait_until(lambda: not (self._later or self._leaving), 30.0, self._tick)
        wrong: list[str] = []
        if not faults.wait_until(lambda: hosts() == HOSTS, self._within(40.0), self._tick):
            wrong.append(f"{hosts()} hosts have a lease after the calm, not {HOSTS}")
        self.calm = time.monotonic()
        if not faults.wait_until(self._all_answer, self._within(LIMIT), self._tick):
            wrong.append("not every server answers every front after the calm")
        return wrong

    def _end_fronts(self) -> list[str]:
        wrong: list[str] = []
        for name, front in self._fronts.items():
            front.send_signal(signal.SIGTERM)
            limit = self._within(45.0)
            try:
                code = front.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} has not ended within {limit:.0f} s")
            else:
                if code:
                    wrong.append(f"{name} ended with {code}:\n{self._said(name)}")
        return wrong

    calm = 0.0
    start = 0.0  # seconds that all servers together took to start, as they do again after a fault
    _starting = (0.0, 0.0)  # when that was

    def _within(self, seconds: float, during: tuple[float, float] | None = None) -> float:
        """So many seconds, and what all servers need to start on this machine, as it was during that time (now)."""
        now = time.monotonic()
        return seconds + self.start * self._pace.slower(self._starting, during or (now - self.lease, now))

    def _all_answer(self) -> bool:
        """Whether each front has had an answer of each persistent server, since it was started and since the calm."""
        for name, front in self._fronts.items():
            book = books.calls(self.folder).get(f"{name}.{front.pid}", [])
            good = {call.server for call in book if call.outcome == "ok" and (call.ended or 0) > self.calm}
            if not good >= set(servers()["persistent"]):
                return False
        return True

    def _books(self) -> list[str]:
        made, lived = books.calls(self.folder), list(books.lives(self.folder))
        wrong = books.faults_in(lived, made, servers(), frozenset(self._killed))
        self.say(f"{len(lived)} processes of servers; calls: {dict(books.outcomes(made).most_common())}")
        longest = sorted(
            (
                (gap, at, server)
                for server, each in books.gaps(made, servers()["persistent"]).items()
                for at, gap in each
            ),
            reverse=True,
        )
        for gap, at, server in longest[:5]:
            meanwhile = [done for when, done in self._done if at - LIMIT < when < at + gap]
            self.say(
                f"{server} did not answer for {gap:.1f} s, at {at - self._began:.1f}; meanwhile: {meanwhile}"
            )
        for gap, at, server in longest:
            during = [done.partition(":")[0] for when, done in self._done if at - LIMIT < when < at + gap]
            allowed = max(LIMIT, sum(_OF_ANOTHER.get(kind, LIMIT) for kind in during))
            if gap > self._within(allowed, (at, at + gap)):
                wrong.append(
                    f"{server} did not answer for {gap:.1f} s, at {at - self._began:.1f}, while {during}"
                )
        return wrong


def _hosts(directory: RayDirectory) -> int:
    """How many hosts have a lease; 0: the directory does not say."""
    try:
        view = anyio.run(directory.view)
    except DirectorySilent:
        return 0
    return 0 if view is None else sum(not host.is_late for host in view.hosts)
