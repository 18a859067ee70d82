"""The parts of a login, each by itself: what is sent where, what an answer means, and what is kept of it.

Whole logins against an authorization server are in `test_login`.
"""

from __future__ import annotations

import base64
import json
import logging
import stat
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import httpx2
import pytest
from tests.support import in_real_time, in_virtual_time, run_virtual
from tests.support.loops import on_asyncio

from greenroom.actors.login import logins, token_endpoint
from greenroom.actors.login import oauth as _sdk
from greenroom.actors.login.login_record import Login, LoginFailed, Unreachable, login_of, usable
from greenroom.actors.login.login_store import LoginStore, pi_agent, pi_folder, pi_login
from greenroom.actors.login.logins import StoredLogin, may_log_in, oauth_of
from greenroom.actors.login.token_endpoint import (
    as_client,
    is_safe,
    of_configuration,
    post,
    refusal,
    renew,
    revoke,
    without_credentials,
)
from greenroom.config.model import ServerDefinition
from greenroom.config.secrets import Hidden

HERE = "http://127.0.0.1:9/token"
OURS = Login(
    "s",
    "http://h/mcp",
    "access",
    token_endpoint=HERE,
    revocation_endpoint="http://127.0.0.1:9/revoke",
    client_id="me",
    refresh_token="refresh",
    scope="a b",
    resource="http://h/mcp",
)
HEADERS = {"X-Tenant": "stage", "Authorization": "Basic abc", "Cookie": "c=1", "Host": "h"}
TOKENS = {"access_token": "new", "token_type": "Bearer", "expires_in": 60}


