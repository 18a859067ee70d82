"""`greenroom doctor`: each thing that is wrong is found, named, and comes with what mends it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from tests.support.auth_server import auth_server
from tests.support.gateway import FAULTY, PATIENCE, faulty, serve
from tests.support.homes import own_config
from tests.support.otlp import collector

from greenroom.actors.login.login_auth import keep, logins
from greenroom.actors.login.login_record import Login
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli import doctor_checks as _running
from greenroom.cli.command_group import cli
from greenroom.cli.doctor_checks import Finding, Setup, Severity
from greenroom.cli.main import run
from greenroom.config.files import load_config
from greenroom.config.model import Config
from greenroom.config.parse import parse_config
from greenroom.gateway.doors.control_protocol import control_directory, identity, socket_path
from greenroom.observe.otlp import wrong_with
from greenroom.protocol.errors import UsageError
from greenroom.protocol.version import VERSION

SECRET = "sk-planted-4711"


def servers(**entries: Any) -> str:
    return json.dumps({"mcpServers": entries})


def unused_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return line.getsockname()[1]


def stale_socket(home: Path) -> None:
    file = own_config(home, servers(a={"command": sys.executable}))
    folder = control_directory()
    folder.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(os.fspath(socket_path("0" * 12, 1)))
    assert identity([str(file)]) != "0" * 12


def untrusted(home: Path) -> None:
    Path(".mcp.json").write_text(servers(a={"command": "a"}))


def readable_env_file(home: Path) -> None:
    file = own_config(home, servers(a={"command": "sh", "envFile": ".env"})).with_name(".env")
    file.write_text(f"TOKEN={SECRET}")
    file.chmod(0o644)


def odd_document(home: Path, said: str = "{}") -> Path:
    file = own_config(home, servers(a={"openapi": "api.json", "baseUrl": "https://h.example"}))
    file.with_name("api.json").write_text(said)
    return file


def half_document(home: Path) -> Path:
    paths: dict[str, Any] = {"/a": {"get": {}}, "no slash": {"get": {}}}
    return odd_document(home, json.dumps({"openapi": "3.1.0", "info": {}, "paths": paths}))


def half_operation(home: Path) -> Path:
    get = {"parameters": [{"$ref": "other.json#/x"}]}
    return odd_document(home, json.dumps({"openapi": "3.1.0", "paths": {"/a": {"get": get}}}))


def expired_login(home: Path) -> Path:
    keep(Login("a", "https://h.example/mcp", SECRET, expires_at=5.0))
    return own_config(home, servers(a={"url": "https://h.example/mcp"}))


def broken_login(home: Path) -> Path:
    file = expired_login(home)
    logins().path("a", "https://h.example/mcp").write_text("{}")
    return file


def has(mode: int = 0o600, **entries: Any) -> Callable[[Path], Path]:
    return lambda home: own_config(home, servers(**entries), mode)


def no_cache(home: Path) -> Path:
    cache = default_cache_path().parent
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.symlink_to("/no/where")  # root cannot write there either
    return own_config(home, servers(a={"command": "sh"}))


def no_folder(home: Path) -> Path:
    return own_config(home, servers(a={"command": "sh", "cwd": str(home / "no" / "where")}))


WRONG: list[tuple[str, Callable[[Path], object], str, str, str]] = [
    ("a program", has(a={"command": "uvx-nowhere"}), "error", "program", "disable a"),
    ("an empty program", has(a={"command": "${NO_4711}"}), "error", "program", "set them, or correct"),
    ("its folder", no_folder, "error", "program", "mkdir"),
    ("no JSON", lambda home: own_config(home, '{"mcpServers": {'), "error", "file", "correct /"),
    ("a key", has(a={"command": "sh", "comand": 1}), "warning", "configuration", "correct"),
    ("a key of another client", has(a={"command": "sh", "timeout": 60}), "note", "configuration", "leave it for"),
    ("a variable", has(a={"command": "sh", "args": ["${NO_4711}"]}), "warning", "configuration", ": ${NO_4711:-…}"),
    ("an entry", has(a={}), "error", "server", "greenroom disable a"),
    ("no server", lambda home: own_config(home, "{}"), "warning", "configuration", "greenroom init"),
    ("readable by a group", has(0o640, a={"command": "sh", "env": {"TOKEN": SECRET}}), "warning", "rights", "600"),
    ("readable", has(0o644, a={"command": "sh", "env": {"TOKEN": SECRET}}), "warning", "rights", "chmod 600"),
    ("writable", has(0o646, a={"command": "sh"}), "error", "rights", "chmod go-w"),
    ("a port", has(a={"url": f"http://127.0.0.1:{unused_port()}/mcp"}), "warning", "port", 'correct its "url"'),
    ("a socket", has(a={"socket": "/no/where.sock"}), "warning", "port", 'correct its "socket"'),
    ("no env file", has(a={"command": "sh", "envFile": "no.env"}), "error", "env file", "correct its envFile"),
    ("no document", has(a={"openapi": "no.json", "baseUrl": "https://h.example"}), "error", "document", "disable a"),
    ("a document that is none", odd_document, "error", "document", "correct its entry"),
    ("half a document", half_document, "note", "document", "correct the document"),
    ("half an operation", half_operation, "note", "document", "correct the document"),
    ("a readable env file", readable_env_file, "warning", "rights", "chmod 600"),
    ("a stale socket", stale_socket, "note", "sockets", "rm "),
    ("no login", has(a={"url": "https://h.example/mcp", "auth": "oauth"}), "warning", "login", "greenroom auth a"),
    ("a login that is over", expired_login, "warning", "login", "greenroom auth a"),
    ("a login that is none", broken_login, "error", "login", "greenroom auth a"),
    ("no cache", no_cache, "error", "cache", "XDG_CACHE_HOME"),
    ("no trust", untrusted, "warning", "trust", "greenroom trust"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("break_it", "severity", "check", "mend"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_it_is_found_and_comes_with_what_mends_it(
    home: Path,
    break_it: Callable[[Path], object],
    severity: str,
    check: str,
    mend: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_it(home)
    code = run(["doctor", "--json"])
    said = capsys.readouterr().out
    details = json.loads(said)
    found = [one for one in details["findings"] if one["check"] == check]
    assert [one["severity"] for one in found] == [severity], details
    assert mend in found[0]["mend"]
    assert code == (details["error"] > 0)
    assert SECRET not in said


def test_a_named_file_that_cannot_be_read_is_a_finding(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "worse.json").write_text('{"mcpServers": {')
    own_config(home, servers(a={"command": "sh"}))
    named = ["--config", str(home / "worse.json")]

    assert run(["doctor", "--json", *named]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["check"], one["mend"]) for one in found] == [("file", f"correct {home / 'worse.json'}")]
    assert run(["doctor", "--require", "a", *named]) == 1
    assert "worse.json" in capsys.readouterr().out
    assert run(["doctor", "--config", str(home / "none.json")]) == 2
    assert "create it, or name another file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "is_written"),
    [
        ({"command": "sh", "env": {"TOKEN": SECRET}}, True),
        ({"command": "sh", "env": {"TOKEN": f"${{NO_4711:-{SECRET}}}"}}, True),
        ({"command": "sh", "args": ["--token", SECRET]}, True),
        ({"url": f"https://h.example/mcp?key={SECRET}"}, True),
        ({"url": "https://h.example/mcp", "oauth": {"clientSecret": SECRET}}, True),
        ({"command": "sh", "env": {"LOG_LEVEL": "debug", "REGION": "eu-west-1"}}, False),
        ({"command": "sh", "env": {"TOKEN": "${NO_4711}"}}, False),
        ({"command": "sh", "env": {"TOKEN": "!cat token"}}, False),
        (
            {"url": "https://h.example/mcp?version=2", "headers": {"Authorization": "Bearer ${NO_4711}"}},
            False,
        ),
        ({"url": "https://h.example/mcp", "oauth": {"clientSecret": "${NO_4711}"}}, False),
        ({"url": "https://h.example/mcp", "bearerTokenEnv": "NO_4711"}, False),
    ],
)
def test_a_file_holds_secrets_if_a_credential_is_written_in_it(
    home: Path, entry: dict[str, Any], is_written: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a=entry), 0o644)
    (home / ".config/mcp").mkdir()
    (home / ".config/mcp/mcp.json").write_text(servers(a={"lifecycle": "eager"}))
    run(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    found = [one["about"] for one in said["findings"] if one["check"] == "rights"]
    assert found == [str(home / ".config/greenroom/mcp.json")] * is_written


def test_a_file_with_a_token_of_the_http_door_holds_secrets(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, count in ((SECRET, 1), ("${NO_4711}", 0)):
        said = {"mcpServers": {"a": {"command": "sh"}}, "settings": {"http": {"tokens": {"me": text}}}}
        Path("some.json").write_text(json.dumps(said))
        Path("some.json").chmod(0o644)
        run(["doctor", "--json", "--config", "some.json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert [one["check"] for one in findings].count("rights") == count


def cached(*tools: str | dict[str, Any]) -> None:
    """Write to the cache that the server `a` has these tools, each a name or a whole definition."""
    config = load_config(None, cwd=Path.cwd(), home=Path.home(), environ=os.environ)
    key = catalogue_keys(config)["a"]
    records = tuple({"name": tool} if isinstance(tool, str) else tool for tool in tools)
    entry = ServerEntry("a", key, tools=records, fetched_at=time.time())
    assert CatalogueFile(default_cache_path()).save([entry], time.time()) is None


def test_each_tool_is_named_with_what_was_mended_in_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a={"command": sys.executable}))
    wrong = {"type": "object", "properties": {"x": {"type": "float"}, "y": {"type": "array"}}}
    cached(*({"name": f"t{number}", "inputSchema": wrong} for number in range(9)))
    run(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    *told, more = [one for one in findings if one["check"] == "names"]
    assert len(told) == 5
    for one in told:
        assert 'inputSchema.properties.x.type "float" is not a type' in one["what"]
        assert "inputSchema.properties.y.items is missing (corrected)" in one["what"]
    assert more["what"].startswith("4 more")
    assert "greenroom status --json" in more["mend"]


def test_a_tool_that_is_to_reset_a_server_and_is_not_there_is_found(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"command": sys.executable, "isolation": "per_session", "warm": 2}
    file = own_config(home, "{}")
    for name, found in (("reset", 0), ("rest", 1)):
        file.write_text(servers(a={**entry, "reset": name}))
        cached("reset", "other")
        run(["doctor", "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        told = [one for one in findings if one["check"] == "reset"]
        assert len(told) == found
        assert all('Did you mean "reset"?' in one["what"] and one["severity"] == "warning" for one in told)


def test_what_the_author_cannot_mend_has_a_next_step_of_the_owner(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"command": sys.executable}
    file = own_config(home, servers(a=entry))
    odd = {"name": "odd", "inputSchema": {"type": "object", "properties": 1}}
    lost = {"name": "lost", "inputSchema": 1}
    for tool, more, what, mend in (
        (odd, {"toolOverrides": {"gone": {"hide": False}}}, 'toolOverrides of "gone": ', "toolOverrides"),
        (odd, {}, 'clients would refuse tool "odd"', "author; it works"),
        (lost, {}, 'clients would refuse tool "lost"', "author"),
    ):
        file.write_text(servers(a={**entry, **more}))
        cached(tool)
        assert run(["doctor", "--json"]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        found = [one for one in findings if one["check"] == "names"]
        assert len(found) == 1 + bool(more), "each is named"
        for one in found[:1]:
            assert one["what"].startswith(what)
            assert mend in one["mend"]
            assert ("it works" in one["mend"]) == (mend == "author; it works")


def test_accept_says_why_a_server_of_this_configuration_is_left_out(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a={"command": 5}))
    assert run(["accept", "a"]) == 2
    said = capsys.readouterr().err
    assert 'Server "a" cannot be used: ' in said
    assert "There is no server" not in said


def test_names_over_the_limit_of_the_client_are_found_until_its_prefix_is_set(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {name: {"command": sys.executable, "args": [name]} for name in ("a", "b")}
    file = own_config(home, servers(**entry))
    cached("x" * 60, "short")
    assert run(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = (one for one in findings if "too long" in one["what"])
    assert (found["about"], found["what"].split()[0]) == ("a", "1")
    assert 'set "clientPrefix": "mcp__greenroom__"' in found["mend"]

    settings = {"clientPrefix": "mcp__greenroom__"}
    file.write_text(json.dumps({"mcpServers": entry, "settings": settings}))
    assert run(["doctor"]) == 0
    assert "names" not in capsys.readouterr().out
    assert run(["tools", "--json"]) == 0
    names = [tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"]]
    assert max(len(f"mcp__greenroom__{name}") for name in names) == 64


def test_a_program_whose_place_only_a_session_knows_is_not_missed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a={"command": "sh", "cwd": "/home/${session.USER}", "isolation": "per_session"}))
    run(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one for one in found if one["check"] == "program"] == []


def test_a_cache_on_a_full_disk_is_an_error(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_config(home, servers(a={"command": sys.executable}))
    full = shutil.disk_usage(home)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: full)
    assert run(["doctor"]) == 1
    assert "its disk is full: what servers have is not known next time" in capsys.readouterr().out


def test_a_sound_setup_has_no_finding(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(
        home, servers(a={"command": sys.executable}, off={"command": "nowhere-4711", "disabled": True})
    )
    assert run(["doctor"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("✓ Nothing is wrong")
    assert "· Nobody has started these so far: a. To start" in said.out
    assert said.err == ""


def test_a_path_that_the_background_gateway_would_not_find_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The own file's entry works in the shell's folder; the background gateway has another."""
    script = Path("shop.py").absolute()
    script.write_text("")
    config = own_config(
        home,
        servers(
            bare={"command": sys.executable, "args": ["shop.py"]},
            dotted={"command": sys.executable, "args": ["-u", "./no.py"]},
            has_cwd={"command": sys.executable, "args": ["shop.py"], "cwd": str(script.parent)},
            whole={"command": sys.executable, "args": [str(script)]},
            no_path={"command": sys.executable, "args": ["-m", "json", "--out", "result.py"]},
        ),
    )
    assert run(["doctor", "--json"]) == 0
    found = {one["about"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found.keys() == {"bare", "dotted"}
    assert found["bare"]["severity"] == "warning"
    assert found["bare"]["what"].endswith(f"starts it in {config.parent}, where there is no shop.py")
    assert found["bare"]["mend"].endswith(f'"cwd": {script}')

    os.chdir(home)
    assert run(["explain", "bare"]) == 0
    assert "where there is no shop.py" in capsys.readouterr().out

    (config.parent / "shop.py").write_text("")
    assert run(["doctor"]) == 0
    assert "shop.py" not in capsys.readouterr().out


def test_a_relative_path_in_the_file_of_a_project_is_found_from_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(own={"command": sys.executable}))
    Path("shop.py").write_text("")
    Path(".mcp.json").write_text(servers(shop={"command": sys.executable, "args": ["shop.py", "./out"]}))
    assert run(["trust", "--yes"]) == 0
    capsys.readouterr()
    assert run(["doctor"]) == 0
    assert "✓ Nothing is wrong" in capsys.readouterr().out


def test_with_start_a_server_that_prints_or_cannot_start_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = {"command": sys.executable, "args": ["-S", os.fspath(FAULTY), "--junk-before"]}
    dies = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no database')"]}
    own_config(
        home, servers(noisy=noisy, dies=dies, unknown={"command": "sh", "comand": 1, "disabled": True})
    )
    assert run(["doctor", "--start", "--json"]) == 1
    details = json.loads(capsys.readouterr().out)
    assert details["notSeenStarting"] == []
    found = [(one["about"], one["severity"], one["mend"]) for one in details["findings"]]
    assert found[0] == (
        *("dies", "error"),
        "correct its entry, or: `greenroom disable dies`. What it printed: `greenroom logs dies`",
    )
    assert [severity for _, severity, _ in found] == sorted(severity for _, severity, _ in found)
    assert run(["logs", "dies"]) == 0
    assert "no database" in capsys.readouterr().out
    assert ("noisy", "warning", "let it print to stderr: stdout is for the protocol") in found


def test_with_start_a_server_that_wants_a_login_comes_with_its_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with auth_server() as server:
        own_config(home, servers(guarded={"url": server.url}))
        assert run(["doctor", "--start", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["check"], found["about"], found["mend"]) == ("login", "guarded", "greenroom auth guarded")


def test_of_a_running_gateway_it_asks_what_that_knows_of_its_servers(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with auth_server() as server:
        entries: dict[str, Any] = {
            "noisy": faulty(tmp_path, "noisy", "--banner", f"hello {SECRET}"),
            "calm": faulty(tmp_path, "calm"),
            "guarded": {"url": server.url},
            "unused": faulty(tmp_path, "unused"),
        }
        entries["noisy"]["env"] = {"API_TOKEN": SECRET}
        with serve(tmp_path, entries) as gateway:
            gateway.initialize()
            for name in ("noisy", "calm", "guarded"):
                gateway.mcp(connect=name)
            capfd.readouterr()
            assert run(["doctor", "--json", "--config", "mcp.json"]) == 0
            said = capfd.readouterr().out
            assert run(["status", "--json", "--config", "mcp.json"]) == 0
            rows = {row["name"]: row for row in json.loads(capfd.readouterr().out)["servers"]}
            assert run(["doctor", "--config", "mcp.json"]) == 0
            plain = capfd.readouterr().out
            gateway.end()
    found = {one["about"]: one for one in json.loads(said)["findings"] if one["check"] in ("start", "login")}
    assert set(found) == {"noisy", "guarded"}
    assert found["noisy"]["what"].startswith("junk on stdout: ")
    assert found["noisy"]["mend"] == "let it print to stderr: stdout is for the protocol"
    assert found["guarded"]["mend"] == "greenroom auth --config mcp.json guarded"
    assert json.loads(said)["notSeenStarting"] == ["unused"]
    assert "Nobody has started these so far: unused. " in plain
    assert SECRET not in said
    assert (rows["calm"]["odd"], rows["unused"]["startTook"]) == (None, None)
    assert 0 <= rows["calm"]["startTook"] < 60


def test_the_name_of_a_server_forges_no_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged = "✓ mine: 3 tools"
    Path(".mcp.json").write_text(servers(**{f"theirs\n{forged}": {"command": "nowhere-4711"}}))
    for words in (("status",), ("doctor",), ("trust", "--yes"), ("status",), ("doctor",), ("refresh",)):
        run([*words])
        assert not any(line.startswith(forged) for line in capsys.readouterr().out.splitlines()), words


def test_what_is_wrong_is_said_before_what_mends_it_and_the_whole_at_the_end(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config(home, servers(a={"command": "nowhere-4711"}, b={"command": "nowhere-4712"}))
    assert run(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4:2]] == ["✗ a", "✗ b"]
    assert all(line.startswith("    → ") for line in lines[1:4:2])
    assert lines[-2:] == ["Found: 2 errors", f"2 servers, from {file}"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_without_secrets_may_be_read_by_others(
    mode: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a={"command": sys.executable}), mode)
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(("names", "shown"), [("abcde", "a, b, c, d, e"), ("abcdef", "a, b, c, d, e, …")])
def test_of_many_servers_that_nobody_has_seen_starting_some_are_named(
    names: str, shown: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(**{name: {"command": sys.executable} for name in names}))
    run(["doctor"])
    assert f"Nobody has started these so far: {shown}. " in capsys.readouterr().out


def test_a_program_is_looked_for_where_its_server_would_find_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "programs"
    folder.mkdir()
    (folder / "prog-4711").write_text("#!/bin/sh\n")
    (folder / "prog-4711").chmod(0o755)
    there, elsewhere = os.fspath(folder), os.fspath(home)
    own_config(
        home,
        servers(
            there={"command": "prog-4711", "env": {"PATH": there}},
            elsewhere={"command": "prog-4711", "env": {"PATH": elsewhere}},
        ),
    )
    monkeypatch.setenv("PATH", elsewhere)
    run(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["about"] for one in found if one["check"] == "program"] == ["elsewhere"]


def test_a_socket_that_takes_nobody_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_running, "DIALS_FOR", 0.05)
    found: list[bool] = []
    path = os.fspath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        for _ in range(3):  # until nobody more is let in
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.setblocking(False)
            with suppress(BlockingIOError):
                line.connect(path)
        looking = threading.Thread(target=lambda: found.append(_running._is_dead(path)), daemon=True)
        looking.start()
        looking.join(PATIENCE / 10)
        assert found == [False], "it is alive, and busy"
    assert _running._is_dead(path), "nobody listens there any more"


class _Gateway:
    """A running gateway of this version. `answers`: by method."""

    pid = 4711

    def __init__(self, version: str, **row: Any) -> None:
        self.answers = {"hello": {"version": version}, "status": {"servers": [row]}}
        self.asked: list[tuple[str, bool]] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.asked.append(("left", True))

    def ask(self, method: str, *, quickly: bool) -> Any:
        self.asked.append((method, quickly))
        return self.answers[method]


def _found_of(monkeypatch: pytest.MonkeyPatch, gateway: Any) -> tuple[Setup, list[Finding]]:
    def find(_identity: str) -> Any:
        if isinstance(gateway, Exception):
            raise gateway
        return gateway

    monkeypatch.setattr(_running.control, "find_gateway", find)
    setup = Setup(Config(servers={}), None, {})
    return setup, list(_running.gateways(setup))


def test_a_running_gateway_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = _found_of(monkeypatch, UsageError("it says nothing"))
    said = Finding(Severity.ERROR, "gateway", "the running gateway", "it says nothing", "end that process")
    assert found == [said]
    assert _found_of(monkeypatch, None)[1] == []


def test_a_gateway_of_another_version_is_asked_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = _Gateway("0.0.1", name="a", status="needs-auth")
    setup, found = _found_of(monkeypatch, gateway)
    assert gateway.asked == [("hello", True), ("left", True)]
    assert [(each.severity, each.about) for each in found] == [(Severity.WARNING, "process 4711")]
    assert found[0].what == f"runs Greenroom 0.0.1, and this command is {VERSION}"
    assert found[0].mend.startswith("restart the client that started process 4711")
    assert setup.seen_starting == set()


NEEDS_LOGIN = 'it refuses requests until somebody logs in, or its entry has its token ("bearerToken")'


@pytest.mark.parametrize(
    ("row", "checks", "is_seen"),
    [
        (
            {"status": "needs-auth"},
            [("login", NEEDS_LOGIN)],
            True,
        ),
        ({"status": "idle", "startTook": 0.0}, [], True),
        ({"status": "idle", "startTook": 5.0}, [], True),
        ({"status": "idle", "startTook": 6.0}, [("start", "it took 6 s to start")], True),
        (
            {"status": "idle", "odd": "junk on stdout: x", "oddCode": "junk"},
            [("start", "junk on stdout: x")],
            False,
        ),
    ],
)
def test_what_a_gateway_knows_of_a_server_is_told(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], checks: list[tuple[str, str]], is_seen: bool
) -> None:
    gateway = _Gateway(VERSION, name="a b", **row)
    setup, found = _found_of(monkeypatch, gateway)
    assert gateway.asked == [("hello", True), ("status", True), ("left", True)]
    assert [(each.check, each.what) for each in found] == checks
    assert {each.about for each in found} <= {"a b"}
    assert setup.seen_starting == ({"a b"} if is_seen else set())
    if row["status"] == "needs-auth":
        assert found[0].mend == "greenroom auth 'a b'"


@pytest.mark.parametrize(
    ("entry", "mend"),
    [
        ({}, '"lifecycle": "keep-alive" for a keeps it running'),
        ({"lifecycle": "keep-alive"}, None),
        ({"isolation": "per_session"}, '"warm": 1 for a starts the next process ahead'),
        ({"isolation": "per_session", "lifecycle": "keep-alive", "warm": 2}, None),
    ],
)
def test_what_is_advised_for_a_slow_start_is_not_there_yet(entry: dict[str, Any], mend: str | None) -> None:
    config = parse_config({"mcpServers": {"a": {"command": "a", **entry}}})
    found = _running.of_start(Setup(config, None, {}), "a", {"startTook": 6.0})
    assert [each.mend for each in found] == ([] if mend is None else [mend])


def test_a_server_that_is_not_there_is_told_of_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    own_config(home, servers(metrics={"url": f"http://127.0.0.1:{port}/mcp"}))
    assert run(["refresh"]) == 1
    capsys.readouterr()
    assert run(["doctor", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["about"], found["severity"]) == ("metrics", "error")
    assert re.match(r"its start failed \d+ s ago: ", found["what"])


def test_a_broken_server_is_counted_and_said_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"command": "sh", "args": "x", "env": 5}
    own_config(home, servers(a={"command": sys.executable}, bad={"command": 5}, worse=wrong))
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert said.count("mcpServers.bad.command: must be") == said.count("mcpServers.worse.args: must be") == 1
    assert said.count("mcpServers.worse.env: must be") == 1
    assert "\n3 servers, from " in said
    run(["tools"])
    assert "Cannot be used: bad, worse. To see why: greenroom doctor" in capsys.readouterr().out


def test_a_command_of_windows_and_a_script_saved_there_are_told_as_such(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = home / "server.sh"
    script.write_bytes(b"#!/bin/sh\r\necho\r\n")
    script.chmod(0o755)
    own_config(home, servers(a={"command": "cmd", "args": ["/c", "npx", "x"]}, b={"command": str(script)}))
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert '→ write "command": "npx"' in said
    assert "ends with a carriage return" in said
    assert "install it" not in said.lower()


def test_a_command_with_its_arguments_is_told_where_they_belong(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a={"command": f"{sys.executable} -u /y.py"}, b={"command": "/no/where -u"}))
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert f'→ write "command": "{sys.executable}", and put the rest into "args"' in said
    assert said.count('"args"') == 1


def test_servers_without_the_key_around_them_are_asked_about(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps({"a": {"command": "sh"}, "other": {"x": 1}}))
    run(["doctor"])
    said = capsys.readouterr().out
    assert said.count('was "mcpServers" around it forgotten?') == 1


def told_of_otlp(capsys: pytest.CaptureFixture[str], *options: str) -> list[tuple[str, str, str]]:
    run(["doctor", "--json", *options])
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "otlp"]
    return [(one["severity"], one["what"], one["mend"]) for one in found]


