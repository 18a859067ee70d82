"""Runs a page of the docs as its reader would: every block, in its order, in one folder and at a terminal.

What counts as what:

* A block of `json`, `yaml`, `toml` or `python` is a file. The line before it names the file, between backquotes, and
  ends with a colon.
* A block of `sh` is commands, all of which must succeed. A block of `console` is commands behind `$`, each with
  what it prints below it.
* `<!-- not run: why -->` on the line before a block leaves it out.
* `<!-- given: COMMAND -->` is what the reader has already, such as a client's folder; `$REPOSITORY` is this one.
* A block of any other language is a picture or a quotation.

What is printed is compared in shape: a number stands for any number, a blank for any blanks or line ends, and `…` for
anything. A number of four digits or more that the page shows (a process's id) is remembered, and a later command that
names it gets the one that was really printed: so a page may say `kill -9 41234` and be run as it is. An address
`127.0.0.1:PORT` gets a port that is free, and `sleep 2` takes twice as long, for a machine that runs many tests.

Rejected: pages that are written by what commands print. Every version of a message would change the page, and nobody
would read what it says now.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import pytest
from tests.support.forked import write_forked_greenroom
from tests.support.leaks import KEPT_PROCESSES
from tests.support.patience import PATIENCE

_FILES: Final = {"json", "jsonc", "yaml", "toml", "python"}
_BLOCK: Final = re.compile(
    r"^<!-- given: (?P<given>.*?) -->$"
    r"|(?:^(?P<before>[^\n]+)\n+)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_NAMED: Final = re.compile(r"`([\w./~-]+)`[^`]*:$")
_ADDRESS: Final = re.compile(r"127\.0\.0\.1:(\d{4,5})")
_SLEEP: Final = re.compile(r"\bsleep (\d+)\b")
_ESCAPE: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b\]8;;[^\x07\x1b]*(?:\x07|\x1b\\)")
_TOKEN: Final = re.compile(r"\s*…\s*|\d[\d.,]*\d|\d|\s+|[^\d\s…]+")
ROOT: Final = Path(__file__).resolve().parents[2]
SIZE: Final = (50, 100)  # rows and columns of the terminal


@attrs.frozen
class Step:
    """A file to write, or a command to run with what the page shows below it (None: it shows nothing)."""

    line: int
    file: str | None
    text: str
    shown: str | None = None


def steps(page: str) -> Iterator[Step]:
    """What the reader of the page does, in order. Raises ValueError for a file without a name."""
    for block in _BLOCK.finditer(page):
        if block["given"]:
            yield Step(page.count("\n", 0, block.start()) + 1, None, block["given"])
            continue
        line = page.count("\n", 0, block.start("text")) + 1
        before, language = (block["before"] or "").strip(), block["language"]
        text = re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
        if before.startswith("<!-- not run:"):
            continue
        if language == "sh":
            yield Step(line, None, f"set -e\n{text}")
        elif language == "console":
            yield from _typed(text, line)
        elif language in _FILES:
            if (named := _NAMED.search(before)) is None:
                raise ValueError(f"line {line}: which file is this {language}? Name it before the block")
            yield Step(line, named[1], text)


def _typed(text: str, line: int) -> Iterator[Step]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command}\n{more}"
        yield Step(line, None, command, shown if shown.strip() else None)


class Reader:
    """Somebody with an empty home who does what a page says."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / "work"
        self._numbers: dict[str, str] = {}
        own = home / ".bin"
        own.mkdir()
        write_forked_greenroom(own / "greenroom")
        bins = os.pathsep.join((os.fspath(own), os.fspath(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("XDG_", "GREENROOM"))
            },
            "HOME": str(home),
            "REPOSITORY": str(ROOT),
            "PATH": bins,
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        for name in ("PYTEST_CURRENT_TEST", "COLUMNS", "PYTHONWARNINGS", "VIRTUAL_ENV"):
            self._environment.pop(name, None)

    def read(self, page: Path) -> None:
        """Do all of it. Fails with the line of the page at which something else happened."""
        for step in steps(page.read_text(encoding="utf-8")):
            where = f"{page.name}:{step.line}"
            text = self._said(step.text)
            if step.file is not None:
                file = self._folder / step.file.replace("~", str(self._home), 1)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
                continue
            code, printed = self.run(_SLEEP.sub(lambda it: f"sleep {2 * int(it[1])}", text))
            if step.shown is None:
                assert code == 0, f"{where}: exit code {code} of\n{text}\n{printed}"
            elif (found := fits(step.shown, printed)) is None:
                pytest.fail(f"{where}: {text}\n--- the page shows\n{step.shown}\n--- printed\n{printed}")
            else:
                self._numbers |= found

    def run(self, command: str, seconds: float = 120.0) -> tuple[int, str]:
        """Run a command at a terminal: its exit code, and all that it printed."""
        state = self._home / ".page"
        script = (  # what it exports, and where it goes, holds for the next one, and what it leaves running goes on
            f"trap '' HUP; [ -f {state} ] && . {state} >/dev/null\n"
            f"trap '{{ export -p; echo cd \"$PWD\"; }} > {state}' EXIT\n{command}"
        )
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        os.close(theirs)
        printed = bytearray()
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                over = process.poll() is not None  # asked first: what it wrote before its end is there then
                if select.select([ours], [], [], 0 if over else 0.05)[0]:
                    if not (piece := _piece(ours)):
                        break
                    printed += piece
                elif over:
                    break
            else:
                pytest.fail(f"no end in {seconds:g} s: {command}\n{printed.decode(errors='replace')}")
        finally:
            if process.poll() is None and time.monotonic() >= until:
                process.kill()
            code = process.wait(PATIENCE)
            os.close(ours)
        text = _ESCAPE.sub("", printed.decode("utf-8", "replace")).replace("\r\n", "\n")
        return code, re.sub(r"[^\n]*\r", "", text)  # a line that is written anew, as a terminal shows it

    def leave(self) -> None:
        """End what the page has left running, and wait for it: every process that has this home (on Linux). The fork
        server may have it too, if it was started for this page."""
        for how, seconds in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
            for process in self._left():
                with suppress(ProcessLookupError):
                    os.kill(process, how)
            until = time.monotonic() + seconds
            while self._left() and time.monotonic() < until:
                time.sleep(0.05)

    def _left(self) -> list[int]:
        mine = f"HOME={self._home}".encode()
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mine in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return [process for process in found if process not in KEPT_PROCESSES]

    def _said(self, text: str) -> str:
        for port in _ADDRESS.findall(text):
            self._numbers.setdefault(port, str(_free_port()))
        for shown, real in self._numbers.items():
            text = re.sub(rf"(?<![\d.]){shown}(?!\d)", real, text)
        return text


def fits(shown: str, printed: str) -> dict[str, str] | None:
    """The numbers that were printed, by those that the page shows, if the shape is the same; else None."""
    numbers: list[str] = []
    pattern: list[str] = []
    for token in _TOKEN.findall(shown.strip()):
        if token[0].isdigit():
            numbers.append(token)
            pattern.append(r"(\d(?:[\d.,]*\d)?)")
        elif token.strip() == "…":
            pattern.append(r"[\s\S]*?")
        else:
            pattern.append(r"\s+" if token.isspace() else re.escape(token))
    found = re.fullmatch("".join(pattern), printed.strip())
    if found is None:
        return None
    return {
        was: now for was, now in zip(numbers, found.groups(), strict=True) if re.fullmatch(r"\d{4,}", was)
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError as error:
        if error.errno == errno.EIO:  # every other end is closed
            return b""
        raise
