"""Forms to an authorization server, and what its answers mean: tokens, devices, revocation. Whole logins are in
`test_login`.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import attrs
import pytest
from tests.actors.sample_login import HEADERS, OURS
from tests.support import run_virtual
from tests.support.rows import for_each

from greenroom.actors.login import token_endpoint
from greenroom.actors.login.login_record import AuthorizationServerDown, Login, LoginFailed
from greenroom.actors.login.token_endpoint import (
    as_client,
    is_safe,
    of_configuration,
    post,
    refusal,
    revoke,
    without_credentials,
)
from greenroom.config.model import ServerDefinition


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


@for_each(
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
            with pytest.raises(
                AuthorizationServerDown, match=rf"127\.0\.0\.1 is out of order \(HTTP {status}"
            ):
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
    assert not isinstance(caught.value, AuthorizationServerDown)
    with answering(200, b'{"a": 1}', Content_Encoding="gzip") as (url, _):
        assert post(url, {}, {}) == (200, {})


def test_a_server_that_is_not_there_is_named_and_so_is_one_that_others_may_hear() -> None:
    with pytest.raises(AuthorizationServerDown, match=r"127\.0\.0\.1 cannot be reached \(ConnectError\)"):
        post("http://127.0.0.1:9/token", {}, {})
    with pytest.raises(LoginFailed, match=r"auth\.test is not reached over https") as caught:
        post("http://auth.test/token", {}, {})
    assert not isinstance(caught.value, AuthorizationServerDown)


@for_each(
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
        ("https://[bad", False),
        ("https://h:bad", False),
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


@for_each(
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


@for_each(
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


PAGE = {"verification_uri": "https://h/enter", "user_code": "AB", "device_code": "d1"}


class Clock:
    """The time of day, standing still."""

    def time(self) -> float:
        return 1_000.0


class Device:
    """The authorization server of a device flow, in virtual time: its answers in order; what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: Any, *further: Any) -> None:
        self.answers = [first, *further]
        self.asked: list[tuple[float, str, dict[str, str], dict[str, str]]] = []
        self.shown: list[Any] = []
        monkeypatch.setattr(token_endpoint, "apart", self._at_once)
        monkeypatch.setattr(token_endpoint, "post", self._post)
        monkeypatch.setattr(token_endpoint, "time", Clock())

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
        ({"interval": "2", "expires_in": 9}, [2, 4, 6, 8, 10]),
        ({"interval": 86_400, "expires_in": 9}, [5, 10]),
        ({"interval": 300, "expires_in": "9"}, [300]),
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


def test_revoking_says_who_asks_and_stops_at_the_first_refusal() -> None:
    basic = attrs.evolve(OURS, client_secret="pw", auth_method="client_secret_post")
    us = "client_id=me&client_secret=pw"
    for login, tokens in (
        (basic, ["token=refresh&token_type_hint=refresh_token", "token=access&token_type_hint=access_token"]),
        (attrs.evolve(basic, refresh_token=None), ["token=access&token_type_hint=access_token"]),
    ):
        with answering(200, b"{}") as (url, seen):
            assert revoke(attrs.evolve(login, revocation_endpoint=url), HEADERS) is None
        assert [form for _, form, _ in seen] == [f"{token}&{us}" for token in tokens]
        for _, _, headers in seen:
            assert headers["x-tenant"] == "stage"
            assert not {"authorization", "cookie"} & headers.keys()
    for status, body, why in (
        (400, b'{"error": "invalid_client"}', "the authorization server refused (HTTP 400, invalid_client)"),
        (204, b"", "the authorization server refused (HTTP 204)"),
    ):
        with answering(status, body) as (url, seen):
            assert revoke(attrs.evolve(basic, revocation_endpoint=url), HEADERS) == why
        assert len(seen) == 1
    there_is_nobody = revoke(attrs.evolve(basic, revocation_endpoint="http://127.0.0.1:9/"), HEADERS)
    assert there_is_nobody is not None
    assert "127.0.0.1 cannot be reached" in there_is_nobody
    no_way = revoke(attrs.evolve(OURS, revocation_endpoint=None), HEADERS)
    assert no_way == "the authorization server has no way to revoke a token"
