"""`greenroom status`: the lines and columns of servers; and `--watch`, which leaves the terminal as it was."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from tests.support.forked import GREENROOM, popen_forked
from tests.support.gateway import PATIENCE, serve
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.cli.json_shapes import ServerJson
from greenroom.cli.main import run
from greenroom.cli.status_lines import overall, table_lines
from greenroom.cli.status_watch import shown_in
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus, json_of

HERE = os.getpid()
WATCHED = "Ctrl-C ends"


@contextmanager
def watching(*words: str) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """`greenroom status --watch` on a terminal of its own, and our end of that."""
    ours, theirs = pty.openpty()
    try:
        process = popen_forked(
            [*GREENROOM, "status", "--watch", "--every", "0.2", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )  # fmt: skip
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, words: str) -> str:
    """What the program wrote, until it has written `words` and nothing more is there."""
    seen, end = b"", time.monotonic() + PATIENCE
    while words.encode() not in seen or select.select([descriptor], [], [], 0)[0]:
        assert select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(descriptor, 65536)
    return seen.decode(errors="replace")


def details(*rows: ServerStatus) -> dict[str, Any]:
    return {
        "servers": [json_of(row) for row in rows if row.scope == "shared"],
        "addresses": [json_of(row) for row in rows if row.scope != "shared"],
        "disabledCount": 0,
        "totalTools": 7,
    }


def lines(said: dict[str, Any], width: int | None = None, *, is_wide: bool = False) -> list[str]:
    return [line for _, line in table_lines(said, width, is_wide=is_wide)]


def test_each_address_has_a_line_with_what_it_does() -> None:
    busy = ServerStatus(
        "busy", state=State.CONNECTED, incarnation=3, in_flight=2, queued=1, tool_count=7, pid=HERE
    )
    own = ServerStatus("busy", scope="session:alice", state=State.CONNECTED, incarnation=1, in_flight=1)
    said = details(busy, own, ServerStatus("new", waiting_for="slot", waiting=4.2))
    head, first, further, waits = (line.split() for line in lines(said, is_wide=True))
    assert head == ["SERVER", "STATE", "TOOLS", "CALLS", "QUEUED", "INCARNATION", "MEMORY", "PID", "NOTES"]
    assert first[:7] == ["✓", "busy", "connected", "7", "2", "1", "3"]
    assert first[-2:] == ["MiB", str(HERE)] or sys.platform != "linux"
    assert further == ["session:alice", "connected", "1", "0", "1"]
    assert waits == ["○", "new", "waiting", "?", "0", "0", "0", "4", "s", "for", "a", "slot"]
    assert len({line.index("connected") for line in lines(said)[1:3]}) == 1, "one column"
    assert next(overall(said)) == "1 of 2 connected, 7 tools"


def test_a_line_of_a_failure_is_short_and_keeps_the_next_try_and_the_reason_in_a_narrow_window() -> None:
    """In a pipe it had more than 400 characters; at a terminal one of the two was cut off."""
    why = "no answer to the handshake within 30 s" + "; if it needs longer, raise it" * 20
    row = ServerStatus("hang", failure=why, failed_ago=3.0, next_try=16.7)
    (line,) = lines(details(row))[1:]
    assert "  next try in 17 s, or by a call; no answer to the handshake within 30 s; if" in line
    assert len(line) < 200
    assert line.endswith("…")
    assert "  next try in 17 s, or by a call; no answer to the ha" in lines(details(row), 80)[1]
    assert f"next try in 17 s, or by a call; {why}" in lines(details(row), is_wide=True)[1]


def test_of_one_that_does_not_answer_that_comes_first_and_of_one_that_is_down_the_reason_once() -> None:
    hung = ServerStatus("hung", state=State.CONNECTED, silent_failures=4, tool_count=1, pid=HERE)
    assert "  does not answer (4 failures in a row); to restart" in lines(details(hung), 80)[1]
    whole = f"does not answer (4 failures in a row); to restart it: greenroom reconnect hung; pid {HERE}"
    assert lines(details(hung))[1].endswith(whole)
    down = ServerStatus("a", down='Server "a" is down (lost: exited). Connect it.', failure="exited")
    assert lines(details(down))[1].endswith("  is down (lost: exited). Connect it.")


def test_a_command_that_does_not_fit_is_left_out() -> None:
    down = 'Server "off" is disabled. To use it again: greenroom enable --config /a/long/way/to/mcp.json off'
    row = details(ServerStatus("off", down=down))
    command = lines(row)[1].index("greenroom")
    for width in (command + 1, command + 4, command + 40):
        assert lines(row, width)[1].endswith("  is disabled…"), "whose note it is stands in its line"
    assert lines(details(ServerStatus("off", down=down)), 200)[1].endswith("mcp.json off")
    row = ServerStatus("a", failure="run greenroom doctor; " + "x" * 90)
    assert "run greenroom doctor; xxx" in lines(details(row), 60)[1]


def test_what_failed_before_is_not_said_of_the_present_attempt() -> None:
    row = ServerStatus("hang", state=State.CONNECTING, waiting=7.2, failure="no answer within 2 s")
    assert lines(details(row))[1].endswith("for 7 s; before: no answer within 2 s")


def test_what_older_clients_share_is_called_so() -> None:
    older = ServerStatus("shop", scope="handshake", state=State.CONNECTED)
    assert lines(details(ServerStatus("shop"), older))[2].split()[:3] == ["older", "clients", "connected"]


def test_who_failed_or_waits_for_a_person_comes_first() -> None:
    said = details(*map(ServerStatus, "abcd"))
    for row, status in zip(said["servers"], ("cached", "needs-auth", "connected", "failed"), strict=True):
        row["status"] = status
    assert [line.split()[1] for line in lines(said)[1:]] == ["b", "d", "a", "c"]


def test_a_line_ends_at_the_edge_of_the_window_and_only_there() -> None:
    said = details(ServerStatus("数据", failure="it exited\x1b[2J with 3 " + "and more " * 20))
    whole, line = lines(said, is_wide=True)[1], lines(said, 40)[1]
    assert whole.endswith("and more and more")
    assert "\x1b" not in whole
    assert line.endswith("…")
    assert len(line) == 38, "two characters of the name are two columns wide each"


def test_what_does_not_fit_the_window_is_counted() -> None:
    from rich.console import Console

    said = details(*(ServerStatus(f"s{number}", failure="x" * 90) for number in range(20)))
    console = Console(width=80, height=16, color_system=None)
    with console.capture() as capture:
        console.print(shown_in([("", line) for line in lines(said, 80)], 16))
    seen = capture.get().splitlines()
    assert len(seen) == 16
    assert max(map(len, seen)) <= 80
    assert seen[-1].startswith("… and 6 more lines")


def test_a_watch_needs_a_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--watch"], ["--watch", "--json"]):
        assert run(["status", *words]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "--watch needs a terminal" in said.err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_left_as_it_was(home: Path, how: signal.Signals) -> None:
    with watching() as (process, terminal):
        seen = read_until(terminal, "waiting for one")
        before = termios.tcgetattr(terminal)
        assert "\x1b[?1049h" in seen
        process.send_signal(how)
        assert process.wait(PATIENCE) == (128 + how if how == signal.SIGTERM else 0)
        rest = read_until(terminal, "\x1b[?1049l")
        assert "\x1b[?25h" in rest
        assert "Traceback" not in rest
        assert termios.tcgetattr(terminal) == before


def test_the_watch_shows_what_the_servers_of_the_gateway_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(home))
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(home / "cache"))
    with serve(home, {"one": {"command": "nowhere"}, "broken": {}}) as gateway:
        gateway.initialize()
        with watching("--config", os.fspath(home / "mcp.json"), "-o", "wide") as (_, terminal):
            seen = read_until(terminal, f"gateway {gateway.process.pid}")
            assert "MEMORY" in seen
            assert seen.index("✗  broken") < seen.index("○  one")


def test_each_word_below_state_is_explained_by_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    servers = get_args(get_type_hints(ServerJson, include_extras=False)["status"])
    moving = [state.value for state in State if state not in (State.IDLE, State.CLOSED)]
    assert run(["status", "--help"]) == 0
    explained = {line.strip().split("  ")[0] for line in capsys.readouterr().out.splitlines()}
    words = {word.replace("-", " ") for word in (*servers, *moving)} | {"waiting", "installing"}
    assert words <= explained


def test_a_wide_table_is_not_cut(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "x" * 30
    own_config(home, json.dumps({"mcpServers": {name: {}}}))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    run(["status"])  # what is wrong with the entry is said
    capsys.readouterr()
    for words, is_cut in (((), True), (("-o", "wide"), False)):
        assert run(["status", *words]) == 0
        (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("✗"))
        assert row.endswith("…") is is_cut
