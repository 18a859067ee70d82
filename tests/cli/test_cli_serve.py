"""`serve` as a process: how it answers, how it ends, and what it leaves on its streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.support.gateway import PATIENCE, Gateway, started

from greenroom.cli.main import run
from greenroom.config.model import Config, Settings
from greenroom.gateway import serve
from greenroom.gateway.doors.control_protocol import control_directory
from greenroom.gateway.doors.stdio_door import StreamFault
from greenroom.gateway.next_steps import Commands
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


def gateway(places: Path, *flags: str) -> Any:
    command = (sys.executable, "-m", "tests.support.fake_gateway", str(places), *flags)
    return started(*command, cwd=ROOT, may_be_late="--slow-exit" in flags)


def ended(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end; what it said on stderr."""
    assert process.stderr is not None
    process.wait(PATIENCE)
    return process.stderr.read().decode()


def ready(one: Gateway) -> None:
    assert one.greet()["serverInfo"]["version"] == "9.9"


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
        (socket,) = control_directory().glob("*.sock")
        assert socket.stat().st_mode & 0o777 == 0o600
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        where = ["--config", str(places)]
        assert run(["status", "--json", *where]) == 0
        status = json.loads(capsys.readouterr().out)
        assert (status["source"], status["pid"]) == ("gateway", one.process.pid)
        assert [server["name"] for server in status["servers"]] == ["github", "clock", "fresh", "off", "bad"]
        assert run(["status", *where]) == 0
        assert "✓ clock " in capsys.readouterr().out
        assert run(["tools", "clock", *where]) == 0
        assert capsys.readouterr().out == "clock_now\nTotal: 1 tool\n"
        assert run(["search", "issue", "--limit", "1", *where]) == 0
        assert "1 of 2 — add --offset 1 for more" in capsys.readouterr().out
        assert run(["describe", "github_create_issue", *where]) == 0
        assert "title (string) *required*" in capsys.readouterr().out
        assert run(["call", "clock_now", "zone=UTC", *where]) == 0
        assert capsys.readouterr().out == "noon\n"
        assert run(["call", "clock_now", "--json", *where]) == 0
        called = json.loads(capsys.readouterr().out)
        assert (called["content"], called["source"]) == ([{"type": "text", "text": "noon"}], "gateway")
        assert run(["call", "zebra", *where]) == 1
        missing = capsys.readouterr()
        assert missing.out == ""
        assert "greenroom search" in missing.err
        assert run(["reconnect", *where]) == 0
        assert capsys.readouterr().out == "✓ clock\n"
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


class _Client:
    """The conversation of the one client; it notes what it is told."""

    def __init__(self, did: list[Any]) -> None:
        self.receive, self.refuse_line, self.receiving = "receive", "refuse_line", "receiving"
        self.did = did

    def close(self) -> None:
        self.did.append(("client.close",))