# ---- forms and their answers ----------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Generator[tuple[str, list[Any]]]:
    """A server with one answer to everything; its URL, and what was asked."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["content-length"])).decode()
            seen.append((self.path, form, {name.lower(): text for name, text in self.headers.items()}))
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_form_is_posted_with_what_is_configured_and_asks_for_json() -> None:
    with answering(200, b'{"a": 1}') as (url, seen):
        assert post(url, {"grant_type": "x y", "b": "&"}, {"X-Tenant": "stage"}) == (200, {"a": 1})
    ((path, form, headers),) = seen
    assert (path, form) == ("/token", "grant_type=x+y&b=%26")
    assert headers["x-tenant"] == "stage"
    assert (headers["accept"], headers["accept-encoding"]) == ("application/json", "identity")
    assert headers["user-agent"].startswith("greenroom/")
    assert headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"[]", {}),
        (200, b"<p>", {}),
        (400, b'{"error": "x"}', {"error": "x"}),
        (428, b"", {}),
        (499, b"{}", {}),
        (307, b"{}", {}),
        (429, b'{"error": "x"}', None),
        (500, b'{"error": "x"}', None),
        (503, b"", None),
    ],
)
def test_only_a_server_in_trouble_has_not_answered(status: int, body: bytes, said: Any) -> None:
    with answering(status, body, Location="/elsewhere") as (url, seen):
        if said is None:
            with pytest.raises(Unreachable, match=rf"127\.0\.0\.1 is out of order \(HTTP {status}\)"):
                post(url, {}, {})
        else:
            assert post(url, {}, {}) == (status, said)
    assert len(seen) == 1, "no redirect is followed"


def test_an_answer_has_a_bound_and_one_that_is_packed_says_nothing() -> None:
    text = json.dumps({"a": "x" * ((1 << 20) - 9)}).encode()
    assert len(text) == 1 << 20
    with answering(200, text) as (url, _):
        assert post(url, {}, {})[1].keys() == {"a"}
    with (
        answering(200, text + b" ") as (url, _),
        pytest.raises(LoginFailed, match="answered with too much") as caught,
    ):
        post(url, {}, {})
    assert not isinstance(caught.value, Unreachable)
    with answering(200, b'{"a": 1}', Content_Encoding="gzip") as (url, _):
        assert post(url, {}, {}) == (200, {})


def test_a_server_that_is_not_there_is_named_and_so_is_one_that_others_may_hear() -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1 cannot be reached \(ConnectError\)"):
        post("http://127.0.0.1:9/token", {}, {})
    with pytest.raises(LoginFailed, match=r"auth\.test is not reached over https") as caught:
        post("http://auth.test/token", {}, {})
    assert not isinstance(caught.value, Unreachable)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://h/x", True),
        ("http://h/x", False),
        ("http://localhost:1/x", True),
        ("http://127.0.0.1/x", True),
        ("http://[::1]:8/x", True),
        ("http://127.0.0.2/x", False),
        ("http://localhost.evil/x", False),
        ("ftp://localhost/x", False),
        ("localhost", False),
    ],
)
def test_a_secret_goes_over_tls_or_to_this_machine(url: str, safe: bool) -> None:
    assert is_safe(url) is safe


def test_configured_headers_go_along_but_those_that_are_for_the_server_alone() -> None:
    kept_back = {
        "authorization": "a",
        "COOKIE": "b",
        "Proxy-Authorization": "c",
        "Host": "d",
        "Content-Type": "e",
    }
    assert of_configuration({**kept_back, "X-Tenant": "stage"}) == {"X-Tenant": "stage"}
    definition = ServerDefinition("s", url="http://h", headers={"X-Tenant": "stage", "Cookie": "c=1"})
    bare = without_credentials(definition)
    assert (bare.headers, bare.url) == ({"X-Tenant": "stage"}, "http://h")


@pytest.mark.parametrize(
    ("secret", "method", "form", "header"),
    [
        (None, None, {}, None),
        (None, "client_secret_post", {}, None),
        ("p/w &", "none", {}, None),
        ("p/w &", "client_secret_basic", {}, "m%2Fe:p%2Fw%20%26"),
        ("p/w &", "client_secret_post", {"client_secret": "p/w &"}, None),
        ("p/w &", None, {"client_secret": "p/w &"}, None),
    ],
)
def test_a_client_says_who_it_is_in_the_way_it_was_registered_for(
    secret: str | None, method: str | None, form: dict[str, str], header: str | None
) -> None:
    login = attrs.evolve(OURS, client_id="m/e", client_secret=secret, auth_method=method)
    said = {"grant_type": "x"}
    headers = as_client(login, said)
    assert said == {"grant_type": "x", "client_id": "m/e", **form}
    expected = header and f"Basic {base64.b64encode(header.encode()).decode()}"
    assert headers == ({} if header is None else {"Authorization": expected})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("invalid_grant", "HTTP 400, invalid_grant"),
        ("x" * 60, f"HTTP 400, {'x' * 60}"),
        ("x" * 61, "HTTP 400"),
        ("the token abc", "HTTP 400"),
        ("", "HTTP 400"),
        (5, "HTTP 400"),
        (None, "HTTP 400"),
    ],
)
def test_of_a_refusal_only_its_code_is_said(error: Any, said: str) -> None:
    assert refusal({"error": error, "error_description": "planted"}, 400) == said


# ---- the record -----------------------------------------------------------------------------------------------------


def test_no_secret_of_a_login_is_shown_with_it() -> None:
    login = Login("s", "u", "planted-1", refresh_token="planted-2", client_secret="planted-3")
    assert "planted" not in repr(login)


@pytest.mark.parametrize(
    ("kept", "is_over"),
    [
        ({}, False),
        ({"expires_at": 100.0}, True),
        ({"expires_at": 100.1}, False),
        ({"expires_at": 0.0}, True),
        ({"expires_at": 1.0, "grant": "client_credentials"}, False),
        ({"expires_at": 1.0, "refresh_token": "r", "token_endpoint": "t"}, False),
        ({"expires_at": 1.0, "refresh_token": "r"}, True),
        ({"expires_at": 1.0, "token_endpoint": "t"}, True),
    ],
)
def test_a_login_is_over_when_only_a_person_can_help(kept: dict[str, Any], is_over: bool) -> None:
    assert Login("s", "u", "t", **kept).is_over(100.0) is is_over


@pytest.mark.parametrize(
    ("answer", "expires_at", "scope"),
    [
        ({"expires_in": 60}, 160.0, "a b"),
        ({"expires_in": 0.5, "scope": "c"}, 100.5, "c"),
        ({"expires_in": 0}, None, "a b"),
        ({"expires_in": -5, "scope": 5}, None, "a b"),
        ({"expires_in": "60", "scope": None}, None, "a b"),
        ({"token_type": "BEARER"}, None, "a b"),
        ({"token_type": None, "scope": ""}, None, ""),
        *[({"refresh_token": odd}, None, "a b") for odd in ("next", "", None, 5)],
    ],
)
def test_an_answer_says_until_when_and_for_what_its_token_is(
    answer: dict[str, Any], expires_at: float | None, scope: str
) -> None:
    new = attrs.evolve(OURS, expires_at=5.0).renewed({"access_token": "t", **answer}, 100.0)
    assert (new.access_token, new.expires_at, new.scope) == ("t", expires_at, scope)
    assert new.refresh_token == ("next" if answer.get("refresh_token") == "next" else "refresh")
    assert (new.made, new.client_id, new.id == OURS.id) == (OURS.made, "me", False)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"access_token": None},
        {"access_token": 5},
        {"access_token": ""},
        {"access_token": "a b"},
        {"access_token": "a\nb"},
        {"access_token": "ü"},
        {"access_token": "t", "token_type": "mac"},
    ],
)
def test_an_answer_without_a_bearer_token_that_a_header_can_say_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed, match="without a bearer token"):
        OURS.renewed(answer, 100.0)
    assert usable("a-token")


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Login)])
def test_a_stored_login_with_a_field_of_another_kind_is_none_of_ours(name: str) -> None:
    values = {**attrs.asdict(OURS), "expires_at": 5, "of_a_later_version": 1}
    assert login_of(values) == attrs.evolve(OURS, expires_at=5)
    for wrong in ([5], {}, True) if name != "expires_at" else ("5", [5]):
        with pytest.raises(LoginFailed, match="not one of ours"):
            login_of({**values, name: wrong})
    if name in ("server", "url", "access_token"):
        with pytest.raises(LoginFailed, match="lacks its token"):
            login_of({each: value for each, value in values.items() if each != name})


# ---- the device flow ------------------------------------------------------------------------------------------------

PAGE = {"verification_uri": "https://h/enter", "user_code": "AB", "device_code": "d1"}


class Device:
    """The authorization server of a device flow, in virtual time: its answers in order; what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: Any, *further: Any) -> None:
        self.answers = [first, *further]
        self.asked: list[tuple[float, str, dict[str, str], dict[str, str]]] = []
        self.shown: list[Any] = []
        monkeypatch.setattr(token_endpoint, "apart", self._at_once)
        monkeypatch.setattr(token_endpoint, "post", self._post)
        monkeypatch.setattr(token_endpoint, "time", SimpleNamespace(time=lambda: 1_000.0))

    async def _at_once(self, work: Callable[[], Any]) -> Any:
        return work()

    def _post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Any:
        self.asked.append((round(anyio.current_time(), 3), url, {**form}, {**headers}))
        assert len(self.asked) < 50, "it asks without a pause"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def login(self, backend: str, login: Login = OURS) -> Login:
        async def main() -> Login:
            return await token_endpoint.device_login(
                "http://127.0.0.1:9/device", login, HEADERS, lambda *said: self.shown.append(said)
            )

        return run_virtual(backend, main)

    @property
    def times(self) -> list[float]:
        return [when for when, *_ in self.asked[1:]]


