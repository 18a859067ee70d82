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
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, serve

from greenroom.cli import top_command
from greenroom.cli.main import run
from greenroom.cli.top_command import HEAD, plain, summary, table
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
        "disabledCount": 0,
    }


def test_each_address_has_a_row_with_what_it_does() -> None:
    busy = ServerStatus(
        "busy", state=State.CONNECTED, incarnation=3, in_flight=2, queued=1, tool_count=7, pid=HERE
    )
    own = ServerStatus(
        "busy", scope="session:alice", state=State.CONNECTED, incarnation=1, tool_count=7, in_flight=1
    )
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
    assert rows[2]["waits for"] == "waiting for slot for 4 s"
    assert rows[2]["tools"] == "?"
    assert rows[3]["waits for"].startswith("next try in 9 s; it exited")
    assert "\x1b" not in "".join(plain(table(said)))
    assert len({line.index("connected") for line in plain(table(said))[1:3]}) == 1
    assert summary(said) == "1 of 3 connected, 3 calls in flight, 1 queued"


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


# ---- the parts of the screen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ({"status": "needs-auth"}, {"state": "needs auth"}),
        ({"status": "connected", "state": "connected"}, {"state": "connected"}),
        ({"status": "disabled", "state": "closed"}, {"state": "disabled"}),
        ({"status": "connected", "state": "draining"}, {"state": "draining"}),
        ({"waitingFor": "slot", "failure": "no"}, {"waits for": "waiting for slot; no"}),
        ({"waitingFor": "slot", "waiting": 0.0}, {"waits for": "waiting for slot for 0 s"}),
        (
            {"waitingFor": "gate", "waiting": 30.0, "retryIn": 22.0},
            {"waits for": "waits 30 s, next try in 22 s"},
        ),
        ({"down": "it was drained"}, {"waits for": "it was drained"}),
        ({"down": "it exited", "failure": "it exited"}, {"waits for": "it exited"}),
        ({"broken": "it has no command"}, {"waits for": "it has no command"}),
        ({"retryIn": 0.0, "failure": "no"}, {"waits for": "next try in 0 s; no"}),
        ({"failure": "x" * 100 + "\nmore"}, {"waits for": "x" * 59 + "…"}),
        ({"name": "n" * 50}, {"server": "n" * 39 + "…"}),
        ({"incarnation": 0}, {"restarts": "0"}),
        ({"incarnation": 5}, {"restarts": "4"}),
        ({"cached": False}, {"tools": "?"}),
        ({"pid": None}, {"memory": "", "pid": ""}),
    ],
    ids=repr,
)
def test_each_cell_says_what_it_is_about(row: dict[str, Any], cells: dict[str, str]) -> None:
    server = {
        "name": "a", "status": "cached", "state": "idle", "toolCount": 3, "inFlight": 1, "queued": 2,
        "incarnation": 1, "pid": None, "cached": True,
    }  # fmt: skip
    (found,) = table({"servers": [{**server, **row}]})
    shown: dict[str, str] = dict(zip(HEAD, found, strict=True))
    assert {head: shown[head] for head in cells} == cells
    assert (shown["calls"], shown["queued"]) == ("1", "2")


def test_the_summary_counts_what_is_in_service_and_who_is_attached() -> None:
    own = ServerStatus("a", scope="session:alice", state=State.CONNECTED)
    said = {**details(ServerStatus("a"), ServerStatus("b"), own), "disabledCount": 1}
    assert summary(said) == "1 of 1 connected, 0 calls in flight, 0 queued"
    for count, words in ((0, "0 clients attached"), (1, "1 client attached"), (2, "2 clients attached")):
        assert summary({**said, "background": {"clients": [{}] * count}}).endswith(f", {words}")


