"""A real `greenroom serve` as a child of the test, driven over its pipes as an MCP client would.

It is forked from a process that has imported Greenroom, unless it is to start `cold` (`forked`).
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .forked import GREENROOM, popen_forked
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


class Gateway:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.answers: dict[int, dict[str, Any]] = {}
        self.notifications: list[dict[str, Any]] = []
        self.left: set[int] = set()  # its children when it was killed: its guard ends them, and then itself
        self._held = False
        self._number = 0
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ)

    def send(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request; returns its id."""
        self._number += 1
        self._write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params or {}})
        return self._number

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def answer(self, number: int, within: float = PATIENCE) -> dict[str, Any]:
        """The answer to a request. AssertionError when it does not come."""
        deadline = time.monotonic() + within
        while number not in self.answers:
            assert self._selector.select(max(0.0, deadline - time.monotonic())), f"no answer to {number}"
            assert self.process.stdout is not None
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            assert chunk, "the gateway closed its output"
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                message = _read(line)
                if "id" in message and "method" not in message:
                    self.answers[message["id"]] = message
                else:
                    self.notifications.append(message)
        return self.answers[number]

    def initialize(self) -> dict[str, Any]:
        hello = self.answer(self.send("initialize", HELLO))
        self.notify("notifications/initialized")
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
    def in_one_write(self) -> Generator[None]:
        """What is sent inside goes out together, at the end: nothing happens between one and the next."""
        assert self.process.stdin is not None
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.process.stdin.flush()

    def close(self) -> None:
        self._selector.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        if not self._held:
            self.process.stdin.flush()


def _read(line: bytes) -> dict[str, Any]:
    """A message; of one that is nested too deeply for Python's reader, its id and whether it is a result."""
    try:
        return json.loads(line)
    except RecursionError:
        head = re.match(rb'\{"jsonrpc":"2.0","id":(\d+),"(result|error)":', line)
        assert head, line[:200]
        return {"id": int(head[1]), head[2].decode(): {"code": 0}}


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
