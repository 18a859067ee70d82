"""What a person at a terminal sees of `status`, `tools` and `search`; a pipe gets plain text."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.homes import home as home

from greenroom.cli import (
    attach_command,
    query_commands,
    refresh_command,
    serve_command,
    status_command,
    tables,
)
from greenroom.cli.main import run
from greenroom.protocol.status import ServerStatus, json_of

WHY = "exited with code 3 (Error: could not find the database at /var/lib/thing/db.sqlite: set DATABASE_PATH)"
TOOLS = [
    {
        "name": "files_read",
        "server": "files",
        "description": "Read a file from the disk. " + "More words " * 30,
    },
    {"name": "clock_now", "server": "clock", "description": "The time\x1b[2J now"},
]


class Source:
    origin: dict[str, Any] = {"source": "cache"}  # noqa: RUF012

    def status(self) -> dict[str, Any]:
        rows = [
            {**json_of(ServerStatus("files", tool_count=1)), "status": "cached"},
            {**json_of(ServerStatus("postgres", failure=WHY)), "status": "failed"},
        ]
        return {"servers": rows, "disabledCount": 0, "totalTools": 1}

    def tools(self, server: str | None) -> dict[str, Any]:
        return {"mode": "tools", "tools": TOOLS, "count": len(TOOLS)}

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        if "describe" in request:
            (tool,) = (one for one in TOOLS if one["name"] == request["describe"])
            return {"content": [], "_meta": {"greenroom/details": {"mode": "describe", "tool": tool}}}
        details = {"mode": "search", "matches": [{"server": "files", "tool": "files_read", "score": 9}]}
        text = 'Found 1 tool matching "read":\n\n- files_read - Read a file\n\n1 of 2'
        return {"content": [{"type": "text", "text": text}], "_meta": {"greenroom/details": details}}


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (query_commands, status_command):
        monkeypatch.setattr(module, "open_source", lambda *_: Source())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def seen(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    screen = Screen()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", screen)
        assert run(list(arguments)) == 0
    return screen.getvalue()


COMMANDS = (("status",), ("tools",), ("search", "read"))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_terminal_gets_a_header_row_and_lines_that_fit(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" in seen(monkeypatch, *command)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = seen(monkeypatch, *command)
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert any(line.split() and line.split()[0] in ("SERVER", "TOOL") for line in shown.splitlines())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_pipe_gets_plain_text(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(command)) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "TOOL " not in shown
    if command == ("status",):
        assert WHY in shown, "one line for a server"


def test_a_server_has_one_line_that_is_cut_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    (line,) = (line for line in seen(monkeypatch, "status").splitlines() if line.startswith("✗  postgres"))
    assert len(line) == 80
    assert line.endswith("…")


def test_tools_stand_below_their_server_with_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = seen(monkeypatch, "tools").splitlines()
    assert [line.rstrip() for line in lines] == lines, "nothing is copied that is not seen"
    assert lines[1] == "clock"
    assert lines[2].split() == ["clock_now", "The", "time", "now"]
    assert lines[3] == "files"
    assert lines[4].startswith("files_read")
    assert "Read a file from the disk" in lines[4]
    assert lines[5] == ""


def test_a_long_name_stays_on_one_line_and_leaves_room_for_the_descriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    long = {"name": f"files_{'x' * 50}", "server": "files", "description": "Something with a long name"}
    resource = {"name": "files_get_a", "server": "files", "description": "A text", "kind": "resource"}
    monkeypatch.setattr(sys.modules[__name__], "TOOLS", [*TOOLS, long, resource])
    lines = seen(monkeypatch, "tools").splitlines()
    at = lines.index(long["name"])
    assert lines[at + 1].split() == long["description"].split()
    assert "Read a file from the disk. More words More words" in lines[at - 1]
    assert lines[-1] == "Total: 3 tools, 1 resource"


def test_a_proposed_call_stays_on_one_line_with_its_arguments() -> None:
    command = "greenroom call notes_add 'text=some words that are far too many for this line' tag=…"
    assert command in tables.prose(f"Did you mean: {command}", 40).splitlines()


def test_a_command_in_a_text_stays_on_one_line() -> None:
    for width in range(30, 80):
        text = "Not known yet: postgres. To see why: greenroom explain postgres, and then again and again"
        assert "greenroom explain postgres" in tables.prose(text, width)


def test_refresh_writes_one_line_again_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "60")
    slow = {"name": "slow", "state": "waiting", "waitsFor": "installing for 3 s", "lastLine": "x" * 99}
    known = {"name": "a", "state": "known", "tools": 2}
    progress = refresh_command.Progress()
    assert not progress.tell([known, slow])
    assert progress.tell([known, {"name": "slow", "state": "known", "tools": 1}])
    assert "1 of 2 done; slow (installing for 3 s" in screen.getvalue()
    assert "\n" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[2K")
    assert max(map(len, screen.getvalue().split("\x1b[2K"))) <= 61


def test_of_several_servers_those_are_shown_that_the_line_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third was cut in the middle of what it did."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "60")
    doing = {"state": "waiting", "waitsFor": "connecting for 3 s", "lastLine": None}
    refresh_command.Progress().tell([{**doing, "name": name} for name in ("exits", "hangs", "slow")])
    assert screen.getvalue().endswith("0 of 3 done; exits (connecting for 3 s) and 2 more")


def test_the_line_of_a_server_that_is_done_takes_the_place_of_the_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    slow = {"name": "slow", "state": "waiting", "waitsFor": "connecting for 3 s", "lastLine": None}
    states = [
        (slow, slow),
        ({"state": "failed"}, slow),
        ({"state": "failed"}, slow),
        ({"state": "known"}, slow),
    ]
    progress = refresh_command.Progress(lambda row: print(row["name"], row["state"], file=screen))
    for a, b in states:
        progress.tell([{**a, "name": "a"}, b])
    shown = screen.getvalue().split("\r\x1b[2K")
    assert [line for line in shown if line.endswith("\n")] == ["a failed\n", "a known\n"], "each change once"
    assert shown[-1].startswith("1 of 2 done; slow")


def test_what_refresh_says_of_a_server_is_wrapped_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"name": "a", "state": "known", "tools": 1},
        {"name": "postgres", "state": "failed", "failure": WHY},
    ]
    answers = {"refresh": {}, "refreshed": rows}
    gateway = SimpleNamespace(pid=7, ask=lambda method, **_: answers[method])
    monkeypatch.setattr(refresh_command, "running_gateway", lambda *_: gateway)
    screen = Screen()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", screen)
        assert run(["refresh"]) == 1
    first, *lines = screen.getvalue().splitlines()
    assert first == "✓ a: 1 tool"
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("  ") for line in lines[1:]), "they stand below the name"
    assert " ".join(" ".join(lines).split()) == f"✗ postgres: {WHY}"


class Typist(io.StringIO):
    """Standard input at a terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize("command", ["serve", "attach"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_types_what_a_client_starts_is_told_that_it_waits_for_one(
    command: str,
    is_terminal: bool,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(serve_command, "run_gateway", lambda *_: None)
    monkeypatch.setattr(attach_command, "attach", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", Typist(is_terminal))
    (home / "work" / "mine.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    for options in ("", " --config mine.json"):
        assert run([command, *options.split()]) == 0
        said = f"{' '.join(capsys.readouterr().err.split())} "
        waits = f"waiting for an MCP client on standard input. A client starts greenroom {command}{options} itself: "
        assert (f"{waits}greenroom init{options} Ctrl-C" in said) is is_terminal, "the file that was typed"
