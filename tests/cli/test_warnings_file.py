"""A warning about the configuration is said once a day, and not with every command."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.cli.test_next_steps import steps_in
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.catalogue.store import default_cache_path
from greenroom.cli.main import run

ODD = {"mcpServers": {"a": {"command": "a", "zebra": 1}}}
DAY = 86_400.0


def warned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(list(words)) in (0, 1)
    said = capsys.readouterr()
    return "\n".join(line for line in said.err.splitlines() if "zebra" in line or "warning" in line)


def test_it_is_said_by_the_first_command_of_a_day_with_the_place_of_all(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_config(home, json.dumps(ODD))
    first = warned(capsys, "status")
    assert "zebra" in first
    assert "greenroom doctor" in steps_in(first)
    for words in (["status"], ["tools"], ["search", "x"], ["status", "--json"]):
        assert warned(capsys, *words) == "", words
    real = time.time
    for later, is_said in ((DAY - 60, False), (DAY + 60, True), (DAY + 120, False), (-DAY, True)):
        monkeypatch.setattr(time, "time", lambda later=later: real() + later)
        assert ("zebra" in warned(capsys, "tools")) is is_said, later


def test_what_shows_the_configuration_always_shows_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps(ODD))
    warned(capsys, "status")
    for _ in range(2):
        assert "zebra" in warned(capsys, "config")
        assert run(["doctor"]) in (0, 1)
        assert "zebra" in capsys.readouterr().out


def test_what_shows_one_server_warns_of_its_entry_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {name: {"command": "a", f"zebra of {name}": 1} for name in ("a", "ab", "a b")}
    own_config(home, json.dumps({"mcpServers": odd}))
    for name in odd:
        assert run(["config", name]) == 0
        said = capsys.readouterr()
        told = {other for other in odd if f'zebra of {other}"' in said.err.replace("\n", " ")}
        assert (told, len(json.loads(said.out)["problems"])) == ({name}, 1)


def test_a_configuration_without_servers_says_each_time_what_it_ignores(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps({"mcpservers": {"a": {"command": "a"}}}))
    for _ in range(2):
        assert run(["status"]) == 0
        said = capsys.readouterr()
        assert 'did you mean "mcpServers"?' in said.err
        assert "No servers are configured." in said.out


def test_a_new_warning_is_said_at_once_and_another_configuration_has_its_own(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_config(home, json.dumps(ODD))
    warned(capsys, "status")
    own.write_text(json.dumps({"mcpServers": {"a": {"command": "a", "zebra": 1, "zebrafish": 1}}}))
    said = warned(capsys, "status")
    assert "zebrafish" in said
    assert '"zebra"' not in said
    other = home / "other.json"
    other.write_text(json.dumps(ODD))
    assert "zebra" in warned(capsys, "status", "--config", str(other))


def test_a_file_that_is_not_obeyed_is_named_by_every_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "work" / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    for _ in range(2):
        assert run(["tools"]) == 0
        said = capsys.readouterr()
        assert any("greenroom trust" in step for step in steps_in(said.out + said.err))


def test_a_file_that_cannot_be_read_is_named_by_every_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_config(home, "{")
    for words in (["tools"], ["status"], ["tools"]):
        assert run(words) == 0
        assert f"{own}: is not valid JSON" in capsys.readouterr().err
    assert run([]) == 0
    assert "~/.config/greenroom/mcp.json (yours, cannot be read)" in capsys.readouterr().out


def test_the_file_is_private_and_has_no_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, json.dumps(ODD))
    warned(capsys, "status")
    file = default_cache_path().with_name("told.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert b"zebra" not in file.read_bytes()
    assert b"mcp.json" not in file.read_bytes()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"x": "y"}', b"\xff", b"[" * 99_999, b'{"x": 1e999}'])
def test_a_file_that_is_not_ours_is_replaced(
    home: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps(ODD))
    file = default_cache_path().with_name("told.json")
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_bytes(content)
    file.chmod(0o600)
    assert "zebra" in warned(capsys, "status")
    assert warned(capsys, "status") == ""


def test_what_cannot_be_remembered_is_said_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link is not followed and not written through; where nothing can be written, nothing fails."""
    own_config(home, json.dumps(ODD))
    victim = home / "victim"
    victim.write_text("mine")
    file = default_cache_path().with_name("told.json")
    file.parent.mkdir(parents=True, mode=0o700)
    file.symlink_to(victim)
    assert "zebra" in warned(capsys, "status")
    assert victim.read_text() == "mine"
    file.unlink()
    file.mkdir()
    for _ in range(2):
        assert "zebra" in warned(capsys, "status")
    os.rmdir(file)


def test_variables_that_are_not_set_are_one_line_and_each_by_itself_where_one_looks(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts a gateway for thirty servers needs to know of them, not to read them all in a client's log."""
    servers = {name: {"command": "a", "env": {"K": f"${{NOPE_{name}}}"}} for name in ("a", "b", "c")}
    own = own_config(home, json.dumps({"mcpServers": servers}))

    def told(*words: str) -> list[str]:
        assert run(list(words)) in (0, 1)
        return [line for line in capsys.readouterr().err.splitlines() if "not set" in line]

    for words in (["config"], ["config"], ["--config", str(own), "ls"]):
        (line,) = told(*words)
        assert "3 values" in line
        assert "NOPE" not in line
    assert "greenroom doctor" in steps_in(told("config")[0])
    (line,) = told("config", "b")
    assert "NOPE_b" in line
    assert run(["doctor"]) in (0, 1)
    said = capsys.readouterr().out
    assert all(f"NOPE_{name}" in said for name in servers)


def test_one_variable_that_is_not_set_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, json.dumps({"mcpServers": {"a": {"command": "a", "args": ["${NOPE}"]}}}))
    assert run(["config"]) == 0
    assert "the variable NOPE, which is not set" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["mcpServers", "servers"])
def test_a_row_of_the_status_names_the_value_whose_variable_is_not_set(
    home: Path, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    """The warning is said once a day, and the row showed nothing."""
    entries = {
        "a": {"command": "a", "args": ["x", "${NOPE}"], "env": {"K": "${NOPE}"}},
        "ab": {"command": "b"},
    }
    own_config(home, json.dumps({section: entries}))
    assert run(["status"]) == 0
    a, ab = (line for line in capsys.readouterr().out.splitlines() if line.startswith("○"))
    assert a.endswith("a variable is not set here: args[1], env.K")
    assert "variable" not in ab
