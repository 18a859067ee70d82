"""`doctor --tape`: the last minutes of a running gateway become a tape, at whatever door it serves."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import pytest
from tests.support.attached import background
from tests.support.gateway import faulty, serve
from tests.support.patience import until
from tests.support.shapes import conforms
from tests.support.whole import whole

from greenroom.cli.main import run
from greenroom.tape.tape_reader import read_tape

SECRET = "plover-51a3f9c2e7d84b6fa0"  # not of a form by which any text is cleaned


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose commands find the gateways of the tests."""
    places = {"HOME": "", "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state"}
    for name, place in places.items():
        monkeypatch.setenv(name, os.fspath(tmp_path / place))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def gateway(folder: Path, door: str, servers: dict[str, Any]) -> Generator[None]:
    """A gateway that serves at this door, once it can be asked."""
    if door == "background":
        with background(folder, servers) as room:
            assert room.command("serve", "--background").returncode == 0
            room.pid()
            yield
    else:
        with serve(folder, servers, *(["--http", "127.0.0.1:0"] if door == "http" else [])) as client:
            if door == "stdio":
                client.initialize()
            until(
                lambda: any(map(_listens, (folder / "cache/greenroom/run").glob("*.sock"))),
                "its control socket",
            )
            yield


def _listens(path: Path) -> bool:
    with socket(AF_UNIX) as client:
        return client.connect_ex(os.path.relpath(path)) == 0  # the whole path is too long for a socket


@pytest.mark.parametrize("door", ["stdio", "http", "background"])
def test_it_is_of_the_gateway_that_runs(
    folder: Path, door: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--config", os.fspath(folder / "mcp.json")]
    entry = {**whole("own"), "env": {"OWN_TOKEN": SECRET}}
    with gateway(folder, door, {"own": entry}):
        for text in ("one", f"my {SECRET}"):
            assert run(["call", "own_echo", f"text={text}", *where]) == 0
        capsys.readouterr()
        later = time.time() + 3600  # nothing has happened since
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: later)
            assert run(["doctor", "--tape", "x.tape", *where]) == 0
        said = capsys.readouterr().out
        assert "x.tape has the last 1 h " in said
        assert "2 calls of 1 server" in said
        assert "greenroom tape x.tape" in said
        (again,) = re.findall(r"^To replay it: greenroom (replay .*)$", said, re.MULTILINE)
        assert shlex.split(again)[-1] == "x.tape"
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: 1e9)  # the clock was set back
            assert run(["doctor", "--tape", "back.tape", *where]) == 0
        assert "back.tape has the last -" not in capsys.readouterr().out
        assert run(["doctor", "--tape", "--json", "--redact", "text", *where]) == 0
        document = conforms("doctor", json.loads(capsys.readouterr().out))
        assert (document["calls"], document["open"], document["servers"]) == (2, 0, ["own"])
        assert run(["doctor", "--tape", "x.tape", *where]) == 2
        assert "is there already" in capsys.readouterr().err
    tape = folder / "x.tape"
    assert stat.S_IMODE(tape.stat().st_mode) == 0o600
    assert SECRET not in tape.read_text()
    assert '"text":"one"' in tape.read_text()
    assert Path(document["tape"]).parent == folder
    assert '"text":"one"' not in Path(document["tape"]).read_text()
    assert run(["tape", "x.tape"]) == 0
    story = capsys.readouterr().out
    assert "It has a room's last minutes" in story
    assert "is connected after" in story
    assert 'own_echo {"text":"one"}' in story


def test_a_crash_and_a_call_that_hangs_are_on_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--config", os.fspath(folder / "mcp.json")]
    with serve(folder, {"a": {**faulty(folder, "a"), "env": {"A_TOKEN": SECRET}}}) as client:
        client.initialize()
        client.mcp(tool="a_stderr", args={"text": f"gives up, because {SECRET} is wrong"})
        client.mcp(tool="a_crash")
        hung = client.start_mcp(tool="a_sleep", args={"seconds": 60})
        until(lambda: "a_sleep" in _shown(where, capsys), "the call that hangs")
        assert hung
        tape = folder / "last.tape"
    read = read_tape(tape)
    causes = {line.event.get("cause") for line in read.events}
    assert "lost" in causes
    assert "gives up, because" in tape.read_text()
    assert SECRET not in tape.read_text()
    assert [call.outcome for call in read.calls if call.tool == "a_sleep"] == ["open"]


def _shown(where: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    Path("last.tape").unlink(missing_ok=True)
    assert run(["doctor", "--tape", "last.tape", *where]) == 0
    capsys.readouterr()
    assert run(["tape", "last.tape"]) == 0
    return capsys.readouterr().out


def test_without_a_gateway_it_says_so_and_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"own": whole("own")}}))
    assert run(["doctor", "--tape", "x.tape", "--config", "mcp.json"]) == 2
    said = capsys.readouterr().err
    assert "No gateway runs" in said
    assert "greenroom serve --config mcp.json --background" in said
    assert not (folder / "x.tape").exists()
    assert run(["doctor", "--tape", "--start", "--config", "mcp.json"]) == 2
    assert "Give it alone" in capsys.readouterr().err
    assert run(["doctor", "--redact", "pin", "--config", "mcp.json"]) == 2
    assert "doctor --config mcp.json --tape" in capsys.readouterr().err
