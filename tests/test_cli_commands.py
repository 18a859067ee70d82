"""The commands without a gateway: light imports, answers from the cache, exit codes, arguments as they were meant."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import pytest
from tests.support.door_rooms import NOW, FakeRoom
from tests.support.gateway import faulty, gone_within, logged_pids, serve
from tests.support.numbers import numbers_of

from greenroom.actors._catalogue_file import CatalogueFile, default_cache_path
from greenroom.gateway._cli import _act, _look, _main, _refresh
from greenroom.gateway._cli._act import given_args, patient, split_pairs
from greenroom.gateway._cli._common import read_config, say_whose, show_json
from greenroom.gateway._cli._look import _status_lines
from greenroom.gateway._cli._main import COMMANDS, _report, cli, run
from greenroom.gateway._cli._serve import override
from greenroom.gateway._mcp_tool import FOR_PEOPLE, CatalogueReader
from greenroom.gateway._offline import OfflineCatalogue
from greenroom.gateway._views import status_view, tools_view
from greenroom.protocol.catalogue import ServerEntry
from greenroom.protocol.config import Config
from greenroom.protocol.errors import ConfigError, Problem, ServerDown, UsageError
from greenroom.protocol.lifecycle import State
from greenroom.protocol.slices import finish
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.catalogue_keys import catalogue_keys
from greenroom.supervisor.config_files import load_config

HEAVY = (
    "mcp",
    "mcp_types",
    "trio",
    "pydantic",
    "rich",
    "anyio",
    "asyncio",
    "greenroom.actors._server",
    "greenroom.gateway._serve",
)
# What reads a catalogue.
ONLY_WITHOUT_A_GATEWAY = (
    "msgspec",
    "greenroom.protocol.index",
    "greenroom.protocol.jsonrpc",
    "greenroom.gateway._mcp_tool",
    "greenroom.gateway._offline",
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home and a working directory with nothing in them."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, folder)
        monkeypatch.chdir(folder)
        yield Path(folder)


def write(path: Path, **servers: Any) -> str:
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def test_every_option_of_every_command_says_what_it_is_for() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.help
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert [each.name for each in options if not each.help] == [], name


def test_every_command_that_answers_can_answer_in_json() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    without = {
        name
        for name, command in commands.items()
        for each in (command.commands.values() if isinstance(command, click.Group) else (command,))
        if each is None or not any("--json" in option.opts for option in each.params)
    }
    assert without == {"serve", "attach", "completion"}  # they speak MCP, or to a shell


def test_every_command_is_in_the_table_of_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([a-z]+)(?: [^`]*)?`", row.split("|")[1])}
    assert set(COMMANDS) <= named


def test_a_command_says_the_first_warnings_and_config_says_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "mcp.json", a={"command": "a", **{f"zebra{n}": 1 for n in range(14)}})
    assert run(["status", "--config", file]) == 0
    said = capsys.readouterr().err.splitlines()
    assert sum("zebra" in line for line in said) == 10
    assert "and 4 more about the configuration: greenroom doctor shows all of them." in said[10]
    assert run(["config", "--config", file]) == 0
    assert sum("zebra" in line for line in capsys.readouterr().err.splitlines()) == 14


def loaded(names: Sequence[str], *arguments: str) -> str:
    """Run the command line in a process of its own: which of these modules it imported, and its exit code."""
    script = (
        "import sys\nfrom greenroom.gateway._cli._main import run\n"
        f"code = run({list(arguments)!r})\n"
        f"print([name for name in {names!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["status"], ["search", "x"], ["tools", "--json"]]
)
def test_looking_imports_neither_the_sdk_nor_a_loop(home: Path, arguments: list[str]) -> None:
    write(home / ".mcp.json", clock={"command": "clock"})
    assert loaded(HEAVY, *arguments) == "[] 0"


def test_asking_a_running_gateway_imports_nothing_that_could_answer_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = os.fspath(tmp_path / "mcp.json")
    with serve(tmp_path, {"clock": {"command": "clock"}}) as gateway:
        gateway.greet()
        for name, folder in {"HOME": "", "XDG_CACHE_HOME": "cache", "XDG_RUNTIME_DIR": ""}.items():
            monkeypatch.setenv(name, os.fspath(tmp_path / folder))
        for command in ("status", "tools"):
            said = loaded((*HEAVY, *ONLY_WITHOUT_A_GATEWAY), command, "--config", config)
            assert said == "[] 0"


def test_help_names_every_command_in_the_order_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " in said] == list(COMMANDS)


def test_without_a_gateway_the_cache_answers_and_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / ".mcp.json", clock={"command": "clock"}, bad={})
    assert run(["status", "--json"]) == 0
    said = capsys.readouterr()
    status = json.loads(said.out)
    assert status["source"] == "cache"
    assert {server["name"]: server["status"] for server in status["servers"]} == {
        "clock": "not-connected",
        "bad": "broken",
    }
    assert "no gateway runs for this configuration" in said.err
    assert run(["status"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("○ clock  not connected")
    assert said.out.endswith("0 of 2 connected, 0 tools\n")


def test_the_catalogue_on_disk_is_what_the_cache_means(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands that find, and one that describes, with nothing running and nothing started."""
    write(home / ".mcp.json", clock={"command": "no-such-clock"})
    keys = catalogue_keys(load_config(cwd=home, home=home, environ=os.environ))
    entry = ServerEntry("clock", keys["clock"], tools=(NOW,), fetched_at=time.time() - 60)
    assert CatalogueFile(default_cache_path()).save([entry], time.time()) is None
    assert run(["status"]) == 0
    assert "○ clock  cached, 1 tool" in capsys.readouterr().out
    assert run(["search", "time"]) == 0
    assert "- clock_now - The time" in capsys.readouterr().out
    assert run(["describe", "clock-now"]) == 0
    assert capsys.readouterr().out.startswith("clock_now\nServer: clock\n\nThe time")
    assert run(["tools", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tools"][0]["original"] == "now"


def test_nothing_configured_is_no_fault(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    assert capsys.readouterr().out == "No servers are configured.\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["zebra"], 2),
        (["search"], 2),
        (["search", "x", "--limit", "0"], 2),
        (["status", "--config", "missing.json"], 2),
        (["status", "--pid", "1"], 2),
        (["call", "clock_now", "oops"], 2),
        (["call", "clock_now", "--args", "[1]"], 2),
        (["serve", "--expose", "everything"], 2),
        (["tools", "zebra"], 1),
        (["describe", "zebra"], 1),
        (["reconnect"], 1),
        (["search", "(", "--regex"], 1),
        (["search", "zebra"], 0),
    ],
)
def test_exit_codes_and_no_traceback(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    write(home / ".mcp.json", clock={"command": "clock"})
    assert run(arguments) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert not code or (said.err and not said.out)


def test_a_broken_file_that_was_named_is_bad_usage_and_a_found_one_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".mcp.json").write_text("{ nonsense")
    assert run(["status"]) == 0
    assert ".mcp.json" in capsys.readouterr().err
    assert run(["status", "--config", str(home / ".mcp.json")]) == 2
    assert ".mcp.json" in capsys.readouterr().err


def test_config_prints_what_is_in_force_without_its_secrets(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / ".mcp.json", clock={"command": "clock", "env": {"API_TOKEN": "hush-hush"}})
    assert run(["config"]) == 0
    said = capsys.readouterr().out
    assert "clock" in json.loads(said)["mcpServers"]
    assert "hush-hush" not in said
    assert run(["config", "--schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


def test_what_the_cache_knows_is_shown_as_a_room_would() -> None:
    room = FakeRoom()
    library = OfflineCatalogue(room.config, room.entries)
    reader = CatalogueReader(library, hints=FOR_PEOPLE)
    status = finish(status_view(reader, library))
    assert [(server["name"], server["status"], server["toolCount"]) for server in status["servers"]] == [
        ("github", "cached", 3),
        ("clock", "cached", 1),
        ("fresh", "not-connected", 0),
        ("off", "disabled", 0),
        ("bad", "broken", 0),
    ]
    assert status["servers"][0]["state"] == "idle"
    assert [tool["name"] for tool in finish(tools_view(reader, library, "clock"))["tools"]] == ["clock_now"]
    assert finish(tools_view(reader, library, "nope"))["error"] == "server_not_found"
    assert "Configured: " in finish(tools_view(reader, library, "nope"))["message"]
    assert finish(tools_view(reader, library, "fresh"))["error"] == "not_known_yet"


def test_a_view_says_of_each_server_what_its_row_says() -> None:
    class Sessions(FakeRoom):
        def status(self) -> list[ServerStatus]:
            own = ServerStatus("clock", scope="session:x", state=State.CONNECTED, pid=7, in_flight=2)
            return [*super().status(), own]

    room = Sessions()
    room.rows["clock"] = {
        "state": State.DRAINING,
        "incarnation": 3,
        "in_flight": 1,
        "queued": 2,
        "waiting_for": "permit",
        "waiting": 1.26,
        "last_line": "hello",
        "pid": 5,
        "down": "taken down",
        "failure": "it died",
        "faults": ("bad_tool",),
        "retry_in": 2.34,
        "problems": ("cut after 3 pages",),
    }
    view = finish(status_view(CatalogueReader(room, hints=FOR_PEOPLE), room))
    clock = next(server for server in view["servers"] if server["name"] == "clock")
    expected = {
        "state": "draining",
        "incarnation": 3,
        "inFlight": 1,
        "queued": 2,
        "waitingFor": "permit",
        "waiting": 1.3,
        "lastLine": "hello",
        "lifecycle": "lazy",
        "pid": 5,
        "down": "taken down",
        "failure": "it died",
        "faults": ["bad_tool"],
        "retryIn": 2.3,
    }
    assert expected.items() <= clock.items()
    (own,) = view["addresses"]
    assert (own["name"], own["scope"], own["state"], own["inFlight"]) == (
        "clock",
        "session:x",
        "connected",
        2,
    )
    assert "addresses" not in finish(status_view(CatalogueReader(FakeRoom(), hints=FOR_PEOPLE), FakeRoom()))


def test_the_status_says_in_a_line_what_is_worth_knowing() -> None:
    room = FakeRoom()
    room.learn("clock", NOW)
    room.rows = {
        "github": {"state": State.CONNECTED, "pid": 5, "in_flight": 1, "queued": 2, "faults": ("x", "y", "z")},
        "clock": {"state": State.CONNECTED, "faults": ("x",)},
        "fresh": {
            "state": State.CONNECTING, "waiting_for": "install", "waiting": 12.4, "last_line": "npm: 3 of 7",
        },
    }  # fmt: skip
    lines = list(_status_lines(finish(status_view(CatalogueReader(room, hints=FOR_PEOPLE), room))))
    assert [" ".join(line.split()) for line in lines] == [
        "✓ github connected, 3 tools pid 5; 1 in flight, 2 queued; clients would refuse x, and 2 more",
        "✓ clock connected, 1 tool clients would refuse x",
        "○ fresh not connected connecting; installing for 12 s: npm: 3 of 7",
        "⊘ off disabled",
        '✗ bad broken mcp.json: mcpServers.bad: needs "command" or "url"',
        "",
        "2 of 4 connected, 4 tools",
    ]
    room.rows = {
        "clock": {
            "waiting_for": "permit",
            "waiting": 3.0,
            "queued": 1,
            "retry_in": 7.6,
            "down": "it was drained",
        }
    }
    (line,) = (
        line
        for line in _status_lines(finish(status_view(CatalogueReader(room, hints=FOR_PEOPLE), room)))
        if "clock" in line
    )
    assert line.endswith("0 in flight, 1 queued; waiting for permit for 3 s; it was drained; retry in 8s")


class Asked:
    """A running gateway as a command sees it."""

    pid = 7

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, method: str, **params: Any) -> Any:
        self.asked.append((method, params))
        return self.answer


@pytest.mark.parametrize(
    ("errors", "code"), [((None, None), 0), ((None, "no"), 1), (("no", "no"), 1), ((), 0)]
)
def test_reconnect_succeeds_when_every_server_does(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    errors: tuple[str | None, ...],
    code: int,
) -> None:
    gateway = Asked({"servers": [{"name": f"s{n}", "error": error} for n, error in enumerate(errors)]})
    monkeypatch.setattr(_act, "running_gateway", lambda *_: gateway)
    assert run(["reconnect"]) == code
    marks = [f"✗ s{n}: no" if error else f"✓ s{n}" for n, error in enumerate(errors)]
    assert capsys.readouterr().out.splitlines() == (marks or ["No server was connected; nothing to do."])


def test_what_is_searched_for_is_asked_as_it_was_typed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Source:
        origin: Mapping[str, Any] = MappingProxyType({"source": "cache"})

        def look(self, arguments: Any) -> Any:
            asked.append(arguments)
            details = {"greenroom/details": {"mode": "search"}}
            return {"content": [{"type": "text", "text": "found"}], "_meta": details}

    monkeypatch.setattr(_look, "open_source", lambda *_: Source())
    assert run(["search", "read", "file"]) == 0
    assert (
        run(["search", "r.*", "--regex", "--server", "s", "--limit", "3", "--offset", "6", "--schemas"]) == 0
    )
    assert asked == [
        {"search": "read file", "regex": False, "includeSchemas": False, "limit": 12, "offset": 0},
        {"search": "r.*", "regex": True, "includeSchemas": True, "limit": 3, "offset": 6, "server": "s"},
    ]
    assert capsys.readouterr().out == "found\nfound\n"


@pytest.mark.parametrize(
    ("states", "code"), [((), 0), (("known",), 0), (("known", "failed"), 1), (("failed", "failed"), 1)]
)
def test_refresh_succeeds_when_no_server_failed(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    states: tuple[str, ...],
    code: int,
) -> None:
    rows = [{"name": f"s{n}", "state": state, "tools": n, "failure": "no"} for n, state in enumerate(states)]

    class Gateway(Asked):
        def ask(self, method: str, **params: Any) -> Any:
            self.asked.append((method, params))
            return {"names": ["a"], "since": 5.0} if method == "refresh" else rows

    gateway = Gateway(None)
    monkeypatch.setattr(_refresh, "running_gateway", lambda *_: gateway)
    assert run(["refresh", "s0"]) == code
    assert gateway.asked == [("refresh", {"server": "s0"}), ("refreshed", {"names": ["a"], "since": 5.0})]
    marks = [
        f"✗ s{n}: no" if row["state"] == "failed" else f"✓ s{n}: {n} tools" for n, row in enumerate(rows)
    ]
    marks = [mark.replace("1 tools", "1 tool") for mark in marks]
    assert capsys.readouterr().out.splitlines() == (marks or ["Every server is known; nothing to do."])
    assert run(["refresh", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"servers": rows, "source": "gateway", "pid": 7}


def test_a_result_as_json_has_its_content_and_where_it_is_from(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = [{"type": "text", "text": "done"}, {"type": "image", "data": "abcd", "mimeType": "image/png"}]
    for mode in ("call", "search"):
        gateway = Asked({"content": content, "_meta": {"greenroom/details": {"mode": mode, "server": "s"}}})
        monkeypatch.setattr(_act, "running_gateway", lambda *_, gateway=gateway: gateway)
        assert run(["call", "t", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said.pop("content", None) == (content if mode == "call" else None)
        assert said == {"mode": mode, "server": "s", "source": "gateway", "pid": 7}
        assert run(["call", "t"]) == 0
        assert capsys.readouterr().out == "done\n[image: image/png, 4 characters of base64]\n"


def _group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("some", errors)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("first"), 2, "greenroom: first\n"),
        (ConfigError([Problem("f", "wrong")]), 2, "greenroom: "),
        (ServerDown("down", server="s"), 1, "greenroom: down\n"),
        (_group(UsageError("first"), UsageError("second")), 2, "greenroom: first\n"),
        (
            _group(_group(ServerDown("down", server="s")), ServerDown("too", server="s")),
            1,
            "greenroom: down\n",
        ),
        (_group(UsageError("first"), ServerDown("down", server="s")), 1, "greenroom: a bug in Greenroom"),
        (_group(UsageError("first"), KeyboardInterrupt()), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left"), 1, "greenroom: the system refused: No space left.\n"),
        (
            ZeroDivisionError("x"),
            1,
            "greenroom: a bug in Greenroom, please report it: ZeroDivisionError: x\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_a_line_and_a_code(
    error: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_main, "_forget_stdout", lambda: None)
    monkeypatch.delenv("GREENROOM_DEBUG", raising=False)
    assert _report(error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(said) if said else shown.err == ""


def test_a_trace_says_what_it_left_out_and_replaces_the_file_it_is_written_to(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = '{"seq": 1, "at": 1.0, "kind": "note", "detail": "odd"}'
    (home / "good").write_text(f"{event}\n\n")
    (home / "bad").write_text(f"{event}\n?\n[]\n")
    (home / "out").write_text("x" * 10_000)
    assert run(["trace", "good", "-o", "out"]) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads((home / "out").read_text())["traceEvents"]
    assert run(["trace", "bad"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "greenroom: 2 lines of bad are not events and were left out.\n"
    assert json.loads(shown.out)["traceEvents"]
    assert run(["trace", "good", "-o", "no/such/folder"]) == 2
    assert "--output no/such/folder" in capsys.readouterr().err
    assert run(["trace", "good", "-o", "new"]) == 0
    assert (home / "new").stat().st_mode & 0o777 == 0o600


def test_a_pair_goes_before_the_same_argument_in_args(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    details = {"greenroom/details": {"mode": "call"}}
    gateway = Asked({"content": [{"type": "text", "text": "done"}], "_meta": details})
    monkeypatch.setattr(_act, "running_gateway", lambda *_: gateway)
    assert run(["call", "t", "n=2", "--args", '{"n": 1, "m": 1}', "--server", "s"]) == 0
    assert gateway.asked == [("mcp", {"arguments": {"tool": "t", "args": {"n": 2, "m": 1}, "server": "s"}})]
    assert capsys.readouterr().out == "done\n"


def test_what_fails_is_told_as_json_where_json_was_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / ".mcp.json", clock={"command": "no-such-clock"})
    for arguments in (["describe", "nope"], ["tools", "nope"]):
        assert run([*arguments, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]
        assert run(arguments) == 1
        assert capsys.readouterr().out == ""


def test_whose_programs_are_started_is_said_unless_a_file_was_named(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "home").mkdir()
    monkeypatch.setenv("HOME", str(home / "home"))
    path = Path(write(home / ".mcp.json", clock={"command": "x"}))
    config = load_config(cwd=home, home=home / "home", environ=os.environ, trust=True)
    say_whose(config, path)
    assert capsys.readouterr().err == ""
    files = say_whose(config, None)
    assert "this project also decides which programs are started" in capsys.readouterr().err
    assert say_whose(config, None, files) == files
    assert capsys.readouterr().err == "", "they are known"
    assert say_whose(config, None, ("/another",)) == files
    assert "this project also decides which programs are started" in capsys.readouterr().err


@pytest.mark.parametrize(("configured", "waits"), [({}, 600.0), ({"queueTimeoutMs": 5_000}, 5.0)])
def test_a_call_alone_waits_as_long_as_an_install_may_take(
    home: Path, configured: dict[str, Any], waits: float
) -> None:
    (home / ".mcp.json").write_text(
        json.dumps({"mcpServers": {}, "settings": {"installTimeoutMs": 600_000, **configured}})
    )
    config = load_config(cwd=home, home=home, environ=os.environ)
    assert patient(config).settings.queue_timeout == waits


def test_whose_tools_are_not_known_yet_is_told_apart_from_having_none() -> None:
    room = FakeRoom()
    room.learn("off")
    reader = CatalogueReader(room, hints=FOR_PEOPLE)
    fresh = finish(tools_view(reader, room, "fresh"))
    assert (fresh["error"], fresh["count"]) == ("not_known_yet", 0)
    assert "greenroom refresh" in fresh["message"]
    everything = finish(tools_view(reader, room, None))
    assert (everything["count"], "error" in everything) == (4, False)
    assert everything["unknownServers"]
    assert "error" not in finish(tools_view(reader, room, "clock"))


def test_what_was_read_too_long_ago_is_not_known_and_what_a_list_lacks_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"mcpServers": {"clock": {"command": "no-such-clock"}}, "settings": {"cacheMaxAgeDays": 2}}
    (home / ".mcp.json").write_text(json.dumps(config))
    keys = catalogue_keys(load_config(cwd=home, home=home, environ=os.environ))
    for days, status in ((3, "not connected"), (1, "cached, 1 tool")):
        entry = ServerEntry(
            "clock",
            keys["clock"],
            tools=(NOW,),
            problems=("tools/list: cut after 3 pages",),
            fetched_at=time.time() - days * 86400,
        )
        CatalogueFile(default_cache_path()).save([entry], entry.fetched_at)
        assert run(["status"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"○ clock  {status}")
        assert ("cut after 3 pages" in said) is (days == 1)


def test_a_cache_that_cannot_be_used_is_said_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / ".mcp.json", clock={"command": "no-such-clock"})
    default_cache_path().parent.mkdir(parents=True)
    default_cache_path().write_text("{")
    assert run(["tools"]) == 0
    assert "The catalogue cache " in capsys.readouterr().err
    assert run(["tools"]) == 0
    assert "The catalogue cache " not in capsys.readouterr().err, "it was set aside"


@pytest.mark.parametrize(
    ("pair", "meant"),
    [
        *(
            ("v=5", 5),
            ("v=true", True),
            ("v=[1, 2]", [1, 2]),
            ("v=null", None),
            ("v=x y", "x y"),
            ("v=007", "007"),
        ),
        *(("v=", ""), ("v=NaN", "NaN"), ("v=1e999", "1e999"), ("v=-Infinity", "-Infinity"), ("v=1=2", "1=2")),
        *(('v="5"', "5"), ("v:=5", 5), ('v:="5"', "5"), ("v=" + "[" * 99_999, "[" * 99_999)),
    ],
)
def test_values_are_json_where_they_are_json(pair: str, meant: Any) -> None:
    assert split_pairs((pair,)) == {"v": meant}


def test_pairs_and_args() -> None:
    assert split_pairs(("a=1", "b=x=y", "c=", "d::=2")) == {"a": 1, "b": "x=y", "c": "", "d:": 2}
    assert given_args('{"a": 1}') == {"a": 1}
    for none in ("=1", "a", ":=1"):
        with pytest.raises(UsageError, match="is not K=V"):
            split_pairs((none,))
    for whole in ('{"a": 1}', '{"url": "x?a=b"}'):
        with pytest.raises(UsageError, match="needs --args"):
            split_pairs((whole,))
    with pytest.raises(UsageError, match="what follows := is not JSON"):
        split_pairs(("a:=x",))
    with pytest.raises(UsageError, match="expected a JSON object, got array"):
        given_args("[]")


def test_what_call_sends_does_not_depend_on_what_is_known_of_the_tool(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`text` is declared a string. The first call knows nothing of that; the second finds it in the cache."""
    write(home / ".mcp.json", a=faulty(home, "a"))
    said: list[str] = []
    for _ in range(2):
        run(["call", "a_echo", "text=42"])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_options_of_serve_override_the_configuration() -> None:
    changed = override(Config(), idle_timeout=0.0, cooldown=None, failure_threshold=9)
    assert (changed.settings.idle_timeout, changed.settings.failure_threshold) == (0.0, 9)
    assert changed.settings.cooldown == Config().settings.cooldown


def greenroom(home: Path, *arguments: str, stdout: Any = subprocess.PIPE, **environ: str) -> Any:
    """Run the command line as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "greenroom", *arguments],
        cwd=home,
        env={**os.environ, **environ},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_a_terminal_without_the_letters_is_shown_their_numbers(home: Path) -> None:
    config = write(home / ".mcp.json", **{"中🎭": {"command": "clock"}})

    told = greenroom(home, "status", "--config", config, PYTHONIOENCODING="latin-1")
    data = greenroom(home, "status", "--json", "--config", config, PYTHONIOENCODING="latin-1")

    assert told.returncode == 0, told.stderr
    assert rb"\u25cb \u4e2d\U0001f3ad" in told.stdout
    assert json.loads(data.stdout)["servers"][0]["name"] == "中🎭"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_an_answer_that_cannot_be_written_is_no_bug_of_ours(home: Path) -> None:
    write(home / ".mcp.json", clock={"command": "clock"})
    with open("/dev/full", "wb") as full:
        done = greenroom(home, "status", stdout=full)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == b"greenroom: the system refused: No space left on device."


def test_a_reader_that_has_seen_enough_is_no_error(home: Path) -> None:
    """`greenroom tools | head -1`, with more than a pipe takes."""
    write(home / ".mcp.json", **{f"{n}-{'x' * 500}": {"command": "clock"} for n in range(400)})
    process = subprocess.Popen(
        [sys.executable, "-m", "greenroom", "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    with process.stderr:
        assert process.stderr.read().splitlines() == [
            b"greenroom: no gateway runs for this configuration; this is what the cache knows."
        ]
    assert process.wait(timeout=120) == 0


def test_a_reader_that_has_gone_before_the_first_line_is_no_error(home: Path) -> None:
    """Whatever is written first is refused, be it long or short."""
    write(home / ".mcp.json", **{f"s{number}": {"command": "x" * 50} for number in range(2000)})
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for words in (["status", "--json"], ["tools"], ["--version"], ["status", "--help"]):
            done = greenroom(home, *words, stdout=writing)
            assert done.returncode == 0, words
            assert not [line for line in done.stderr.splitlines() if b"no gateway runs" not in line], words
    finally:
        os.close(writing)


def test_an_interrupted_call_ends_in_silence_and_takes_its_server_with_it(tmp_path: Path) -> None:
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

    assert (call.returncode, said.strip()) == (130, b"")
    assert gone_within(logged_pids(tmp_path)) == set()


@pytest.mark.parametrize(
    ("status", "mark"),
    [
        ("connected", "✓"), ("failed", "✗"), ("broken", "✗"), ("needs-auth", "⚠"), ("disabled", "⊘"),
        ("untrusted", "⚠"), ("cached", "○"), ("not-connected", "○"),
    ],
)  # fmt: skip
def test_each_state_of_a_server_has_its_mark(status: str, mark: str) -> None:
    server = {
        "name": "a", "status": status, "state": "idle", "toolCount": 1, "pid": None, "inFlight": 0, "queued": 0,
        "waitingFor": None, "faults": (), "retryIn": None,
    }  # fmt: skip
    details = {"servers": [server], "disabledCount": 0, "connectedCount": 0, "totalTools": 1}
    assert next(iter(_status_lines(details))).startswith(f"{mark} a ")


def test_the_numbers_are_those_that_were_decided() -> None:
    names = ("_attach", "_codes", "_common", "_doctor", "_refresh", "_serve")
    found = numbers_of(*(f"gateway/_cli/{name}" for name in names))
    assert found == {
        "_cli._attach._STOPS_WITHIN": 60.0,
        "_cli._codes.OK": 0,
        "_cli._codes.FAILED": 1,
        "_cli._codes.USAGE": 2,
        "_cli._codes.INTERRUPTED": 130,
        "_cli._common._TOLD": 10,
        "_cli._doctor._NAMED": 5,
        "_cli._refresh.LOOK_EVERY": 0.3,
        "_cli._refresh.SAY_EVERY": 5.0,
        "_cli._serve._TURN": 0.001,
    }


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", '"é"'), ("UTF8", '"é"'), ("latin-1", '"\\u00e9"'), ("ascii", '"\\u00e9"')],
)
def test_json_is_printed_in_characters_that_stdout_has(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = io.BytesIO()
    with io.TextIOWrapper(into, encoding=encoding, write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        show_json({"a": "é"})
        assert shown.encode() in into.getvalue()


@pytest.mark.parametrize(("problems", "told"), [(10, 10), (11, 11), (12, 11)])
def test_of_many_problems_of_the_configuration_some_are_told_and_the_rest_is_counted(
    problems: int, told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {f"s{number}": {"command": "x", f"odd{number}": 1} for number in range(problems)}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    assert len(read_config(path).problems) == problems
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == told
    assert ("more about the configuration: greenroom doctor" in lines[-1]) == (problems > 10)
    if problems > 10:
        assert f"and {problems - 10} more" in lines[-1]
