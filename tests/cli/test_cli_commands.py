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
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import anyio
import click
import pytest
from tests.support.door_rooms import NOW, FakeRoom
from tests.support.gateway import faulty, gone_within, logged_pids, serve
from tests.support.shapes import conforms

from greenroom import Greenroom
from greenroom.catalogue.entries import Pinned, ServerEntry
from greenroom.catalogue.fingerprints import fingerprint, prints_of
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path, pin_keys
from greenroom.cli import attach_command, call_command, common, query_commands, refresh_command, serve_command
from greenroom.cli import main as _main
from greenroom.cli.call_command import given_args, patient, split_pairs
from greenroom.cli.common import read_config, say_whose, show_json
from greenroom.cli.completion import complete_clients, complete_profiles, complete_servers
from greenroom.cli.main import COMMANDS, _report, cli, run
from greenroom.cli.query_commands import _status_lines
from greenroom.cli.serve_command import override
from greenroom.config.files import load_config
from greenroom.config.model import Config, Isolation, ServerDefinition, Settings
from greenroom.gateway import serve as _gateway
from greenroom.gateway import serve as _serve_http
from greenroom.gateway.commands import allowing
from greenroom.gateway.exposures.query_modes import CatalogueReader
from greenroom.gateway.exposures.tool_definition import FOR_PEOPLE
from greenroom.gateway.offline import OfflineCatalogue, open_catalogue
from greenroom.gateway.views import status_view, tools_view
from greenroom.protocol.address import Address
from greenroom.protocol.cooperative import finish
from greenroom.protocol.errors import ConfigError, Problem, ServerDown, UsageError
from greenroom.protocol.events import Lagged, Note, NoteCode
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.protocol.version import VERSION
from greenroom.safety.pins_file import ServerPins, pins_file

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
# What reads a catalogue.
ONLY_WITHOUT_A_GATEWAY = (
    "msgspec",
    "greenroom.catalogue.index",
    "greenroom.protocol.jsonrpc",
    "greenroom.gateway.exposures.mcp_tool",
    "greenroom.gateway.offline",
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
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
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
    assert "and 4 more about the configuration. To see all of them: greenroom doctor --config" in said[10]
    assert run(["config", "--config", file]) == 0
    assert sum("zebra" in line for line in capsys.readouterr().err.splitlines()) == 14


def loaded(names: Sequence[str], *arguments: str) -> str:
    """Run the command line in a process of its own: which of these modules it imported, and its exit code."""
    script = (
        "import sys\nfrom greenroom.cli.main import run\n"
        f"code = run({list(arguments)!r})\n"
        f"print([name for name in {names!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--version"], ["status"], ["search", "x"], ["tools", "--json"]]
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


def test_the_cache_tells_of_each_server_what_a_room_would(home: Path) -> None:
    odd = {"name": "odd", "inputSchema": {"type": "object", "$ref": 5}}
    servers = {
        "clock": ServerDefinition("clock", command="x", env={"A": "${session.TWO}", "B": "${session.ONE}"}),
        "fresh": ServerDefinition("fresh", command="x", disabled=True),
        "empty": ServerDefinition("empty", command="x"),
    }
    entries = {
        "clock": ServerEntry("clock", "h", tools=(NOW, odd), problems=("cut",)),
        "fresh": None,
        "empty": ServerEntry("empty", "h"),
    }
    library = OfflineCatalogue(Config(servers=servers), entries)
    clock, fresh, empty = library.status()
    assert (clock.server, clock.tool_count, clock.problems, clock.disabled) == ("clock", 2, ("cut",), False)
    assert clock.session_variables == ("ONE", "TWO")
    assert clock.faults == library.index.faults("clock")
    assert (fresh.tool_count, fresh.disabled, fresh.problems) == (None, True, ())
    assert (empty.tool_count, entries["empty"].known if entries["empty"] else None) == (None, False)
    assert [row.server for row in finish(library.surveying())] == ["clock", "fresh", "empty"]
    assert [row.server for row in finish(library.surveying("fresh"))] == ["fresh"]
    assert library.entry("clock") is entries["clock"]
    assert library.entry("nobody") is None


