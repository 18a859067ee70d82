"""The README's snippet in the very file a gateway reads: it must not start itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import faulty, named_after, serve

from greenroom import UsageError
from greenroom.config.files import load_config
from greenroom.config.self_reference import DEEPEST, check_depth

ITSELF: dict[str, dict[str, Any]] = {
    "as in the README": {"command": "greenroom", "args": ["serve"]},
    "by its path": {"command": "/opt/bin/greenroom", "args": ["serve", "--expose", "direct"]},
    "as a module": {"command": "python3", "args": ["-m", "greenroom", "serve"]},
    "through a runner": {"command": "uvx", "args": ["greenroom", "serve"]},
    "with the same file": {"command": "greenroom", "args": ["serve", "--config", "./.mcp.json"]},
    "with the same file, on a detour": {"command": "greenroom", "args": ["serve", "--config=x/../.mcp.json"]},
    "with the same file at home": {"command": "greenroom", "args": ["serve", "--config", "~/.mcp.json"]},
    "with an option that lacks its value": {"command": "greenroom", "args": ["serve", "--config"]},
    "with an option at the end": {"command": "greenroom", "args": ["serve", "-c"]},
    "as the client of a gateway": {"command": "greenroom", "args": ["attach"]},
}
ANOTHER: dict[str, dict[str, Any]] = {
    "another file": {"command": "greenroom", "args": ["serve", "--config=other.json"]},
    "another command": {"command": "greenroom", "args": ["status"]},
    "the same name elsewhere": {
        "command": "greenroom",
        "args": ["serve", "--config", ".mcp.json"],
        "cwd": "/elsewhere",
    },
    "another program": {"command": "serve", "args": ["greenroom"]},
    "a shell that runs greenroom alone": {"command": "sh", "args": ["-c", "greenroom", "serve"]},
    "an option of another program": {"command": "greenroom", "args": ["status", "serve"]},
}


def _load(folder: Path, entry: dict[str, Any], *, named: bool = False) -> Any:
    file = folder / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": entry, "two": {"command": "x"}}}))
    return load_config(file if named else None, cwd=folder, home=folder, environ={})


@pytest.mark.parametrize("entry", ITSELF.values(), ids=list(ITSELF))
def test_an_entry_that_is_the_gateway_itself_is_left_out_with_a_warning(
    tmp_path: Path, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    config = _load(tmp_path, entry)

    assert list(config.servers) == ["two"]
    assert "is this gateway itself" in str(config.problems[-1])


@pytest.mark.parametrize("entry", ANOTHER.values(), ids=list(ANOTHER))
def test_a_gateway_behind_a_gateway_stays(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert list(_load(tmp_path, entry).servers) == ["one", "two"]


def test_the_warning_of_a_gateway_that_is_left_out_hides_no_other_and_names_its_file(tmp_path: Path) -> None:
    config = _load(tmp_path, {**ITSELF["as in the README"], "unheardOf": 1})
    assert [("unheardOf" in str(one), "itself" in str(one)) for one in config.problems] == [
        (True, False),
        (False, True),
    ]
    assert config.problems[-1].where == f"{tmp_path / '.mcp.json'}: mcpServers.one"
    assert not config.problems[-1].fatal


def test_in_a_named_file_only_the_same_file_is_itself(tmp_path: Path) -> None:
    assert list(_load(tmp_path, ITSELF["as in the README"], named=True).servers) == ["one", "two"]
    assert list(_load(tmp_path, ITSELF["with the same file"], named=True).servers) == ["two"]


def test_a_real_gateway_over_its_own_configuration_starts_no_second_one(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    entries = {
        "me": {
            "command": sys.executable,
            "args": ["-m", "greenroom", "serve", "--config", os.fspath(config)],
        },
        "a": faulty(tmp_path, "a"),
    }
    with serve(tmp_path, entries, bootstrap=True, cold=True) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={"text": "x"})
        servers = [row["name"] for row in gateway.mcp()["_meta"]["greenroom/details"]["servers"]]
        assert servers == ["a"]
        gateways = [
            pid
            for pid in named_after(tmp_path)
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
        assert gateways == [gateway.process.pid]
        gateway.end()


def test_gateways_behind_gateways_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from greenroom.cli.main import run

    (tmp_path / "mcp.json").write_text("{}")
    monkeypatch.setenv("GREENROOM_DEPTH", "5")
    assert run(["serve", "--config", os.fspath(tmp_path / "mcp.json")]) == 2


def test_the_deepest_gateway_there_may_be_is_started() -> None:
    check_depth({"GREENROOM_DEPTH": str(DEEPEST)})
    with pytest.raises(UsageError, match=f"behind {DEEPEST + 1} gateways"):
        check_depth({"GREENROOM_DEPTH": str(DEEPEST + 1)})
