"""`greenroom serve --http` as a process: it answers, drains on a signal, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.forked import GREENROOM
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids, serve, started
from tests.support.http_door import ACCEPT, HELLO, NO_CERTIFICATES, request

from greenroom.cli.main import run
from greenroom.config.model import Config, Settings
from greenroom.gateway import serve as _serve_http
from greenroom.gateway.doors.http_auth import Token, tokens_in
from greenroom.gateway.doors.http_request import is_loopback, is_safe
from greenroom.gateway.next_steps import Commands
from greenroom.protocol.errors import UsageError

TOKEN = "a-token-of-the-tests-0123456789"


class Served:
    """A gateway process over HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = self._said(r"serving (\S+)")
        self.http = httpx2.Client(
            trust_env=False,
            timeout=PATIENCE,
            headers={**ACCEPT, "authorization": f"Bearer {TOKEN}"},
            verify=NO_CERTIFICATES,
        )

    def _said(self, pattern: str) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())

    def post(self, message: Any, **headers: str) -> httpx2.Response:
        return self.http.post(self.url, content=json.dumps(message), headers=headers)

    def session(self) -> dict[str, str]:
        opened = self.post(request("initialize", 0, {**HELLO, "capabilities": {}}))
        assert opened.status_code == 200, opened.text
        return {"mcp-session-id": opened.headers["mcp-session-id"]}


@contextmanager
def served(folder: Path, servers: Mapping[str, Any], *options: str, **settings: Any) -> Generator[Served]:
    token = folder / "tokens"
    token.write_text(f"# who may come\ntests {TOKEN}\n")
    flags = ("--http", "127.0.0.1:0", "--token-file", str(token), "--expose", "direct", *options)
    with serve(folder, dict(servers), *flags, **settings) as gateway:
        one = Served(gateway.process, folder / "stderr.txt")
        with one.http:
            yield one


def wait_for(log: Path, words: str, count: int = 1) -> None:
    """Wait until a server has logged these words so often."""
    until = time.monotonic() + PATIENCE
    while not log.exists() or log.read_text().count(words) < count:
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def call(name: str, **arguments: Any) -> Any:
    return request("tools/call", 1, {"name": name, "arguments": arguments})