def test_the_cache_has_an_entry_for_each_server_and_knows_what_was_pinned(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".mcp.json", clock={"command": "c"}, fresh={"command": "f"})
    config = load_config(cwd=home, home=home, environ=os.environ)
    entry = ServerEntry("clock", catalogue_keys(config)["clock"], tools=(NOW,), fetched_at=time.time() - 60)
    assert CatalogueFile(default_cache_path()).save([entry], time.time()) is None
    pinned = Pinned(changed={"now": ("description",)})
    pins = {"clock": SimpleNamespace(pinned=pinned)}
    warned: list[str | None] = [None]
    monkeypatch.setattr(
        "greenroom.gateway.offline.pins_file",
        lambda _: SimpleNamespace(load=lambda _: (pins, warned[0])),  # pyright: ignore[reportUnknownLambdaType]
    )
    library = open_catalogue(config)
    clock = library.entry("clock")
    assert clock is not None
    assert (clock.pinned, clock.tools, library.warning) == (pinned, entry.tools, None)
    assert library.status()[0].changed == ("now",)
    assert library._entries.keys() == {"clock", "fresh"}
    assert library.entry("fresh") is None
    warned[0] = "The pins cannot be read."
    assert open_catalogue(config).warning == "The pins cannot be read."
    default_cache_path().write_text("{")
    pins.clear()
    said = open_catalogue(config).warning
    assert said is not None
    assert said != "The pins cannot be read.", "what is wrong with the catalogue goes first"


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
    assert line.endswith("0 in flight, 1 queued; waiting for permit for 3 s, next try in 8 s; it was drained")


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
    monkeypatch.setattr(call_command, "running_gateway", lambda *_: gateway)
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

    monkeypatch.setattr(query_commands, "open_source", lambda *_: Source())
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
    monkeypatch.setattr(refresh_command, "running_gateway", lambda *_: gateway)
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
        monkeypatch.setattr(call_command, "running_gateway", lambda *_, gateway=gateway: gateway)
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
    monkeypatch.setattr(call_command, "running_gateway", lambda *_: gateway)
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
    assert split_pairs(('{"a": 1, "url": "x?a=b"}',)) == {"a": 1, "url": "x?a=b"}
    assert split_pairs(("a=0", ' {"a": 1, "b": 2}', "b=3")) == {"a": 1, "b": 3}, "the later counts"
    with pytest.raises(UsageError, match="Invalid args JSON"):
        split_pairs(("{a: 1}",))
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


def test_a_tool_is_described_by_its_name_and_its_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look(arguments: Any) -> Any:
        asked.append(arguments)
        return {"content": [], "_meta": {"greenroom/details": {"mode": "describe"}}}

    source = SimpleNamespace(origin={"source": "cache"}, look=look)
    monkeypatch.setattr(query_commands, "open_source", lambda *_: source)
    assert run(["describe", "read"]) == 0
    assert run(["describe", "read", "--server", "s"]) == 0
    assert asked == [{"describe": "read"}, {"describe": "read", "server": "s"}]


def shown_status(**more: Any) -> list[str]:
    """The lines of a status of one server."""
    server = {
        "name": "a", "status": "cached", "state": "idle", "toolCount": 1, "pid": None, "inFlight": 0,
        "queued": 0, "waitingFor": None, "lastLine": "", "faults": (), "retryIn": None,
    }  # fmt: skip
    details = {"disabledCount": 0, "connectedCount": 0, "totalTools": 1}
    rest = {name: more.pop(name) for name in ("background", "waitingForApproval", "audit") if name in more}
    return list(_status_lines({**details, "servers": [{**server, **more}], **rest}))


@pytest.mark.parametrize(
    ("row", "notes"),
    [
        ({}, ""),
        ({"state": "closed"}, ""),
        ({"state": "draining"}, "draining"),
        ({"pid": 7}, "pid 7"),
        ({"inFlight": 1}, "1 in flight, 0 queued"),
        ({"queued": 1}, "0 in flight, 1 queued"),
        ({"waitingFor": "slot"}, "waiting for slot"),
        ({"waitingFor": "slot", "waiting": 0.0}, "waiting for slot for 0 s"),
        ({"waitingFor": "install", "waiting": 0.4}, "installing for 0 s"),
        ({"retryIn": 0.0}, "next try in 0 s"),
        ({"waitingFor": "gate", "waiting": 30.0, "retryIn": 22.0}, "waits 30 s, next try in 22 s"),
        ({"failure": "it said \x1b[2J", "down": "drained"}, "drained; it said"),
        ({"problems": ("odd",)}, "odd"),
        ({"faults": ("x", "y")}, "clients would refuse x, and 1 more"),
    ],
    ids=repr,
)
def test_each_thing_that_is_worth_knowing_of_a_server_is_told(row: dict[str, Any], notes: str) -> None:
    line = shown_status(**row)[0]
    assert line.removeprefix("○ a  cached, 1 tool").strip() == notes


def test_who_is_attached_to_the_background_room_is_told() -> None:
    client = {"pid": 5, "expose": None, "profile": None, "inFlight": 0, "seconds": 7.4}
    one = {"pid": 9, "clients": [client]}
    assert shown_status(background=one)[-2:] == [
        "background room, pid 9: 1 client is attached",
        "  pid 5, 0 in flight, for 7 s",
    ]
    other = {**client, "expose": "direct", "profile": "wo\x1b[2Jrk", "inFlight": 3}
    assert shown_status(background={"pid": 9, "clients": [client, other]})[-3:] == [
        "background room, pid 9: 2 clients are attached",
        "  pid 5, 0 in flight, for 7 s",
        "  pid 5, direct, work, 3 in flight, for 7 s",
    ]
    assert shown_status(background={"pid": 9, "clients": []})[-1] == (
        "background room, pid 9: 0 clients are attached"
    )
    for count, words in ((1, "1 call waits for approval"), (2, "2 calls wait for approval")):
        assert shown_status(waitingForApproval=count)[-1].startswith(words)
    assert "approval" not in shown_status(waitingForApproval=0)[-1]
    kept = {"file": "calls.jsonl", "failing": True, "missed": 0}
    assert shown_status(audit=kept)[-1].startswith("The audit file calls.jsonl cannot be written:")
    assert "audit" not in shown_status(audit={**kept, "failing": False})[-1]


