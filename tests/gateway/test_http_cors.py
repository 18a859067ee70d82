"""What a web page may do at the HTTP door, as its browser asks: preflight, and headers that let it read the answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.test_http_door import with_door
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.http_door import ACCEPT, HELLO, Opened, request

from greenroom.gateway.doors.http_auth import Access, BearerToken

TOKEN = "token-of-a-page-0123456789"
PAGE = "https://app.example"
WANTED = "authorization,content-type,mcp-protocol-version,mcp-session-id"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": WANTED}


def access() -> Access:
    return Access("127.0.0.1", (BearerToken.of("page", TOKEN),), origins=(f"{PAGE}/",))


@body_of(with_door, access=access())
async def test_a_page_that_the_configuration_names_may_ask_and_read(
    opened: Opened, server: AskingServer, /
) -> None:
    asked = await opened.http.options("/mcp", headers={"origin": PAGE, **PREFLIGHT})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert asked.headers["access-control-allow-headers"] == WANTED
    assert {"GET", "POST", "DELETE"} <= set(asked.headers["access-control-allow-methods"].split(", "))
    assert "Origin" in asked.headers["vary"]

    page = {"origin": PAGE, "authorization": f"Bearer {TOKEN}"}
    hello = await opened.post(request("initialize", 0, {**HELLO, "capabilities": {}}), **page)
    assert hello.status_code == 200
    assert hello.headers["access-control-allow-origin"] == PAGE
    assert "Mcp-Session-Id" in hello.headers["access-control-expose-headers"]
    session = {"mcp-session-id": hello.headers["mcp-session-id"]}
    async with opened.http.stream("GET", "/mcp", headers={**page, **ACCEPT, **session}) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["access-control-allow-origin"] == PAGE
    ended = await opened.http.delete("/mcp", headers={**page, **session})
    assert (ended.status_code, ended.headers["access-control-allow-origin"]) == (200, PAGE)

    refused = await opened.post(request("ping"), origin=PAGE)  # no token: the page may read why
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("https://app.example.evil.example", 403),
        ("http://app.example", 403),
        ("null", 403),
        ("http://localhost:6274", 401),  # may send, as any program here, but is not named: it may not read
    ],
)
@body_of(with_door, access=access())
async def test_a_page_that_is_not_named_is_let_read_nothing(
    opened: Opened, server: AskingServer, /, origin: str, status: int
) -> None:
    asked: Any = await opened.http.options("/mcp", headers={"origin": origin, **PREFLIGHT})
    said = await opened.post(request("ping"), origin=origin)
    for answer in (asked, said):
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@body_of(with_door, access=access())
async def test_what_asks_for_nothing_is_no_preflight(opened: Opened, server: AskingServer, /) -> None:
    page = {"origin": PAGE, "authorization": f"Bearer {TOKEN}"}
    assert (await opened.http.options("/mcp", headers=page)).status_code == 405