def test_it_answers_and_a_signal_drains_every_accepted_call(tmp_path: Path) -> None:
    servers = {"one": faulty(tmp_path, "one"), "two": faulty(tmp_path, "two")}
    with served(tmp_path, servers, http={"metrics": True}) as one:
        sessions = [one.session() for _ in range(2)]
        for session in sessions:
            assert (
                one.post(call("one_echo", text="hi"), **session).json()["result"]["content"][0]["text"]
                == "hi"
            )
        large = one.post(call("one_echo", size=3_000_000), **sessions[0])
        assert len(large.json()["result"]["content"][0]["text"]) == 3_000_000
        numbers = one.http.get(one.url.replace("/mcp", "/metrics")).text
        assert "greenroom_http_sessions 2.0" in numbers
        assert 'greenroom_calls_total{outcome="result",server="one"}' in numbers
        answers: list[httpx2.Response] = []
        callers = [
            threading.Thread(
                target=lambda s=session: answers.append(one.post(call("one_sleep", seconds=1), **s))
            )
            for session in sessions
        ]
        for caller in callers:
            caller.start()
        wait_for(tmp_path / "one.log", "call sleep", 2)
        one.process.send_signal(signal.SIGTERM)
        for caller in callers:
            caller.join(PATIENCE)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all("slept" in answer.text or '"result"' in answer.text for answer in answers), answers
        assert one.process.wait(PATIENCE) == 0
        assert TOKEN not in one.log.read_text()
        assert sessions[0]["mcp-session-id"] not in one.log.read_text()
    assert not gone_within(logged_pids(tmp_path))


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    with served(tmp_path, {"one": faulty(tmp_path, "one")}) as one:
        session = one.session()
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(one.post(call("one_sleep", seconds=100), **session))
            except httpx2.HTTPError as error:
                answers.append(error)

        caller = threading.Thread(target=ask)
        caller.start()
        wait_for(tmp_path / "one.log", "call sleep")
        one.process.send_signal(signal.SIGTERM)
        one._said(r"(draining)")
        one.process.send_signal(signal.SIGTERM)
        caller.join(PATIENCE)
        one.process.wait(PATIENCE)
        assert answers
    assert not gone_within(logged_pids(tmp_path))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--http", "0.0.0.0:0"], "no token is needed"),
        (["--http", "8000"], "HOST:PORT"),
        (["--http", "127.0.0.1:70000"], "HOST:PORT"),
        (["--http", "192.0.2.1:80", "--token-file", "TOKENS"], "Cannot listen"),
        (["--http", "127.0.0.1:0", "--token-file", "missing"], "cannot be read"),
        (["--http", "127.0.0.1:0", "--tls-cert", "TOKENS"], "--tls-key"),
        (["--http", "127.0.0.1:0", "--token-file", "BOUND"], 'There is no profile "work"'),
        (["--token-file", "TOKENS"], "--http"),
    ],
)
def test_what_cannot_be_served_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config, tokens = Path(folder, "mcp.json"), Path(folder, "tokens")
        config.write_text('{"mcpServers": {}}')
        tokens.write_text(TOKEN)
        bound = Path(folder, "bound")
        bound.write_text(f"ann {TOKEN} work")
        files = {"TOKENS": str(tokens), "BOUND": str(bound)}
        flags = [files.get(flag, flag) for flag in flags]
        assert run(["serve", "--config", str(config), *flags]) == 2
    shown = capsys.readouterr().err
    assert said in shown, shown
    assert TOKEN not in shown


def test_tokens_come_from_the_settings_and_from_a_file(tmp_path: Path) -> None:
    tokens = {"ann": "${ANN}", "eve": "token-of-eve-0123456789"}
    settings = Settings(http_tokens=tokens, http_token_profiles={"ann": "home"})
    file = tmp_path / "tokens"
    file.write_text("one-token-0123456789\nben token-of-ben-0123456789 work\ncyd token-of-cyd-0123456789\n")
    found = tokens_in(settings, {"ANN": "token-of-ann-0123456789"}, file, "rest")
    assert [(token.name, token.profile) for token in found] == [
        ("ann", "home"),
        ("eve", "rest"),
        ("token-1", "rest"),
        ("ben", "work"),
        ("cyd", "rest"),
    ]
    settings = Settings(http_tokens={"ann": "${ANN}"})
    with pytest.raises(UsageError, match="ANN, which is not set"):
        tokens_in(settings, {}, None, None)
    file.write_text("ann token-of-ann-0123456789")
    with pytest.raises(UsageError, match="same name"):
        tokens_in(settings, {"ANN": "token-of-ann-0123456789"}, file, None)
    with pytest.raises(UsageError, match="not in tokens"):
        tokens_in(Settings(http_token_profiles={"ann": "home"}), {}, None, None)


GOOD = "0123456789abcdef"  # the shortest