def test_json_is_printed_also_on_a_terminal(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {**details(ServerStatus("a")), "waitingForApproval": 2}
    source = SimpleNamespace(origin={"source": "gateway", "pid": 7}, status=lambda: said)
    monkeypatch.setattr(top_command, "open_source", lambda *_: source)
    monkeypatch.setattr(top_command, "_terminal", lambda: pytest.fail("it is a screen"))
    monkeypatch.setattr(top_command, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    assert run(["top", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["waitingForApproval"], shown["source"], shown["pid"]) == (2, "gateway", 7)
    assert [row["server"] for row in shown["rows"]] == ["a"]
    assert run(["top", "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 calls wait for approval")


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (b"y", "y"),
        (b"\t", "\t"),
        (b"yn", "y"),  # what was typed behind it was typed before anybody saw what it did
        (b"\x1b[A", "up"),
        (b"\x1bOA", "up"),
        (b"\x1b[B", "down"),
        (b"\x1b[Z", "up"),
        (b"\x1b[C", "other"),
        (b"\x1b[1;5A", "other"),
        (b"\x1b", "\x1b"),
        (b"", "q"),
        (b"\xff", "\ufffd"),
        (None, ""),
    ],
)
def test_each_key_is_what_it_sends(typed: bytes | None, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def ready(reads: list[int], _writes: Any, _errors: Any, seconds: float) -> Any:
        waited.append(seconds)
        assert reads == [0, 9]
        return ([] if typed is None else [0]), [], []

    monkeypatch.setattr(select, "select", ready)
    monkeypatch.setattr(top_command, "os", SimpleNamespace(read=lambda _fd, _most: typed))
    assert top_command.Keyboard(9).within(0.7) == key
    assert waited == [0.7]


def test_a_signal_that_comes_just_before_a_wait_ends_it() -> None:
    silent, typist = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    ours = os.dup(0)
    try:
        os.dup2(silent, 0)
        with top_command._bell() as bell:
            keys = top_command.Keyboard(bell)
            signal.raise_signal(signal.SIGUSR1)  # its handler has run
            assert keys.within(PATIENCE) == ""
            assert keys.within(0.0) == "", "the bell has been read"
            os.write(typist, b"j")
            signal.raise_signal(signal.SIGUSR1)
            assert keys.within(PATIENCE) == "j", "a key is not lost by a signal"
            assert select.select([bell], [], [], 0)[0] == []
            signal.raise_signal(signal.SIGUSR1)
            assert top_command.NoKeyboard(bell).within(PATIENCE) == ""
            assert top_command.NoKeyboard(bell).within(0.0) == ""
            assert select.select([bell], [], [], 0)[0] == []
    finally:
        os.dup2(ours, 0)
        signal.signal(signal.SIGUSR1, before)
        for descriptor in (silent, typist, ours):
            os.close(descriptor)
    assert signal.set_wakeup_fd(-1) == -1


def test_a_small_window_shows_why_a_server_failed_and_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    why = "exited with code 3 (Error: could not find the database at /var/lib/db: set DATABASE_PATH)"
    bad = ServerStatus("postgres", waiting_for="gate", waiting=30.0, retry_in=52.0, failure=why)
    said = details(bad, *(ServerStatus(f"s{number}") for number in range(20)))
    for first, there, gone in ((0, "postgres", "s19"), (99, "s19", "postgres")):
        console = Console(width=80, height=16, color_system=None)
        with console.capture() as capture:
            console.print(top_command._screen(None, said, (), (80, 16), first))
        shown = capture.get()
        assert len(shown.splitlines()) <= 16
        assert max(map(len, shown.splitlines())) <= 80
        assert there in shown
        assert gone not in shown
        if first == 0:
            assert "waits 30 s, next try in 52 s" in shown
            assert all(word in shown.split() for word in why.split())


KEYS = [  # what is typed, and from which line of 30 the table is shown then
    (b"j", 2),
    (b"\x1b[B", 3),
    (b"k", 2),
    (b"\x1b[A", 1),
    (b"\x1b[A", 1),
    (b" ", 9),
    (b"\x1b[6~", 17),
    (b" ", 19),
    (b"\x1b[5~", 11),
    (b"b", 3),
    (b"b", 1),
]


def test_the_keys_scroll_a_table_that_is_higher_than_the_window(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(home))
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(home / "cache"))
    servers = {f"server-{number:02}": {"command": "nowhere"} for number in range(1, 31)}
    ours, theirs = pty.openpty()
    try:
        with serve(home, servers) as gateway:
            gateway.initialize()
            environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "16"}
            program = [sys.executable, "-m", "greenroom", "top", "--every", "60"]
            process = subprocess.Popen(
                [*program, "--config", os.fspath(home / "mcp.json")],
                stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
            )  # fmt: skip
            try:
                seen = read_until(ours, b"1 to 12 of 30 lines")
                assert b"server-12" in seen
                assert b"server-13" not in seen
                for key, first in KEYS:
                    os.write(ours, key)
                    seen = read_until(ours, b"%d to %d of 30 lines" % (first, first + 11))
                    assert b"server-%02d" % first in seen, key
                    assert b"server-%02d" % (first + 11) in seen, key
                os.write(ours, b"q")
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()
                process.wait()
    finally:
        os.close(ours)
        os.close(theirs)
