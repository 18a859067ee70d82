"""The command line as a process of its own: what it imports, and what a terminal, a pipe or a signal does to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import background
from tests.support.gateway import faulty, gone_within, logged_pids, serve
from tests.support.homes import own_config
from tests.support.patience import PATIENCE, until

from greenroom.cli.main import run

HEAVY = (
    "mcp",
    "mcp_types",
    "trio",
    "pydantic",
    "rich",
    "anyio",
    "asyncio",
    "greenroom.actors.server",
    "greenroom.gateway.serve",
)


ONLY_WITHOUT_A_GATEWAY = (
    "greenroom.catalogue.index",
    "greenroom.protocol.jsonrpc",
    "greenroom.gateway.exposures.mcp_tool",
    "greenroom.gateway.offline_catalogue",
)


def write(home: Path, **servers: Any) -> str:
    return str(own_config(home, json.dumps({"mcpServers": servers})))


def loaded(names: Sequence[str], *commands: Sequence[str]) -> list[str]:
    """Run each command in a process of its own, forked from one that has imported the command line alone: which of
    these modules it imported, and its exit code."""
    script = f"""
import os, sys
from greenroom.cli.main import run
for arguments in {commands!r}:
    if not (pid := os.fork()):
        code = run(list(arguments))
        print([name for name in {names!r} if name in sys.modules], code, file=sys.stderr, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [line for line in done.stderr.splitlines() if line.startswith("[")]


def test_looking_imports_neither_the_sdk_nor_a_loop(home: Path) -> None:
    write(home, clock={"command": "clock"})
    commands = ([], ["--help"], ["--version"], ["status"], ["search", "x"], ["tools", "--json"])
    assert loaded(HEAVY, *commands) == ["[] 0"] * len(commands)


def test_asking_a_running_gateway_imports_nothing_that_could_answer_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = os.fspath(tmp_path / "mcp.json")
    with serve(tmp_path, {"clock": {"command": "clock"}}) as gateway:
        gateway.initialize()
        for name, folder in {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_RUNTIME_DIR": ""}.items():
            monkeypatch.setenv(name, os.fspath(tmp_path / folder))
        commands = (["status", "--config", config], ["tools", "--config", config])
        assert loaded((*HEAVY, *ONLY_WITHOUT_A_GATEWAY), *commands) == ["[] 0"] * len(commands)


def test_a_search_does_not_take_a_gateway_for_stuck_because_a_server_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_RUNTIME_DIR": ""}.items():
        monkeypatch.setenv(name, os.fspath(tmp_path / folder))
    hangs = faulty(tmp_path, "hangs", "--hang-at", "initialize")
    config = ["--config", os.fspath(tmp_path / "mcp.json")]

    def answer() -> dict[str, Any]:
        run(["search", "zebra", "--json", *config])
        said = capsys.readouterr()
        assert "does not answer" not in said.err
        return json.loads(said.out)

    with serve(tmp_path, {"hangs": hangs}, "--http", "127.0.0.1:0", bootstrap=True):
        until(lambda: answer()["source"] == "gateway" and logged_pids(tmp_path), "the gateway and its server")
        assert answer()["connectingServers"] == ["hangs"]


def test_attaching_to_a_running_room_imports_neither_a_loop_nor_what_starts_a_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with background(tmp_path, {"clock": {"command": "clock"}}) as room:
        with room.attach() as client:
            client.initialize()
        for name, value in room.environment.items():
            monkeypatch.setenv(name, value)
        unneeded = (*HEAVY, "attr", "click", "subprocess", "greenroom.protocol.events")
        assert loaded(unneeded, ["attach", "--config", os.fspath(room.config)]) == ["[] 0"]


def greenroom(*arguments: str, stdout: Any = subprocess.PIPE, **environ: str) -> Any:
    """Run the command line as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "greenroom", *arguments],
        env={**os.environ, **environ},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )


def test_a_terminal_without_the_letters_is_shown_their_numbers(home: Path) -> None:
    config = write(home, **{"中🎭": {"command": "clock"}})

    told = greenroom("status", "--config", config, PYTHONIOENCODING="latin-1")
    data = greenroom("status", "--json", "--config", config, PYTHONIOENCODING="latin-1")

    assert told.returncode == 0, told.stderr
    assert rb"\u25cb  \u4e2d\U0001f3ad" in told.stdout
    assert json.loads(data.stdout)["servers"][0]["name"] == "中🎭"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_an_answer_that_cannot_be_written_is_no_bug_of_ours(home: Path) -> None:
    write(home, clock={"command": "clock"})
    with open("/dev/full", "wb") as full:
        done = greenroom("status", stdout=full)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == b"greenroom: the system refused: No space left on device."


def test_a_reader_that_has_seen_enough_is_no_error(home: Path) -> None:
    """`greenroom tools | head -1`, with more than a pipe takes."""
    write(home, **{f"{n}-{'x' * 500}": {"command": "clock"} for n in range(400)})
    process = subprocess.Popen(
        [sys.executable, "-m", "greenroom", "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=PATIENCE) == 0


def test_a_reader_that_has_gone_before_the_first_line_is_no_error(home: Path) -> None:
    """Whatever is written first is refused, be it long or short."""
    write(home, **{f"s{number}": {"command": "x" * 50} for number in range(300)})
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for words in (["status", "--json"], ["tools"], ["--version"], ["status", "--help"]):
            done = greenroom(*words, stdout=writing)
            assert done.returncode == 0, words
            assert not [line for line in done.stderr.splitlines() if b"no gateway runs" not in line], words
    finally:
        os.close(writing)


def test_an_interrupted_call_says_that_it_may_have_run_and_takes_its_server_with_it(tmp_path: Path) -> None:
    """Ctrl-C reaches a task group, and comes out of it wrapped."""
    config = tmp_path / "mcp.json"
    server = faulty(tmp_path, "slow", "--hang-at", "call:echo")
    config.write_text(json.dumps({"mcpServers": {"slow": server}}))
    command = [sys.executable, "-m", "greenroom", "call", "slow_echo", "--config", str(config)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ) as call:
        while "tools/call" not in (log.read_text() if (log := tmp_path / "slow.log").exists() else ""):
            time.sleep(0.01)
        call.send_signal(signal.SIGINT)
        assert call.stderr is not None
        said = call.stderr.read()

    sent = b"greenroom: interrupted: the call was sent and may have run."
    assert (call.returncode, said.strip()) == (130, sent)
    assert gone_within(logged_pids(tmp_path)) == set()


def test_a_call_that_is_interrupted_before_its_server_runs_was_not_sent(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    server = faulty(tmp_path, "slow", "--hang-at", "initialize")
    config.write_text(json.dumps({"mcpServers": {"slow": server}}))
    command = [sys.executable, "-m", "greenroom", "call", "slow_echo", "--config", str(config)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ) as call:
        while "start" not in (log.read_text() if (log := tmp_path / "slow.log").exists() else ""):
            time.sleep(0.01)
        call.send_signal(signal.SIGINT)
        assert call.stderr is not None
        said = call.stderr.read()
    assert (call.returncode, said.strip()) == (130, b"greenroom: interrupted: the call was not sent.")
