"""The person at the terminal of `greenroom call`: a real command with a real terminal as its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.support.forked import GREENROOM, environment_of, popen_forked
from tests.support.gateway import gone_within, named_after, started
from tests.support.patience import PATIENCE

# `one` asks one thing, `two` two things at once, and `left` ends its call while it asks. Each answers what it was told.
SERVER = """
import json, sys
FORM = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
        "of_age": {"type": "boolean"}, "kinds": {"type": "array", "items": {"enum": ["a", "b"]}}}}
COUNTS, told = {"one": 1, "two": 2, "left": 2, "echo": 0}, {}
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    got = json.loads(line)
    method, params, done = got.get("method"), got.get("params") or {}, False
    if method == "initialize":
        version, info = params["protocolVersion"], {"name": "s", "version": "1"}
        say(id=got["id"], result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        say(id=got["id"], result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in COUNTS]})
    elif method == "tools/call":
        call, name = got["id"], params["name"]
        for number in range(COUNTS[name]):
            asks = {"message": f"Who {number}?", "requestedSchema": FORM}
            say(id=f"q{number}", method="elicitation/create", params=asks)
        done = name in ("left", "echo")
    elif str(got.get("id", "")).startswith("q"):
        told[got["id"]] = got.get("result") or got.get("error")
        done = len(told) == COUNTS[name]
    elif method and "id" in got:
        say(id=got["id"], error={"code": -32601, "message": "no"})
    if done:
        say(id=call, result={"content": [{"type": "text", "text": "told " + json.dumps(told)}]})
"""
CTRL_C, CTRL_D = "\x03", "\x04"


def configure(folder: Path, **more: Any) -> None:
    (folder / "server.py").write_text(SERVER)
    entry = {"command": sys.executable, "args": ["-S", os.fspath(folder / "server.py")], "era": "handshake"}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": {**entry, **more}}}))


@attrs.define
class Terminal:
    """What is seen on it, and the command that has it."""

    process: subprocess.Popen[bytes]
    screen: int
    seen: str = ""

    def until(self, text: str) -> None:
        """Read until the text stands there, behind what was waited for before."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert self._read(max(0.0, end - time.monotonic())), f"{text!r} is not in {self.seen!r}"
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and the rest that is seen."""
        while self._read(PATIENCE):
            pass
        return self.process.wait(PATIENCE), self.seen

    def _read(self, within: float) -> bool:
        if not select.select([self.screen], [], [], within)[0]:
            return False
        try:
            self.seen += os.read(self.screen, 1 << 16).decode()
        except OSError:  # the command has ended
            return False
        return True


@contextmanager
def calling(folder: Path, *words: str) -> Generator[Terminal]:
    """`greenroom call` with a terminal of its own."""
    screen, theirs = os.openpty()
    command = [*GREENROOM, "call", *words, "--config", os.fspath(folder / "mcp.json")]
    process = popen_forked(
        command,
        env=environment_of(folder), cwd=folder, start_new_session=True,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def test_the_question_fits_the_window(tmp_path: Path) -> None:
    configure(tmp_path, approve="all")
    with calling(
        tmp_path, "s_echo", f"text={'some words ' * 12}"
    ) as terminal:  # a new terminal counts as 80 wide
        terminal.until("Greenroom asks")
        terminal.type("n\n")
        _, seen = terminal.end()
    assert "Allow this call? [y/N]: " in seen
    assert max(map(len, f"Greenroom asks{seen}".splitlines())) <= 80


TYPED = {
    "yes": ("y\n", 0, "told {}"),
    "yes at last": ("what\nYES\n", 0, "told {}"),
    "no": ("n\n", 1, "did not allow the call"),
    "nothing": ("\n", 1, "did not allow the call"),
    "Ctrl-D": (CTRL_D, 1, "did not allow the call"),
    "Ctrl-C": (CTRL_C, 130, ""),
}
PLACED = [*((name, False) for name in TYPED), *((name, True) for name in ("yes", "no", "Ctrl-C"))]


@pytest.mark.parametrize(("name", "through"), PLACED)  # through a gateway, or alone
def test_a_call_that_has_to_be_allowed(tmp_path: Path, name: str, through: bool) -> None:
    typed, code, said = TYPED[name]
    configure(tmp_path, approve="all")

    def call() -> None:
        with calling(tmp_path, "s_echo") as terminal:
            terminal.until("Allow this call? [y/N]: ")
            terminal.type(typed)
            ended, seen = terminal.end()
            assert (ended, said in seen) == (code, True), seen
            assert "Allow" not in seen.replace("Allow this call? [y/N]: ", "", typed.startswith("what"))
            assert ("told" in seen) is (code == 0)
            assert ("Please type y or n." in seen) is typed.startswith("what")

    if not through:
        call()
        return
    command = [*GREENROOM, "serve", "--config", os.fspath(tmp_path / "mcp.json")]
    with started(*command, env=environment_of(tmp_path), cwd=tmp_path) as gateway:
        gateway.initialize()
        gateway.mcp(connect="s")
        call()
        assert gateway.end() == 0


def test_a_form_is_filled_in_field_by_field(tmp_path: Path) -> None:
    configure(tmp_path)
    with calling(tmp_path, "s_one") as terminal:
        terminal.until('Server "s" asks: Who 0?')
        typed = [
            *(("Answer it? [Y/n]: ", ""), ("  name: ", ""), ("  name: ", "Zoë"), ("  age: ", "old")),
            *(("is not a valid integer", "7"), ("  of_age [y/N]: ", "y"), ("  kinds [a, b]: ", "a, b")),
        ]
        for prompt, text in typed:
            terminal.until(prompt)
            terminal.type(f"{text}\n")
        code, seen = terminal.end()
    assert code == 0, seen
    (told,) = json.loads(seen[seen.index("told ") + 5 :].splitlines()[0]).values()
    content = {"name": "Zoë", "age": 7, "of_age": True, "kinds": ["a", "b"]}
    assert told == {"action": "accept", "content": content}


def test_of_two_questions_at_once_the_second_is_asked_when_the_first_is_answered(tmp_path: Path) -> None:
    configure(tmp_path)
    with calling(tmp_path, "s_two") as terminal:
        terminal.until('Server "s" asks: Who ')
        terminal.until("Answer it? [Y/n]: ")
        terminal.type("y\n")
        terminal.until("  name: ")
        assert "Who" not in terminal.seen
        terminal.type(CTRL_D)
        terminal.until('Server "s" asks: Who ')
        terminal.until("Answer it? [Y/n]: ")
        terminal.type("n\n")
        code, seen = terminal.end()
    assert code == 0, seen
    told = json.loads(seen[seen.index("told ") + 5 :].splitlines()[0])
    assert [*told.values()] == [{"action": "cancel"}, {"action": "decline"}]


def test_a_call_that_has_ended_is_not_asked_about_any_more(tmp_path: Path) -> None:
    configure(tmp_path)
    with calling(tmp_path, "s_left") as terminal:
        terminal.until("told {}")
        code, seen = terminal.end()
    assert (code, "Who 1?" in seen) == (0, False), seen


def test_ctrl_c_during_a_question_ends_the_command_and_the_server(tmp_path: Path) -> None:
    configure(tmp_path)
    with calling(tmp_path, "s_two") as terminal:
        terminal.until("Answer it? [Y/n]: ")
        terminal.type("y\n")
        terminal.until("  name: ")
        terminal.type(f"half a na{CTRL_C}")
        code, seen = terminal.end()
    assert (code, "Who 1?" in seen) == (130, False), seen
    assert not gone_within(named_after(tmp_path))
