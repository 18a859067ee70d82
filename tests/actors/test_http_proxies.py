"""The proxies of our environment: only that of a URL matters, none for this machine, and one that fails is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.auth_server import auth_server
from tests.support.http_rooms import room_at
from tests.support.raw_http import Handler, Seen, raw_http

from greenroom.actors.login.login_record import AuthorizationServerDown
from greenroom.actors.login.token_endpoint import post
from greenroom.protocol.errors import CallError, ConnectFailed

NOBODY = "http://127.0.0.1:9"  # nobody listens there
SOCKS = "socks5://127.0.0.1:9"
ELSEWHERE = "http://mcp.example/mcp"  # only a proxy finds it


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the variables that name proxies; all others are gone."""
    for name in ("all_proxy", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def name_them(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return name_them


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("proxy", [NOBODY, SOCKS, "gopher://x"])
@in_real_time
async def test_what_is_on_this_machine_is_reached_without_a_proxy(
    host: str, proxy: str, named: Callable[..., None]
) -> None:
    named(HTTP_PROXY=proxy, http_proxy=proxy, ALL_PROXY=proxy, NO_PROXY="")
    with raw_http() as server:
        async with room_at(f"http://{host}:{server.port}/mcp") as room:
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_proxy_that_is_for_other_urls_harms_nobody(
    named: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    with raw_http() as proxy:
        named(http_proxy=f"127.0.0.1:{proxy.port}", ALL_PROXY=SOCKS, https_proxy="gopher://x")
        async with room_at(ELSEWHERE) as room:
            assert (await room.call("ok")).text == "ok"
        assert {seen.headers["host"] for seen in proxy.requests} == {"mcp.example"}


@pytest.mark.parametrize(
    ("url", "variables", "words"),
    [
        (ELSEWHERE, {"http_proxy": "http://me:pass@127.0.0.1:9"}, r"127.0.0.1:9 \(http_proxy\) cannot be reached"),
        ("https://mcp.example/mcp", {"HTTPS_PROXY": NOBODY}, r"127.0.0.1:9 \(HTTPS_PROXY\) cannot be reached"),
        (ELSEWHERE, {"all_proxy": SOCKS}, r'\(all_proxy\) cannot be used: .*pip install "greenroom\[socks\]"'),
        (ELSEWHERE, {"all_proxy": "gopher://x"}, r"the proxy x \(all_proxy\) cannot be used: .*NO_PROXY"),
    ],
)  # fmt: skip
@in_real_time
async def test_a_proxy_that_cannot_be_used_is_named_and_not_the_server(
    url: str,
    variables: dict[str, str],
    words: str,
    named: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    named(**variables)
    async with room_at(url, connect=False) as room:
        with pytest.raises(ConnectFailed, match=words) as caught:
            await room.connect("raw")
        assert "pass" not in str(caught.value)
        assert "Start the server" not in str(caught.value)


@pytest.mark.parametrize("secure", [False, True])
@in_real_time
async def test_what_a_proxy_answers_names_it(secure: bool, named: Callable[..., None]) -> None:
    page = b"<html><head><title>502 no such host</title></head></html>"

    def refuse(handler: Handler, seen: Seen) -> bool:
        handler.say(502, page, "text/html")
        return True

    with raw_http() as proxy:
        proxy.hook = refuse
        place = f"127.0.0.1:{proxy.port}"
        named(http_proxy=f"http://{place}", https_proxy=f"http://{place}")
        url = "https://mcp.example/mcp" if secure else ELSEWHERE
        async with room_at(url, connect=False) as room:
            with pytest.raises(ConnectFailed, match=rf"the proxy {place} \(https?_proxy\)") as caught:
                await room.connect("raw")
            assert "does not appear to speak MCP" not in str(caught.value)
            # The tunnel is refused by the standard library's server, which knows no CONNECT.
            assert ("501" if secure else "HTTP 502") in str(caught.value)


def test_an_authorization_server_on_this_machine_is_reached_without_a_proxy(
    named: Callable[..., None],
) -> None:
    named(http_proxy=NOBODY, ALL_PROXY="gopher://x")
    with auth_server() as server:
        assert post(f"{server.base}/nothing", {}, {})[0] == 401


def test_an_authorization_server_behind_a_proxy_that_is_down_names_it(named: Callable[..., None]) -> None:
    named(https_proxy=NOBODY)
    with pytest.raises(
        AuthorizationServerDown,
        match=r"auth.example cannot be reached \(the proxy 127.0.0.1:9 \(https_proxy\)",
    ):
        post("https://auth.example/token", {}, {})


# ---- what a server that works may answer ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "application/json-rpc",
        "application/vnd.mcp+json; charset=utf-8",
        "Text/JSON",
        "application/json, text/event-stream",
        "text/plain; charset=utf-8",
        "application/octet-stream",
        "",
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@in_real_time
async def test_json_is_read_whatever_its_content_type(kind: str, mark: bytes) -> None:
    import json

    def answer(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call":
            return False
        result = {"content": [{"type": "text", "text": "read"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": seen.message["id"], "result": result}, indent=1).encode()
        headers = {"Content-Type": kind} if kind else {}
        handler.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(mark + body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(mark + body)
        return True

    with raw_http() as server:
        server.hook = answer
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "read"


@in_real_time
async def test_an_event_stream_may_begin_with_a_byte_order_mark() -> None:
    import json

    def answer(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call":
            return False
        handler.begin_events()
        result = {"content": [{"type": "text", "text": "read"}]}
        data = json.dumps({"jsonrpc": "2.0", "id": seen.message["id"], "result": result}).encode()
        handler.wfile.write(b"\xef\xbb\xbfdata: " + data + b"\n\n")
        return True

    with raw_http() as server:
        server.hook = answer
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "read"


@pytest.mark.parametrize("status", [200, 404, 502, 503])
@in_real_time
async def test_a_page_in_the_place_of_a_server_that_worked_is_no_other_kind_of_server(status: int) -> None:
    shows: list[Any] = []

    def answer(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call":
            return False
        shows.append(seen)
        handler.say(
            status,
            b"<html><title>Back soon</title></html>",
            "text/html",
            {"Retry-After": "1200"} if status == 503 else {},
        )
        return True

    with raw_http() as server:
        server.hook = answer
        async with room_at(server.url) as room:
            with pytest.raises(CallError) as caught:
                await room.call("ok")
            assert "does not appear to speak MCP" not in str(caught.value)
            assert 'an HTML page, "Back soon"' in str(caught.value)
            assert ("asked again after 1,200 s" in str(caught.value)) is (status == 503)
    assert shows