def test_the_adapters_file_opens_its_door_with_its_token_and_never_without(tmp_path: Path) -> None:
    entry = faulty(tmp_path, "one")

    def file(**adapter: str) -> Path:
        path = tmp_path / "adapter.yaml"
        path.write_text(json.dumps({"adapter": adapter, "servers": {"one": {"type": "stdio", **entry}}}))
        return path

    def serving(path: Path, **environ: str) -> Any:
        places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
        words = [*GREENROOM, "serve", "--http", "--expose", "direct", "--config", str(path)]
        return started(
            *words, env={"PATH": os.environ["PATH"], **places, **environ}, cwd=tmp_path, stderr=stderr
        )

    log = tmp_path / "stderr.txt"
    good = file(bind="127.0.0.1:0", mcpBearerToken="${T}")
    with log.open("wb") as stderr, serving(good, T=TOKEN) as gateway:
        one = Served(gateway.process, log)
        with one.http as http:
            session = one.session()
            assert "hi" in one.post(call("one_echo", text="hi"), **session).text
            http.headers.pop("authorization")
            assert one.post(request("initialize", 0, HELLO)).status_code == 401
    for environ in ({}, {"T": ""}, {"T": "short"}):
        with log.open("wb") as stderr, serving(good, **environ) as gateway:
            assert gateway.process.wait(PATIENCE) == 2, environ
    for wrong in ("", " "):
        with log.open("wb") as stderr, serving(file(bind="127.0.0.1:0", mcpBearerToken=wrong)) as gateway:
            assert gateway.process.wait(PATIENCE) == 2
    gone_within(logged_pids(tmp_path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (GOOD, [("token-1", None)]),
        (f"# of ann\n\n  # more\n{GOOD}\n", [("token-1", None)]),
        (f"ann {GOOD}", [("ann", None)]),
        (f"ann {GOOD} work\n{GOOD}x", [("ann", "work"), ("token-2", None)]),
        (f"ann {GOOD} work more", "Line 1 of the tokens in"),
        (f"ok {GOOD}\nann {GOOD} work more", "Line 2 of the tokens in"),
        ("\n# only this\n", "has no token. Write one into it"),
        (GOOD[:-1], "16 or more"),
        (GOOD + "é", "printable ASCII"),
        (GOOD + "\x7f", "printable ASCII"),
        (f"oauth:ann {GOOD}", "needs another name"),
        (f"a {GOOD}\na {GOOD}x", "same name"),
        (b"\xff" * 20, "it is not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_each_line_of_a_token_file_is_a_token_or_is_refused_with_what_is_wrong(
    text: str | bytes | None, found: list[tuple[str, str | None]] | str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found) as caught:
            tokens_in(Settings(), {}, file, None)
        assert GOOD[:-1] not in caught.value.message
    else:
        assert [(token.name, token.profile) for token in tokens_in(Settings(), {}, file, None)] == found


def test_a_token_with_a_space_is_refused() -> None:
    with pytest.raises(UsageError, match="without spaces"):
        Token.of("ann", f"{GOOD} x")


def test_every_setting_of_the_door_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def access(*args: Any, **more: Any) -> Any:
        given.update(args=args, **more)
        raise UsageError("it went no further")

    monkeypatch.setattr(_serve_http, "Access", access)
    tokens = (Token.of("ann", GOOD),)
    config = Config(settings=Settings(http_hosts=("h.example",), http_origins=("https://o.example",)))
    options: Any = SimpleNamespace(events=None, commands=Commands())
    with pytest.raises(UsageError, match="no further"):
        anyio.run(
            _serve_http.serve_http,
            config,
            lambda _: pytest.fail("it went on"),  # pyright: ignore[reportUnknownLambdaType]
            options,
            _serve_http.HttpOptions("127.0.0.1", 0, tokens),
        )
    assert given == {
        "args": ("127.0.0.1", tokens),
        "oauth": None,
        "hosts": ("h.example",),
        "origins": ("https://o.example",),
    }


class _Recorded:
    """A part of the gateway that only notes what it is told."""

    def __init__(self, name: str, did: list[Any], **more: Any) -> None:
        self.name = name
        self.did = did
        self.__dict__.update(more)

    def note(self, what: str, *more: Any) -> None:
        self.did.append((f"{self.name}.{what}", *more))

    async def runs(self, *args: Any, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        """Stands for a task of it that runs until it is cancelled."""
        self.note("runs", *args)
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self.note("ended")


@pytest.mark.parametrize(
    ("metrics", "events", "at_once"), [(False, False, False), (True, False, False), (True, True, True)]
)
def test_each_part_of_the_door_gets_what_was_configured_and_they_end_in_order(
    metrics: bool, events: bool, at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []
    given: dict[str, Any] = {}
    leaving: list[Any] = []
    lines: list[str] = []
    closing = anyio.Event()

    def part(name: str, *methods: str, **more: Any) -> Any:
        """Makes `name`: its arguments are kept, and calls of its methods are noted."""

        def make(*args: Any, **named: Any) -> Any:
            made = _Recorded(name, did, **more)
            for method in methods:
                setattr(made, method, partial(made.note, method))
            given[name] = (args, named)
            given[f"the {name}"] = made
            return made

        return make

    async def closes(patience: float | None = None) -> None:
        did.append(("room.aclose", patience))

    async def starts(_group: Any) -> None:
        did.append(("room.start",))

    def open_room(config: Config) -> Any:
        given["config"] = config
        return SimpleNamespace(expect_clients=lambda: None, start=starts, aclose=closes)

    async def signals(told: Any, *, task_status: Any) -> None:
        leaving.append(told)
        task_status.started()
        await anyio.sleep_forever()

    async def follows(room: Any, heard: Any, *, kinds: Any, task_status: Any) -> None:
        given["follow"] = (list(heard), kinds)
        task_status.started()
        await anyio.sleep_forever()

    async def attends(_group: Any, _room: Any, _options: Any, _log: Any, methods: Any) -> None:
        given["methods"] = methods
        leaving[0].at_once() if at_once else leaving[0].politely()

    class Server(_Recorded):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__("server", did)
            given["server"] = (args, named)

        async def run(self, *, task_status: Any) -> None:
            task_status.started()
            await closing.wait()

        def close(self) -> None:
            self.note("close")
            closing.set()

    def made(name: str, *methods: str, **more: Any) -> Any:
        """As `part`, with a task and a hearer."""
        make = part(name, *methods, **more)

        def and_run(*args: Any, **named: Any) -> Any:
            one = make(*args, **named)
            one.run = one.keep = one.watch = one.runs
            one.hear = f"{name} hears"
            return one

        return and_run

    sessions = _Recorded("sessions", did)
    sessions.end_all = partial(sessions.note, "end_all")  # pyright: ignore[reportAttributeAccessIssue]
    pages = {"pages": lambda: {b"/private": 1}, "open_pages": lambda: {b"/open": 2}}
    for name, fake in {
        "Feed": made("feed", "close"),
        "GivingWay": made("giving_way"),
        "Metrics": made("metrics"),
        "Conversations": made("conversations"),
        "Operations": made("operations", **pages),
        "HttpDoor": made("door", "refuse_new", sessions=sessions),
        "OAuth": made("oauth"),
        "HttpServer": Server,
        "Access": lambda *args, oauth, **_: SimpleNamespace(oauth=oauth),
        "follow": follows,
        "to_log": lambda log: setattr(log, "line", lines.append) or "log hears",
        "check_tls": lambda *args: given.update(tls=args),
        "want_orphans": lambda: given.update(orphans=True),
        "collect_again": lambda: given.update(collects=True),
        "set_room_aside": lambda: given.update(aside=[one[0] for one in did]),
    }.items():
        monkeypatch.setattr(_serve_http, name, fake)
    for name, fake in {
        "heed_signals": signals,
        "attend": attends,
        "set_alarm": lambda seconds: did.append(("alarm",)),
        "commands": lambda room, version: {"of": version},
        "events_file": lambda path, *_: [f"{path} hears"] if path is not None else [],
    }.items():
        monkeypatch.setattr(_serve_http, name, fake)
    settings = Settings(http_metrics=metrics, http_session_headers={"X-Token": "TOKEN"}, http_max_body=7)
    options = _serve_http.Options(
        expose="direct", version="9.9", events=tmp_path / "events" if events else None
    )
    terms: Any = "terms"
    cert, key = tmp_path / "cert", tmp_path / "key"
    http = _serve_http.HttpOptions(
        "127.0.0.1", 0, (Token.of("ann", GOOD),), oauth=terms, profile="work", cert=cert, key=key
    )
    config = Config(settings=settings)
    anyio.run(_serve_http.serve_http, config, open_room, options, http)

    assert (given["config"], given["tls"]) == (config, (cert, key))
    assert (given["orphans"], given["collects"]) == (True, True)
    assert given["aside"][-1] == "room.start", "only what the room has made is set aside"
    assert given["oauth"][0][0] == "terms"
    assert given["feed"][0] == (15.0,)
    assert given["giving_way"][0][1:] == (60.0, 1.0)
    heard, kinds = given["follow"]
    file = [f"{tmp_path / 'events'} hears"] if events else []
    counted = ["metrics hears"] if metrics else []
    assert heard == ["log hears", *file, "feed hears", "giving_way hears", *counted]
    wanted = {"transition", "decision", "note", "start", *(["call"] if metrics else [])}
    assert (kinds if events else {kind.value for kind in kinds}) == (None if events else wanted)
    assert {name: given["conversations"][1][name] for name in ("expose", "version")} == {
        "expose": "direct",
        "version": "9.9",
    }
    assert given["operations"][0][1:] == (
        "9.9",
        given["the feed"],
        given["the metrics"] if metrics else None,
    )
    (talks, access, rules), named = given["door"]
    assert (talks, access.oauth) == (given["the conversations"], given["the oauth"])
    assert rules.max_body == 7
    named.pop("note")
    assert named == {
        "profile": "work",
        "session_headers": {"X-Token": "TOKEN"},
        "pages": {b"/private": 1},
        "open_pages": {b"/open": 2},
    }
    assert given["the operations"].door is given["the door"]
    assert given["server"][0][0] is given["the door"]
    assert given["server"][1] == {"cert": cert, "key": key}
    assert given["methods"]["of"] == "9.9"
    assert any(line.startswith("serving https://127.0.0.1:") for line in lines)
    ran = [one for one in did if one[0].endswith(".runs")]
    assert sorted(ran, key=lambda one: one[0]) == [
        ("conversations.runs",),
        ("door.runs",),
        ("giving_way.runs", sessions),
        ("oauth.runs",),
    ]
    ends = [one for one in did if not one[0].endswith((".runs", ".start", ".ended"))]
    if at_once:
        assert ("alarm",) in ends
        assert {one[1] for one in ends if one[0] == "room.aclose"} == {0}
        ends = [one for one in ends if one[0] not in ("alarm", "room.aclose")]
    assert ends == [
        ("door.refuse_new",),
        *([] if at_once else [("room.aclose", None)]),  # while the door still carries the last answers
        ("sessions.end_all",),
        ("feed.close",),
        ("server.close",),
    ]


@pytest.mark.parametrize(
    ("host", "port", "cert", "url"),
    [
        ("127.0.0.1", 80, None, "http://127.0.0.1:80/mcp"),
        ("::1", 8080, None, "http://[::1]:8080/mcp"),
        ("127.0.0.1", 8443, Path("cert"), "https://127.0.0.1:8443/mcp"),
    ],
)
def test_it_says_where_it_serves(host: str, port: int, cert: Path | None, url: str) -> None:
    serving: Any = SimpleNamespace(
        listener=SimpleNamespace(getsockname=lambda: (host, port, 0, 0)), http=SimpleNamespace(cert=cert)
    )
    assert _serve_http._Serving._url(serving) == url


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours
    named = f"[{host}]" if ":" in host else host
    assert is_safe(f"http://{named}:8080/x") == is_ours
    assert is_safe(f"https://{named}/x") == bool(host)
    for url in (f"ftp://{named}", f"http://{named}:x/", f"//{named}/"):
        assert not is_safe(url)
