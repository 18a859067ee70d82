"""T23 at the HTTP door: behind it a server that wants a login. Its clients are told what to do, a finished login is
noticed, and it is renewed once for all of them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.actors.test_login import logged_in
from tests.gateway.test_http_serve import Served, call, served
from tests.support import run
from tests.support.auth_server import AuthServer, auth_server
from tests.support.gateway import PATIENCE
from tests.support.stdio import until

STEP = re.compile(r"greenroom auth --config \S+ raw\b")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the gateway and of the person who logs in; there is no keyring in it."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return tmp_path


def page(one: Served, path: str) -> httpx2.Response:
    return one.http.get(one.url.replace("/mcp", path))


def row(one: Served) -> Any:
    (found,) = page(one, "/status").json()["servers"]
    return found


def log_in_at(stage: AuthServer) -> None:
    async def body() -> None:
        await logged_in(stage)

    run("asyncio", body)


@pytest.mark.parametrize("isolation", ["per_session", "persistent"])
def test_t23_a_server_that_needs_a_login_says_so_and_a_login_is_noticed_and_renewed_once(
    tmp_path: Path, isolation: str
) -> None:
    with auth_server() as stage, served(tmp_path, {"raw": {"url": stage.url}}, isolation=isolation) as one:
        people = [one.session() for _ in range(2)]
        for session in people:
            refused = one.post(call("raw_ok"), **session).text
            assert STEP.search(refused)
        assert page(one, "/health/all").status_code == 503
        assert (row(one)["status"], row(one)["needsAuth"]) == ("needs-auth", True)
        assert STEP.search(row(one)["down"])
        knocked = stage.refused
        for _ in range(5):
            for session in people:
                assert STEP.search(one.post(call("raw_ok"), **session).text)
        assert stage.refused == knocked  # nobody tries again what was refused

        log_in_at(stage)

        async def noticed() -> None:
            assert await until(lambda: page(one, "/health/all").status_code == 200)
            assert row(one)["needsAuth"] is False

        run("asyncio", noticed)
        for session in people:
            assert '"ok"' in one.post(call("raw_ok"), **session).text

        stage.expire()
        answers: list[str] = []

        def call_once(number: int) -> None:
            message = {**call("raw_ok"), "id": 10 + number}
            answers.append(one.post(message, **people[number % 2]).text)

        callers = [threading.Thread(target=call_once, args=(number,)) for number in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(PATIENCE)
        assert [answer for answer in answers if '"ok"' not in answer] == []
        assert len(answers) == 8
        assert stage.grants == ["authorization_code", "refresh_token"]
        one.process.terminate()
        assert one.process.wait(PATIENCE) == 0
        assert "secret-" not in one.log.read_text()
