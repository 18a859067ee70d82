"""How long others wait: calls to a good server, one after the other, with and without a misbehaving neighbour."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway

HOSTILE = Path(__file__).resolve().parent / "hostile_server.py"
CALLS = 40
SLOWER = 15  # times; an attack that froze everything made calls some hundred times slower


def hostile(version: str = "2025-11-25", *more: str) -> dict[str, Any]:
    """The entry of a server that sends what it is told to send."""
    return {"command": sys.executable, "args": ["-S", os.fspath(HOSTILE), version, *more]}


def waits(gateway: Gateway, tool: str, count: int = CALLS) -> list[float]:
    """Seconds that each of `count` calls took, the shortest first."""
    took: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        assert "error" not in gateway.answer(gateway.send("tools/call", {"name": tool, "arguments": {}}))
        took.append(time.perf_counter() - begun)
    return sorted(took)


def assert_not_held_up(calm: list[float], meanwhile: list[float]) -> None:
    """Compares nine calls of ten, because on a busy machine a call is slow now and then. The flood's own process takes
    a core beside us, so what a call takes in a calm moment counts as 20 ms at least."""
    at = len(calm) * 9 // 10
    assert meanwhile[at] < SLOWER * max(calm[at], 0.02), (calm[at], meanwhile[at], meanwhile[-1])


def memory_of(gateway: Gateway) -> int:
    """The most memory that it ever had, in bytes."""
    text = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10
