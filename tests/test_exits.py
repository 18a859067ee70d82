"""How `serve` ends when nothing holds it up, and what it does while nothing happens: as a process, from outside."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from tests.support.gateway import faulty, serve

DEMO = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def switches(pid: int) -> int:
    """How often a process has woken: the voluntary context switches of all its threads."""
    count = 0
    for thread in threads_of(pid):
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                count += int(line.split()[1])
    return count


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", [0.0, 0.6])
def test_t51_with_nothing_running_it_is_gone_in_a_moment(
    tmp_path: Path, end: int | None, after: float
) -> None:
    with serve(tmp_path, {"clock": DEMO}) as gateway:
        gateway.greet()
        time.sleep(after)  # its watching begins a moment after it has begun to serve
        begun = time.monotonic()
        assert gateway.end(end) == 0
        assert time.monotonic() - begun < 1.0


def test_t51_the_drain_begins_at_once(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.greet()
        assert not gateway.mcp(tool="a_echo", args={"text": "hello"}).get("isError")
        begun = time.monotonic()
        assert gateway.end(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 1.0


def test_t51_nothing_wakes_a_gateway_at_rest(tmp_path: Path) -> None:
    """With a server connected, its client silent, its configuration watched."""
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.greet()
        gateway.mcp(tool="a_echo", args={"text": "hello"})
        time.sleep(1.0)
        before = switches(gateway.process.pid)
        time.sleep(2.0)
        assert switches(gateway.process.pid) - before == 0
        assert gateway.end() == 0