@pytest.mark.parametrize("fault", [None, "standard output cannot be written"])
@pytest.mark.parametrize("end", ["politely", "at once", "the client has gone"])
@pytest.mark.parametrize("events", [False, True])
def test_the_parts_of_a_gateway_get_what_was_asked_for_and_end_in_order(
    events: bool, end: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []
    given: dict[str, Any] = {}
    client = _Client(did)

    class Door:
        def __init__(self, _backend: Any, stdin: int, stdout: int, **more: Any) -> None:
            given["door"] = (stdin, stdout, more)
            self.fault = fault

        @contextmanager
        def opened(self) -> Generator[None]:
            yield
            did.append(("door.closed",))

        async def write(self) -> None:
            given["writes"] = True
            await anyio.sleep_forever()

        async def read(self, *args: Any) -> None:
            given["read"] = args
            if end != "the client has gone":
                await anyio.sleep_forever()

        async def flush(self, seconds: float) -> None:
            did.append(("door.flush", seconds))

    class Talks:
        def __init__(self, *_args: Any, **more: Any) -> None:
            given["talks"] = more

        @asynccontextmanager
        async def open(self, *args: Any, **more: Any) -> AsyncGenerator[_Client]:
            given["client"] = (args[0], more)
            yield client
            did.append(("client.left",))

        async def watch(self, *, task_status: Any) -> None:
            given["watches"] = True
            task_status.started()
            await anyio.sleep_forever()

        def refuse_new(self) -> None:
            did.append(("refuse_new",))

    async def starts(_group: Any) -> None:
        did.append(("room.start",))

    async def closes(patience: float | None = None) -> None:
        did.append(("room.aclose", patience))

    async def signals(leaving: Any, *, task_status: Any) -> None:
        given["leaving"] = leaving
        task_status.started()
        await anyio.sleep_forever()

    async def follows(_room: Any, heard: Any, *, kinds: Any, task_status: Any) -> None:
        given["follow"] = (list(heard), kinds)
        task_status.started()
        await anyio.sleep_forever()

    async def attends(*args: Any) -> None:
        given["attend"] = args[2:]
        if end == "politely":
            given["leaving"].politely()
        if end == "at once":
            given["leaving"].at_once()

    log: Any = SimpleNamespace(line="line")
    for name, fake in {
        "StdioDoor": Door,
        "Conversations": Talks,
        "Log": lambda commands: log,
        "taken_over_stdio": lambda: nullcontext((70, 71)),
        "current_backend": lambda: None,
        "heed_signals": signals,
        "follow": follows,
        "attend": attends,
        "commands": lambda _room, version: ("commands", version),
        "events_file": lambda path, *_: [f"{path} hears"] if path is not None else [],
        "to_log": lambda _log: "log hears",
        "set_alarm": lambda seconds: did.append(("alarm", seconds)),
        "want_orphans": lambda: given.update(orphans=True),
        "collect_again": lambda: given.update(collects=True),
        "set_room_aside": lambda: given.update(aside=list(did)),
    }.items():
        monkeypatch.setattr(serve, name, fake)
    monkeypatch.setenv("SOME_VALUE", "of the client")
    monkeypatch.setenv("NO-NAME", "of a shell")
    file = tmp_path / "events" if events else None
    options = serve.Options(
        expose="direct", profile="work", events=file, version="9.9", commands=Commands("f")
    )
    config = Config(settings=Settings(max_line=12_345))
    expected = pytest.raises(StreamFault, match=fault) if fault is not None else nullcontext()
    with expected:
        room = SimpleNamespace(await_client=lambda _: None, start=starts, aclose=closes)
        anyio.run(serve.serve, config, lambda _: room, options)

    assert given["door"] == (70, 71, {"max_line": 12_345})
    assert given["talks"] == {
        "expose": "direct",
        "version": "9.9",
        "note": "line",
        "commands": options.commands,
    }
    door, more = given["client"]
    variables = more.pop("variables")
    assert isinstance(door, Door)
    assert more == {"name": "stdio", "profile": "work", "door": "stdio"}
    assert variables["SOME_VALUE"] == "of the client"
    assert "NO-NAME" not in variables
    assert given["attend"] == (options, log, ("commands", "9.9"))
    assert given["read"] == ("receive", "refuse_line", "receiving")
    heard, kinds = given["follow"]
    assert heard == ["log hears", *([f"{file} hears"] if events else [])]
    assert kinds is None if events else {kind.value for kind in kinds} == {"transition", "decision", "note"}
    assert (given["writes"], given["watches"], given["orphans"], given["collects"]) == (True,) * 4
    assert given["aside"] == [("room.start",)], "what the room has made is set aside"
    if end == "politely":
        ends = [("refuse_new",), ("room.aclose", None), ("client.left",), ("door.flush", 1.0)]
    else:
        ends = [("client.left",), ("door.flush", 0.2)]
        assert ("alarm", 1.2) in did
        assert {one[1] for one in did if one[0] == "room.aclose"} == {0}
        assert (("client.close",) in did) == (end == "the client has gone")
        did = [one for one in did if one[0] not in ("alarm", "room.aclose", "client.close", "refuse_new")]
    assert did == [("room.start",), *ends, ("door.closed",)]
