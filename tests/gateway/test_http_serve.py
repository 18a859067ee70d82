"""`greenroom serve --http` as a process: it answers, drains on a signal, and leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.support.forked import GREENROOM
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids, serve, started
from tests.support.http_door import ACCEPT, HELLO, NO_CERTIFICATES, request
from tests.support.rows import for_each

from greenroom.cli.main import run
from greenroom.config.model import Settings
from greenroom.gateway import serve as _serve_http
from greenroom.gateway.doors.http_auth import BearerToken, tokens_in
from greenroom.gateway.doors.http_request import is_loopback, is_safe
from greenroom.protocol.errors import UsageError

TOKEN = "a-token-of-the-tests-0123456789"


class Served:
    """A gateway process over HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = self.said(r"serving (\S+)")
        self.http = httpx2.Client(
            trust_env=False,
            timeout=PATIENCE,
            headers={**ACCEPT, "authorization": f"Bearer {TOKEN}"},
            verify=NO_CERTIFICATES,
        )

    def said(self, pattern: str) -> str:
        """The group of this pattern in what it logs, which may still have to come."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())

    def post(self, message: Any, **headers: str) -> httpx2.Response:
        return self.http.post(self.url, content=json.dumps(message), headers=headers)

    def session(self, **headers: str) -> dict[str, str]:
        opened = self.post(HELLO_REQUEST, **headers)
        assert opened.status_code == 200, opened.text
        return {"mcp-session-id": opened.headers["mcp-session-id"]}


HELLO_REQUEST = request("initialize", 0, {**HELLO, "capabilities": {}})


def until_status(one: Served, expected: int, token: str, **headers: str) -> None:
    """Waits until who has this token is answered so."""
    until = time.monotonic() + PATIENCE
    while (
        found := one.post(HELLO_REQUEST, authorization=f"Bearer {token}", **headers).status_code
    ) != expected:
        assert time.monotonic() < until, (found, one.log.read_text())
        time.sleep(0.05)


def status_of_call(one: Served, token: str, session: Mapping[str, str]) -> int:
    headers = {**session, "authorization": f"Bearer {token}"}
    return one.post(call("one_echo", text="hi"), **headers).status_code


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:8]


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


def test_the_task_of_a_client_that_has_left_is_drained_and_the_next_gateway_has_its_result(
    tmp_path: Path,
) -> None:
    servers, settings = {"one": faulty(tmp_path, "one")}, {"tasks": {"keep": str(tmp_path / "t")}}
    with served(tmp_path, servers, isolation="persistent", **settings) as one:
        client = one.session()
        one.post(call("one_echo"), **client)
        sleeps = {"name": "one_sleep", "arguments": {"seconds": 1}, "task": {}}
        made = one.post(request("tools/call", 2, sleeps), **client).json()["result"]["task"]
        one.http.delete(one.url, headers=client)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(PATIENCE) == 0
    with served(tmp_path, servers, isolation="persistent", **settings) as other:
        client = other.session()
        fetch = request("tasks/result", 3, {"taskId": made["taskId"]})
        result = other.post(fetch, **client).json()["result"]
        assert not result.get("isError"), result


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
        one.said(r"(draining)")
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
        (f"token-{digest_of('one-token-0123456789')}", "rest"),
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
            page = http.get(one.said(r"the page: (\S+)"))
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
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
        (GOOD, [(f"token-{digest_of(GOOD)}", None)]),
        (f"# of ann\n\n  # more\n{GOOD}\n", [(f"token-{digest_of(GOOD)}", None)]),
        (f"ann {GOOD}", [("ann", None)]),
        (f"ann {GOOD} work\n{GOOD}x", [("ann", "work"), (f"token-{digest_of(GOOD + 'x')}", None)]),
        (f"{GOOD}\n{GOOD}", [(f"token-{digest_of(GOOD)}", None)]),
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
        BearerToken.of("ann", f"{GOOD} x")


def test_who_may_come_is_read_again_while_the_door_is_open(tmp_path: Path) -> None:
    config, tokens = tmp_path / "mcp.json", tmp_path / "tokens"
    ann, new, ben = TOKEN, "another-token-of-the-tests-01", "a-token-of-ben-0123456789"
    with served(tmp_path, {"one": faulty(tmp_path, "one")}) as one:

        def status(token: str, **headers: str) -> int:
            return one.post(HELLO_REQUEST, authorization=f"Bearer {token}", **headers).status_code

        def becomes(expected: int, token: str, **headers: str) -> None:
            until_status(one, expected, token, **headers)

        def asks(token: str, session: Mapping[str, str]) -> int:
            return status_of_call(one, token, session)

        session = one.session()
        tokens.write_text(f"tests {new}\nben {ben}\n")
        becomes(200, new)
        assert (status(ann), status(ben)) == (401, 200)
        assert asks(new, session) == 404, "somebody else may have had the old one"
        session = one.session(authorization=f"Bearer {new}")
        assert asks(ben, session) == 404
        tokens.write_text("tests short\n")
        wait_for(one.log, "it needs 16 or more")
        assert (status(new), status(ben)) == (200, 200), "what cannot be used changes nothing"
        tokens.write_text(f"ben {ben}\n")
        becomes(401, new)
        wait_for(one.log, "its token is not accepted any more")
        assert asks(ben, session) == 404
        said = json.loads(config.read_text())
        cyd = "a-token-of-cyd-0123456789"
        http = {"hosts": ["h.example"], "tokens": {"cyd": cyd}, "maxSessions": 9}
        config.write_text(json.dumps({**said, "settings": {**said["settings"], "http": http}}))
        becomes(200, cyd, host="h.example")
        config.write_text(json.dumps(said))
        becomes(401, cyd)
        assert status(ben, host="h.example") == 421
        log = one.log.read_text()
    assert "changed tokens: tests" in log
    assert "tokens that are gone: tests" in log
    assert "only when it is opened again: http.maxSessions" in log
    assert not [token for token in (ann, new, ben, cyd) if token in log]


def test_tokens_without_names_keep_their_own_sessions_when_one_of_them_goes(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    ann, ben, cyd = (f"a-token-of-{name}-0123456789" for name in ("ann", "ben", "cyd"))
    with served(tmp_path, {"one": faulty(tmp_path, "one")}) as one:
        tokens.write_text(f"{ann}\n{ben}\n{cyd}\n")
        until_status(one, 200, cyd)
        sessions = {token: one.session(authorization=f"Bearer {token}") for token in (ann, ben, cyd)}
        tokens.write_text(f"{ben}\n{cyd}\n")
        until_status(one, 401, ann)
        for token in (ben, cyd):
            answers = {owner: status_of_call(one, token, session) for owner, session in sessions.items()}
            assert answers == {each: 200 if each == token else 404 for each in sessions}


def test_a_request_whose_token_goes_while_its_body_comes_is_refused(tmp_path: Path) -> None:
    body = json.dumps(HELLO_REQUEST).encode()
    with served(tmp_path, {"one": faulty(tmp_path, "one")}) as one:
        at = urlsplit(one.url)
        head = "".join(
            f"{name}: {value}\r\n"
            for name, value in {
                **ACCEPT,
                "Host": at.netloc,
                "Authorization": f"Bearer {TOKEN}",
                "Content-Length": len(body),
            }.items()
        )
        with socket.create_connection((at.hostname, at.port), timeout=PATIENCE) as client:
            client.sendall(f"POST {at.path} HTTP/1.1\r\n{head}\r\n".encode() + body[:5])
            (tmp_path / "tokens").write_text("ben a-token-of-ben-0123456789\n")
            until_status(one, 401, TOKEN)
            client.sendall(body[5:])
            assert client.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_door_with_tokens_on_loopback_is_not_opened_to_everybody_by_a_file_that_is_away(
    tmp_path: Path,
) -> None:
    config = tmp_path / "mcp.json"
    ann = "a-token-of-ann-0123456789"
    with serve(tmp_path, {}, "--http", "127.0.0.1:0", http={"tokens": {"ann": ann}}) as gateway:
        one = Served(gateway.process, tmp_path / "stderr.txt")
        with one.http:
            session = one.session(authorization=f"Bearer {ann}")
            config.write_text('{"mcpServers": {}}')
            wait_for(one.log, "No token is left")
            assert one.post(request("ping", 1), authorization="").status_code == 401
            assert one.post(request("ping", 1), authorization=f"Bearer {ann}", **session).status_code == 200


@pytest.mark.parametrize("beside", ["tokens", "settings"])
def test_a_door_that_others_can_reach_keeps_its_tokens_when_none_is_left(tmp_path: Path, beside: str) -> None:
    config, file = tmp_path / "mcp.json", tmp_path / "t"
    settings: dict[str, Any] = {"http": {"tokens": {"ann": TOKEN}}} if beside == "settings" else {}
    file.write_text(TOKEN)
    flags = ["--token-file", str(file)] if beside == "tokens" else []
    with serve(tmp_path, {}, "--http", "0.0.0.0:0", *flags, **settings) as gateway:
        one = Served(gateway.process, tmp_path / "stderr.txt")
        with one.http:
            one.url = one.url.replace("0.0.0.0", "127.0.0.1")
            file.write_text("# nobody\n")
            config.write_text('{"mcpServers": {}}')
            wait_for(one.log, "the old one stays: ")
            assert one.post(request("ping", 1), authorization="").status_code == 401
            one.session()


def test_every_setting_of_the_door_reaches_it(tmp_path: Path) -> None:
    page = "https://o.example"
    http = {
        "hosts": ["h.example"],
        "origins": [page],
        "maxBodyBytes": 2_000,
        "maxSessions": 2,
    }
    with served(tmp_path, {"one": faulty(tmp_path, "one")}, http=http) as one:
        hello = request("initialize", 0, {**HELLO, "capabilities": {}})
        opened = one.post(hello, host="h.example", origin=page)
        assert (opened.status_code, opened.headers["access-control-allow-origin"]) == (200, page)
        assert one.post(hello, host="i.example").status_code == 421
        assert one.post(call("one_echo", text="x" * 3_000)).status_code == 413
        assert one.http.get(one.url.replace("/mcp", "/status")).json()["sessions"] == 1
        assert one.http.get(one.url.replace("/mcp", "/metrics")).status_code == 404, "they are off"
        one.session()
        assert one.post(hello).status_code == 503, "there are as many sessions as there may be"


@pytest.mark.parametrize(
    ("host", "port", "cert", "url"),
    [
        ("127.0.0.1", 80, None, "http://127.0.0.1:80/mcp"),
        ("::1", 8080, None, "http://[::1]:8080/mcp"),
        ("127.0.0.1", 8443, Path("cert"), "https://127.0.0.1:8443/mcp"),
    ],
)
def test_it_says_where_it_serves(host: str, port: int, cert: Path | None, url: str) -> None:
    listener: Any = SimpleNamespace(getsockname=lambda: (host, port, 0, 0))
    assert _serve_http._url(listener, _serve_http.HttpOptions(host, port, cert=cert)) == url


@for_each(
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
