"""A front: a program with a `ClusterRoom`, and callers that write down each call before it is made and its outcome.

`python -m tools.cluster.front PLAN NAME`, PLAN being a JSON file. On SIGTERM the callers make no more calls; when the
last has ended, the room is closed and the program ends with 0. On trio or on asyncio, by the name.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from greenroom import CallError
from greenroom.cluster.front import ClusterRoom

TIMEOUT = 25.0  # seconds for a call; the longest works for three
PAUSE = 0.05  # seconds between two calls of one caller


class Front:
    def __init__(self, plan: dict[str, Any], name: str) -> None:
        self._plan = plan
        self._name = name
        self._number = 0
        self._ends = anyio.Event()
        path = Path(plan["books"]) / f"{name}.{os.getpid()}.calls"
        self._book = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._random = random.Random(f"{plan['seed']} {name}")

    def _note(self, what: str, call: str, **more: object) -> None:
        line = {"at": time.monotonic(), "what": what, "call": call, **more}
        os.write(self._book, (json.dumps(line) + "\n").encode())

    async def run(self) -> None:
        room = ClusterRoom.open(self._plan["config"], ray=self._plan["address"], cache_path=":memory:")
        async with room, anyio.create_task_group() as group:
            self._note("open", "")
            group.start_soon(self._heed)
            for server in self._plan["servers"]["persistent"]:
                group.start_soon(self._probe, room, server)
            for caller in range(self._plan["callers"]):
                group.start_soon(self._caller, room, caller)
            await self._ends.wait()
        self._note("closed", "", report=str(room.drain_report))

    async def _heed(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self._ends.set()
                return

    async def _probe(self, room: ClusterRoom, server: str) -> None:
        """One call after the other: what a caller that tries again sees of a server that moves."""
        while not self._ends.is_set():
            await self._call(room.call, server, "probe", 0.0)
            await anyio.sleep(2 * PAUSE)

    async def _caller(self, room: ClusterRoom, number: int) -> None:
        chance, servers = random.Random(f"{self._random.random()} {number}"), self._plan["servers"]
        while not self._ends.is_set():
            who = f"{self._name}-{os.getpid()}-{number}-{self._number}"
            async with room.session(who) as session:
                own = chance.choice(servers["per_session"])
                for _ in range(chance.randint(3, 12)):
                    if self._ends.is_set():
                        break
                    kind = chance.choices(("persistent", "per_session", "per_call"), (60, 35, 5))[0]
                    server = own if kind == "per_session" else chance.choice(servers[kind])
                    await self._call(session.call, server, who, chance.uniform(0.2, 3.0))
                    await anyio.sleep(PAUSE)

    async def _call(
        self, make: Callable[..., Awaitable[object]], server: str, who: str, seconds: float
    ) -> None:
        self._number += 1
        call = f"{self._name}-{os.getpid()}-{self._number}"
        self._note("made", call, server=server)
        try:
            await make("work", {"call": call, "who": who, "seconds": seconds}, server=server, timeout=TIMEOUT)
        except CallError as error:
            self._note("ended", call, outcome=error.code, reach=str(error.reach), text=str(error)[:200])
            await anyio.sleep(0.1)
        else:
            self._note("ended", call, outcome="ok", reach="answered")


if __name__ == "__main__":
    plan_file, name = sys.argv[1:]
    front = Front(json.loads(Path(plan_file).read_text()), name)
    anyio.run(front.run, backend="trio" if name.endswith("trio") else "asyncio")