PENDING = (400, {"error": "authorization_pending"})


@pytest.mark.parametrize(
    ("said", "times"),
    [
        ({"interval": 2, "expires_in": 7}, [2, 4, 6, 8]),
        ({"interval": 200}, [200, 400, 600]),
        ({"interval": 400, "expires_in": 5_000}, [400, 800, 1200, 1600, 2000]),
        ({"interval": 0, "expires_in": 9}, [5, 10]),
        ({"interval": -1, "expires_in": 9}, [5, 10]),
        ({"interval": "2", "expires_in": 9}, [5, 10]),
        ({"interval": 86_400, "expires_in": 9}, [5, 10]),
        ({"interval": 300, "expires_in": "9"}, [300, 600]),
        ({"interval": 300, "expires_in": 0}, [300, 600]),
    ],
)
def test_a_code_that_nobody_enters_is_given_up_at_its_end(
    backend: str, said: dict[str, Any], times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, (200, {**PAGE, **said}), PENDING)
    with pytest.raises(LoginFailed, match="not entered in time"):
        device.login(backend)
    assert device.times == times


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, {**PAGE, "error": "invalid_client"}), r"refused the device flow \(HTTP 400, invalid_client\)"),
        ((201, PAGE), r"refused the device flow \(HTTP 201\)"),
        *[((200, {**PAGE, name: 5}), r"refused the device flow \(HTTP 200\)") for name in PAGE],
    ],
)
def test_a_device_flow_that_is_refused_shows_no_code(
    backend: str, answer: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, answer)
    with pytest.raises(LoginFailed, match=words):
        device.login(backend)
    assert (device.shown, len(device.asked)) == ([], 1)


