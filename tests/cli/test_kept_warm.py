"""A `call` without a gateway says how its server would be kept warm, and what it says does so."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from tests.cli.test_next_steps import steps_in
from tests.support.gateway import faulty, gone_within, logged_pids, serve
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.patience import until

from greenroom.cli import call_command
from greenroom.cli.main import run
from greenroom.cli.printing import say


@pytest.fixture(autouse=True)
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a terminal is told once a day is told each time, so silence means that there is nothing to tell."""

    def tell(text: str, _config: object) -> None:
        say(text)

    monkeypatch.setattr(call_command, "say_at_terminal", tell)


@pytest.mark.parametrize("named", [True, False], ids=["--config", "found"])
def test_the_room_that_is_named_keeps_the_server_for_the_next_call(
    home: Path, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"mcpServers": {"a": faulty(home, "a")}})
    file = home / "my file.json" if named else own_config(home, text)
    file.write_text(text)
    options = ["--config", os.fspath(file)] if named else []
    call = ["call", "a_echo", "text=warm", *options]
    assert run(call) == 0
    cold = capsys.readouterr()
    assert "warm" in cold.out
    (step,) = steps_in(cold.err)
    try:
        assert run(shlex.split(step)[1:]) == 0
        before = len(logged_pids(home))
        capsys.readouterr()
        for _ in range(2):
            assert run(call) == 0
            said = capsys.readouterr()
            assert "warm" in said.out
            assert not any("--background" in one for one in steps_in(said.err))
        assert len(logged_pids(home)) <= before + 1, "both calls went to one process"
    finally:
        run(["stop", *options])
    assert not gone_within(logged_pids(home))


def test_nothing_is_said_where_no_server_was_started(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, json.dumps({"mcpServers": {"a": {"command": "no-such-program"}}}))
    assert run(["call", "a_x"]) == 1
    assert "--background" not in capsys.readouterr().err


@pytest.mark.parametrize("isolation", ["per_call", "per_session"])
@pytest.mark.parametrize("where", ["entry", "settings"])
def test_nothing_is_said_of_a_server_that_no_room_keeps_for_the_next_call(
    home: Path, isolation: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own, common = ({"isolation": isolation}, {}) if where == "entry" else ({}, {"isolation": isolation})
    own_config(home, json.dumps({"mcpServers": {"a": {**faulty(home, "a"), **own}}, "settings": common}))
    assert run(["call", "a_echo", "text=cold"]) == 0
    said = capsys.readouterr()
    assert "cold" in said.out
    assert said.err == ""


@pytest.mark.parametrize("shared", [False, True], ids=["each its own", "shared"])
def test_a_command_says_that_its_process_ended_with_it_where_each_client_has_its_own(
    tmp_path: Path, shared: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_RUNTIME_DIR": ""}.items():
        monkeypatch.setenv(name, os.fspath(tmp_path / folder))
    isolation = {"isolation": "persistent"} if shared else {}
    servers = {"a": {**faulty(tmp_path, "a"), **isolation}}
    with serve(tmp_path, servers, "--http", "127.0.0.1:0"):
        config = ["--config", os.fspath(tmp_path / "mcp.json")]

        def is_found() -> bool:
            run(["status", "--json", *config])
            return json.loads(capsys.readouterr().out)["source"] == "gateway"

        until(is_found, "the gateway")
        assert run(["call", "a_echo", "text=one", *config]) == 0
        said = capsys.readouterr()
        assert ('"isolation": "persistent"' in said.err, "one" in said.out) == (not shared, True)
        assert run(["call", "a_ech", "text=one", *config]) == 1
        assert "isolation" not in capsys.readouterr().err, "nothing was started for it"
