"""A next step that is printed works as printed: over a table of set-ups in which something is wrong, each command that
any of our commands names is run, with `--config` and without."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from tests.gateway.test_http_serve import served
from tests.support.gateway import FAULTY, serve
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.actors.login.login_auth import keep
from greenroom.actors.login.login_record import Login
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import fingerprint
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path, pin_keys
from greenroom.cli.command_group import COMMANDS, cli
from greenroom.cli.main import run
from greenroom.config.files import load_config
from greenroom.gateway.next_steps import WITH_CONFIG, WITH_PID, Commands
from greenroom.safety.pins_file import ServerPins, pins_file

# What a reader fills in.
FILLED_IN = {
    "NAME": "a",
    "COMMAND": "cat",
    "WORDS": "echo",
    "CLIENT": "cursor",
    "NUMBER": "1",
    "TOOL": "a_x",
}
STEP = re.compile(
    r"`(?P<quoted>(?:greenroom|chmod|mkdir|rm) [^`]+)`|(?P<bare>\b(?:greenroom [a-z]|chmod |mkdir |rm ).*$)"
)
LOOKS = (
    "doctor",
    "status",
    "tools",
    "explain a",
    "search x",
    "call a_x",
    "describe a_x",
    "reconnect a",
    "approve",
    "cost",
    "refresh a",
    "doctor",
    "status",
    "explain a",
    "search x",
    "search x --server nope",
    "tools nope",
    "describe nope",
    "call nope",
    "call nope --server nope",
    "call x --server a",
    "auth a",
)


def entries(**servers: Any) -> str:
    return json.dumps({"mcpServers": servers})


def over(file: Path) -> None:
    keep(Login("a", "http://127.0.0.1:9/mcp", "sk-planted", expires_at=5.0))
    file.write_text(entries(a={"url": "http://127.0.0.1:9/mcp"}))


def changed(file: Path) -> None:
    """A server that is known, and disabled."""
    file.write_text(entries(a={"command": sys.executable, "disabled": True}))
    config = load_config(file, cwd=Path.cwd(), home=Path.home(), environ=os.environ)
    entry = ServerEntry("a", catalogue_keys(config)["a"], tools=({"name": "x"},), fetched_at=time.time())
    CatalogueFile(default_cache_path()).save([entry], time.time())


def quarantined(file: Path, names: tuple[str, str] = ("a", "x")) -> None:
    """A known server, one of whose tools has changed. `names`: of the server and of its tool."""
    server, tool = names
    file.write_text(entries(**{server: {"command": "true"}}))  # it ends at once
    config, cache = (
        load_config(file, cwd=Path.cwd(), home=Path.home(), environ=os.environ),
        default_cache_path(),
    )
    for words in ("Pays.", "Pays twice."):
        record = {"name": tool, "description": words, "inputSchema": {"type": "object"}}
        prints = {tool: fingerprint(record)}
        entry = ServerEntry(server, catalogue_keys(config)[server], tools=(record,), fetched_at=time.time())
        CatalogueFile(cache).save([entry], time.time())
        pins_file(cache).change({server: pin_keys(config)[server]}, partial(learned, prints))


def learned(prints: Mapping[str, str], _server: str, pins: ServerPins | None) -> ServerPins:
    pins = pins or ServerPins(since=1.0)
    pins.learn(prints, 1.0)
    return pins


def written(mode: int = 0o600, **servers: Any) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_text(entries(**servers))
        file.chmod(mode)

    return write


BROKEN: dict[str, Callable[[Path], None]] = {
    "no program": written(a={"command": "uvx-nowhere"}),
    "no runtime": written(a={"command": "podman", "env": {"PATH": "/nowhere"}}),
    "an entry that is none": written(a={}),
    "no folder": written(a={"command": "true", "cwd": "no where"}),
    "no env file": written(a={"command": "true", "envFile": "no.env"}),
    "others may read it": written(0o644, a={"command": "true", "env": {"TOKEN": "sk-planted"}}),
    "everybody may write it": written(0o646, a={"command": "true"}),
    "an unknown key": written(a={"command": "true", "comand": 1}),
    "no server": written(),
    "a login that is over": over,
    "known and disabled": changed,
    "a changed tool": quarantined,
    "not asked yet": written(a={"command": sys.executable, "args": ["-S", str(FAULTY)]}),
}  # fmt: skip
# Where a step is right with `--config`, it is without, unless it is about the file that is found.
FOUND = ("no program", "others may read it", "everybody may write it", "a changed tool")
# All name the gateway in the background, which is started, cold, where a file may keep it from starting.
STARTED = ("an entry that is none", "everybody may write it", "an unknown key", "no server")
PLACED = [
    *(pytest.param(name, True, id=f"{name}, --config") for name in BROKEN),
    *(pytest.param(name, False, id=f"{name}, found") for name in FOUND),
]


def steps_in(said: str) -> Iterator[str]:
    """The commands that a text names: in backquotes, or up to the end of their line."""
    for line in said.splitlines():
        for found in STEP.finditer(line):
            yield found["quoted"] or found["bare"]


def follow(step: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    fill = FILLED_IN if " add " not in step else {**FILLED_IN, "NAME": "new"}
    words = [fill.get(word, word) for word in shlex.split(step)]
    if words[0] != "greenroom":
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr
    code = run(words[1:])
    output = capsys.readouterr()
    return code, output.out + output.err


def check(step: str, capsys: pytest.CaptureFixture[str], before: str, depth: int = 2) -> None:
    """Who types `step` is not told that it is wrong: or else he is told another step, which is not."""
    code, said = follow(step, capsys)
    assert "There is no server" not in said, f"{before} named: {step}\n{said}"
    if code == 2:
        further = list(steps_in(said))
        assert further[:depth], f"{before} named: {step}\n{said}"
        for each in further:
            check(each, capsys, step, depth - 1)


@pytest.mark.parametrize(("name", "named"), PLACED)
def test_each_printed_step_works_as_printed(
    home: Path, name: str, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "my files" / "some.json" if named else own_config(home, "{}")
    file.parent.mkdir(parents=True, exist_ok=True)
    steps: dict[str, str] = {}
    for look in LOOKS:
        BROKEN[name](file)
        verb, *words = look.split()
        run([verb, *(["--config", str(file)] if named else []), *words])
        output = capsys.readouterr()
        steps |= dict.fromkeys(steps_in(output.out + output.err), look)
    assert steps, "something is wrong, so something can be done"
    for step, look in steps.items():
        if "--background" in step and name not in STARTED:
            continue
        BROKEN[name](file)
        try:
            check(step, capsys, look)
        finally:
            if "--background" in step:
                run(["stop", *(["--config", str(file)] if named else [])])


@pytest.mark.parametrize(
    ("name", "named"), [row for row in PLACED if row.values[0] not in ("no server", "a login that is over")]
)
def test_who_does_what_doctor_says_hears_no_more_of_it(
    home: Path, name: str, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "my files" / "some.json" if named else own_config(home, "{}")
    file.parent.mkdir(parents=True, exist_ok=True)
    BROKEN[name](file)
    options = ["--config", str(file)] if named else []
    before = findings(options, capsys)
    for one in before:
        for step in steps_in(one["mend"]):
            code, said = follow(step, capsys)
            assert code == 0, f"{step}\n{said}"
    typed = [one for one in before if any(steps_in(one["mend"]))]
    left = findings(options, capsys)
    assert not [one for one in typed if one in left]


def findings(options: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    run(["doctor", "--json", *options])
    return json.loads(capsys.readouterr().out)["findings"]


def test_a_project_is_trusted_by_the_command_that_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "the project"
    folder.mkdir()
    file = folder / ".mcp.json"
    file.write_text(entries(a={"command": sys.executable}))
    os.chdir(folder)
    for look in ("doctor", "status", "explain a", "tools"):
        run([*look.split()])
        output = capsys.readouterr()
        steps = {step for step in steps_in(output.out + output.err) if "trust" in step}
        assert steps, look
        for step in steps:
            check(step, capsys, look)
            assert run(["trust", "--revoke"]) == 0, "it was trusted"


def test_the_options_of_the_steps_are_those_of_the_commands() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        options = {option for param in command.params for option in param.opts}
        assert ("--config" in options) is (name in WITH_CONFIG), name
        assert ("--pid" in options) is (name in WITH_PID), name


def test_a_text_that_names_a_command_gets_the_options_once() -> None:
    typed = Commands("my f.json", 7)
    for text, filled in (
        ("Run: greenroom auth gh", "Run: greenroom auth --config 'my f.json' gh"),
        ("`greenroom refresh` asks", "`greenroom refresh --config 'my f.json' --pid 7` asks"),
        ("greenroom audit verify F", "greenroom audit verify F"),
        ("a greenroom of his", "a greenroom of his"),
        (typed.live("refresh", "-x"), "greenroom refresh --config 'my f.json' --pid 7 -- -x"),
    ):
        assert typed.filled(text) == filled
        assert typed.filled(filled) == filled
        assert Commands().filled(text) == text


class _LogInFirst(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_DELETE = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def wants_login() -> Iterator[str]:
    """The URL of a server that wants a login for everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _LogInFirst)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    thread.join()
    server.server_close()


