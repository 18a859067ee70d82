"""The faults: which, from the seed alone; and how each is done to the cluster that runs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import attrs

# What is done, and how often of all.
KINDS = {
    "kill a host": 4,
    "stop a host": 4,
    "kill a raylet": 2,
    "stop a raylet": 2,
    "kill a front": 2,
    "stop a front": 2,
    "kill a front's driver": 1,
    "kill the directory": 2,
    "stop the directory": 1,
}
STOPPED = 1.5  # leases until what was stopped goes on


@attrs.frozen
class Fault:
    kind: str
    which: float  # of those there are: 0 to 1
    pause: float  # seconds until the next, in leases


def drawn(seed: str) -> Iterator[Fault]:
    """Without end. No two seeds are alike, and one is always the same."""
    chance = random.Random(seed)
    while True:
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        yield Fault(kind, chance.random(), chance.uniform(0.3, 1.3))


class Field(Protocol):
    """What the faults happen to."""

    lease: float

    def nodes(self) -> list[Any]: ...
    def lose(self, node: Any) -> None:
        """A node whose raylet is ending: another takes its place once it has gone."""

    def fronts(self) -> list[int]: ...
    def lose_front(self, pid: int) -> None: ...
    def head(self) -> int: ...
    def later(self, seconds: float, do: Callable[[], object]) -> None: ...


def do(fault: Fault, field: Field) -> str:
    """Do it. Returns what was done, to whom; "" if there is nobody."""
    found: list[Any]
    match fault.kind.split()[-1]:
        case "host":
            found = [pid for node in field.nodes() for pid in workers(raylet_of(node), "ray::HostActor")]
        case "raylet":
            found = field.nodes() if len(field.nodes()) > 1 else []  # or there is nobody left to ask
        case "front":
            found = field.fronts()
        case "driver":
            found = [
                pid for front in field.fronts() for pid in children(front, "cluster.ray_cluster import main")
            ]
        case _:
            found = workers(field.head(), "ray::DirectoryActor")
    if not found:
        return ""
    one = found[int(fault.which * len(found))]
    pid = raylet_of(one) if fault.kind.endswith("raylet") else one
    stops = fault.kind.startswith("stop")
    send(pid, signal.SIGSTOP if stops else signal.SIGKILL)
    if stops:
        field.later(field.lease * STOPPED, lambda: send(pid, signal.SIGCONT))
    if fault.kind.endswith("raylet"):
        field.lose(one)
    if fault.kind == "kill a front":
        field.lose_front(pid)
    return f"{fault.kind}: {pid}"


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def raylet_of(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


def workers(raylet: int, title: str) -> list[int]:
    return [pid for pid in children(raylet) if command(pid).startswith(title)]


def children(parent: int, having: str = "") -> list[int]:
    return [pid for pid, above in family().items() if above == parent and having in command(pid)]


def family() -> dict[int, int]:
    """The parent of each process of this machine."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return dict(sorted(parents.items()))


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def having(text: str) -> list[int]:
    """The processes of this machine whose command has `text`, apart from this one."""
    return [pid for pid in family() if text in command(pid) and pid != os.getpid()]


def wait_until(true: Callable[[], bool], seconds: float, tick: Callable[[], object] = lambda: None) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick()
        if true():
            return True
        time.sleep(0.1)
    return bool(true())
