"""`greenroom top`: one table for a pipe, and a screen that leaves the terminal as it was."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE

from greenroom.gateway._cli._main import run
from greenroom.gateway._cli._top import HEAD, plain, summary, table
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus, json_of

HERE = os.getpid()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, folder)
        monkeypatch.chdir(folder)
        file = Path(folder) / "greenroom" / "mcp.json"
        file.parent.mkdir()
        file.write_text('{"mcpServers": {"time": {"command": "nowhere"}}}')
        yield Path(folder)


def details(*rows: ServerStatus) -> dict[str, Any]:
    shared = [{**json_of(row), "status": row.state.value} for row in rows if row.scope == "shared"]
    return {
        "servers": shared,
        "addresses": [json_of(row) for row in rows if row.scope != "shared"],
        "connectedCount": 1,
        "disabledCount": 0,
    }


def test_each_address_has_a_row_with_what_it_does() -> None:
    busy = ServerStatus(
        "busy", state=State.CONNECTED, incarnation=3, in_flight=2, queued=1, tool_count=7, pid=HERE
    )
    own = ServerStatus("busy", scope="session:alice", state=State.CONNECTED, incarnation=1, tool_count=7)
    waits = ServerStatus("new", waiting_for="slot", waiting=4.2, incarnation=0)
    down = ServerStatus("down", failure="it exited\x1b[2J with 3", retry_in=9.0, incarnation=1)
    said = details(busy, own, waits, down)
    rows = [dict(zip(HEAD, row, strict=True)) for row in table(said)]
    assert [row["server"].strip() for row in rows] == ["busy", "session:alice", "new", "down"]
    assert [rows[0][key] for key in ("state", "tools", "calls", "queued", "restarts")] == [
        "connected",
        "7",
        "2",
        "1",
        "2",
    ]
    assert rows[0]["memory"].endswith(" MiB") or sys.platform != "linux"
    assert rows[2]["waits for"] == "slot for 4 s"
    assert rows[2]["tools"] == "?"
    assert rows[3]["waits for"].startswith("retry in 9 s; it exited")
    assert "\x1b" not in "".join(plain(table(said)))
    assert len({line.index("connected") for line in plain(table(said))[1:3]}) == 1
    assert summary(said) == "1 of 3 connected, 2 calls in flight, 1 queued"


def test_in_a_pipe_it_prints_one_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("server")
    assert said.out.splitlines()[1].startswith("time")
    assert "no gateway runs" in said.err
    assert run(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["server"] == "time"


@pytest.mark.parametrize("how", ["q", "ctrl-c", "SIGTERM"])
def test_the_terminal_is_left_as_it_was(home: Path, how: str) -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        environ = {**os.environ, "TERM": "xterm"}
        program = [sys.executable, "-m", "greenroom", "top", "--every", "60"]
        process = subprocess.Popen(
            program, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        try:
            seen = read_until(ours, b"q quits")
            assert b"\x1b[?1049h" in seen
            if how == "q":
                os.write(ours, b"q")
            else:
                process.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGTERM)
            assert process.wait(PATIENCE) == (128 + signal.SIGTERM if how == "SIGTERM" else 0)
        finally:
            process.kill()
            process.wait()
        assert termios.tcgetattr(theirs) == before
        rest = read_until(ours, b"\x1b[?1049l")
        assert b"\x1b[?25h" in rest
        assert b"Traceback" not in rest
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, words: bytes) -> bytes:
    """What the program wrote, until it has written `words` and nothing more is there."""
    seen, end = b"", time.monotonic() + PATIENCE
    while words not in seen or select.select([descriptor], [], [], 0)[0]:
        assert select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(descriptor, 65536)
    return seen
