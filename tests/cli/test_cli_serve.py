"""`serve` as a process: how it answers, how it ends, and what it leaves on its streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, Gateway, started

from greenroom.cli.main import run
from greenroom.gateway.doors.control_protocol import control_directory
from greenroom.gateway.serve import events_file
from greenroom.protocol.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration file, and a cache directory of the test's own with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        config = Path(folder, "mcp.json")
        config.write_text('{"mcpServers": {"clock": {"command": "clock"}}}')
        yield config


def gateway(places: Path, *flags: str, before: Sequence[str] = ()) -> Any:
    command = (*before, sys.executable, "-m", "tests.support.fake_gateway", str(places), *flags)
    return started(*command, cwd=ROOT, may_be_late="--slow-exit" in flags)


def ended(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end; what it said on stderr."""
    assert process.stderr is not None
    process.wait(PATIENCE)
    return process.stderr.read().decode()


def ready(one: Gateway) -> None:
    assert one.initialize()["serverInfo"]["version"] == "9.9"


def test_it_answers_and_is_gone_when_its_input_closes(places: Path) -> None:
    with gateway(places) as one:
        ready(one)
        listed = one.answer(one.send("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["mcp"]
        assert one.mcp(tool="clock_now")["content"] == [{"type": "text", "text": "noon"}]
        one.start_mcp(tool="github_list_issues")
        assert one.process.stdin is not None
        one.process.stdin.close()
        said = ended(one.process)
        assert "room: at once" in said
        assert one.process.returncode == 0
        assert one.process.stdout is not None
        assert one.process.stdout.read() == b""


def test_a_room_that_hangs_does_not_keep_it_after_its_input_closes(places: Path) -> None:
    with gateway(places, "--slow-exit") as one:
        ready(one)
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert "room: at once" in ended(one.process)
        assert one.process.returncode == -signal.SIGALRM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_with_the_input_still_open(places: Path, number: signal.Signals) -> None:
    with gateway(places) as one:
        ready(one)
        asked = one.start_mcp(tool="github_list_issues")
        assert one.mcp(tool="clock_now")["content"][0]["text"] == "noon"
        one.process.send_signal(number)
        assert one.answer(asked)["result"]["content"][0]["text"] == "drained"
        said = ended(one.process)
        assert "room: drained" in said
        assert "Traceback" not in said
        assert one.process.returncode == 0


def test_with_nohup_it_outlives_its_terminal(places: Path) -> None:
    with gateway(places, before=["nohup"]) as one:
        ready(one)
        one.process.send_signal(signal.SIGHUP)
        assert one.mcp(tool="clock_now")["content"][0]["text"] == "noon"
        assert one.end() == 0


def test_a_second_signal_hurries_a_drain_that_takes_too_long(places: Path) -> None:
    with gateway(places, "--slow-drain") as one:
        ready(one)
        one.process.terminate()
        assert one.process.stderr is not None
        assert one.process.stderr.readline() == b"room: draining\n"
        one.process.terminate()
        assert "room: at once" in ended(one.process)
        assert one.process.returncode == 0


def test_commands_reach_it_over_a_private_socket_that_goes_with_it(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gateway(places) as one:
        ready(one)
        assert [one.mcp(connect=server).get("isError", False) for server in ("clock", "github")] == [
            False
        ] * 2
        (socket,) = control_directory().glob("*.sock")
        assert socket.stat().st_mode & 0o777 == 0o600
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        where = ["--config", str(places)]
        assert run(["status", "--json", *where]) == 0
        status = json.loads(capsys.readouterr().out)
        assert (status["source"], status["pid"]) == ("gateway", one.process.pid)
        assert [server["name"] for server in status["servers"]] == ["github", "clock", "fresh", "off", "bad"]
        assert run(["status", *where]) == 0
        assert "✓  clock " in capsys.readouterr().out
        assert run(["tools", "clock", *where]) == 0
        assert capsys.readouterr().out == "clock_now\nTotal: 1 tool\n"
        assert run(["search", "issue", "--limit", "1", *where]) == 0
        assert "1 of 2 — add --offset 1 for more" in capsys.readouterr().out
        assert run(["describe", "github_create_issue", *where]) == 0
        assert "title (string, required)" in capsys.readouterr().out
        assert run(["call", "clock_now", *where]) == 0
        assert capsys.readouterr().out == "noon\n"
        assert run(["call", "clock_now", "--json", *where]) == 0
        called = json.loads(capsys.readouterr().out)
        assert (called["content"], called["source"]) == ([{"type": "text", "text": "noon"}], "gateway")
        assert run(["call", "zebra", *where]) == 1
        missing = capsys.readouterr()
        assert missing.out == ""
        assert "greenroom search" in missing.err
        assert run(["reconnect", *where]) == 0
        assert capsys.readouterr().out == "✓ github\n✓ clock\n"
        assert run(["status", "--pid", "1", *where]) == 2
        assert "No gateway runs as process 1." in capsys.readouterr().err
        one.process.terminate()
        ended(one.process)
        assert not socket.exists()


def test_a_gateway_that_was_killed_leaves_a_socket_that_the_next_command_removes(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gateway(places) as one:
        ready(one)
        one.process.kill()
        one.process.wait()
        (socket,) = control_directory().glob("*.sock")
        assert run(["reconnect", "--config", str(places)]) == 1
        assert "greenroom refresh" in capsys.readouterr().err
        assert not socket.exists()


def test_an_events_file_that_cannot_be_written_is_bad_usage(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="Name a file that can be written"):
        events_file(tmp_path / "no" / "file", stack, print)
