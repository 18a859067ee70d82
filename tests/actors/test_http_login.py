"""A server that wants a login is parked: refused with what to do, not retried, not counted as a failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from tests.support import in_real_time
from tests.support.http_rooms import room_at
from tests.support.raw_http import MODERN, Handler, Seen, raw_http
from tests.support.stdio import until

from greenroom.protocol.errors import ConnectFailed, NeedsAuth, ProtocolFault, Reach
from greenroom.protocol.lifecycle import State

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="stage", scope="act"'}


class Door:
    """Lets in who shows the token."""

    def __init__(self, status: int = 401, *, watches: str = "") -> None:
        self.status = status
        self.watches = watches  # the one method that is refused; empty: all
        self.token = "sesame"
        self.refused = 0

    def __call__(self, handler: Handler, seen: Seen) -> bool:
        knows = seen.headers.get("authorization") == f"Bearer {self.token}"
        if knows or (self.watches and seen.method != self.watches):
            return False
        self.refused += 1
        handler.say(self.status, headers=CHALLENGE)
        return True


@in_real_time
async def test_a_refused_login_at_connect_parks_the_server() -> None:
    with raw_http() as server:
        server.hook = door = Door()
        async with room_at(server.url, connect=False) as room:
            for _ in range(3):
                with pytest.raises(NeedsAuth) as caught:
                    await room.call("ok", server="raw")
                assert "HTTP 401" in str(caught.value)
                assert 'realm="stage"' in str(caught.value)
                assert '"bearerToken"' in str(caught.value)
                assert caught.value.reach is Reach.NOT_SENT
            assert door.refused == 1
            (status_now,) = room.status()
            assert status_now.needs_auth
            assert status_now.retry_in is None
            server.hook = None
            await room.connect("raw")
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_live_401_parks_the_server_and_the_call_is_unsent() -> None:
    with raw_http() as server:
        async with room_at(server.url) as room:
            server.hook = Door(watches="tools/call")
            with pytest.raises(NeedsAuth, match="HTTP 401") as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.NOT_SENT
            assert await until(lambda: room.status()[0].needs_auth)
            with pytest.raises(NeedsAuth, match="HTTP 401"):
                await room.call("ok")


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
@pytest.mark.parametrize("json_rpc", [False, True])
@in_real_time
async def test_a_403_is_that_calls_error_and_parks_nobody(era: str, json_rpc: bool) -> None:
    challenge = {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="files:write stage"'}

    def hook(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call" or seen.message["params"]["name"] == "ok":
            return False
        if json_rpc:
            handler.error(seen.message, -32000, "not you", status=403, headers=challenge)
        else:
            asked = seen.message["params"].get("arguments")
            handler.say(403, b"not you", headers=challenge if asked else None)
        return True

    with raw_http(era) as server:
        server.hook = hook
        async with room_at(server.url) as room:
            with pytest.raises(
                ProtocolFault, match=r'HTTP 403.*lacks the scope "files:write stage"'
            ) as caught:
                await room.call("slow", {"x": 1})
            assert "not you" in str(caught.value)
            assert caught.value.reach is Reach.ANSWERED
            if not json_rpc:
                with pytest.raises(ProtocolFault, match='HTTP 403 Forbidden: "not you"'):
                    await room.call("slow")
            (status,) = room.status()
            assert (status.needs_auth, status.state) == (False, State.CONNECTED)
            assert (await room.call("ok")).text == "ok"
            assert server.methods().count("initialize") == (0 if era == MODERN else 1)


@in_real_time
async def test_a_403_at_connect_is_a_failure_to_connect() -> None:
    with raw_http() as server:
        server.hook = Door(403)
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(ConnectFailed, match="HTTP 403 Forbidden"):
                await room.connect("raw")
            (status,) = room.status()
            assert not status.needs_auth
            server.hook = None
            await room.connect("raw")
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_the_first_run_s_discovery_parks_it_too() -> None:
    from greenroom.supervisor.room import Greenroom

    with raw_http() as server:
        server.hook = Door()
        config = {"mcpServers": {"raw": {"url": server.url}}}
        async with Greenroom.open(config, cache_path=":memory:") as room:
            await room.catalogued()
            (status,) = room.status()
            assert status.needs_auth


@in_real_time
async def test_a_bearer_token_and_headers_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_TOKEN", "sesame")
    entries: list[dict[str, Any]] = [
        {"bearerToken": "sesame"},
        {"bearerTokenEnv": "STAGE_TOKEN"},
        {"headers": {"Authorization": "Bearer ${STAGE_TOKEN}"}},
    ]
    for entry in entries:
        with raw_http() as server:
            server.hook = Door()
            async with room_at(server.url, **entry) as room:
                assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_nothing_follows_a_redirect_to_another_origin() -> None:
    with raw_http() as elsewhere, raw_http() as server:

        def away(handler: Handler, seen: Seen) -> bool:
            handler.say(307, headers={"Location": elsewhere.url})
            return True

        server.hook = away
        async with room_at(server.url, connect=False, bearerToken="sesame") as room:
            with pytest.raises(Exception, match="not followed"):
                await room.connect("raw")
        assert elsewhere.requests == []


@in_real_time
async def test_a_redirect_that_keeps_the_origin_is_followed() -> None:
    def further(handler: Handler, seen: Seen) -> bool:
        if handler.path != "/mcp":
            return False
        handler.say(307, headers={"Location": "/mcp/"})
        return True

    with raw_http() as server:
        server.hook = further
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"


class LogsIn(httpx2.Auth):
    """Fetches the token when it is refused, as a login flow does."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        if response.status_code == 401:
            if self.token is None:
                raise RuntimeError("nobody is at the door")
            request.headers["Authorization"] = f"Bearer {self.token}"
            yield request


@in_real_time
async def test_the_auth_hook_logs_in() -> None:
    with raw_http() as server:
        server.hook = Door()
        async with room_at(server.url, auth=lambda definition: LogsIn("sesame")) as room:
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_login_that_fails_parks_the_server_and_says_why() -> None:
    with raw_http() as server:
        server.hook = Door()
        async with room_at(server.url, auth=lambda definition: LogsIn(None), connect=False) as room:
            with pytest.raises(NeedsAuth, match="nobody is at the door"):
                await room.connect("raw")