def test_a_device_that_is_refused_is_told_why_and_asks_no_more(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, (200, PAGE), PENDING, (403, {"error": "access_denied"}))
    with pytest.raises(LoginFailed, match=r"the authorization server refused \(HTTP 403, access_denied\)"):
        device.login(backend)
    assert device.times == [5.0, 10.0]


# ---- renewing and revoking ------------------------------------------------------------------------------------------


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


def put(store: LoginStore, login: Login) -> Login:
    with store.locked(login.server, login.url):
        return store.save(login, None)


def test_a_renewal_is_made_by_the_only_one_who_may_write(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, held = put(store, OURS), list[bool]()

    class Watched(LoginStore):
        @contextmanager
        def locked(self, server: str, url: str) -> Generator[None]:
            held.append(True)
            with super().locked(server, url):
                yield
            held.append(False)

    Endpoint(monkeypatch, (200, TOKENS))
    watched = Watched(store.folder)
    monkeypatch.setattr(
        token_endpoint, "post", lambda *_: (200, TOKENS) if held == [True] else pytest.fail("unlocked")
    )
    assert renew(watched, old, {}) is not None
    assert held == [True, False]


def test_revoking_says_who_asks_and_stops_at_the_first_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    basic = attrs.evolve(OURS, client_secret="pw", auth_method="client_secret_post")
    endpoint = Endpoint(monkeypatch, (200, {}))
    assert revoke(basic, HEADERS) is None
    us = {"client_id": "me", "client_secret": "pw"}
    where, headers = "http://127.0.0.1:9/revoke", {"X-Tenant": "stage"}
    assert endpoint.asked == [
        (where, {"token": "refresh", "token_type_hint": "refresh_token", **us}, headers),
        (where, {"token": "access", "token_type_hint": "access_token", **us}, headers),
    ]
    endpoint = Endpoint(monkeypatch, (200, {}))
    assert revoke(attrs.evolve(basic, refresh_token=None), HEADERS) is None
    assert [form["token"] for _, form, _ in endpoint.asked] == ["access"]
    for answer, why in (
        ((400, {"error": "invalid_client"}), "the authorization server refused (HTTP 400, invalid_client)"),
        ((204, {}), "the authorization server refused (HTTP 204)"),
        (Unreachable("it is down"), "it is down"),
    ):
        endpoint = Endpoint(monkeypatch, answer)
        assert revoke(basic, HEADERS) == why
        assert len(endpoint.asked) == 1
    no_way = revoke(attrs.evolve(OURS, revocation_endpoint=None), HEADERS)
    assert no_way == "the authorization server has no way to revoke a token"
    assert len(endpoint.asked) == 1


# ---- a login on each request ----------------------------------------------------------------------------------------


class Requests:
    """A connection with a stored login. `said`: the token of each request; `learned`: what no text may show."""

    def __init__(self, store: LoginStore, obtain: Callable[[str | None], Login] | None = None) -> None:
        self.learned: list[Hidden] = []
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
    monkeypatch.setattr(logins, "time", SimpleNamespace(time=lambda: now))
    put(store, attrs.evolve(OURS, expires_at=None if left is None else now + left))
    endpoint = Endpoint(monkeypatch, Unreachable("it is down") if down else (200, TOKENS))
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
        monkeypatch.setattr(logins, "apart", self._apart)
        monkeypatch.setattr(logins, "time", SimpleNamespace(time=anyio.current_time))
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
    Endpoint(monkeypatch, Unreachable("it hangs"))
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
    down = Unreachable("it is down")
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


# ---- who may have a login -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
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
        return logins.auth_for(ServerDefinition("s", url="http://h", **more), {}, lambda _: None)

    assert auth() is None
    assert isinstance(auth(oauth={"grantType": "client_credentials"}), StoredLogin)
    logins.keep(Login("s", "http://h", "token"))
    assert isinstance(auth(), StoredLogin)
    assert auth(auth=False) is None
    assert logins.auth_for(ServerDefinition("other", url="http://h"), {}, lambda _: None) is None


@on_asyncio
@in_real_time
async def test_a_client_obtains_its_login_in_place_of_the_one_that_was_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def obtained(_store: Any, definition: ServerDefinition, oauth: Any, replaces: str | None) -> Login:
        asked.append((definition.name, oauth, replaces))
        return Login("s", "http://h", "got")

    monkeypatch.setattr(_sdk, "obtained", obtained)
    said = {"grantType": "client_credentials", "clientId": "${ID}"}
    definition = ServerDefinition("s", url="http://h", oauth=said, headers=HEADERS)
    learned: list[Hidden] = []
    auth = logins.auth_for(definition, {"ID": "me"}, learned.extend)
    flow = auth.async_auth_flow(httpx2.Request("POST", "http://h"))
    request = await anext(flow)
    assert request.headers["authorization"] == "Bearer got"
    await flow.aclose()
    assert auth._headers == HEADERS
    expanded = {"grantType": "client_credentials", "clientId": "me"}
    assert asked == [("s", expanded, None)]
    assert learned == [Hidden("token", "got", known=True)]
    kept = logins.keep(Login("s", "http://h", "kept"))
    assert logins.obtain(definition, expanded).access_token == "got"
    assert asked[1:] == [("s", expanded, kept.id)]


def test_logging_out_sends_the_configured_headers_and_forgets_even_what_cannot_be_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(monkeypatch, (200, {}))
    definition = ServerDefinition("s", url="http://h/mcp", headers=HEADERS)
    logins.keep(OURS)
    assert logins.log_out(definition) == (True, None)
    assert [headers for *_, headers in endpoint.asked] == [{"X-Tenant": "stage"}] * 2
    logins.keep(OURS)
    logins.logins().path("s", "http://h/mcp").write_text("{")
    there, problem = logins.log_out(definition)
    assert (there, problem) == (True, "a stored login cannot be read")
    assert logins.log_out(definition) == (False, None)


# ---- where it is kept -----------------------------------------------------------------------------------------------


def test_a_login_has_its_own_file_for_each_server_and_url(store: LoginStore) -> None:
    assert store.path("ab", "c") != store.path("a", "bc")
    assert store.path("a\n", "b") == store.path("a\n", "b")
    assert store.path("a", "b").parent == store.folder


def test_a_file_of_another_server_is_no_login_of_this_one(store: LoginStore) -> None:
    put(store, OURS)
    store.path("s", "http://h/mcp").rename(store.path("s", "http://h/other"))
    assert store.load("s", "http://h/other") is None
    store.path("s", "http://h/other").rename(store.path("other", "http://h/mcp"))
    assert store.load("other", "http://h/mcp") is None


def test_what_is_kept_has_a_stamp_that_changes_with_it_and_a_lock_that_is_ours(store: LoginStore) -> None:
    assert (store.stamp("s", "http://h/mcp"), store.may_have("s", "http://h/mcp")) == (None, False)
    put(store, OURS)
    stamps = {store.stamp("s", "http://h/mcp")}
    assert store.may_have("s", "http://h/mcp")
    put(store, attrs.evolve(OURS, access_token="ACCESS"))
    stamps.add(store.stamp("s", "http://h/mcp"))
    assert len(stamps) == 2, "of the same size"
    modes = {file.suffix: stat.S_IMODE(file.stat().st_mode) for file in store.folder.iterdir()}
    assert modes == {".json": 0o600, ".lock": 0o600}, "and nothing else is left there"


def test_a_login_that_cannot_be_written_leaves_the_older_one_and_no_half_of_it(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(store, OURS)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("greenroom.actors.login.login_store.os.fsync", full)
    with pytest.raises(LoginFailed, match=r"logins cannot be kept in .*: No space left on device"):
        put(store, attrs.evolve(OURS, access_token="never"))
    monkeypatch.undo()
    assert store.load("s", "http://h/mcp") == old
    assert {file.suffix for file in store.folder.iterdir()} == {".json", ".lock"}


def test_who_waits_too_long_for_another_process_is_told(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.actors.login.login_store._LOCK_WITHIN", 0.01)
    with (
        store.locked("s", "u"),
        pytest.raises(LoginFailed, match="another process has been changing the login for a minute"),
        store.locked("s", "u"),
    ):
        raise AssertionError("both have it")


# ---- pi's -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "named", "folder"),
    [
        ({}, None, "~/.pi/agent/mcp-oauth"),
        ({}, " ", "~/.pi/agent/mcp-oauth"),
        ({}, " /named ", "/named"),
        ({"MCP_OAUTH_DIR": " /said "}, "/named", "/said"),
        ({"MCP_OAUTH_DIR": " "}, "~/named", "~/named"),
        ({"PI_CODING_AGENT_DIR": "/agent"}, None, "/agent/mcp-oauth"),
    ],
)
def test_where_pi_keeps_its_logins(environ: dict[str, str], named: str | None, folder: str) -> None:
    assert pi_folder(environ, named) == Path(folder).expanduser()
    assert pi_agent(environ) == Path(environ.get("PI_CODING_AGENT_DIR", "~/.pi/agent")).expanduser()


def test_a_login_of_pi_is_its_token_with_what_pi_knows_of_it() -> None:
    tokens = {"accessToken": "t", "issuer": "https://i", "scope": "a", "expiresAt": 5, "refreshToken": "no"}
    entry = {"serverUrl": "http://h", "tokens": tokens}
    found = pi_login(json.dumps(entry), "s", "http://h")
    again = pi_login(json.dumps(entry).encode(), "s", "http://h")
    assert found is not None
    assert again == found, "the same login has the same id whenever it is read"
    kept = attrs.asdict(found)
    assert kept["made"] == kept["id"] != "t"
    assert {name: value for name, value in kept.items() if value and name not in ("made", "id")} == {
        "server": "s",
        "url": "http://h",
        "access_token": "t",
        "issuer": "https://i",
        "grant": "pi",
        "scope": "a",
        "expires_at": 5,
    }
    other = pi_login(json.dumps({**entry, "tokens": {"accessToken": "t2"}}), "s", "http://h")
    assert other is not None
    assert (other.issuer, other.scope, other.made == found.made) == ("", None, False)
    for wrong in (
        {"tokens": tokens},
        {**entry, "serverUrl": None},
        {**entry, "tokens": {"accessToken": "a b"}},
    ):
        assert pi_login(json.dumps(wrong), "s", "http://h") is None


# ---- through the SDK ------------------------------------------------------------------------------------------------


class Shown:
    """A person who sees pages and answers this."""

    redirect_uri = "http://127.0.0.1:9/callback"
    prefers_device = insists_on_device = False

    def __init__(self, **answer: str) -> None:
        self.pages: list[str] = []
        self.said = answer

    async def send_to(self, url: str) -> None:
        self.pages.append(url)

    async def answer(self) -> Mapping[str, str]:
        return self.said

    def show_code(self, url: str, code: str, complete: str | None) -> None:
        raise NotImplementedError


@on_asyncio
@in_real_time
async def test_a_page_keeps_its_own_parameters_and_gets_those_of_the_configuration() -> None:
    person = Shown()
    asked = _sdk._Asked(person, {"authorizationParams": {"audience": "stage", "prompt": "login"}}, None)
    await asked.redirect("https://h/authorize?tenant=a&empty=?prompt=none&state=S")
    assert httpx2.QueryParams(person.pages[0].partition("?")[2]).multi_items() == [
        *[("tenant", "a"), ("empty", ""), ("prompt", "login"), ("state", "S"), ("audience", "stage")]
    ]
    assert person.pages[0].startswith("https://h/authorize?tenant=a")
    with pytest.raises(LoginFailed, match="page for a login is not reached over https"):
        await asked.redirect("http://h/authorize?state=S")
    assert len(person.pages) == 1


@on_asyncio
@in_real_time
async def test_the_answer_of_a_page_is_passed_on_whole_and_a_refusal_only_by_its_code() -> None:
    found = await _sdk._Asked(Shown(code="C", state="S", iss="https://i"), {}, None).callback()
    assert (found.code, found.state, found.iss) == ("C", "S", "https://i")
    for error, said in (
        ("access_denied", "refused: access_denied"),
        ("x" * 61, "refused"),
        ("planted token", "refused"),
        ("", "refused"),
    ):
        with pytest.raises(LoginFailed) as caught:
            await _sdk._Asked(Shown(error=error), {}, None).callback()
        assert str(caught.value) == f"the authorization server {said}"


@pytest.mark.parametrize(
    ("status", "said", "endpoint"),
    [
        (200, {"issuer": "i", "device_authorization_endpoint": "https://h/d"}, "https://h/d"),
        (200, {"issuer": "i", "device_authorization_endpoint": "http://h/d"}, None),
        (200, {"issuer": "i", "device_authorization_endpoint": 5}, None),
        (200, {"issuer": "i"}, None),
        (404, {"issuer": "i", "device_authorization_endpoint": "https://h/d"}, None),
        (200, {"resource": "r", "device_authorization_endpoint": "https://h/d"}, None),
        (200, [], None),
        (200, None, None),
    ],
)
def test_the_device_flow_is_found_in_the_servers_own_document(
    status: int, said: Any, endpoint: str | None
) -> None:
    flow = _sdk._Flow(None, ServerDefinition("s", url="https://h/mcp"), None)
    flow._read(httpx2.Response(status), b"{" if said is None else json.dumps(said).encode())
    assert flow.device_endpoint == endpoint


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("State parameter mismatch: S != T"), "the answer belongs to another login: start again"),
        (
            ValueError('Registration failed: 400 {"error": "planted"}'),
            "(ValueError: Registration failed: 400)",
        ),
        (ValueError("Failed: {planted}"), "(ValueError: Failed)"),
        (KeyError(), "the login failed (KeyError)"),
        (ValueError("x" * 300), f"(ValueError: {'x' * 200})"),
    ],
)
def test_what_the_provider_says_is_told_without_what_may_be_secret(error: Exception, words: str) -> None:
    said = _sdk._in_words(error)
    assert words in said
    assert "planted" not in said


