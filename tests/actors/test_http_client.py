"""One client over HTTP: how a fault, a refusal or a wanted login is said, and which headers it has."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.support.rows import for_each

from greenroom.actors.transports.http_client import make_client
from greenroom.actors.transports.http_faults import (
    BadAnswer,
    ExchangeBroken,
    LoginNeeded,
    SessionExpired,
    all_faults_told,
    faults_told,
    lacks_scope,
    login_in_words,
    media_type,
    refusal_in_words,
    status_in_words,
)
from greenroom.actors.transports.http_faults import said as said_of
from greenroom.config.model import ServerDefinition

KNOWN = [
    httpx2.ReadError("reset"),
    httpx2.StreamClosed(),
    httpx2.StreamConsumed(),
    httpx2.InvalidURL("bad"),
    httpx2.CookieConflict("two"),
    httpx2.TooManyRedirects("round"),
]


@for_each("error", KNOWN, ids=lambda error: type(error).__name__)
@for_each("told", [faults_told, all_faults_told])
def test_whatever_the_library_raises_is_a_broken_exchange(error: Exception, told: Any) -> None:
    with pytest.raises(ExchangeBroken) as caught, told():
        raise error
    assert "cannot be read" not in str(caught.value), "it is known"


def test_what_is_no_fault_of_the_library_is_told_only_where_it_runs_alone() -> None:
    with pytest.raises(ValueError, match="of ours"), faults_told():
        raise ValueError("of ours")
    with (
        pytest.raises(ExchangeBroken, match=r"the answer cannot be read \(ValueError\)") as caught,
        all_faults_told(),
    ):
        raise ValueError("of the answer")
    assert "of the answer" not in str(caught.value)
    for fault in (BadAnswer("too long"), LoginNeeded("HTTP 401"), SessionExpired("HTTP 404")):
        with pytest.raises(type(fault)) as same, all_faults_told():
            raise fault
        assert same.value is fault


SCOPE = 'Bearer error="insufficient_scope", '


@for_each(
    ("status", "headers", "body", "words"),
    [
        (403, {}, b"", "HTTP 403 Forbidden"),
        (599, {}, b" \n", "HTTP 599"),
        (500, {}, b"out of ink", 'HTTP 500 Internal Server Error: "out of ink"'),
        (
            307,
            {"location": "http://x/"},
            b"moved",
            "HTTP 307 Temporary Redirect: redirected to http://x/, which is not",
        ),
        (307, {}, b"moved", 'HTTP 307 Temporary Redirect: "moved"'),
        (503, {"location": "http://x/"}, b"later", 'HTTP 503 Service Unavailable: "later"'),
        (
            403,
            {"www-authenticate": f'{SCOPE}scope="a b"'},
            b"no",
            '"no" (the login lacks the scope "a b": log in',
        ),
        (
            403,
            {"www-authenticate": f"{SCOPE}scope=a"},
            b"",
            'Forbidden (the login lacks the scope "a": log in',
        ),
        (403, {"www-authenticate": "Bearer ERROR=insufficient_scope"}, b"", "lacks a scope for this: log in"),
        (403, {"www-authenticate": f'{SCOPE}scope="{"s" * 300}"'}, b"", f'the scope "{"s" * 200}": log in'),
        (
            404,
            {"content-type": "Text/HTML; charset=x"},
            b"<p>",
            "Not Found: an HTML page; this URL does not appear",
        ),
        (
            503,
            {"content-type": "application/xhtml+xml", "retry-after": "1200"},
            b"<TITLE> Back soon </TITLE>",
            'Unavailable: an HTML page, "Back soon". It wants to be asked again after 1,200 s',
        ),
        (500, {"content-type": "text/plain"}, b"<p>", 'Error: "<p>"'),
        (500, {}, b"x" * 200, f'Error: "{"x" * 200}"'),
        (500, {}, b"x" * 201, f'Error: "{"x" * 200}"… (201 bytes)'),
    ],
)
def test_a_refusal_is_told_in_words(status: int, headers: dict[str, str], body: bytes, words: str) -> None:
    response = httpx2.Response(status, headers=headers)
    text = refusal_in_words(response, body)
    assert words in text
    assert ("scope" in text) is lacks_scope(response)
    assert text.startswith(status_in_words(status))


@pytest.mark.parametrize("status", [400, 401, 200])
def test_only_a_403_is_about_a_scope(status: int) -> None:
    assert not lacks_scope(httpx2.Response(status, headers={"www-authenticate": f'{SCOPE}scope="a"'}))


def test_a_login_that_is_wanted_is_told_with_the_beginning_of_its_challenge() -> None:
    for challenge, words in ((None, ""), ("Bearer", " (Bearer)"), ("B" * 201, f" ({'B' * 200})")):
        headers = {} if challenge is None else {"www-authenticate": challenge}
        assert login_in_words(httpx2.Response(401, headers=headers)) == f"HTTP 401 Unauthorized{words}"
    response = httpx2.Response(200, headers={"content-type": " Application/JSON ; charset=utf-8"})
    assert (media_type(response), media_type(httpx2.Response(200))) == ("application/json", "")
    assert said_of(response, b"x") == '"x"'


def _made(**more: Any) -> httpx2.AsyncClient:
    values: dict[str, Any] = {"url": "http://127.0.0.1:9/mcp", **more}
    return make_client(ServerDefinition("s", **values), None, 7.0)


def test_what_is_configured_takes_the_place_of_our_headers_in_whatever_case_it_is_written() -> None:
    plain = _made().headers
    assert plain["user-agent"].startswith("greenroom/")
    assert plain["accept-encoding"] == "gzip"
    headers = _made(headers={"user-agent": "mine", "ACCEPT-ENCODING": "identity", "X-Team": "stage"}).headers
    assert [value for name, value in headers.multi_items() if name in ("user-agent", "accept-encoding")] == [
        "mine",
        "identity",
    ]
    assert headers["x-team"] == "stage"
