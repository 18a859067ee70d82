"""`greenroom serve --http` as a process: it answers, drains on a signal, and leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids, serve
from tests.support.http_door import ACCEPT, HELLO, NO_CERTIFICATES, request

from greenroom.gateway._cli._main import run
from greenroom.gateway._http_door import tokens_in
from greenroom.protocol.config import Settings
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
        (["--http", "127.0.0.1:0", "--tls-cert", "TOKENS"], "cannot be used"),
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
    settings = Settings(http_tokens={"ann": "${ANN}"}, http_token_profiles={"ann": "home"})
    file = tmp_path / "tokens"
    file.write_text("one-token-0123456789\nben token-of-ben-0123456789 work\n")
    found = tokens_in(settings, {"ANN": "token-of-ann-0123456789"}, file, "rest")
    assert [(token.name, token.profile) for token in found] == [
        ("ann", "home"),
        ("token-1", "rest"),
        ("ben", "work"),
    ]
    with pytest.raises(UsageError, match="ANN, which is not set"):
        tokens_in(settings, {}, None, None)
    file.write_text("ann token-of-ann-0123456789")
    with pytest.raises(UsageError, match="same name"):
        tokens_in(settings, {"ANN": "token-of-ann-0123456789"}, file, None)
    with pytest.raises(UsageError, match="not in tokens"):
        tokens_in(Settings(http_token_profiles={"ann": "home"}), {}, None, None)
