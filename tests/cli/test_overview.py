"""`greenroom` alone says where one stands, and its next step works as printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.test_next_steps import BROKEN, check, steps_in
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import FAULTY, PATIENCE, faulty, serve, started
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.catalogue.entries import LastFailure, ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.main import run
from greenroom.config.files import load_config

TOOLS = ({"name": "x"}, {"name": "y"})


def overview(capsys: pytest.CaptureFixture[str]) -> str:
    assert run([]) == 0
    return capsys.readouterr().out


def test_it_says_what_is_known_of_the_servers_and_where_the_configuration_is(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"command": sys.executable, "args": ["-S", os.fspath(FAULTY)]}
    servers = {name: {**entry, "env": {"A": name}} for name in ("known", "unknown", "dead")}
    own_config(home, json.dumps({"mcpServers": {**servers, "off": {**entry, "disabled": True}}}))
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    known = ServerEntry("known", keys["known"], tools=TOOLS, fetched_at=time.time())
    failure = LastFailure(time.time(), "exited with code 3")
    file = CatalogueFile(default_cache_path())
    file.save([known], time.time(), {("dead", keys["dead"]): failure})
    said = overview(capsys)
    assert "  ~/.config/greenroom/mcp.json (yours)\n" in said
    assert "1 known, 1 not asked yet, 1 failed, 1 disabled; 2 tools in all" in said
    assert "Gateways of this configuration: none\n" in said
    assert "greenroom explain dead" in said


def test_without_any_file_it_says_how_to_begin(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = overview(capsys)
    assert "no file was found" in said
    assert {"greenroom add NAME -- COMMAND", "greenroom demo"} <= set(steps_in(said))
    assert not (home / ".cache").exists(), "it writes nothing"


def test_a_file_that_cannot_be_read_is_there_and_comes_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_config(home, '{"mcpServers": {')
    said = overview(capsys)
    assert "~/.config/greenroom/mcp.json (yours, cannot be read)" in said
    (step, *_) = steps_in(said[said.index("Next") :])
    check(step, capsys, "greenroom")
    assert run(step.split()[1:]) == 1
    assert f"correct {own}" in capsys.readouterr().out


def test_it_says_the_same_of_a_file_that_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, '{"mcpServers": {"mine": {"command": "mine"}}}')
    Path("other.json").write_text('{"mcpServers": {"theirs": {"command": "theirs"}}}')
    assert run(["--config", "other.json"]) == 0
    said = capsys.readouterr().out
    assert "other.json (named by --config)" in said
    assert "1 not asked yet" in said
    assert "greenroom refresh --config other.json" in steps_in(said)
    for words in (["--config", "other.json", "status"], ["status", "--config", "other.json"]):
        assert run(words) == 0
        said = capsys.readouterr().out
        assert ("theirs" in said, "mine" in said) == (True, False)
    for words in (
        ["--config", "other.json", "bench", "churn", "x"],
        ["bench", "churn", "x", "--config", "other.json"],
    ):
        assert run(words) == 2
        assert "There are: theirs." in capsys.readouterr().err
    assert run(["--config", "other.json", "outputs"]) == 2
    assert "takes no --config" in capsys.readouterr().err
    assert run(["--config", "missing.json"]) == 2


@pytest.mark.parametrize("command", [[], ["status"], ["doctor"]])
def test_an_mcp_json_that_is_not_read_is_named_with_what_to_do(
    home: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mcp.json").write_text('{"mcpServers": {"one": {"command": "one"}}}')
    assert run(command) == 0
    said = capsys.readouterr().out
    assert f"{home / 'work' / 'mcp.json'}" in said
    assert "greenroom --config mcp.json" in said
    assert run(["--config", "mcp.json", *command]) in (0, 1)
    assert "is not read" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "command", "code"),
    [
        ("XDG_CACHE_HOME", ["status"], 2),
        ("XDG_CACHE_HOME", ["serve", "--background"], 1),
        ("XDG_CONFIG_HOME", ["add", "one", "--", "cat"], 1),
        ("XDG_STATE_HOME", ["serve", "--background"], 1),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_with_the_variable_that_names_another(
    home: Path, variable: str, command: list[str], code: int
) -> None:
    file = home / "a file"
    file.touch()
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home), variable: os.fspath(file)}
    done = run_forked([*GREENROOM, *command], cwd=home / "work", env=environment, text=True)
    assert done.returncode == code, done
    (said,) = [line for line in done.stderr.splitlines() if os.fspath(file) in line]
    assert said.endswith(f"or name another one in {variable}.")
    assert "Traceback" not in done.stderr


def test_a_project_that_nobody_has_trusted_is_named_with_what_decides(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "shop").mkdir()
    monkeypatch.chdir(home / "shop")
    (home / "shop" / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    said = overview(capsys)
    assert "~/shop/.mcp.json (this project's, not trusted)" in said
    assert "greenroom trust" in steps_in(said)
    assert run(["trust", "--yes"]) == 0
    capsys.readouterr()
    assert "~/shop/.mcp.json (this project's)" in overview(capsys)


@pytest.mark.parametrize("name", BROKEN)
def test_its_next_step_works_as_printed(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    BROKEN[name](own_config(home, "{}"))
    steps = [step for step in steps_in(overview(capsys)) if step != "greenroom demo"]
    assert steps
    for step in steps:
        check(step, capsys, "greenroom")


def test_it_names_the_gateways_that_run_here_and_elsewhere(tmp_path: Path, home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    own_config(home, json.dumps({"mcpServers": {"near": faulty(home, "near")}}))
    (elsewhere / "mcp.json").write_text(json.dumps({"mcpServers": {"far": faulty(home, "far")}}))
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}

    def alone() -> subprocess.CompletedProcess[str]:
        return run_forked(list(GREENROOM), cwd=tmp_path, env=environment, text=True)

    far = ("serve", "--config", os.fspath(elsewhere / "mcp.json"))
    with (
        started(*GREENROOM, "serve", env=environment, cwd=tmp_path) as here,
        started(*GREENROOM, *far, env=environment, cwd=elsewhere) as there,
    ):
        here.initialize()
        there.initialize()
        done = alone()
        assert done.returncode == 0, done
        assert "mcp.json (yours)" in done.stdout
        assert f"Gateways of this configuration: pid {here.process.pid}\n" in done.stdout
        assert f"greenroom status --pid {there.process.pid}" in done.stdout
        assert here.end() == 0
        assert there.end() == 0
    assert "configuration: none\n" in alone().stdout


def test_the_status_names_another_gateway_of_this_configuration(tmp_path: Path, home: Path) -> None:
    own_config(home, json.dumps({"mcpServers": {"near": faulty(home, "near")}}))
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}

    def status(*words: str) -> str:
        return run_forked([*GREENROOM, "status", *words], cwd=tmp_path, env=environment, text=True).stdout

    with started(*GREENROOM, "serve", env=environment, cwd=tmp_path) as one:
        one.initialize()
        assert "another gateway" not in status()
        with started(*GREENROOM, "serve", env=environment, cwd=tmp_path) as two:
            two.initialize()
            said = status().splitlines()[-1]
            assert said.startswith("another gateway of this configuration runs: greenroom status --pid ")
            assert int(said.split()[-1]) in (one.process.pid, two.process.pid)
            assert "another gateway" not in status("--pid", said.split()[-1])
            assert two.end() == 0
        assert one.end() == 0


def test_the_status_begins_with_what_holds_calls_now(tmp_path: Path) -> None:
    """It said that all is well while calls were refused for want of a slot (issue 38, 5.2)."""
    servers = {name: faulty(tmp_path, name) for name in ("busy", "late")}
    with serve(tmp_path, servers, maxConnections=1) as gateway:
        gateway.initialize()
        assert not gateway.mcp(tool="busy_pid").get("isError")
        gateway.start_mcp(tool="busy_sleep", args={"seconds": 600})
        gateway.start_mcp(tool="late_pid")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(tmp_path),
            "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
            "XDG_RUNTIME_DIR": os.fspath(tmp_path),
        }
        command = [*GREENROOM, "status", "--config", os.fspath(tmp_path / "mcp.json")]
        said = ""
        until = time.monotonic() + PATIENCE
        while "waits for a slot" not in said and time.monotonic() < until:
            said = run_forked(command, env=environment, cwd=tmp_path, text=True).stdout
        first, holder, step = said.splitlines()[:3]
        assert first == "✗ 1 call waits for a slot: all 1 are taken (late)."
        assert holder == "  Held by busy."
        assert "maxConnections" in step
