"""A gateway or a program that was stopped (SIGSTOP, the lid of a laptop) past a deadline while its server has answered:
the answer in the pipe counts, at each door, with each loop, and over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, serve
from tests.support.raw_http import Handler, Seen, raw_http, text
from tests.support.teller import teller

TIMEOUT = 1.0  # seconds that a call has
_SERVER = Path(__file__).resolve().parents[1] / "support" / "answers_when_told.py"
_PROGRAM = """
import sys
import anyio
from greenroom import Greenroom

async def main():
    async with Greenroom.open(sys.argv[1]) as room:
        for server in room.config.servers:
            await room.connect(server)
        print("connected", flush=True)
        async with anyio.create_task_group() as tasks:
            for server in room.config.servers:
                tasks.start_soon(call, room, server)

async def call(room, server):
    result = await room.call("slow", server=server)
    print(result.text, flush=True)

anyio.run(main, backend=sys.argv[2])
"""

_CONNECTS = _PROGRAM.replace(
    """        async with anyio.create_task_group() as tasks:
            for server in room.config.servers:
                tasks.start_soon(call, room, server)
""",
    "",
)


def _stop_past_the_timeout(pid: int, asked: Callable[[], bool], answer: Callable[[], None]) -> None:
    """Stop the process when its server has been asked, let the server answer, and wake it when the time is up."""
    until = time.monotonic() + PATIENCE
    while not asked():
        assert time.monotonic() < until, "the server was never asked"
        time.sleep(0.005)
    os.kill(pid, signal.SIGSTOP)
    try:
        over = time.monotonic() + 1.3 * TIMEOUT
        answer()
        while time.monotonic() < over:
            time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGCONT)


class _Told:
    """A server over stdio that says by a file that it was asked, answers when another is there, and says that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.entry: dict[str, Any] = {
            "command": sys.executable,
            "args": ["-S", os.fspath(_SERVER), os.fspath(folder)],
        }

    def asked(self) -> bool:
        return (self._folder / "asked").exists()

    def answer(self) -> None:
        (self._folder / "answer").touch()
        until = time.monotonic() + PATIENCE
        while not (self._folder / "answered").exists():
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.005)


@pytest.mark.parametrize("door", ["proxy", "direct"])
def test_a_gateway_that_was_stopped_reads_the_answer_first(tmp_path: Path, door: str) -> None:
    server = _Told(tmp_path)
    with serve(tmp_path, {"a": server.entry}, "--expose", door, requestTimeoutMs=TIMEOUT * 1000) as gateway:
        gateway.initialize()
        if door == "proxy":
            assert "isError" not in gateway.mcp(connect="a")
            number = gateway.start_mcp(tool="a_slow")
        else:
            gateway.answer(gateway.send("tools/list"))
            number = gateway.send("tools/call", {"name": "a_slow", "arguments": {}})
        _stop_past_the_timeout(gateway.process.pid, server.asked, server.answer)
        result = gateway.answer(number)["result"]
        assert not result.get("isError"), result
        assert "the answer" in json.dumps(result)
        assert gateway.end() == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_program_that_was_stopped_reads_the_answer_first(tmp_path: Path, loop: str) -> None:
    server = _Told(tmp_path)
    with _program(tmp_path, {"a": server.entry}, loop) as process:
        _stop_past_the_timeout(process.pid, server.asked, server.answer)
        said, errors = process.communicate(timeout=PATIENCE)
    assert (said, process.returncode) == ("the answer\n", 0), errors


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_so_does_one_whose_servers_are_at_a_url(tmp_path: Path, loop: str) -> None:
    """One answers in a body, and the other with events."""
    with raw_http() as stage:
        asked, answered = list[str](), list[str]()

        def hook(handler: Handler, seen: Seen) -> bool:
            if seen.method != "tools/call":
                return False
            asked.append(handler.path)
            stage.release.wait(PATIENCE)
            result = {"jsonrpc": "2.0", "id": seen.message["id"], "result": text("the answer")}
            if handler.path.endswith("events"):
                handler.begin_events()
                handler.event(result)
            else:
                handler.json(result)
            answered.append(handler.path)
            return True

        def answer() -> None:
            stage.release.set()
            until = time.monotonic() + PATIENCE
            while len(answered) < 2:
                assert time.monotonic() < until, "it does not answer"
                time.sleep(0.005)

        stage.hook = hook
        entries = {"a": {"url": stage.url}, "b": {"url": f"{stage.url}?events"}}
        with _program(tmp_path, entries, loop) as process:
            _stop_past_the_timeout(process.pid, lambda: len(asked) == 2, answer)
            said, errors = process.communicate(timeout=PATIENCE)
    assert (said, process.returncode) == ("the answer\n" * 2, 0), errors


def test_a_secret_that_a_command_has_written_by_then_counts(tmp_path: Path) -> None:
    server = _Told(tmp_path)
    waits = f"while [ ! -e {tmp_path}/answer ]; do sleep 0.01; done"
    command = f"printf one; touch {tmp_path}/asked; {waits}; printf two; touch {tmp_path}/answered"
    settings = {"secretTimeoutMs": TIMEOUT * 1000}
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"a": teller(env={"TOKEN": f"!{command}"})}, "settings": settings})
    )
    with _run(tmp_path, "asyncio", _CONNECTS) as process:
        _stop_past_the_timeout(process.pid, server.asked, server.answer)
        said, errors = process.communicate(timeout=PATIENCE)
    assert (said, process.returncode) == ("connected\n", 0), errors


@contextmanager
def _program(folder: Path, entries: dict[str, Any], loop: str) -> Generator[subprocess.Popen[str]]:
    """A program with a room, once its servers are connected."""
    config = folder / "mcp.json"
    settings = {"requestTimeoutMs": TIMEOUT * 1000}
    config.write_text(json.dumps({"mcpServers": entries, "settings": settings}))
    with _run(folder, loop, _PROGRAM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        yield process


@contextmanager
def _run(folder: Path, loop: str, program: str) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, os.fspath(folder / "mcp.json"), loop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": os.fspath(folder / "cache")},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
