"""A command in a folder whose configuration has no gateway names those that run elsewhere, and can ask them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import faulty, started
from tests.support.homes import home as home
from tests.support.patience import PATIENCE

from greenroom.cli.main import run
from greenroom.cli.running_gateways import room_of
from greenroom.config.files import load_config
from greenroom.config.private_files import make_own_folder
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
        assert (done.returncode, "is not valid JSON" in done.stderr) == (2, True), done
        step = f"greenroom status --pid {gateway.process.pid}"
        assert step in done.stderr, done
        asked = greenroom(home, home, *step.split()[1:])
        assert (asked.returncode, "near" in asked.stdout) == (0, True), asked
        assert gateway.end() == 0
    assert "--pid" not in greenroom(home, home, "status", *here).stderr


def test_when_a_command_ends_every_gateway_uses_what_it_has_written(home: Path) -> None:
    file = home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": faulty(home, "one", "--hang-at=initialize")}}))
    here = ("--config", os.fspath(file))
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    with ExitStack() as stack:
        command = [*GREENROOM, "serve", *here]
        gateways = [
            stack.enter_context(started(*command, env=environment, cwd=home, stderr=subprocess.DEVNULL))
            for _ in range(3)
        ]
        for gateway in gateways:
            gateway.initialize()
        done = greenroom(home, home, "add", *here, "two", "--", "true")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert all("two" in gateway.mcp()["content"][0]["text"] for gateway in gateways)
        done = greenroom(home, home, "remove", *here, "two")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert not any("two" in gateway.mcp()["content"][0]["text"] for gateway in gateways)
        assert [gateway.end() for gateway in gateways] == [0, 0, 0]


def _answering(listener: socket.socket, answer: bytes | None) -> None:
    line, _ = listener.accept()
    with line:
        line.recv(1 << 16)
        if answer is None:
            assert line.recv(1) == b"", "the command has left"
        else:
            line.sendall(answer)


@pytest.mark.parametrize(("answer", "said"), [
    (b'{"result": {"notReloaded": ""}}\n', None),
    (b'{"result": {"notReloaded": "no\\nJSON"}}\n', "of process {} does not use this yet: no JSON"),
    (b'{"error": {"code": "invalid_request", "message": "I am old."}}\n', "not use this yet: I am old"),
    (b"7\n", "cannot be read. Restart it."),
    (b"", None),  # it has ended
    (None, "It does not use this yet. Continue or end that process."),
], ids=["used", "refused", "old", "odd", "ended", "silent"])  # fmt: skip
def test_of_a_gateway_that_does_not_use_what_was_written_one_line_says_why(
    answer: bytes | None,
    said: str | None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "greenroom.cli.running_gateways._RELOADED_WITHIN", 0.2 if answer is None else PATIENCE
    )
    pid = os.getpid()
    path = control_directory() / f"0123456789ab-{pid}.sock"
    make_own_folder(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        thread = threading.Thread(target=_answering, args=(listener, answer))
        thread.start()
        assert run(["add", "new", "--", "sh"]) == 0
        thread.join()
    path.unlink()
    err = capsys.readouterr().err
    assert (err == "") if said is None else (said.format(pid) in err)
    assert "--pid" not in err, "the command has no such option"
    assert len(err.splitlines()) <= 2


def test_whoever_looks_elsewhere_leaves_the_sockets_of_background_gateways(home: Path) -> None:
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
