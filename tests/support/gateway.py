"""A real `greenroom serve` as a child of the test, driven over its pipes as an MCP client would.

It is forked from a process that has imported Greenroom, unless it is to start `cold` (`forked`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .forked import GREENROOM, popen_forked
from .line_client import LineClient
from .patience import PATIENCE

FAULTY = Path(__file__).resolve().parents[2] / "src" / "greenroom" / "testing" / "servers" / "faulty.py"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def faulty(folder: Path, name: str, *faults: str) -> dict[str, Any]:
    """The entry of a faulty server that logs to `<name>.log` in `folder`."""
    return {
        "command": sys.executable,
        "args": ["-S", os.fspath(FAULTY), "--log", os.fspath(folder / f"{name}.log"), *faults],
    }


def logged_pids(folder: Path) -> set[int]:
    """Every process that any faulty server in `folder` started, itself included."""
    pids: set[int] = set()
    for log in folder.glob("*.log"):
        for line in log.read_text().splitlines():
            what, _, number = line.partition(" ")
            if what in ("start", "child"):
                pids.add(int(number))
    return pids


def logged_when_all(folder: Path, count: int, within: float = PATIENCE) -> set[int]:
    """The same once there are `count`. A process that was forked twice logs only after its server began to answer."""
    until = time.monotonic() + within
    while len(pids := logged_pids(folder)) < count and time.monotonic() < until:
        time.sleep(0.01)
    return pids


def named_after(folder: Path) -> set[int]:
    """Every process with `folder` in its command line, even if it had no time to log anything."""
    needle = os.fsencode(folder) + b"/"
    found: set[int] = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            if needle in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that exist and are not zombies."""
    found: set[int] = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.add(pid)
    return found


def children(pid: int) -> set[int]:
    """The processes that `pid` has started, without those that have another parent now."""
    found: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, listing.read_text().split()))
    return found


def gone_within(pids: set[int], seconds: float = PATIENCE) -> set[int]:
    """Wait until none of them is alive. Returns those that are still alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


class Gateway(LineClient):
    """A gateway, and the client of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self.left: set[int] = set()  # its children when it was killed: its guard ends them, and then itself

    def initialize(self) -> dict[str, Any]:
        hello = self.answer(self.send("initialize", HELLO))
        self.tell("notifications/initialized")
        return hello["result"]

    def mcp(self, **arguments: Any) -> dict[str, Any]:
        """Call the `mcp` tool and wait for its result."""
        return self.answer(self.start_mcp(**arguments))["result"]

    def start_mcp(self, **arguments: Any) -> int:
        return self.send("tools/call", {"name": "mcp", "arguments": arguments})

    def end(self, how: int | None = None, within: float = PATIENCE) -> int:
        """End it by a signal, or by closing its stdin. Returns its exit code."""
        if how is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
        else:
            if how == signal.SIGKILL:
                self.left = children(self.process.pid)
            self.process.send_signal(how)
        return self.process.wait(within)


@contextmanager
def serve(
    folder: Path, servers: dict[str, Any], *options: str, cold: bool = False, **settings: Any
) -> Generator[Gateway]:
    """A gateway over `servers`, with its own cache and control socket in `folder`."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers, "settings": {"bootstrap": False, **settings}}))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    command = [*GREENROOM, "serve", "--config", os.fspath(config), *options]
    try:
        with (
            (folder / "stderr.txt").open("wb") as log,
            started(*command, env=environment, cwd=folder, stderr=log, cold=cold) as gateway,
        ):
            yield gateway
    finally:  # the guard ends what a killed gateway left
        gone_within(logged_pids(folder))


@contextmanager
def started(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: Any = subprocess.PIPE,
    may_be_late: bool = False,
    cold: bool = False,
) -> Generator[Gateway]:
    """`command` as a gateway; it is forked if it is `GREENROOM` and need not start `cold`. If it still runs at the end,
    it is killed. A gateway that ended must not have been ended by its own alarm, unless it `may_be_late` or started
    `cold`: its alarm is then the real one, which a busy machine may need."""
    start = subprocess.Popen if cold else popen_forked
    process = start(command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    gateway = Gateway(process)
    try:
        yield gateway
    finally:
        gateway.close()
        if process.poll() is None:
            gateway.end(signal.SIGKILL)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
    gone_within(gateway.left)
    assert may_be_late or cold or process.returncode != -signal.SIGALRM, "its alarm ended it"