def test_a_collector_is_asked_whether_it_takes_what_would_be_sent(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_config(home, servers(a={"command": "sh"}))
    with collector() as taken:
        assert told_of_otlp(capsys, "--otlp", taken.url) == []
        assert (taken.bodies, len(taken.headers)) == (
            [b"", b""],
            2,
        )  # of each kind a request with nothing in it
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", taken.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
        assert told_of_otlp(capsys) == []
        assert len(taken.headers) == 2, "without the option nothing is sent"
        assert told_of_otlp(capsys, "--otlp") == []
        assert taken.headers[-1]["x-team"] == "blue"
        taken.paths_refused = ("/v1/metrics",)
        [(severity, what, mend)] = told_of_otlp(capsys, "--otlp")
        assert severity == "error"
        assert "does not take durations" in what
        assert "404" in what
        assert "OTEL_EXPORTER_OTLP_HEADERS" in mend
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        taken.paths_refused = ()
        assert [mend for _, _, mend in told_of_otlp(capsys, "--otlp")] == ["unset OTEL_SDK_DISABLED"]


def test_a_collector_that_is_not_there_and_a_missing_extra_are_errors(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_config(home, servers(a={"command": "sh"}))
    url = f"http://127.0.0.1:{unused_port()}"
    [(severity, what, mend)] = told_of_otlp(capsys, "--otlp", url)
    assert severity == "error"
    assert "does not take spans" in what
    assert mend.startswith("start the collector")
    assert run(["doctor", "--otlp", url]) == 1
    assert "✗ --otlp: its collector does not take spans" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    [(severity, what, mend)] = told_of_otlp(capsys)
    assert severity == "note"
    assert "greenroom doctor --otlp" in mend
    [(severity, what, mend)] = told_of_otlp(capsys, "--otlp", "collector.example:4318")
    assert (severity, mend) == ("error", "write it like http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    [(severity, what, mend)] = told_of_otlp(capsys, "--otlp", url)
    assert (severity, mend) == ("error", "pip install 'greenroom[otel]'")


def test_the_port_of_grpc_is_known() -> None:
    [(_, mend)] = wrong_with("http://127.0.0.1:4317/")
    assert "4318" in mend


# ---- what scripts ask -----------------------------------------------------------------------------------------------

WEIGHTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "nothing": ({"command": sys.executable}, {"error": 0, "warning": 0, "note": 0}),
    "note": ({"command": "sh", "timeout": 60}, {"error": 0, "warning": 0, "note": 4}),
    "warning": ({"command": "sh", "comand": 1, "timeout": 60}, {"error": 0, "warning": 3, "note": 3}),
    "error": ({"command": "uvx-nowhere", "comand": 1}, {"error": 1, "warning": 1, "note": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_exit_code_tells_the_weight_of_the_worst_finding(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, codes = WEIGHTS[name]
    own_config(home, servers(a=entry))
    assert run(["doctor"]) == codes["error"]
    for least, code in codes.items():
        assert run(["doctor", "--fail-on", least]) == code
    said = run(["doctor", "--json", "--fail-on", "note"]), capsys.readouterr().out[-1:]
    assert said == (codes["note"], "\n")


def stdio(*faults: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", os.fspath(FAULTY), *faults]}


REQUIRED: list[tuple[str, dict[str, Any], str, str]] = [
    ("it starts", stdio(), "", ""),
    ("it ends at once", stdio("--crash-at", "start"), "start", "What it printed: `greenroom logs a`"),
    ("it does not list its tools", stdio("--fail-list", "tools/list"), "start", "correct its entry"),
    ("it has none", stdio("--kinds", "prompts"), "start", "`greenroom explain a`"),
    ("it has no program", {"command": "uvx-nowhere"}, "program", "install"),
    ("it is disabled", {**stdio(), "disabled": True}, "required", "greenroom enable a"),
    ("its entry is none", {}, "server", "correct mcpServers.a in /"),
    ("only a session starts it", {**stdio(), "env": {"A": "${session.USER}"}, "isolation": "per_session"}, "required",
     "write a default into its entry: ${session.USER:-VALUE}"),
    ("it is called as its caller", {"url": "https://a.example", "isolation": "per_session", "oauth": {
        "grantType": "token_exchange", "issuer": "https://b.example", "clientId": "c"}}, "required",
     "remove it from what is required"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "check", "mend"), [row[1:] for row in REQUIRED], ids=[row[0] for row in REQUIRED]
)
def test_a_required_server_starts_and_lists_its_tools_or_is_an_error(
    home: Path, entry: dict[str, Any], check: str, mend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, servers(a=entry, other={"command": "uvx-nowhere"}))
    assert run(["doctor", "--require", "a", "--json"]) == int(check != "")
    said = json.loads(capsys.readouterr().out)
    found = [(one["about"], one["severity"], one["check"]) for one in said["findings"]]
    assert found == [("a", "error", check)] * (check != "")
    assert all(mend in one["mend"] and "disable" not in one["mend"] for one in said["findings"])
    (row,) = said["required"]
    assert bool(row["tools"]) is (check == "")


def test_several_servers_are_required_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, servers(a=stdio(), github=stdio(), broken={}))
    assert run(["doctor", "--require", "github, a", "--require", "a"]) == 0
    said = capsys.readouterr()
    assert [line.partition(":")[0] for line in said.out.splitlines()] == ["✓ github", "✓ a"]
    assert run(["doctor", "--require", "a,git_hub", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    (found,) = said["findings"]
    assert (found["about"], 'Did you mean "github"?' in found["what"]) == ("git_hub", True)
    assert [row["server"] for row in said["required"]] == ["a", "git_hub"]
    assert run(["doctor", "--require", "a,"]) == 2
    assert "--require github,linear" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_may_be_why_a_required_server_is_missing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config(home, '{"mcpServers": {')
    assert run(["doctor", "--require", "a", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert str(file) in found["what"]
    assert found["mend"] == "greenroom doctor"


def test_the_servers_behind_each_comma_are_completed(home: Path) -> None:
    own_config(home, servers(github={"command": "sh"}, gitlab={"command": "sh"}, linear={"command": "sh"}))
    command = cli.get_command(click.Context(cli), "doctor")
    assert command is not None
    (option,) = (one for one in command.params if one.name == "required")
    context = click.Context(command)
    for typed, offered in (("gi", ["github", "gitlab"]), ("linear,gith", ["linear,github"]), ("x", [])):
        assert [one.value for one in option.shell_complete(context, typed)] == offered
