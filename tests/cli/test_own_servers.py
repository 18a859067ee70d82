"""`greenroom add` and `greenroom remove`: an entry comes into the user's file or goes out, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import GREENROOM, popen_forked
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.patience import PATIENCE

from greenroom.cli.main import run
from greenroom.config.files import load_config, own_file
from greenroom.config.private_files import alone

COMMENTED = """{
  // my servers
  "mcpServers": {
    "old": {"command": "true"}, // keep this
  },
}
"""


def entries(home: Path) -> Any:
    config = load_config(cwd=Path.cwd(), home=home, environ={})
    return config.servers


def test_a_command_of_an_activated_environment_is_written_with_its_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "venv" / "bin" / "time-server"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert run(["add", "plain", "--", "time-server"]) == 0
    assert "virtual environment" not in capsys.readouterr().out
    monkeypatch.setenv("VIRTUAL_ENV", str(program.parent.parent))
    assert run(["add", "time", "--", "time-server", "-v"]) == 0
    assert f"It is started as {program}, the one of the virtual environment" in capsys.readouterr().out
    assert run(["add", "other", "--", "sh"]) == 0
    said = json.loads(own_file(home, {}).read_text())["mcpServers"]
    assert said["plain"] == {"command": "time-server"}
    assert said["time"] == {"command": str(program), "args": ["-v"]}
    assert said["other"] == {"command": "sh"}


def test_what_may_keep_an_entry_from_working_is_said_when_it_is_written(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["add", "plain", "--", "sh"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["add", "nothere", "--", "no-such-cmd-4711"]) == 0
    assert "no-such-cmd-4711 is not found here" in capsys.readouterr().err
    assert run(["add", "odd", '{"command": "sh", "colour": "red"}']) == 0
    assert "colour: unknown key" in capsys.readouterr().err
    for typed in ("localhost:3000/mcp", "h.example:80"):
        assert run(["add", "far", typed]) == 2
        assert f"Type: http://{typed}" in capsys.readouterr().err
    assert entries(home).keys() == {"plain", "nothere", "odd"}


@pytest.mark.parametrize(
    ("typed", "entry"),
    [
        (["--", "uvx", "mcp-server-time"], {"command": "uvx", "args": ["mcp-server-time"]}),
        (["npx", "thing"], {"command": "npx", "args": ["thing"]}),
        (["-e", "A=1", "--env", "B=x=y", "--", "npx", "-y", "z"],
         {"command": "npx", "args": ["-y", "z"], "env": {"A": "1", "B": "x=y"}}),
        (["https://h.example/mcp"], {"url": "https://h.example/mcp"}),
        (["-t", "http", "https://h.example/mcp", "-H", "X-Key: a:b"],
         {"url": "https://h.example/mcp", "headers": {"X-Key": "a:b"}}),
        (["https://h.example/v1", "--openapi", "https://h.example/o.json", "-H", "A: b"],
         {"openapi": "https://h.example/o.json", "baseUrl": "https://h.example/v1", "headers": {"A": "b"}}),
        (['{"command": "true", "lifecycle": "eager"}'], {"command": "true", "lifecycle": "eager"}),
    ],
)  # fmt: skip
def test_what_was_typed_is_what_is_written(
    home: Path, typed: list[str], entry: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["add", "new", *typed]) == 0
    file = own_file(home, {})
    assert json.loads(file.read_text())["mcpServers"] == {"new": entry}
    assert file.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out.rstrip().endswith("greenroom refresh new")


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        (["https://h.example/mcp", "more"], "Nothing may follow an address"),
        (["ftp://h.example/mcp"], "ftp:// is neither"),
        (["ws+unix://h"], "ws+unix:// is neither"),
        (["-H", "A: b", "--", "true"], "--env"),
        (["-e", "A=b", "https://h.example/mcp"], "--header"),
        (["-e", "secret", "--", "true"], "--env NAME=VALUE"),
        (["-t", "sse", "--", "true"], "address"),
        (["--openapi", "o.json", "--", "true"], "needs the address of an API"),
        (["--openapi", "o.json", "https://h.example/v1"], "no document o.json"),
        (['{"lifecycle": "eager"}'], "could not be used"),
        (["npx", "-y", "thing"], "put -- before"),
    ],
)
def test_what_cannot_be_meant_is_not_written_and_no_value_is_repeated(
    home: Path, typed: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["add", "new", *typed]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert "secret" not in err
    assert not own_file(home, {}).exists()


def test_a_document_is_the_same_file_from_every_folder(home: Path) -> None:
    Path("o.json").write_text("{}")
    assert run(["add", "new", "https://h.example/v1", "--openapi", "o.json"]) == 0
    assert entries(home)["new"].openapi == str(Path("o.json").absolute())


def test_comments_stay_and_nothing_is_written_over_unasked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config(home, COMMENTED)
    assert run(["add", "old", "--", "false"]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == COMMENTED
    assert run(["add", "old", "--force", "--", "false"]) == 0
    assert entries(home)["old"].command == "false"
    assert run(["add", "new", "--", "cat"]) == 0
    assert "// my servers" in file.read_text()
    assert "// keep this" in file.read_text()
    assert run(["remove", "new"]) == 0
    assert list(entries(home)) == ["old"]
    assert "// keep this" in file.read_text()


def test_a_server_that_another_file_defines_is_not_taken_out_and_the_way_is_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".config" / "mcp").mkdir(parents=True)
    (home / ".config" / "mcp" / "mcp.json").write_text('{"mcpServers": {"theirs": {"command": "true"}}}')
    assert run(["remove", "theirs"]) == 2
    assert "greenroom disable theirs" in capsys.readouterr().err
    assert run(["remove", "nobody"]) == 2
    own = own_config(home, '{"mcpServers": {"mine": {"command": "a"}, "two": {"command": "b"}}}')
    before = own.read_bytes()
    assert run(["remove", "mine", "theirs"]) == 2
    assert own.read_bytes() == before, "all or none"
    assert run(["remove", "mine", "two"]) == 0
    assert capsys.readouterr().out.count("is no longer in") == 2
    assert run(["add", "theirs", "--json", "--", "cat"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["replaced"] is False
    assert "has a server of this name, too" in said.err
    assert run(["remove", "theirs"]) == 0
    assert "greenroom disable theirs" in capsys.readouterr().err


def test_a_command_of_this_folder_is_started_in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("server.py").write_text("")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert run(["add", "mine", "--", "python", "server.py"]) == 0
    assert entries(home)["mine"].cwd == str(Path.cwd())
    named = home / "one.json"
    assert run(["add", "other", "--config", str(named), "--", "python", "gone.py"]) == 0
    assert json.loads(named.read_text())["mcpServers"] == {
        "other": {"command": "python", "args": ["gone.py"]}
    }


def test_servers_that_a_script_adds_side_by_side_all_come_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    names = [f"s{number}" for number in range(8)]
    words = [[*GREENROOM, "add", name, "--config", os.fspath(file), "--", "true"] for name in names]
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path)}
    with ExitStack() as stack:
        how = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL}
        adding = [stack.enter_context(popen_forked(each, **how)) for each in words]
        assert [each.wait(PATIENCE) for each in adding] == [0] * len(names)
    assert sorted(json.loads(file.read_text())["mcpServers"]) == names


def test_an_entry_that_another_command_writes_while_enable_waits_is_not_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What enable saw before was one that says nothing but `disabled`, which goes as a whole."""
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": {"disabled": True}}}))
    with ExitStack() as other:
        other.enter_context(alone(file))

        def write_and_end(_seconds: float) -> None:
            file.write_text(json.dumps({"mcpServers": {"one": {"command": "true", "disabled": True}}}))
            other.close()

        monkeypatch.setattr(time, "sleep", write_and_end)
        assert run(["enable", "one", "--config", os.fspath(file)]) == 0
    assert json.loads(file.read_text()) == {"mcpServers": {"one": {"command": "true"}}}