# For each exposure, how a client calls the tool `x` of the server `a`.
CALLS: dict[str, dict[str, Any]] = {
    "proxy": {"name": "mcp", "arguments": {"tool": "a_x"}},
    "direct": {"name": "a_x", "arguments": {}},
    "meta": {"name": "mcp_call", "arguments": {"tool": "a_x"}},
}


@pytest.mark.parametrize("expose", CALLS)
def test_a_gateway_of_a_named_file_names_it_in_what_it_tells_models(
    tmp_path: Path, expose: str, wants_login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    file = folder / "mcp.json"
    servers = {"a": {"url": wants_login, "lifecycle": "lazy"}}
    file.write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    config = load_config(file, cwd=folder, home=folder, environ={})
    entry = ServerEntry("a", catalogue_keys(config)["a"], tools=({"name": "x"},), fetched_at=time.time())
    CatalogueFile(default_cache_path()).save([entry], time.time())
    with serve(folder, servers, "--expose", expose) as gateway:
        gateway.initialize()
        result = gateway.answer(gateway.send("tools/call", CALLS[expose]))["result"]
        gateway.end()
    assert result["isError"] is True
    said = result["content"][0]["text"]
    (step,) = re.findall(r"greenroom auth .*?(?= - or )", said)
    assert shlex.split(step)[2:] == ["--config", str(file), "a"]


NAMES = [("a", "x"), ("my bank's", "pay $(now)"), ("-s", "-t")]


@pytest.mark.parametrize("names", NAMES, ids=["plain", "odd", "like options"])
@pytest.mark.parametrize("expose", ["direct", "proxy"])
def test_a_tool_that_has_changed_is_listed_with_the_command_that_accepts_it(
    tmp_path: Path,
    names: tuple[str, str],
    expose: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HOME", str(folder))
    quarantined(folder / "mcp.json", names)
    chosen = {"directTools": True} if expose == "proxy" else {}
    servers = {names[0]: {"command": "true", **chosen}}
    with serve(folder, servers, "--expose", expose) as gateway:
        gateway.initialize()
        *_, tool = gateway.answer(gateway.send("tools/list"))["result"]["tools"]
        found = json.dumps(gateway.mcp(describe=tool["name"])["_meta"]) if expose == "proxy" else None
        gateway.end()
    (step,) = steps_in(tool["description"])
    assert found is None or json.dumps(step) in found or json.dumps(step)[1:-1] in found
    assert run(shlex.split(step)[1:]) == 0, step
    assert f"Accepted: {names[1]}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a", "my bank's", "-s"])
def test_what_the_status_page_says_can_be_typed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with served(folder, {name: {"command": "true", "disabled": True}}) as door:
        (row,) = door.http.get(door.url.replace("/mcp", "/status")).json()["servers"]
    (step,) = steps_in(row["down"])
    assert shlex.split(step)[2:4] == ["--config", str(folder / "mcp.json")]
    assert run(shlex.split(step)[1:]) == 0, step
    assert not json.loads((folder / "mcp.json").read_text())["mcpServers"][name].get("disabled")