def test_what_a_list_lacks_is_told_below_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    details = {"tools": [{"name": "a_b"}], "count": 1, "message": "Not known yet: s."}
    source = SimpleNamespace(origin={"source": "cache"}, tools=lambda _: details)
    monkeypatch.setattr(query_commands, "open_source", lambda *_: source)
    assert run(["tools"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a_b", "Total: 1 tool", "Not known yet: s."]


# ---- how a command ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "err", "forgets"),
    [
        (KeyboardInterrupt(), 130, "", False),
        (BrokenPipeError(), 0, "", True),
        (_group(_group(BrokenPipeError())), 0, "", True),
        (OSError(28, "No space left"), 1, "greenroom: the system refused: No space left.\n", True),
        (OSError("odd"), 1, "greenroom: the system refused: odd.\n", True),
        (UsageError("a\x1b[2Jb"), 2, "greenroom: ab\n", False),
        (ConfigError([Problem("f", "wrong")]), 2, "greenroom: f: wrong\n", False),
        (click.ClickException("not so"), 2, "Error: not so\n", False),
        (_group(UsageError("x"), KeyboardInterrupt()), 130, "", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_command_raises_it_ends_with_one_line_and_stdout_as_it_should_be(
    error: BaseException,
    code: int,
    err: str,
    forgets: bool,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgotten: list[bool] = []

    def fails(*_: object) -> Any:
        raise error

    monkeypatch.delenv("GREENROOM_DEBUG", raising=False)
    monkeypatch.setattr(_main, "_forget_stdout", lambda: forgotten.append(True))
    monkeypatch.setattr(query_commands, "open_source", fails)
    assert run(["status"]) == code
    assert capsys.readouterr() == ("", err)
    assert bool(forgotten) == forgets


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_nobody_reads_what_is_printed_before_a_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[bool] = []

    def broken(*_: object, **_more: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(_main, "_forget_stdout", lambda: forgotten.append(True))
    for place in ("click.echo", "click.core.echo", "click.decorators.echo"):
        monkeypatch.setattr(place, broken)
    assert run(words) == 0
    assert forgotten


def test_a_bug_shows_its_traceback_to_who_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GREENROOM_DEBUG", "1")
    for error in (ZeroDivisionError("x"), OSError("odd")):
        with pytest.raises(type(error)):
            _report(error)
    assert _report(UsageError("first")) == 2, "that is no bug"
    assert capsys.readouterr().err == "greenroom: first\n"


@pytest.mark.parametrize(("free", "kept"), [([0, 1, 2, 3], 3), ([2, 3], 2), ([1, 5], 2), ([7], 1)])
def test_each_closed_standard_descriptor_is_filled_and_no_other(
    free: list[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, closed = iter(free), list[int]()
    names = SimpleNamespace(
        open=lambda _path, _flags: next(opened), close=closed.append, devnull=os.devnull, O_RDWR=os.O_RDWR
    )
    monkeypatch.setattr(_main, "os", names)
    _main._fill_the_gaps()
    assert closed == [free[-1]]
    assert free[-1] > 2
    assert next(opened, None) is None
    assert kept


def test_neither_answers_nor_messages_fail_on_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, stream)
    _main._never_fail_on_a_letter()
    for stream in streams:
        stream.write("○")
        stream.flush()
        assert stream.buffer.getvalue() == rb"\u25cb"  # pyright: ignore[reportAttributeAccessIssue]


def test_what_nobody_reads_is_thrown_away_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stdout:
        os.close(reading)
        monkeypatch.setattr(sys, "stdout", stdout)
        before = len(os.listdir("/proc/self/fd"))
        stdout.write("nobody reads this")
        _main._forget_stdout()
        assert len(os.listdir("/proc/self/fd")) == before
        stdout.flush()  # as the interpreter does when it ends
    for nothing in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", nothing)
        _main._forget_stdout()


def test_a_timeline_is_made_of_whatever_can_be_read_and_says_how_much_that_was(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = b'{"seq": 1, "at": 1.0, "kind": "note", "detail": "od\xff"}'
    (home / "log").write_bytes(event + b"\n?\n?\n")
    assert run(["trace", "log", "-o", "out", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    made = json.loads((home / "out").read_text())["traceEvents"]
    assert said == {"output": "out", "events": len(made), "skipped": 2}
    assert run(["trace", "log", "-o", os.devnull]) == 0, "what was named may be a device"


def test_refresh_without_a_gateway_asks_for_what_was_named_in_a_room_that_asks_nobody_else(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    rows = [{"name": "s", "state": "failed", "failure": "it said \x1b[2J\nmore"}]

    room = SimpleNamespace(_port="its port")

    @asynccontextmanager
    async def opens(_config: Config, **more: Any) -> AsyncGenerator[Any]:
        opened.append(more)
        yield room

    def begins(room: Any, server: str | None) -> Any:
        opened.append((room, server))
        return {"names": ["s"]}

    def looks(_room: Any, _reader: Any, asked: Any) -> Any:
        opened.append(asked)
        yield from ()
        return rows

    monkeypatch.setattr(Greenroom, "open", opens)
    monkeypatch.setattr("greenroom.gateway.commands.begin", begins)
    monkeypatch.setattr("greenroom.gateway.commands.look", looks)
    assert run(["refresh", "s"]) == 1
    assert opened == [{"bootstrap": False}, (room, "s"), {"names": ["s"]}]
    assert capsys.readouterr().out == "✗ s: it said more\n"
    assert run(["refresh", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"servers": rows, "source": "room"}


# ---- serve ----------------------------------------------------------------------------------------------------------

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture
def served(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `greenroom serve` would run, instead of running it."""
    ran: list[Any] = []
    monkeypatch.setattr(serve_command, "_run", ran.append)
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    (home / "tokens").write_text(f"ann {TOKEN}\n")
    return ran


def profiled(home: Path, **settings: Any) -> str:
    said = {"mcpServers": {"a": {"command": "a"}}, "profiles": {"work": {"servers": ["a"]}}}
    (home / "mcp.json").write_text(json.dumps({**said, "settings": settings}))
    return str(home / "mcp.json")


def test_what_serve_was_told_reaches_the_gateway_and_is_kept_when_the_configuration_changes(
    home: Path, served: list[Any]
) -> None:
    config = profiled(home, maxConnections=9)
    flags = [
        "--max-connections",
        "3",
        "--idle-timeout",
        "1500",
        "--failure-threshold",
        "2",
        "--cooldown",
        "250",
    ]
    more = ["--expose", "direct", "--profile", "work", "--events", "log"]
    assert run(["serve", "--config", config, *flags, *more]) == 0
    (main,) = served
    assert main.func is _gateway.serve
    given, open_room, options = main.args
    assert open_room == Greenroom.open

    def chosen(config: Config) -> Any:
        said = config.settings
        return said.max_connections, said.idle_timeout, said.failure_threshold, said.cooldown, said.isolation

    assert chosen(given) == (3, 1.5, 2, 0.25, None)
    assert (options.expose, options.profile, options.events) == ("direct", "work", Path("log"))
    assert options.version == VERSION
    profiled(home, maxConnections=8, minConnections=1)
    again = options.reread()
    assert chosen(again) == (3, 1.5, 2, 0.25, None)
    assert again.settings.min_connections == 1, "the file is read again"


def test_a_zero_that_serve_is_told_is_a_zero(home: Path, served: list[Any]) -> None:
    config = profiled(home, idleTimeout=7, cooldownMs=7_000)
    assert run(["serve", "--config", config, "--idle-timeout", "0", "--cooldown", "0"]) == 0
    settings = served[0].args[0].settings
    assert (settings.idle_timeout, settings.cooldown) == (0.0, 0.0)
    assert run(["serve", "--config", config]) == 0
    settings = served[1].args[0].settings
    assert (settings.idle_timeout, settings.cooldown) == (7 * 60.0, 7.0)


@pytest.mark.parametrize(
    ("settings", "isolation"),
    [({}, Isolation.PER_SESSION), ({"isolation": "persistent"}, Isolation.PERSISTENT)],
)
def test_what_serve_over_http_was_told_reaches_the_door(
    settings: dict[str, Any], isolation: Isolation, home: Path, served: list[Any]
) -> None:
    config = profiled(home, **settings)
    flags = ["--token-file", "tokens", "--tls-cert", "cert", "--tls-key", "key", "--profile", "work"]
    assert run(["serve", "--config", config, "--http", ":8123", *flags]) == 0
    (main,) = served
    assert main.func is _serve_http.serve_http
    given, open_room, options, http = main.args
    assert (open_room, options.profile, given.settings.isolation) == (Greenroom.open, "work", isolation)
    assert (http.host, http.port, http.cert, http.key) == ("127.0.0.1", 8123, Path("cert"), Path("key"))
    assert (http.profile, http.oauth) == ("work", None)
    assert [(token.name, token.profile) for token in http.tokens] == [("ann", "work")]
    assert options.reread().settings.isolation is isolation
    assert run(["serve", "--config", config]) == 0
    named = Isolation(settings["isolation"]) if settings else None
    assert served[1].args[0].settings.isolation is named, "one client of its own shares with nobody"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--token-file", "tokens"], "--token-file is for --http HOST:PORT"),
        (["--tls-cert", "tokens"], "--tls-cert is for --http HOST:PORT"),
        (["--tls-key", "tokens"], "--tls-key is for --http HOST:PORT"),
        (["--background", "--http", ":0"], "do not go together"),
        (["--as-room", "x", "--http", ":0"], "do not go together"),
        (["--profile", "home"], 'There is no profile "home"'),
        (["--profile", ""], 'There is no profile ""'),
        (["--http", ":0", "--profile", "home"], 'There is no profile "home"'),
        (["--http", ":0", "--token-file", "others"], 'There is no profile "play"'),
        (["--http", "localhost"], "is no HOST:PORT"),
        (["--http", "localhost:"], "is no HOST:PORT"),
        (["--http", "localhost:65536"], "is no HOST:PORT"),
        (["--http", "localhost:\u0663"], "is no HOST:PORT"),
        (["--http", "localhost:-1"], "is no HOST:PORT"),
        (["--max-connections", "2"], "must be above the configured minConnections (2)"),
        (["--max-connections", "1"], "must be above the configured minConnections (2)"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_serve_refuses_what_cannot_be_meant(
    words: list[str],
    said: str,
    home: Path,
    served: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greenroom.gateway.doors.background.become_room", lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
    (home / "others").write_text(f"ann {TOKEN} play\n")
    assert run(["serve", "--config", profiled(home, minConnections=2), *words]) == 2
    assert said in capsys.readouterr().err
    assert served == []


def test_serve_over_http_listens_where_the_configuration_says_unless_it_is_told(
    home: Path, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = profiled(home, http={"listen": "127.0.0.1:8123"})
    assert run(["serve", "--config", config, "--http"]) == 0
    assert run(["serve", "--http", "--config", config]) == 0
    assert run(["serve", "--config", config, "--http", ":1"]) == 0
    assert [main.args[3].port for main in served] == [8123, 8123, 1]
    assert run(["serve", "--http", "--config", profiled(home)]) == 2
    assert "http.listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    "http",
    [
        {"tokens": {"ann": 5}},
        {"tokens": ["t"]},
        {"token": {"ann": TOKEN}},
        {"oauth": {"issuer": "https://i.example", "resource": "https://r.example/mcp", "profileClaim": ""}},
        {"oauth": "https://i.example"},
        "tokens",
    ],
    ids=str,
)
def test_t58_a_door_is_not_opened_while_what_guards_it_cannot_be_read(
    http: Any, home: Path, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a file that was found and not named, where what is wrong is otherwise a warning."""
    (home / "greenroom").mkdir()
    (home / "greenroom" / "mcp.json").write_text(json.dumps({"mcpServers": {}, "settings": {"http": http}}))
    assert run(["serve", "--http", ":0"]) == 2
    assert "The HTTP door is not opened" in capsys.readouterr().err
    assert served == []
    assert run(["serve"]) == 0, "nobody comes over HTTP"


@pytest.mark.parametrize("words", [[], ["--http", ":0"], ["--background"]])
@pytest.mark.parametrize(("above", "runs"), [("4", True), ("5", False)])
def test_a_gateway_behind_too_many_gateways_is_refused_at_every_door(
    above: str,
    runs: bool,
    words: list[str],
    home: Path,
    served: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GREENROOM_DEPTH", above)
    monkeypatch.setattr(serve_command, "start_in_background", lambda *_: served.append("started"))  # pyright: ignore[reportUnknownLambdaType]
    assert run(["serve", "--config", profiled(home), *words]) == (0 if runs else 2)
    assert len(served) == runs
    assert ("behind 5 gateways" in capsys.readouterr().err) == (not runs)


def test_a_profile_that_only_a_scope_of_a_login_names_has_to_be_there(
    home: Path, served: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: Any = SimpleNamespace(profiles={"s": "work"})
    monkeypatch.setattr("greenroom.gateway.doors.http_auth.terms_in", lambda _: terms)  # pyright: ignore[reportUnknownLambdaType]
    assert run(["serve", "--config", profiled(home), "--http", ":0"]) == 0
    assert served[0].args[3].oauth is terms
    terms.profiles["t"] = "play"
    assert run(["serve", "--config", profiled(home), "--http", ":0"]) == 2
    assert 'There is no profile "play"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("[::1]:0", ("::1", 0)),
        ("h.example:65535", ("h.example", 65_535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, where: tuple[str, int]) -> None:
    assert serve_command._address(text) == where


def test_a_background_room_gets_the_same_options_wherever_it_works(
    home: Path, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(serve_command, "start_in_background", lambda *given: started.append(given))  # pyright: ignore[reportUnknownLambdaType]
    config = profiled(home)
    words = ["--expose", "meta", "--idle-timeout", "0", "--events", "log", "--profile", "work"]
    assert run(["serve", "--config", config, "--background", *words]) == 0
    ((_, path, told, audit),) = started
    assert audit is None
    assert path == Path(config)
    pairs = dict(zip(told[::2], told[1::2], strict=True))
    assert pairs == {
        "--expose": "meta",
        "--idle-timeout": "0",
        "--events": str(Path.cwd() / "log"),
        "--profile": "work",
    }
    assert served == []


def test_what_is_started_as_a_background_room_becomes_one_before_anything_else(
    home: Path, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []
    start, room = "greenroom.gateway.doors.background", "greenroom.gateway.serve"
    monkeypatch.setattr(f"{start}.become_room", lambda *held: did.append(("became", held)))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(f"{start}.say_ready", lambda *told: did.append(("ready", told)))  # pyright: ignore[reportUnknownLambdaType]
    real = read_config

    def read(*given: Any, **more: Any) -> Config:
        did.append("read")
        return real(*given, **more)

    monkeypatch.setattr(serve_command, "read_config", read)
    words = ["--as-room", "x", "--ready", "5", "--lock", "6", "--expose", "meta"]
    assert run(["serve", "--config", profiled(home), *words]) == 0
    (main,) = served
    assert main.func is import_module(room).serve_background
    _, open_room, options, place, on_ready = main.args
    assert (open_room, options.expose, place.name) == (Greenroom.open, "meta", "x")
    on_ready()
    assert did == [("became", (5, 6)), "read", ("ready", (5, 6))]


def test_whose_programs_are_started_is_said_again_when_that_has_changed(
    home: Path, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = []

    def says(_config: Config, path: Path | None, before: tuple[str, ...] = ()) -> tuple[str, ...]:
        known.append((path, before))
        return (f"file {len(known)}",)

    monkeypatch.setattr(serve_command, "say_whose", says)
    config = profiled(home)
    assert run(["serve", "--config", config]) == 0
    for _ in range(2):
        served[0].args[2].reread()
    path = Path(config)
    assert known == [(path, ()), (path, ("file 1",)), (path, ("file 2",))]


# ---- call, accept, and what commands share ---------------------------------------------------------------------------

NEEDS_YES: dict[str, Any] = {
    "content": [{"type": "text", "text": "It has to be allowed."}],
    "isError": True,
    "_meta": {
        "greenroom/details": {"mode": "call", "error": "approval_required", "question": "Allow \x1b[2Jit?"}
    },
}
DONE: dict[str, Any] = {
    "content": [{"type": "text", "text": "done"}],
    "_meta": {"greenroom/details": {"mode": "call"}},
}


class Allowing(Asked):
    """A gateway that sends a call after a yes, unless it `never` does."""

    def __init__(self, *, never: bool = False, first: Any = NEEDS_YES) -> None:
        super().__init__(None)
        self.never = never
        self.first = first

    def ask(self, method: str, **params: Any) -> Any:
        self.asked.append((method, params))
        return DONE if params.get("allowed") and not self.never else self.first


@pytest.mark.parametrize(
    ("words", "terminals", "answer", "allowed", "asks"),
    [
        ([], (True, True), True, [None, True], True),
        ([], (True, True), False, [None], True),
        ([], (True, False), True, [None], False),
        ([], (False, True), True, [None], False),
        ([], (False, False), True, [None], False),
        (["--yes"], (True, True), False, [True], False),
    ],
)
def test_a_call_that_has_to_be_allowed_is_asked_about_where_somebody_is(
    words: list[str],
    terminals: tuple[bool, bool],
    answer: bool,
    allowed: list[bool | None],
    asks: bool,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway, asked = Allowing(), list[Any]()

    def confirm(text: str, **more: Any) -> bool:
        asked.append((text, more))
        return answer

    stdin, stderr = (SimpleNamespace(isatty=lambda is_one=is_one: is_one) for is_one in terminals)
    monkeypatch.setattr(call_command, "running_gateway", lambda *_: gateway)
    monkeypatch.setattr(call_command, "sys", SimpleNamespace(stdin=stdin, stderr=stderr))
    monkeypatch.setattr(click, "confirm", confirm)
    assert run(["call", "t", *words]) == (0 if allowed[-1] else 1)
    assert [params.get("allowed") for _, params in gateway.asked] == allowed
    assert asked == ([("Allow it?", {"err": True})] if asks else [])
    out, err = capsys.readouterr()
    assert out == ("done\n" if allowed[-1] else "")
    assert ("--yes allows the call" in err) == (not asks and not words)


def test_a_call_that_fails_otherwise_or_was_allowed_already_is_not_asked_about(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"greenroom/details": {"mode": "call", "error": "call_failed", "question": "Really?"}}
    monkeypatch.setattr(call_command, "_is_allowed", lambda _: pytest.fail("it was asked about"))
    for gateway, words in (
        (Allowing(first={**NEEDS_YES, "_meta": other}), []),
        (Allowing(never=True), ["--yes"]),
    ):
        monkeypatch.setattr(call_command, "running_gateway", lambda *_, gateway=gateway: gateway)
        assert run(["call", "t", *words]) == 1
        assert len(gateway.asked) == 1


@pytest.mark.parametrize("allowed", [True, False])
def test_a_call_without_a_gateway_has_a_patient_room_and_a_session_of_its_own(
    allowed: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []

    @asynccontextmanager
    async def opens(config: Config, **more: Any) -> AsyncGenerator[Any]:
        did.append((config.settings.queue_timeout, more))
        yield SimpleNamespace(session=session)

    @asynccontextmanager
    async def session(name: str, *, on_approval: Any) -> AsyncGenerator[str]:
        did.append((name, on_approval))
        yield "session"

    async def follows(_room: Any, heard: Any, *, kinds: Any, task_status: Any) -> None:
        did.append((heard, [kind.value for kind in kinds]))
        task_status.started()
        await anyio.sleep_forever()

    async def asks(tool: Any, arguments: Any) -> Any:
        did.append((tool, arguments))
        return DONE

    monkeypatch.setattr(Greenroom, "open", opens)
    for place, fake in {
        "gateway.event_log.follow": follows,
        "supervisor.room.port_of": lambda of: of,
        "gateway.exposures.mcp_tool.McpTool": lambda of, *, hints: (of, hints is FOR_PEOPLE),
        "gateway.exposures.mcp_tool.ask": asks,
    }.items():
        monkeypatch.setattr(f"greenroom.{place}", fake)
    asked = call_command.ToolCall("t", "s", {"a": 1})
    config = Config(settings=Settings(queue_timeout=1.0, install_timeout=600.0))
    assert call_command._call_in_own_room(config, asked, allowed=allowed) == DONE
    assert did == [
        (600.0, {"bootstrap": False}),
        ("command", allowing if allowed else None),
        ([call_command._tell_progress], ["note"]),
        (("session", True), {"tool": "t", "args": {"a": 1}, "server": "s"}),
    ]


def test_of_what_happens_while_a_person_waits_only_an_install_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for code in NoteCode:
        call_command._tell_progress(Note(1, 0.0, Address("s"), code=code, words="fetched 3 of 7"))
    call_command._tell_progress(Lagged(3))
    assert capsys.readouterr() == ("", "greenroom: s: fetched 3 of 7\n")


@pytest.mark.parametrize(
    ("words", "changed", "accepted"),
    [
        ([], ["a/one", "a/two", "b/three"], None),
        (["--show"], ["a/one", "a/two", "b/three"], None),
        (["a"], ["a/one", "a/two"], ["one", "two"]),
        (["a", "--show"], ["a/one", "a/two"], None),
        (["a", "two"], ["a/two"], ["two"]),
        (["a", "a_two"], ["a/two"], ["two"]),  # as a client is shown it
        (["c"], [], None),
    ],
)
def test_accept_takes_what_was_named_by_the_names_of_its_server(
    words: list[str],
    changed: list[str],
    accepted: list[str] | None,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write(home / "mcp.json", a={"command": "a"}, b={"command": "b"}, c={"command": "c"})
    read = load_config(Path(config), cwd=home, home=home, environ=os.environ)
    keys, file = pin_keys(read), pins_file(default_cache_path())
    listed: dict[str, tuple[dict[str, Any], ...]] = {
        "a": ({"name": "one", "title": "first"}, {"name": "one", "title": "second"}, {"name": "two"}),
        "b": ({"name": "three"},),
    }
    entries = [
        ServerEntry(name, keys[name].key, tools=tools, fetched_at=time.time())
        for name, tools in listed.items()
    ]
    assert CatalogueFile(default_cache_path()).save(entries, time.time()) is None

    def changed_pins(server: str, _: object) -> ServerPins:
        tools = dict.fromkeys((tool["name"] for tool in listed[server]), fingerprint({"title": "old"}))
        return ServerPins(1.0, tools=tools, changed=prints_of(by_name[server], tools))

    by_name = {entry.server: entry for entry in entries}

    def state() -> list[str]:
        return [f"{name}/{tool}" for name, pins in file.load(keys)[0].items() for tool in pins.changed]

    outs: list[str] = []
    for as_json in (["--json"], []):
        assert file.change({name: keys[name] for name in listed}, changed_pins)[1] is None
        before = state()
        assert run(["accept", *words, *as_json, "--config", config]) == 0
        assert state() == [each for each in before if each not in {f"a/{tool}" for tool in accepted or ()}]
        outs.append(capsys.readouterr().out)
    said, out = conforms("accept", json.loads(outs[0])), outs[1]
    assert [f"{each['server']}/{each['tool']}" for each in said["changed"]] == changed
    assert said["accepted"] == (accepted or [])
    assert ('title: "first"' in out) == ("a/one" in changed)
    assert '"second"' not in out, "the first of its name is what a client is shown"
    assert ("nothing to accept" in out) == (not changed)
    assert ("To accept: " in out and out.rstrip().endswith(" b")) == (changed[2:] != [])


def test_what_is_said_and_shown_is_text_and_an_answer_says_where_it_is_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common.say("a\x1b[2Jb")
    common.show("c\x1b[2Jd", {}, as_json=False)
    assert capsys.readouterr() == ("cd\n", "greenroom: ab\n")
    origin = {"source": "gateway", "pid": 7}
    details = {"mode": "call", "source": "a server's", "pid": "another"}
    assert common.show_result({**DONE, "_meta": {"greenroom/details": details}}, origin, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == {"mode": "call", "source": "gateway", "pid": 7, "content": DONE["content"]}
    for encoding, shown in (("utf-8", "é"), ("UTF8", "é"), ("latin-1", "\\u00e9"), (None, "\\u00e9")):
        told: list[str] = []
        monkeypatch.setattr(common, "sys", SimpleNamespace(stdout=SimpleNamespace(encoding=encoding)))
        monkeypatch.setattr(click, "echo", told.append)
        show_json("é")
        show_json("\u202e\x9b")
        monkeypatch.undo()
        assert told[0] == f'"{shown}"', encoding
        assert json.loads(told[1]) == "\u202e\x9b"
        assert told[1].isascii()


def test_a_gateway_is_asked_for_by_its_pid_and_answers_from_memory_quickly(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Gateway(Asked):
        def __enter__(self) -> Gateway:
            return self

        def __exit__(self, *_: object) -> None:
            asked.append("closed")

    gateway = Gateway({"x": 1})

    def find(name: str, pid: int | None) -> Any:
        asked.append((len(name), pid))
        return gateway if pid == 7 else None

    monkeypatch.setattr(common.control, "find_gateway", find)
    with click.Context(click.Command("x")):
        assert common.running_gateway(Config(), 7) is gateway
        assert common.running_gateway(Config(), None) is None
    assert asked == [(12, 7), (12, None), "closed"]
    given: Any = gateway
    source = common.FromGateway(given)
    assert source.origin == {"source": "gateway", "pid": 7}
    assert [source.status(), source.tools("s"), source.tools(None), source.look({"search": "x"})] == [
        {"x": 1}
    ] * 4
    assert gateway.asked == [
        ("status", {"quickly": True}),
        ("tools", {"quickly": True, "server": "s"}),
        ("tools", {"quickly": True, "server": None}),
        ("mcp", {"quickly": True, "arguments": {"search": "x"}}),
    ]


def test_tab_offers_the_names_of_the_configuration_that_was_named(home: Path) -> None:
    named = profiled(home)
    write(home / ".mcp.json", found={"command": "f"})
    (home / "broken.json").write_text("{")
    any_parameter: Any = None

    def offered(of: Any, path: str | None, incomplete: str = "") -> list[str]:
        context = click.Context(click.Command("x"))
        context.params["config_path"] = None if path is None else Path(path)
        return of(context, any_parameter, incomplete)

    assert offered(complete_servers, named) == ["a"]
    assert offered(complete_servers, named, "b") == []
    assert offered(complete_profiles, named) == ["work"]
    assert offered(complete_profiles, named, "w") == ["work"]
    assert offered(complete_profiles, named, "a") == []
    assert "a" not in offered(complete_servers, None)
    for of in (complete_servers, complete_profiles):
        assert offered(of, "broken.json") == offered(of, "missing.json") == offered(of, str(home)) == []
    clients = offered(complete_clients, None, "cl")
    assert "claude-code" in clients
    assert all(name.startswith("cl") for name in clients)


def test_a_room_in_the_background_is_started_for_the_project_and_said_to_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(serve_command, "say_whose", lambda *given: said.append(given))  # pyright: ignore[reportUnknownLambdaType]
    config = Config(files=("mcp.json",))
    for started, words in ((True, "is ready"), (False, "runs already")):
        monkeypatch.setattr(serve_command.Starting, "start", lambda _, started=started: started)
        serve_command.start_in_background(config, Path("mcp.json"), ["--expose", "meta"])
        err = capsys.readouterr().err
        assert f"the background room {words}. Its log: " in err
        assert "Clients join it" in err
    assert said == [(config, Path("mcp.json"))] * 2


@pytest.mark.parametrize("room", [None, "run-1"])
def test_attach_says_in_which_room_it_was_started_and_needs_an_input(
    room: str | None, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hellos: list[Any] = []
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    monkeypatch.delenv("GREENROOM_ROOM", raising=False)
    if room is not None:
        monkeypatch.setenv("GREENROOM_ROOM", room)
    monkeypatch.setattr(attach_command, "attach", lambda _starting, hello, _most, _note: hellos.append(hello))  # pyright: ignore[reportUnknownLambdaType]
    assert run(["attach", "--config", profiled(home)]) == 0
    assert [hello.room for hello in hellos] == [room]
    monkeypatch.setenv("GREENROOM_DEPTH", "5")
    assert run(["attach", "--config", profiled(home)]) == 2
    assert "behind 5 gateways" in capsys.readouterr().err
    monkeypatch.delenv("GREENROOM_DEPTH")
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["attach", "--config", profiled(home)]) == 2
    assert "Standard input is closed" in capsys.readouterr().err
    assert len(hellos) == 1


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


@pytest.mark.parametrize(("problems", "told"), [(10, 11), (11, 11), (12, 11)])
def test_of_many_problems_of_the_configuration_some_are_told_and_the_rest_is_counted(
    problems: int, told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {f"s{number}": {"command": "x", f"odd{number}": 1} for number in range(problems)}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    assert len(read_config(path).problems) == problems
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == told
    assert lines[-1].endswith("To see all of them: greenroom doctor")
    if problems > 10:
        assert f"and {problems - 10} more" in lines[-1]
