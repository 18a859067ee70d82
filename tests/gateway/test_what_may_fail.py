"""T39: a gateway serves its client whatever becomes of what no call needs: its events file, its control socket, its
guard process. It says so once, and has it back when it can be had."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import run
from tests.support.descriptors import at_rest, no_more_descriptors
from tests.support.gateway import FAULTY, Gateway, logged_pids, serve
from tests.support.stdio import until

SERVER = {"one": {"command": sys.executable, "args": ["-S", os.fspath(FAULTY)]}}


def answers(gateway: Gateway) -> None:
    result = gateway.mcp(tool="one_echo", args="{}")
    assert "error" not in json.dumps(result).lower(), result


def said(folder: Path, what: str) -> list[str]:
    return [line for line in (folder / "stderr.txt").read_text().splitlines() if what in line]


async def is_said(folder: Path, what: str) -> None:
    assert await until(lambda: bool(said(folder, what)))


@pytest.mark.parametrize("kind", ["full", "unread"])
def test_t39_an_events_file_that_takes_nothing_stops_nobody(tmp_path: Path, kind: str) -> None:
    place = Path("/dev/full") if kind == "full" else tmp_path / "fifo"
    if kind == "unread":
        os.mkfifo(place)
    with serve(tmp_path, SERVER, "--events", os.fspath(place)) as gateway:
        gateway.initialize()
        for _ in range(3):
            answers(gateway)
        assert gateway.end() == 0
    (line,) = said(tmp_path, "the events file")
    reason = "No space left on device" if kind == "full" else "No such device or address"
    assert f"the events file {place}: {reason}" in line


def hello(folder: Path, within: float = 60.0) -> bool:
    """Whether the gateway's control socket answers."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(within)
        try:
            (place,) = (folder / "cache" / "greenroom" / "run").iterdir()
            os.chdir(place.parent)
            line.connect(place.name)
            line.sendall(b'{"method": "hello"}\n')
            return bool(line.recv(1))
        except (OSError, ValueError):
            return False


def test_t39_a_gateway_without_descriptors_serves_its_client_and_finds_its_control_socket_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back again: sockets are reached by short names here
    with serve(tmp_path, SERVER) as gateway:
        gateway.initialize()
        answers(gateway)
        assert hello(tmp_path)
        answers(gateway)
        at_rest(gateway.process.pid)
        with no_more_descriptors(gateway.process.pid):
            assert not hello(tmp_path, 0.5)
            assert not hello(tmp_path, 0.5)
            answers(gateway)
            run("trio", is_said, tmp_path, "the control socket")

        async def comes_back() -> None:
            assert await until(lambda: hello(tmp_path, 1.0))

        run("trio", comes_back)
        answers(gateway)
        assert gateway.end() == 0
    problem, again = said(tmp_path, "the control socket")
    assert "the control socket: Too many open files" in problem
    assert again.endswith("the control socket: works again")


def test_t39_a_room_goes_on_while_its_guard_cannot_run(tmp_path: Path) -> None:
    """The whole way: a gateway whose guard is killed answers, and has a guard again."""
    with serve(tmp_path, SERVER) as gateway:
        gateway.initialize()
        answers(gateway)
        guards = _guards_of(gateway.process.pid)
        assert len(guards) == 1
        at_rest(gateway.process.pid)
        with no_more_descriptors(gateway.process.pid):  # no pair of sockets, so no guard either
            os.kill(guards[0], signal.SIGKILL)
            run("trio", is_said, tmp_path, "the guard process")
            answers(gateway)

        async def is_back() -> None:
            assert await until(lambda: len(_guards_of(gateway.process.pid)) == 1)

        run("trio", is_back)
        answers(gateway)
        assert gateway.end() == 0
    assert logged_pids(tmp_path) == set()


def _guards_of(pid: int) -> list[int]:
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has gone meanwhile
            if b"_guard_program.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found
