"""Every command, as it is typed: what it prints fits windows of 80, 120 and 200 columns, has no escape codes in a pipe
and no colours with `NO_COLOR`, and is with `--json` what the reference says.

One room for all: servers that are known, that failed, whose entries cannot be used, with long names and long reasons.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest
from rich.cells import cell_len
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.shapes import conforms

from greenroom.catalogue.entries import LastFailure, ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.command_group import COMMANDS, cli
from greenroom.cli.main import run
from greenroom.config.files import load_config

WIDTHS: Final = (80, 120, 200)
ECHO: Final = os.fspath(Path(__file__).parents[2] / "src" / "greenroom" / "testing" / "servers" / "echo.py")
LONG: Final = "a-server-with-quite-a-long-name-that-somebody-has-given-to-it"
WHY: Final = (
    "exited with code 1 (could not find the database at /var/lib/thing/db.sqlite: set DATABASE_PATH, or ask)"
)
SERVERS: Final[dict[str, Any]] = {
    "echo": {"command": sys.executable, "args": ["-S", ECHO]},
    "bad": {"command": sys.executable, "args": ["-S", "-c", f"raise SystemExit({WHY!r})"]},
    "broken": {"env": {"A": "${NOT_SET_4711}"}},
    LONG: {"command": "nowhere-4711", "comand": 1},
    "web": {"url": "https://h.example/mcp", "auth": "oauth"},
    "off": {"command": "sh", "disabled": True},
}
TOOL: Final = {
    "name": "echo",
    "description": "Say the same again. " + "And some more about it, in words. " * 12,
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "a word " * 40}},
    },
}


class Row(NamedTuple):
    """`words`: what is typed. `shape`: of its JSON, if it has one. `is_theirs`: it prints what somebody else has
    written, as it is. `is_slow`: it starts servers."""

    words: str
    shape: str | None = None
    is_theirs: bool = False
    is_slow: bool = False


HELP: Final = (
    "demo",  # `whole/test_project_demo.py` plays it in a window, in a pipe and as JSON
    "serve",
    "attach",
    "page",
    "cluster start",
    "cluster status",
    "cluster drain",
    "cluster demo",
)
ROWS: Final = (
    Row("", "greenroom"),
    Row("--version", "greenroom --version"),
    Row("--help"),
    Row("nonsense"),
    Row("status --nonsense"),
    Row("status --config /a/path/that/is/not/there/but/which/is/long/enough/to/be/too/long/for/a/line.json"),
    Row("status", "status"),
    Row("status -o wide", "status", is_theirs=True),  # uncut, as it says
    Row("status --watch --json"),
    Row("tree", "tree"),
    Row("tree --mermaid", is_theirs=True),
    Row("tree --mermaid --json"),
    Row("tools", "tools"),
    Row("tools echo", "tools"),
    Row(f"tools {LONG}", "tools"),
    Row("search say", "search"),
    Row("search nothing", "search"),
    Row("describe echo_echo", "describe"),
    Row("describe nothing", "describe"),
    Row("call echo_echo text=hi", "call", is_theirs=True, is_slow=True),
    Row("call nothing", "call"),
    Row("refresh", "refresh", is_slow=True),
    Row("reconnect"),
    Row("explain echo", "explain"),
    Row("explain bad", "explain"),
    Row("explain broken", "explain"),
    Row(f"explain {LONG}", "explain"),
    Row("explain nobody"),
    Row("doctor", "doctor"),
    Row("doctor --start", "doctor", is_slow=True),
    Row("doctor --require echo,nobody", "doctor", is_slow=True),
    Row("doctor --tape"),
    Row("cost", "cost"),
    Row("cost --search say", "cost"),
    Row("outputs", "outputs"),
    Row("outputs --clear", "outputs --clear"),
    Row("config", "config", is_theirs=True),
    Row("logs bad", "logs", is_theirs=True),
    Row("logs nobody"),
    Row("accept", "accept"),
    Row("accept echo", "accept"),
    Row("auth", "auth"),
    Row("auth nobody"),
    Row("auth web --logout", "auth S --logout"),
    Row("trust", "trust"),
    Row("trust --list", "trust --list"),
    Row("trust --revoke", "trust --revoke"),
    Row("init", "init"),
    Row("init cursor --dry-run", "init CLIENT"),
    Row("init cursor --dry-run --force", "init CLIENT"),
    Row("init nobody"),
    Row("add"),
    Row("add nobody"),
    Row("add echo -- sh"),
    Row("add other --force -- sh", "add"),
    Row("remove echo", "remove"),
    Row("remove nobody"),
    Row("enable off", "enable"),
    Row("disable off", "disable"),
    Row("disable nobody"),
    Row("stop", "stop"),
    Row("approve"),
    Row("approve 5"),
    Row("bench churn echo -n 2", "bench churn", is_slow=True),
    Row("tape nowhere.tape"),
    Row("replay nowhere.tape"),
    Row("explore nowhere.tape -- true"),
    Row("diff nowhere.tape"),
    Row("diff nowhere.tape nowhere-else.tape"),
    Row("diff nowhere.tape --against nowhere.json"),
    Row("audit verify nowhere.jsonl"),
    Row("audit show nowhere.jsonl"),
    Row("completion bash", is_theirs=True),
    *(Row(f"{command} --help") for command in HELP),
)  # fmt: skip

COMMAND: Final = re.compile(r"[\s→`]*(greenroom [^`]*|\S+)[`.,]*$")
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
CODE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Seen(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def room(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(home))
    file = own_config(home, json.dumps({"mcpServers": SERVERS}))
    config = load_config(cwd=Path.cwd(), home=home, environ=os.environ)
    keys, now = catalogue_keys(config), time.time()
    failures = {(name, keys[name]): LastFailure(now, WHY) for name in ("bad", LONG)}
    known = ServerEntry("echo", keys["echo"], tools=(TOOL,), fetched_at=now)
    CatalogueFile(default_cache_path()).save([known], now, failures)
    return file


def typed(words: list[str], file: Path) -> int:
    """Run the command in the same room: some change its file."""
    file.write_text(json.dumps({"mcpServers": SERVERS}))
    return run(words)


def at_terminal(monkeypatch: pytest.MonkeyPatch, file: Path, words: list[str], columns: int) -> Seen:
    with monkeypatch.context() as patch:
        out, err = Screen(), Screen()
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        return Seen(typed(words, file), out.getvalue(), err.getvalue())


def too_wide(text: str, columns: int) -> Iterator[str]:
    """The lines that do not fit, without those that are one word or one command, which are to be copied."""
    for line in re.split(r"[\r\n]+", CODE.sub("", text)):
        if cell_len(line) > columns and not COMMAND.fullmatch(line):
            yield line


def test_every_command_is_here() -> None:
    context, names = click.Context(cli), set[str]()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        inner = command.commands if isinstance(command, click.Group) else ("",)
        names |= {f"{name} {each}".strip() for each in inner}
    rows = [f"{row.words} " for row in ROWS]
    missing = {name for name in names if not any(row.startswith(f"{name} ") for row in rows)}
    assert missing == set()


@pytest.mark.parametrize("row", ROWS, ids=[row.words or "nothing" for row in ROWS])
def test_what_a_command_prints_fits_and_is_plain_where_it_has_to_be(
    room: Path, row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = row.words.split()
    for columns in WIDTHS[: 1 if row.is_slow else None]:
        if columns == WIDTHS[-1]:
            monkeypatch.setenv("NO_COLOR", "1")
        seen = at_terminal(monkeypatch, room, words, columns)
        assert "a bug in Greenroom" not in seen.err
        assert list(too_wide(seen.err, columns)) == []
        assert row.is_theirs or list(too_wide(seen.out, columns)) == []
        assert "NO_COLOR" not in os.environ or not COLOUR.search(seen.out + seen.err)
    monkeypatch.delenv("NO_COLOR", raising=False)
    typed(words, room)
    piped = capsys.readouterr()
    assert "\x1b" not in piped.out + piped.err
    if row.shape is not None:
        at = words.index("--") if "--" in words else len(words)
        typed([*words[:at], "--json", *words[at:]], room)
        conforms(row.shape, json.loads(capsys.readouterr().out))


def test_no_help_shows_the_type_of_an_option_in_place_of_what_it_is() -> None:
    """`--every FLOAT RANGE` says nothing to whoever types it."""
    context, commands = click.Context(cli), list[click.Command]()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        commands += [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    helps = [command.get_help(click.Context(command)) for command in commands]
    assert not [text for text in helps if " RANGE" in text]


def test_the_window_itself_says_how_wide_it_is(room: Path) -> None:
    for columns in (60, 120):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        done = subprocess.run(
            [sys.executable, "-m", "greenroom", "explain", "bad"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = os.read(ours, 65_536).decode()
        os.close(ours)
        assert done.returncode == 0
        assert list(too_wide(said, columns)) == []
        assert max(cell_len(line) for line in CODE.sub("", said).split("\r\n")) > columns - 25