class Provider:
    """Does to one request of ours what the test says."""

    def __init__(self, status: int = 200, error: Exception | None = None) -> None:
        self.status, self.error = status, error

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        if self.error is not None:
            logging.getLogger("mcp.client.auth.oauth2").error("OAuth flow error: planted")
            raise self.error
        yield request


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (LoginFailed("as it is"), LoginFailed, "^as it is$"),
        (httpx2.ConnectTimeout("planted"), Unreachable, r"a request of the login failed \(ConnectTimeout\)"),
        (RuntimeError("odd {planted}"), LoginFailed, r"the login failed \(RuntimeError: odd\)"),
        (None, LoginFailed, "the server refuses the new token, too"),
    ],
)
@on_asyncio
@in_real_time
async def test_a_login_through_the_sdk_fails_in_words_and_logs_nothing(
    error: Exception | None, kind: type[Exception], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(401, b"{}") as (url, seen):
        headers = {"X-Tenant": "stage", "Authorization": "Basic abc"}
        definition = ServerDefinition("s", url=url, headers=headers)
        with pytest.raises(kind, match=words) as caught:
            await _sdk._drive(definition, _sdk._Flow(Provider(error=error), definition, None))
        assert type(caught.value) is kind
        assert "planted" not in caplog.text
        logging.getLogger("mcp.client.auth.oauth2").error("of somebody else")
        assert "of somebody else" in caplog.text, "only ours are kept back"
        if error is None:
            ((_, body, said),) = seen
            assert json.loads(body)["method"] == "initialize"
            assert said["x-tenant"] == "stage"
            assert "authorization" not in said
            assert said["accept"] == "application/json, text/event-stream"
            assert said["mcp-protocol-version"] == json.loads(body)["params"]["protocolVersion"]


def test_what_another_process_has_obtained_meanwhile_is_taken_and_not_asked_for(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def by_credentials(definition: ServerDefinition, oauth: Any) -> Login:
        asked.append(oauth)
        return Login("s", "http://h/mcp", f"got-{len(asked)}")

    monkeypatch.setattr(_sdk, "_by_credentials", by_credentials)
    definition = ServerDefinition("s", url="http://h/mcp")

    def obtained(replaces: str | None) -> Login:
        return _sdk.obtained(store, definition, {"clientId": "me"}, replaces)

    first = obtained(None)
    assert store.load("s", "http://h/mcp") == first
    assert obtained(None) == first, "another one has it already"
    assert obtained("another") == first
    second = obtained(first.id)
    assert (first.access_token, second.access_token) == ("got-1", "got-2")
    assert store.load("s", "http://h/mcp") == second
    assert asked == [{"clientId": "me"}] * 2
