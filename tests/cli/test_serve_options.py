"""`serve` and `attach`: what is typed reaches the gateway, and what cannot be meant opens no door."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tests.config.test_config_keys import SETTINGS
from tests.support.homes import own_config

from greenroom import Greenroom
from greenroom.cli import attach_command, serve_command
from greenroom.cli.completion import complete_clients, complete_profiles, complete_servers
from greenroom.cli.main import run
from greenroom.config.model import Config, Isolation
from greenroom.config.parse import parse_config
from greenroom.gateway import serve as _gateway
from greenroom.protocol.version import VERSION

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture
def served(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `greenroom serve` would run, instead of running it."""
    ran: list[Any] = []
    monkeypatch.setattr(serve_command, "run_gateway", ran.append)
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    Path("tokens").write_text(f"ann {TOKEN}\n")
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


@pytest.mark.parametrize(
    "options",
    [(), ("--max-connections", "99", "--idle-timeout", "1", "--failure-threshold", "99", "--cooldown", "1")],
    ids=["plain", "options"],
)
@pytest.mark.parametrize("http", [(), ("--http", ":8123")], ids=["stdio", "http"])
def test_every_setting_that_changes_while_a_gateway_runs_counts_or_is_said_not_to(
    http: tuple[str, ...],
    options: tuple[str, ...],
    home: Path,
    served: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = profiled(home)
    assert run(["serve", "--config", config, *http, *options]) == 0
    started, reread = served[0].args[0].settings, served[0].args[2].reread
    for name, said, attribute, _ in SETTINGS:
        inner: Any = said
        for part in reversed(name.split(".")):
            inner = {part: inner}
        settings = {"maxConnections": 98, **inner} if name == "minConnections" else inner
        profiled(home, **settings)
        capsys.readouterr()
        now = getattr(reread().settings, attribute)
        expected = getattr(parse_config({"settings": settings}).settings, attribute)
        assert now == expected or f"{name} has changed in the configuration" in capsys.readouterr().err, name
        profiled(home)
        assert reread().settings == started, "and so does a setting that is taken out again"


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
    assert main.func is _gateway.serve_http
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
    ("typed", "place"),
    [("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65_535)), (":8000", ("127.0.0.1", 8_000))],
)
def test_the_address_is_read_as_it_is_meant(
    typed: str, place: tuple[str, int], home: Path, served: list[Any]
) -> None:
    assert run(["serve", "--config", profiled(home), "--http", typed]) == 0
    http = served[0].args[3]
    assert (http.host, http.port) == place


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
        (["--http", "localhost"], "The HTTP door needs HOST:PORT"),
        (["--http", "localhost:"], "The HTTP door needs HOST:PORT"),
        (["--http", "localhost:65536"], "The HTTP door needs HOST:PORT"),
        (["--http", "localhost:\u0663"], "The HTTP door needs HOST:PORT"),
        (["--http", "localhost:-1"], "The HTTP door needs HOST:PORT"),
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
    monkeypatch.setattr("greenroom.gateway.doors.background_gateway.become_room", lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
    Path("others").write_text(f"ann {TOKEN} play\n")
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
    assert "http.listen" in (said := capsys.readouterr().err)
    assert "--http 127.0.0.1:8000\n" in said, "as a whole line"


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
    own_config(home, json.dumps({"mcpServers": {}, "settings": {"http": http}}))
    assert run(["serve", "--http", ":0"]) == 2
    assert "The HTTP door is not opened" in capsys.readouterr().err
    assert served == []
    assert run(["serve"]) == 0, "nobody comes over HTTP"


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"settings": 5}', '{"adapter": []}', '{"settings": {"http.tokens": {"ann": "t"}}}'],
)
def test_t58_a_door_is_not_opened_while_a_file_of_ours_cannot_be_read(
    content: str, home: Path, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_config(home, content)
    assert run(["serve", "--http", ":0"]) == 2
    assert f"The HTTP door is not opened, for it may lack a guard. {own}" in capsys.readouterr().err
    assert served == []
    own.write_text('{"imports": ["cursor"]}')
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{")
    assert run(["serve", "--http", ":0"]) == 0, "of another program's file only the servers count"


@pytest.mark.parametrize(
    "words", [["serve"], ["serve", "--http", ":0"], ["serve", "--background"], ["attach"]]
)
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
    monkeypatch.setattr(attach_command, "attach", lambda *_: served.append("attached"))  # pyright: ignore[reportUnknownLambdaType]
    assert run([*words, "--config", profiled(home)]) == (0 if runs else 2)
    assert len(served) == runs
    assert ("behind 5 gateways" in capsys.readouterr().err) == (not runs)


@pytest.mark.parametrize(("profile", "code"), [("work", 0), ("play", 2)])
def test_a_profile_that_only_a_scope_of_a_login_names_has_to_be_there(
    profile: str, code: int, home: Path, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    oauth = {
        "issuer": "https://i.example",
        "resource": "https://r.example/mcp",
        "scopeProfiles": {"s": profile},
    }
    config = profiled(home, http={"oauth": oauth})
    assert run(["serve", "--config", config, "--http", ":0"]) == code
    assert len(served) == (code == 0)
    assert ('There is no profile "play"' in capsys.readouterr().err) == (code == 2)


def test_a_background_gateway_gets_the_same_options_wherever_it_works(
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


def test_tab_offers_the_names_of_the_configuration_that_was_named(home: Path) -> None:
    named = profiled(home)
    own_config(home, '{"mcpServers": {"found": {"command": "f"}}}')
    Path("broken.json").write_text("{")
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
    assert offered(complete_servers, None) == ["found"]
    for of in (complete_servers, complete_profiles):
        assert offered(of, "broken.json") == offered(of, "missing.json") == offered(of, str(home)) == []
    clients = offered(complete_clients, None, "cl")
    assert "claude-code" in clients
    assert all(name.startswith("cl") for name in clients)


def test_whose_programs_are_started_is_said_once_and_again_when_that_has_changed(
    home: Path, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was named is its owner's choice: nothing is said."""

    def said() -> list[str]:
        told = "this project also decides which programs are started: "
        lines = capsys.readouterr().err.splitlines()
        return [line.partition(told)[2].partition(". Use ")[0] for line in lines if told in line]

    def write(name: str) -> str:
        file = Path(name).absolute()
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"mcpServers": {file.parent.name: {"command": "a"}}}))
        assert run(["trust", "--yes"]) == 0
        capsys.readouterr()
        return str(file)

    one = write(".mcp.json")
    assert run(["serve"]) == 0
    assert said() == [one]
    reread = served[0].args[2].reread
    reread()
    assert said() == []
    other = write(".greenroom/mcp.json")
    for told in (1, 0):
        reread()
        assert [sorted(each.split(", ")) for each in said()] == [sorted([one, other])] * told
    assert run(["serve", "--config", one]) == 0
    assert said() == []


@pytest.mark.parametrize("command", ["serve", "attach"])
def test_who_serves_a_client_needs_an_input(
    command: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    assert run([command, "--config", profiled(home)]) == 2
    assert "Standard input is closed" in capsys.readouterr().err


@pytest.mark.parametrize("room", [None, "run-1"])
def test_attach_says_in_which_room_it_was_started(
    room: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hellos: list[Any] = []
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    monkeypatch.delenv("GREENROOM_ROOM", raising=False)
    if room is not None:
        monkeypatch.setenv("GREENROOM_ROOM", room)
    monkeypatch.setattr(attach_command, "attach", lambda _starting, hello, *_: hellos.append(hello))  # pyright: ignore[reportUnknownLambdaType]
    assert run(["attach", "--config", profiled(home)]) == 0
    assert [hello.room for hello in hellos] == [room]
