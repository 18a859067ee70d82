"""A command in a folder whose configuration has no gateway names those that run elsewhere, and can ask them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import faulty, started

from greenroom.cli.common import room_of
from greenroom.config.files import load_config
from greenroom.gateway.doors import control_client as control
from greenroom.gateway.doors.background_gateway import RoomPlace
from greenroom.gateway.doors.control_protocol import control_directory


def greenroom(home: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    return run_forked([*GREENROOM, *words], cwd=folder, env=environment, text=True)


def test_gateways_elsewhere_are_named_and_can_be_asked(home: Path) -> None:
    one, two = home / "one", home / "two"
    for folder, name in ((one, "near"), (two, "far")):
        folder.mkdir()
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {name: faulty(home, name)}}))
    here = ("--config", os.fspath(one / "mcp.json"))
    assert "another configuration" not in greenroom(home, one, "status", *here).stderr
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    command = [*GREENROOM, "serve", "--config", os.fspath(two / "mcp.json")]
    with started(*command, env=environment, cwd=two) as gateway:
        gateway.initialize()
        pid = gateway.process.pid
        for words in (("status",), ("tools",), ("call", "near_echo", "text=a")):
            done = greenroom(home, one, *words, *here)
            assert done.returncode == 0, done
            named = f"runs in {two}: greenroom status --pid {pid}"
            assert (named in done.stderr) is (words[0] == "status"), "others name it once a day"
        said = json.loads(greenroom(home, one, "status", "--json", *here).stdout)
        assert said["elsewhere"] == [{"pid": pid, "folder": os.fspath(two)}]
        assert [server["name"] for server in said["servers"]] == ["near"]
        there = greenroom(home, one, "status", "--pid", str(pid), *here)
        assert (there.returncode, "far" in there.stdout, "near" in there.stdout) == (0, True, False)
        assert "another configuration" not in there.stderr
        called = greenroom(home, one, "call", "far_echo", "text=there", "--pid", str(pid), *here)
        assert (called.returncode, "there" in called.stdout) == (0, True), called
        explained = greenroom(home, one, "explain", "far", "--pid", str(pid), "--json", *here)
        assert explained.returncode == 0, explained
        said = json.loads(explained.stdout)
        assert (said["status"]["status"], list(said["sources"])) == ("connected", list(said["entry"])), said
        examined = greenroom(home, one, "doctor", "--pid", str(pid), "--json", *here)
        assert json.loads(examined.stdout)["files"] == [os.fspath(two / "mcp.json")], examined
        logged = greenroom(home, one, "logs", "far", "--pid", str(pid), *here)
        assert (logged.returncode, "incarnation 1" in logged.stdout) == (0, True), logged
        accepted = greenroom(home, one, "accept", "far", "--pid", str(pid), *here)
        assert (accepted.returncode, "nothing of far has changed" in accepted.stdout) == (0, True), accepted
        unknown = greenroom(home, one, "explain", "near", "--pid", str(pid), *here)
        assert (unknown.returncode, "There are: far" in unknown.stderr) == (2, True), unknown
        assert gateway.end() == 0
    done = greenroom(home, one, "status", "--pid", str(pid), *here)
    assert done.returncode == 2
    assert f"No gateway runs as process {pid}" in done.stderr


def test_who_cannot_read_the_file_is_told_which_gateway_goes_on_with_it(home: Path) -> None:
    file = home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"near": faulty(home, "near")}}))
    here = ("--config", os.fspath(file))
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    with started(*GREENROOM, "serve", *here, env=environment, cwd=home) as gateway:
        gateway.initialize()
        file.write_text("{")
        done = greenroom(home, home, "status", *here)
        assert (done.returncode, "is no valid JSON" in done.stderr) == (2, True), done
        step = f"greenroom status --pid {gateway.process.pid}"
        assert step in done.stderr, done
        asked = greenroom(home, home, *step.split()[1:])
        assert (asked.returncode, "near" in asked.stdout) == (0, True), asked
        assert gateway.end() == 0
    assert "--pid" not in greenroom(home, home, "status", *here).stderr


def test_whoever_looks_elsewhere_leaves_the_sockets_of_background_rooms(home: Path) -> None:
    folder = control_directory()
    folder.mkdir(mode=0o700, parents=True)
    names = ("room-0123456789ab.sock", "room-0123456789ab.lock", f"0123456789ab-{os.getpid()}.sock")
    for name in names:
        (folder / name).touch()
    assert control.find_elsewhere("abc") == []
    assert {file.name for file in folder.iterdir()} == set(names)
    assert home in folder.parents


def test_status_shows_the_processes_of_sessions(home: Path) -> None:
    config = home / "mcp.json"
    entry = {**faulty(home, "own"), "isolation": "per_session"}
    config.write_text(json.dumps({"mcpServers": {"own": entry}}))
    where = ("--config", os.fspath(config))
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    with started(*GREENROOM, "serve", *where, env=environment, cwd=home) as gateway:
        gateway.initialize()
        assert not gateway.mcp(tool="own_echo", args={"text": "a"}).get("isError")
        assert "1/1 server" in gateway.mcp()["content"][0]["text"]
        done = greenroom(home, home, "status", *where)
        assert "1 of 1 connected" in done.stdout
        (row,) = json.loads(greenroom(home, home, "status", "--json", *where).stdout)["addresses"]
        (line,) = [line for line in done.stdout.splitlines() if row["scope"] in line]
        assert line.split() == [row["scope"], "connected", "pid", str(row["pid"])]
        assert gateway.end() == 0


def test_a_file_that_says_something_else_in_each_project_is_another_configuration_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, one, two, plain = (tmp_path / name for name in ("home", "one", "two", "plain"))
    own = home / ".config" / "mcp" / "mcp.json"
    for folder in (own.parent, one, two, plain):
        folder.mkdir(parents=True)
    own.write_text(json.dumps({"imports": ["claude-code"], "mcpServers": {}}))
    projects = {os.fspath(folder): {"mcpServers": {"a": {"command": "a"}}} for folder in (one, two)}
    (home / ".claude.json").write_text(json.dumps({"projects": projects}))
    monkeypatch.setenv("HOME", os.fspath(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def seen_from(cwd: Path) -> RoomPlace:
        monkeypatch.chdir(cwd)
        return room_of(load_config(cwd=cwd, home=home, environ=os.environ), None)

    places = [seen_from(folder) for folder in (one, two, plain)]
    assert len({place.name for place in places}) == 3
    assert [place.folder for place in places] == [one, two, own.parent]
