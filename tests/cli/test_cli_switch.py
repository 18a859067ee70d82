"""`enable`, `disable`, and what a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.homes import own_config

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.command_group import COMMANDS
from greenroom.cli.main import run
from greenroom.config.files import load_config
from greenroom.config.model import Config


def effective(home: Path) -> Config:
    return load_config(cwd=Path.cwd(), home=home, environ={}, platform=sys.platform)


def switched(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return json.loads(capsys.readouterr().out)["servers"]


@pytest.mark.parametrize(
    ("before", "disabled", "enabled"),
    [
        (
            '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "a"}, // first\n  },\n}\n',
            '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "a", "disabled": true}, // first\n  },\n}\n',
            None,
        ),
        (
            '{"servers": {"a": {"command": "a", "enabled": false}}}',
            None,
            '{"servers": {"a": {"command": "a"}}}',
        ),
        ('{"mcpServers": {"a": {"disabled": true, "command": "a"}}}', None, '{"mcpServers": {"a": {"command": "a"}}}'),
    ],
)  # fmt: skip
def test_only_the_switch_in_the_defining_file_changes(
    home: Path, before: str, disabled: str | None, enabled: str | None
) -> None:
    file = own_config(home, before)
    assert run(["disable", "a"]) == 0
    assert file.read_text() == (disabled or before)
    assert effective(home).servers["a"].disabled
    assert run(["enable", "a"]) == 0
    assert file.read_text() == (enabled or before)
    assert not effective(home).servers["a"].disabled


@pytest.mark.parametrize("said", ['"disabled": "yes"', '"enabled": "no"', '"disabled": 1, "enabled": 0'])
def test_a_switch_that_cannot_be_read_is_set_right(home: Path, said: str) -> None:
    file = own_config(home, f'{{"mcpServers": {{"a": {{"command": "a", {said}}}}}}}')
    assert "a" in effective(home).broken
    assert run(["disable", "a"]) == 0
    assert effective(home).servers["a"].disabled
    assert run(["enable", "a"]) == 0
    assert file.read_text() == '{"mcpServers": {"a": {"command": "a"}}}'


def test_a_server_of_another_program_is_switched_in_our_own_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config(home, '{"imports": ["cursor", "windsurf"]}')
    before = file.read_text()
    cursor = home / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text('{"mcpServers": {"a": {"command": "a"}, "b": {"command": "b", "disabled": true}}}')
    windsurf = home / ".windsurf" / "mcp.json"
    windsurf.parent.mkdir()
    windsurf.write_text("{}")
    theirs = cursor.read_bytes()
    assert run(["disable", "a", "--json"]) == 0
    assert switched(capsys) == [{"server": "a", "disabled": True, "files": [str(file)]}]
    config = effective(home)
    assert config.servers["a"].disabled
    assert config.servers["a"].command == "a"
    assert run(["enable", "b"]) == 0
    assert not effective(home).servers["b"].disabled
    assert run(["enable", "a"]) == 0
    assert not effective(home).servers["a"].disabled
    assert json.loads(file.read_text())["mcpServers"] == {"b": {"disabled": False}}
    assert file.read_text().startswith(before.removesuffix("}"))
    assert cursor.read_bytes() == theirs


@pytest.mark.parametrize(
    "entry", [{"command": "b", "disabled": True}, {"command": "b", "enabled": False}, {"disabled": True}]
)
def test_a_trusted_project_stays_trusted_when_its_owner_switches_a_server(
    home: Path, entry: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, '{"imports": ["cursor"]}')
    cursor = home / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text('{"mcpServers": {"a": {"command": "a", "disabled": true}}}')
    Path(".mcp.json").write_text(json.dumps({"mcpServers": {"a": entry, "other": {"command": "c"}}}))
    assert run(["trust", "--yes"]) == 0
    for command in ("enable", "disable", "enable"):
        assert run([command, "a"]) == 0
        config = effective(home)
        assert config.untrusted == ()
        assert config.servers["a"].disabled is (command == "disable")
        assert config.servers["a"].command == entry.get("command", "a")
    capsys.readouterr()


def test_several_servers_are_switched_at_once_or_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own_config(home, '{"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}}')
    before = file.read_bytes()
    assert run(["disable", "a", "b", "nobody"]) == 2
    assert file.read_bytes() == before
    assert run(["disable", "a", "b", "a", "--json"]) == 0
    assert [row["server"] for row in switched(capsys)] == ["a", "b"]
    assert {name for name, each in effective(home).servers.items() if each.disabled} == {"a", "b"}


def test_twice_changes_nothing_and_an_unknown_server_is_bad_usage(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config(home, '{"mcpServers": {"a": {"command": "a"}}}')
    before = file.read_bytes()
    assert run(["enable", "a"]) == 0
    assert "already" in capsys.readouterr().out
    assert file.read_bytes() == before
    assert run(["disable", "nobody"]) == 2
    assert "There are: a." in capsys.readouterr().err
    named = home / "named.json"
    named.write_text('{"mcpServers": {"z": {"command": "z"}}}')
    assert run(["disable", "z", "--config", str(named)]) == 0
    assert '"disabled": true' in named.read_text()


def completed(home: Path, line: str) -> list[str]:
    environ = {**os.environ, "_GREENROOM_COMPLETE": "bash_complete"}
    environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - (not line.endswith(" ")))}
    script = "import sys\nfrom greenroom.cli.main import main\n"
    script += (
        "import atexit\natexit.register(lambda: print(*sorted(set(sys.modules) & {'trio', 'mcp', 'rich'})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + "main([])"], capture_output=True, text=True, env=environ, check=False
    )
    assert done.stderr == ""
    *found, loaded = done.stdout.splitlines()
    assert loaded == "", "nothing heavy is loaded while a shell waits"
    return [each.partition(",")[2] for each in found if each]


def test_a_shell_completes_commands_servers_and_clients(home: Path) -> None:
    own_config(
        home,
        '{"mcpServers": {"time": {"command": "/nowhere"}, "tide": {"command": "x"}, "b": {"command": "b"}}}',
    )
    assert completed(home, "greenroom st") == [name for name in COMMANDS if name.startswith("st")]
    assert completed(home, "greenroom tools t") == ["time", "tide"]
    assert completed(home, "greenroom init cl") == ["claude-desktop", "claude-code", "cline"]


def test_a_shell_completes_the_tools_that_the_cache_knows(home: Path) -> None:
    own_config(home, '{"mcpServers": {"time": {"command": "/nowhere"}, "tide": {"command": "x"}}}')
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    entries = [
        ServerEntry(name, keys[name], tools=({"name": "now"}, {"name": "next"}), fetched_at=time.time())
        for name in ("time", "tide")
    ]
    CatalogueFile(default_cache_path()).save(entries, time.time())
    assert completed(home, "greenroom call ti") == ["tide_next", "tide_now", "time_next", "time_now"]
    assert completed(home, "greenroom describe time_no") == ["time_now"]
    assert completed(home, "greenroom describe --server tide ti") == ["tide_next", "tide_now"]
    assert completed(home, "greenroom call zzz") == []


def test_a_broken_configuration_completes_nothing_and_says_nothing(home: Path) -> None:
    own_config(home, "{broken")
    assert completed(home, "greenroom disable ") == []


def test_with_a_named_file_nothing_else_is_written_and_its_whole_path_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_config(home, '{"imports": ["cursor"]}')
    cursor = home / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text('{"mcpServers": {"a": {"command": "a"}}}')
    before = own.read_bytes(), cursor.read_bytes()
    named = Path("named.json").absolute()
    named.write_text('{"imports": ["cursor"], "mcpServers": {"z": {"command": "z"}}}')
    for server in ("a", "z"):
        assert run(["disable", server, "--config", "named.json", "--json"]) == 0
        assert switched(capsys) == [{"server": server, "disabled": True, "files": [str(named)]}]
        assert run(["disable", server, "--config", "named.json", "--json"]) == 0
        assert switched(capsys) == [{"server": server, "disabled": True, "files": []}]
    assert (own.read_bytes(), cursor.read_bytes()) == before
    assert json.loads(named.read_text())["mcpServers"] == {
        "z": {"command": "z", "disabled": True},
        "a": {"disabled": True},
    }
    assert run(["enable", "z", "--config", "named.json", "--json"]) == 0
    assert switched(capsys)[0]["disabled"] is False


def test_who_brings_back_a_server_that_cannot_be_used_is_told_where_to_look(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, '{"mcpServers": {"a": {"args": []}, "b": {"command": "b"}}}')
    for command, server, told in (
        ("disable", "a", False),
        ("enable", "a", True),
        ("disable", "b", False),
        ("enable", "b", False),
    ):
        capsys.readouterr()
        assert run([command, server]) == 0
        err = capsys.readouterr().err
        assert (f"{server} cannot be used yet. To see why: greenroom explain" in err) == told, (
            command,
            server,
        )
