"""A stored login on each request: renewed before its end and in nobody's way. Which servers may have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx2
import pytest
from tests.actors.sample_login import HEADERS, OURS, TOKENS, put
from tests.support import in_real_time, in_virtual_time
from tests.support.rows import for_each

from greenroom.actors.login import login_auth, token_endpoint
from greenroom.actors.login.login_auth import StoredLogin, may_log_in, oauth_of
from greenroom.actors.login.login_record import AuthorizationServerDown, Login, LoginFailed
from greenroom.actors.login.login_store import LoginStore
from greenroom.config.credentials import SecretValue
from greenroom.config.model import ServerDefinition


class Clock:
    """The time of day, as the test says it."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time


class Endpoint:
    """Forms that were posted; each gets the next answer, the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = [*answers]
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        monkeypatch.setattr(token_endpoint, "post", self._post)

    def _post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Any:
        self.asked.append((url, {**form}, {**headers}))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoginStore:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return LoginStore(tmp_path / "logins")


class Requests:
    """A connection with a stored login. `said`: the token of each request; `learned`: what no text may show."""

    def __init__(self, store: LoginStore, obtain: Callable[[str | None], Login] | None = None) -> None:
        self.learned: list[SecretValue] = []
        self.auth = StoredLogin(store, "s", "http://h/mcp", HEADERS, self.learned.extend, obtain)

    async def ask(self, *statuses: int) -> list[str | None]:
        """The tokens that one request was sent with, when it is answered by these statuses."""
        said: list[str | None] = []
        flow = self.auth.async_auth_flow(httpx2.Request("POST", "http://h/mcp"))
        try:
            request = await anext(flow)
            for status in statuses:
                said.append(request.headers.get("authorization"))
                request = await flow.asend(httpx2.Response(status))
        except StopAsyncIteration:
            return said
        finally:
            await flow.aclose()
        raise AssertionError("it is sent once more")


@in_real_time
async def test_the_login_is_read_once_and_without_one_nothing_is_said(store: LoginStore) -> None:
    requests = Requests(store)
    assert await requests.ask(200) == [None]
    put(store, OURS)
    assert await requests.ask(200) == [None], "it is not read for each request"
    assert await requests.ask(401, 200) == [None, "Bearer access"], "but where one is asked for"


@pytest.mark.parametrize(
    ("left", "down", "tokens", "asked"),
    [
        (31.0, False, ["Bearer access"], 0),
        (29.0, False, ["Bearer new"], 1),
        (-1.0, False, ["Bearer new"], 1),
        (29.0, True, ["Bearer access"], 1),
        (-1.0, True, None, 1),
        (None, False, ["Bearer access"], 0),
    ],
)
@in_real_time
async def test_a_token_is_renewed_shortly_before_its_end_and_used_up_to_it(
    left: float | None,
    down: bool,
    tokens: list[str] | None,
    asked: int,
    store: LoginStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(login_auth, "time", Clock(lambda: now))
    put(store, attrs.evolve(OURS, expires_at=None if left is None else now + left))
    endpoint = Endpoint(monkeypatch, AuthorizationServerDown("it is down") if down else (200, TOKENS))
    if tokens is None:
        with pytest.raises(httpx2.TransportError, match="it is down"):
            await Requests(store).ask(200)
    else:
        assert await Requests(store).ask(200) == tokens
    assert len(endpoint.asked) == asked


class Ending:
    """A connection whose token ends 100 virtual seconds after the start, and a renewal that takes `takes`
    seconds. `begun`: when it was asked to renew."""

    def __init__(self, store: LoginStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.takes = 0.0
        self.begun: list[float] = []
        monkeypatch.setattr(login_auth, "apart", self._apart)
        monkeypatch.setattr(login_auth, "time", Clock(anyio.current_time))
        put(store, attrs.evolve(OURS, expires_at=100.0))
        self._requests = Requests(store)

    async def _apart(self, work: Callable[[], Any]) -> Any:
        self.begun.append(anyio.current_time())
        await anyio.sleep(self.takes)
        return work()

    async def ask_at(self, when: float, *statuses: int) -> tuple[float, list[str | None]]:
        """When the request was answered, and with which tokens it was sent."""
        await anyio.sleep(when - anyio.current_time())
        said = await self._requests.ask(*statuses)
        return anyio.current_time(), said


@in_virtual_time
async def test_a_token_that_is_valid_waits_for_no_authorization_server_that_hangs(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Endpoint(monkeypatch, AuthorizationServerDown("it hangs"))
    old = ["Bearer access"]
    ending = Ending(store, monkeypatch)
    assert await ending.ask_at(1.0, 200) == (1.0, old)
    ending.takes = 20.0
    ending.begun.clear()
    answers: list[Any] = []

    async def ask(when: float) -> None:
        answers.append(await ending.ask_at(when, 200))

    async with anyio.create_task_group() as tasks:
        for when in (75.0, 75.0, 75.0, 76.0, 78.0, 96.0):
            tasks.start_soon(ask, when)
    assert answers == [(77.0, old)] * 4 + [(78.0, old), (96.0, old)]
    assert ending.begun == [75.0], "one asks, and it is not asked again while it may still work on that"
    assert await ending.ask_at(98.0, 200) == (99.0, old), "half of the time that the token has is spent on it"
    assert await ending.ask_at(99.5, 200) == (99.5, old)
    with pytest.raises(httpx2.TransportError, match="it hangs"):
        await ending.ask_at(100.0, 200)
    assert anyio.current_time() == 120.0
    assert ending.begun == [75.0, 98.0, 100.0]


@in_virtual_time
async def test_a_renewal_that_failed_is_tried_again_after_a_pause_or_when_the_token_is_refused(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = AuthorizationServerDown("it is down")
    endpoint = Endpoint(monkeypatch, down, down, down, (200, {**TOKENS, "expires_in": 1000}))
    old = ["Bearer access"]
    ending = Ending(store, monkeypatch)
    for when, asked in ((1.0, 0), (71.0, 1), (72.0, 1), (75.5, 1), (76.0, 2), (77.0, 2)):
        assert await ending.ask_at(when, 200) == (when, old)
        assert len(endpoint.asked) == asked
    with pytest.raises(httpx2.TransportError, match="it is down"):
        await ending.ask_at(80.0, 401)
    assert await ending.ask_at(84.0, 200) == (84.0, old), "that was a try, too"
    assert len(endpoint.asked) == 3
    assert await ending.ask_at(84.5, 401, 200) == (84.5, [*old, "Bearer new"])
    assert await ending.ask_at(101.0, 200) == (101.0, ["Bearer new"])
    assert len(endpoint.asked) == 4


@in_real_time
async def test_of_many_requests_that_are_refused_one_renews(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, OURS)
    endpoint = Endpoint(monkeypatch, (200, TOKENS), pytest.fail.Exception("twice"))
    requests = Requests(store)
    found: list[Any] = []

    async def ask() -> None:
        found.append(await requests.ask(401, 200))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert found == [["Bearer access", "Bearer new"]] * 5
    assert len(endpoint.asked) == 1


@in_real_time
async def test_a_client_that_needs_no_person_obtains_a_login_and_says_which_it_replaces(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str | None] = []
    own = Login("s", "http://h/mcp", "own", grant="client_credentials", id="own-id")

    def obtain(replaces: str | None) -> Login:
        replaced.append(replaces)
        return put(store, attrs.evolve(own, access_token=f"own-{len(replaced)}"))

    requests = Requests(store, obtain)
    assert await requests.ask(200) == ["Bearer own-1"]
    assert await requests.ask(401, 200) == ["Bearer own-1", "Bearer own-2"]
    assert replaced == [None, "own-id"]
    later = Requests(store, obtain)
    assert await later.ask(200) == ["Bearer own-2"], "what is stored already is used"
    assert len(replaced) == 2


@for_each(
    ("more", "may"),
    [
        ({}, True),
        ({"url": None, "command": "x"}, False),
        ({"auth": False}, False),
        ({"oauth": False}, False),
        ({"auth": "oauth", "headers": {"Authorization": "x"}}, True),
        ({"oauth": {}, "headers": {"Authorization": "x"}}, True),
        ({"headers": {"AUTHORIZATION": "x"}}, False),
        ({"headers": {"X-Authorization": "x"}}, True),
        ({"auth": "oauth", "oauth": False}, False),
    ],
)
def test_which_servers_may_have_a_login(more: dict[str, Any], may: bool) -> None:
    values: dict[str, Any] = {"url": "http://h", **more}
    assert may_log_in(ServerDefinition("s", **values)) is may


def test_what_oauth_says_is_expanded_and_nothing_in_it_may_be_empty() -> None:
    said = {"clientId": " ${ID} ", "authorizationParams": {"audience": "${ID}!"}}
    definition = ServerDefinition("s", url="http://h", oauth=said)
    assert oauth_of(definition, {"ID": "me"}) == {
        "clientId": "me",
        "authorizationParams": {"audience": "me!"},
    }
    with pytest.raises(LoginFailed, match=r'"oauth\.clientId" is empty'):
        oauth_of(definition, {"ID": " "})
    assert oauth_of(ServerDefinition("s", url="http://h"), {}) == {}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("MCP_OAUTH_DIR", "PI_CODING_AGENT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return tmp_path


def test_only_a_server_that_has_a_login_or_can_get_one_pays_for_it(home: Path) -> None:
    def auth(**more: Any) -> Any:
        return login_auth.auth_for(ServerDefinition("s", url="http://h", **more), {}, lambda _: None)

    assert auth() is None
    assert isinstance(auth(oauth={"grantType": "client_credentials"}), StoredLogin)
    login_auth.keep(Login("s", "http://h", "token"))
    assert isinstance(auth(), StoredLogin)
    assert auth(auth=False) is None
    assert login_auth.auth_for(ServerDefinition("other", url="http://h"), {}, lambda _: None) is None
