"""Logging in at a server that wants it: the whole flow against an authorization server on loopback, in each variant;
renewing; what happens when it fails; and that no secret is shown."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import socket
import stat
import sys
import tempfile
import threading
import warnings
import webbrowser
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import pytest
from tests.support import in_real_time, in_virtual_time, patience, run
from tests.support.api_server import api_server
from tests.support.auth_server import ACCESS, REFRESH, AuthServer, auth_server, follow
from tests.support.http_rooms import room_at
from tests.support.loops import on_asyncio
from tests.support.patience import PATIENCE
from tests.support.rows import for_each
from tests.support.shapes import conforms
from tests.support.stdio import until

from greenroom import Greenroom
from greenroom.actors.login import token_endpoint
from greenroom.actors.login.login_auth import keep, log_in, log_out, logins, stored_login
from greenroom.actors.login.login_record import AuthorizationServerDown, Login, LoginFailed
from greenroom.actors.login.login_store import LoginStore
from greenroom.actors.login.oauth import obtained
from greenroom.actors.login.token_endpoint import renew
from greenroom.actors.peer import Connector
from greenroom.actors.workers import apart
from greenroom.cli import auth_command, main
from greenroom.cli.auth_command import TerminalLogin, can_browse, pasted
from greenroom.config.model import ServerDefinition, Settings, with_settings
from greenroom.protocol.address import Address
from greenroom.protocol.errors import CallError, ConnectFailed, NeedsAuth, Reach
from greenroom.protocol.lifecycle import State
from greenroom.testing.fake_servers import FakeServer, fake_connectors
from greenroom.testing.room_inside import RoomInside


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without logins, and no keyring."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, folder)
        for name in ("MCP_OAUTH_DIR", "PI_CODING_AGENT_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        monkeypatch.chdir(folder)
        yield Path(folder)


@attrs.define
class Person:
    """Agrees to everything, without a browser."""

    server: AuthServer
    redirect_uri: str = "http://127.0.0.1:9/callback"
    prefers_device: bool = False
    insists_on_device: bool = False
    page: str = ""

    async def send_to(self, url: str) -> None:
        self.page = url

    async def answer(self) -> Mapping[str, str]:
        found = pasted(self.server.approve(self.page), _state(self.page))
        assert found is not None
        return found

    def show_code(self, url: str, code: str, complete: str | None) -> None:
        assert (url, code) == (f"{self.server.base}/enter", "ABCD-EFGH")
        self.server.devices["device-1"] = True


def _state(page: str) -> str:
    return page.partition("state=")[2].partition("&")[0]


def definition(server: AuthServer, **more: Any) -> ServerDefinition:
    return ServerDefinition("raw", url=server.url, **more)


async def logged_in(server: AuthServer, oauth: Mapping[str, Any] | None = None, **person: Any) -> Login:
    """A login, made by a person and stored."""
    return keep(await log_in(definition(server), oauth or {}, Person(server, **person), None))


@pytest.mark.parametrize(
    ("flags", "oauth"),
    [
        ({}, {}),
        ({"takes_documents": True}, {"clientMetadataUrl": "https://client.example/greenroom.json"}),
        ({"registers": False, "given": {"me": None}}, {"clientId": "me"}),
        ({"registers": False, "given": {"me": "s3cret"}}, {"clientId": "me", "clientSecret": "s3cret"}),
        ({"lasts": None}, {"authorizationParams": {"audience": "stage", "prompt": "login"}}),
    ],
    ids=["registered", "document", "given id", "given secret", "parameters"],
)
def test_a_login_in_each_way_to_be_a_client(flags: Any, oauth: dict[str, Any], backend: str) -> None:
    async def body() -> None:
        with auth_server(**flags) as server:
            async with room_at(server.url, connect=False) as room:
                with pytest.raises(NeedsAuth, match="greenroom auth raw"):
                    await room.call("ok", server="raw")
            login = await logged_in(server, oauth)
            assert login.issuer.rstrip("/") == server.base
            (page,) = server.pages
            assert page["code_challenge_method"] == "S256"
            assert page["resource"] == server.url
            assert page.items() >= oauth.get("authorizationParams", {}).items()
            expected = oauth.get("clientMetadataUrl") or oauth.get("clientId") or "client-0"
            assert (page["client_id"], login.client_id) == (expected, expected)
            async with room_at(server.url) as room:
                assert (await room.call("ok")).text == "ok"
            assert server.grants == ["authorization_code"]

    run(backend, body)


@in_real_time
async def test_a_login_for_an_http_api_which_knows_nothing_of_mcp_or_of_its_authorization_server() -> None:
    """It answers 200 to everybody and 404 where it would say who logs people in: the issuer is configured."""
    for oauth in ({"clientId": "me"}, {"clientId": "me", "scope": "read"}):
        with api_server() as api, auth_server(registers=False, given={"me": None}) as server:
            api.tokens = server.tokens
            mine = ServerDefinition("raw", url=api.url, http={})
            login = await log_in(mine, {**oauth, "issuer": server.base}, Person(server), None)
            assert login.issuer.rstrip("/") == server.base
            assert login.scope == oauth.get("scope")
            assert {seen.method for seen in api.requests} == {"GET"}
            assert not any("authorization" in seen.headers for seen in api.requests)
            keep(login)
            entry = {
                "baseUrl": api.url,
                "auth": "oauth",
                "http": {"look": {"method": "GET", "path": "/private"}},
            }
            async with Greenroom.open(
                {"mcpServers": {"raw": entry}}, cache_path=":memory:", bootstrap=False
            ) as room:
                assert (await room.call("look", server="raw")).structured == {"in": True}


@in_real_time
async def test_client_credentials_for_an_http_api_which_names_no_authorization_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with api_server() as api, auth_server(registers=False, given={"me": "s3cret-of-client"}) as server:
        api.tokens = server.tokens
        monkeypatch.setenv("STAGE_SECRET", "s3cret-of-client")
        oauth = {
            "grantType": "client_credentials",
            "clientId": "me",
            "clientSecret": "${STAGE_SECRET}",
            "issuer": server.base,
        }
        tools = {"look": {"method": "GET", "path": "/private"}}
        entry = {"baseUrl": api.url, "oauth": oauth, "http": tools}
        async with Greenroom.open(
            {"mcpServers": {"raw": entry}}, cache_path=":memory:", bootstrap=False
        ) as room:
            assert (await room.call("look", server="raw")).structured == {"in": True}
            server.expire()
            api.tokens = server.tokens
            assert (await room.call("look", server="raw")).structured == {"in": True}
        assert server.grants == ["client_credentials"] * 2


@in_real_time
async def test_an_http_api_that_names_its_authorization_server_is_believed() -> None:
    with auth_server() as server:
        mine = ServerDefinition("raw", url=server.url, http={})
        login = await log_in(mine, {}, Person(server), None)
        assert login.issuer.rstrip("/") == server.base
        assert server.grants == ["authorization_code"]


@in_real_time
async def test_the_device_flow() -> None:
    with auth_server(has_device=True) as server:
        login = await logged_in(server, prefers_device=True)
        assert login.grant == "device_code"
        assert server.pages == []
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"
    with auth_server() as server:  # it does not offer it
        await logged_in(server, prefers_device=True)
        assert len(server.pages) == 1
        with pytest.raises(LoginFailed, match="no device flow"):
            await logged_in(server, insists_on_device=True)


@in_real_time
async def test_a_device_that_asks_too_often_asks_less_often_each_time_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(
        token_endpoint, "anyio", SimpleNamespace(sleep=sleep, current_time=anyio.current_time)
    )
    with auth_server(has_device=True, slow_downs=3) as server:
        await logged_in(server, prefers_device=True)
        assert pauses == [0.01, 5.01, 10.01, 15.01]


@in_real_time
async def test_client_credentials_need_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_SECRET", "s3cret-of-client")
    with auth_server(registers=False, given={"me": "s3cret-of-client"}) as server:
        oauth = {
            "grantType": "client_credentials",
            "clientId": "me",
            "clientSecret": "${STAGE_SECRET}",
            "issuer": server.base,
        }
        async with room_at(server.url, oauth=oauth) as room:
            assert (await room.call("ok")).text == "ok"
            server.expire()
            assert (await room.call("ok")).text == "ok"  # the 401 came before it ran
            assert server.grants == ["client_credentials"] * 2
        oauth["issuer"] = "https://other.example"
        server.expire()
        async with room_at(server.url, oauth=oauth, connect=False) as room:
            with pytest.raises(NeedsAuth, match="another authorization server"):
                await room.connect("raw")
        assert server.grants == ["client_credentials"] * 2


@on_asyncio
@in_real_time
async def test_configured_headers_go_to_the_authorization_server_but_credentials_do_not() -> None:
    with auth_server() as server:
        headers = {"X-Tenant": "stage", "Cookie": "c=1", "Authorization": "Basic abc"}
        keep(await log_in(definition(server, headers=headers, auth="oauth"), {}, Person(server), None))
        asked = [one for one in server.headers if "x-tenant" in one]
        assert len(asked) >= 4  # two documents, the registration, the token
        assert not any("cookie" in one or one.get("authorization") == "Basic abc" for one in asked)


@in_real_time
async def test_a_token_that_ends_in_the_middle_costs_no_call() -> None:
    with auth_server() as server:
        await logged_in(server)
        async with room_at(server.url) as room:
            server.expire()
            assert (await room.call("ok")).text == "ok"
            assert server.grants == ["authorization_code", "refresh_token"]
            assert server.refused == 1 + 1  # the login's first request, and that call's
            server.expire()
            server.refreshes.clear()
            with pytest.raises(NeedsAuth, match="greenroom auth raw") as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.NOT_SENT
            before = len(server.grants)
            with pytest.raises(NeedsAuth):
                await room.call("ok")
            assert len(server.grants) == before  # never tried again
            assert REFRESH not in str(caught.value)


@in_real_time
async def test_a_token_is_renewed_before_it_ends() -> None:
    with auth_server(lasts=10) as server:
        await logged_in(server)
        async with room_at(server.url) as room:
            assert server.grants[:2] == ["authorization_code", "refresh_token"]
            assert server.refused == 1  # the login's first request alone
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_provider_that_is_down_is_a_failure_to_connect_and_costs_no_login() -> None:
    with auth_server() as server:
        kept = await logged_in(server)
        server.expire()
        server.is_down = True
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(ConnectFailed, match="out of order"):
                await room.connect("raw")
            assert not room.status()[0].needs_auth
            assert stored_login(definition(server)) == kept
            server.is_down = False
            await room.connect("raw")
            assert (await room.call("ok")).text == "ok"
        server.is_down = True
        with pytest.raises(LoginFailed):
            await logged_in(server)


@pytest.mark.parametrize(
    "says",
    [
        (400, b'{"error": "temporarily_unavailable"}'),
        (400, b'{"error": "server_error", "error_description": "x"}'),
        (200, b'{"error": "server_error"}'),
        (429, b"slow down"),
        (403, b"<html>blocked by a firewall</html>"),
        (200, b"<html>sign in to this network</html>"),
        (404, b""),
        (302, b""),
        (408, b""),
    ],
    ids=lambda says: f"{says[0]} {says[1].decode()[:30]}",
)
@in_real_time
async def test_trouble_while_a_token_is_renewed_costs_no_login_and_the_call_did_not_run(
    says: tuple[int, bytes],
) -> None:
    with auth_server() as server:
        kept = await logged_in(server)
        async with room_at(server.url) as room:
            server.expire()
            server.says = says
            with pytest.raises(CallError, match=r"127\.0\.0\.1 .*HTTP") as caught:
                await room.call("ok")
            assert not isinstance(caught.value, NeedsAuth)
            assert caught.value.reach is Reach.NOT_SENT  # the 401 came before it ran
            assert not room.status()[0].needs_auth
            assert stored_login(definition(server)) == kept
            server.says = None
            assert (await room.call("ok")).text == "ok"


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client", "unauthorized_client"])
@pytest.mark.parametrize("status", [200, 400, 401])
@in_real_time
async def test_a_refusal_to_renew_asks_for_a_login_whatever_its_status(status: int, error: str) -> None:
    with auth_server() as server:
        await logged_in(server)
        async with room_at(server.url) as room:
            server.expire()
            server.says = (status, f'{{"error": "{error}"}}'.encode())
            with pytest.raises(NeedsAuth) as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.NOT_SENT


@pytest.mark.parametrize("lasts", [3599.5, "3600", 0.5, "soon", -1, None])
@in_real_time
async def test_however_the_time_of_a_token_is_written_a_login_works(lasts: Any) -> None:
    with auth_server(lasts=lasts) as server:
        login = await logged_in(server)
        is_time = lasts in (3599.5, "3600", 0.5)
        assert (login.expires_at is not None) is is_time
        server.lasts = 3600.0
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_token_that_its_server_does_not_know_is_no_login() -> None:
    says = (200, b'{"access_token": "of-another", "token_type": "Bearer"}')
    with (
        auth_server(says=says) as server,
        pytest.raises(LoginFailed, match="refuses the new token, too"),
    ):
        await log_in(definition(server), {}, Person(server), None)


def test_what_another_program_has_obtained_meanwhile_is_used(data: Path) -> None:
    with auth_server(registers=False, given={"me": "s3cret"}) as server:
        oauth = {"clientId": "me", "clientSecret": "s3cret", "issuer": server.base}

        def had(replaces: str | None) -> Login:
            return obtained(logins(), definition(server), oauth, replaces)

        first = had(None)
        assert stored_login(definition(server)) == first
        assert had(None) == had("another") == first, "somebody else has it already"
        second = had(first.id)
        assert second.access_token != first.access_token
        assert stored_login(definition(server)) == second
        assert server.grants == ["client_credentials"] * 2


@pytest.mark.parametrize("says", [(400, b'{"error": "temporarily_unavailable"}'), (503, b"")])
@in_real_time
async def test_trouble_with_client_credentials_is_no_lost_login(says: tuple[int, bytes]) -> None:
    with auth_server(registers=False, given={"me": "s3cret"}, says=says) as server:
        oauth = {
            "grantType": "client_credentials",
            "clientId": "me",
            "clientSecret": "s3cret",
            "issuer": server.base,
        }
        async with room_at(server.url, oauth=oauth, connect=False) as room:
            with pytest.raises(ConnectFailed, match="out of order"):
                await room.connect("raw")
            server.says = None
            await room.connect("raw")
            assert (await room.call("ok")).text == "ok"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"has_metadata": False}, "publishes no metadata"),
        ({"names_issuer": False}, 'has no "issuer"'),
        ({}, "registers no client at /register"),
    ],
)
@on_asyncio
@in_real_time
async def test_where_no_client_can_be_registered_it_says_why_and_what_to_give(
    flags: dict[str, bool], words: str
) -> None:
    with auth_server(registers=False, **flags) as server:
        with pytest.raises(LoginFailed, match=words) as caught:
            await logged_in(server)
        assert '"oauth.clientId"' in str(caught.value)
        assert "127.0.0.1" in str(caught.value)


@in_real_time
async def test_a_running_room_notices_a_finished_login() -> None:
    with auth_server() as server:
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(NeedsAuth):
                await room.connect("raw")
            for _ in range(2):  # it is watched again when it is parked again
                assert await until(lambda: room.status()[0].needs_auth)
                await logged_in(server)
                assert await until(lambda: room.status()[0].state is State.CONNECTED)
                assert (await room.call("ok", server="raw")).text == "ok"
                server.expire()
                server.refreshes.clear()
                with pytest.raises(NeedsAuth):
                    await room.call("ok", server="raw")


def test_t23_of_eight_processes_that_renew_at_once_one_asks_and_none_loses_the_newer_token() -> None:
    # Forked before there is a thread of ours: each waits for the login that all are to renew.
    pipes = [os.pipe() for _ in range(8)]
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # of the test runner's threads
        children = [_renewing(reading, pipes) for reading, _ in pipes]
    for reading, _ in pipes:
        os.close(reading)

    async def body() -> None:
        with auth_server() as server:
            old = await logged_in(server)
            for _, writing in pipes:
                os.write(writing, json.dumps(attrs.asdict(old)).encode())
            ended = [(await apart(partial(os.waitpid, pid, 0)))[1] for pid in children]
            assert ended == [0] * 8
            assert server.grants == ["authorization_code", "refresh_token"]
            kept = stored_login(definition(server))
            assert kept is not None
            assert (kept.access_token, kept.refresh_token) == (f"{ACCESS}2", f"{REFRESH}2")

    try:
        run("asyncio", body)
    finally:
        for _, writing in pipes:
            os.close(writing)


def _renewing(reading: int, pipes: list[tuple[int, int]]) -> int:
    """The pid of a process that reads a login, and renews it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for _, writing in pipes:
                os.close(writing)
            old = Login(**json.loads(os.read(reading, 1 << 16)))
            found = renew(logins(), old, {})
            code = 0 if found is not None and found.id != old.id else 2
        finally:
            os._exit(code)
    return pid


def test_t23_an_older_token_never_takes_the_place_of_a_newer_one(data: Path) -> None:
    store = LoginStore(data / "logins")
    old = Login("s", "http://h", "one", refresh_token="r", token_endpoint="http://127.0.0.1:9/token")
    new = attrs.evolve(old, access_token="two", id="newer")
    with store.locked("s", "http://h"):
        store.save(new, None)
        assert store.save(attrs.evolve(old, access_token="late"), old.id) == new
    assert store.load("s", "http://h") == new
    assert store.forget("s", "http://h")
    with store.locked("s", "http://h"):
        store.save(attrs.evolve(new, access_token="late"), new.id)
    assert store.load("s", "http://h") is None, "who has logged out stays logged out"
    assert store.load("s", "http://other") is None
    assert store.load("other", "http://h") is None


@in_virtual_time
async def test_a_server_that_is_parked_again_is_watched_once() -> None:
    server = FakeServer(start_error=NeedsAuth("log in", server="s"))
    fake = fake_connectors({"s": server})

    def connector(definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        RoomInside(room).machinery.servers.logins.connecting(definition)
        return fake(definition, address, incarnation)

    config = {"mcpServers": {"s": {"url": "http://h"}}}
    room = Greenroom.open(config, cache_path=":memory:", connectors=connector, bootstrap=False)
    async with room:
        timers = RoomInside(room).machinery.context.timers
        before = len(timers)
        for _ in range(3):
            with pytest.raises(NeedsAuth):
                await room.connect("s")
            await anyio.sleep(1.5)
            assert len(timers) == before + 1
        keep(Login("s", "http://h", "one"))
        server.start_error = None
        await anyio.sleep(1.5)
        assert room.status()[0].state is State.CONNECTED
        await anyio.sleep(1.5)
        assert server.starts == 4


# ---- logins of pi ------------------------------------------------------------------------------------------------


def left_by_pi(data: Path, url: str, token: str, *, folder: str = "", **more: Any) -> Path:
    """The login of the server `raw` as pi's adapter writes it."""
    key = hashlib.sha256(b"raw").hexdigest()
    file = data / ".pi" / "agent" / "mcp-oauth" / (folder or f"sha256-{key}") / "tokens.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"tokens": {"accessToken": token, **more}, "serverUrl": url}))
    file.chmod(0o600)
    return file


@in_real_time
async def test_a_login_that_pi_has_made_is_used_and_left_alone(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with auth_server() as server:
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(NeedsAuth):
                await room.call("ok", server="raw")
            more = {"refreshToken": f"{REFRESH}0", "issuer": server.base, "scope": "a"}
            answer = server.issue({"grant_type": "refresh_token"})
            file = left_by_pi(data, server.url, answer["access_token"], **more)
            before = file.read_bytes()
            await until(lambda: room.status()[0].state is State.CONNECTED)
            assert (await room.call("ok", server="raw")).text == "ok"
            server.expire()
            with pytest.raises(NeedsAuth):  # to renew it would end the one of pi
                await room.call("ok", server="raw")
        assert server.grants == []
        assert main.run(["auth", "--config", _config(data, server)]) == 0
        assert capsys.readouterr().out == f"raw: logged in by pi at {server.base}, scope a\n"
        assert main.run(["auth", "raw", "--logout", "--config", _config(data, server)]) == 1
        assert "log out there" in capsys.readouterr().err
        assert file.read_bytes() == before
        mine = await logged_in(server)
        assert stored_login(definition(server)) == mine, "ours is stronger"


def test_a_login_of_pi_is_used_at_its_own_url_alone(data: Path) -> None:
    file = left_by_pi(data, "http://h/mcp", "token", expiresAt=5)
    found = logins().load("raw", "http://h/mcp")
    assert found is not None
    assert (found.access_token, found.is_over(6), found.can_be_renewed) == ("token", True, False)
    assert logins().load("raw", "http://h/other") is None
    assert logins().load("other", "http://h/mcp") is None
    for content in (
        "",
        "[]",
        '{"access_token": "t", "expiresAt": 1}',
        '{"serverUrl": "http://h/mcp", "tokens": 5}',
    ):
        file.write_text(content)
        assert logins().load("raw", "http://h/mcp") is None
        assert logins().made("raw", "http://h/mcp") is None
    file.unlink()
    assert logins().stamp("raw", "http://h/mcp") is None
    left_by_pi(data, "http://h/mcp", "older", folder="raw")
    found = logins().load("raw", "http://h/mcp")
    assert found is not None
    assert found.access_token == "older"
    for name in ("", "..", "../raw", "a\0b", "\ud800", "x" * 5000):
        assert logins().load(name, "http://h/mcp") is None


class Ring:
    """A keyring in memory."""

    priority = 5

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service: str, account: str) -> str | None:
        if self.is_locked:
            raise RuntimeError("locked")
        return self.kept.get((service, account))

    def set_password(self, service: str, account: str, password: str) -> None:
        if self.is_locked:
            raise RuntimeError("locked")
        self.kept[service, account] = password

    def delete_password(self, service: str, account: str) -> None:
        del self.kept[service, account]


def in_pis_keyring(ring: Ring, url: str, token: str, *, pieces: int = 0, **wrong: Any) -> None:
    """The login of the server `raw` as newer versions of pi's adapter keep it; a long one in pieces."""
    account = f"sha256-{hashlib.sha256(b'raw').hexdigest()}"
    entry = json.dumps({"serverUrl": url, "tokens": {"accessToken": token}})
    if pieces:
        size = -(-len(entry) // pieces)
        for number in range(pieces):
            piece = entry[number * size : (number + 1) * size]
            ring.kept["pi-mcp-adapter.oauth", f"{account}.chunk.{'0a' * 8}.{number}"] = piece
        said = {"__piMcpAdapterOAuthChunked": 1, "chunkCount": pieces, "chunkDigest": "0a" * 8}
        entry = json.dumps({**said, **wrong})
    ring.kept["pi-mcp-adapter.oauth", account] = entry


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    import keyring

    found = Ring()
    monkeypatch.setattr(keyring, "get_keyring", lambda: found)
    return found


@in_real_time
async def test_a_login_that_pi_keeps_in_the_keyring_is_used_and_left_alone(
    data: Path, ring: Ring, capsys: pytest.CaptureFixture[str]
) -> None:
    with auth_server() as server:
        token = server.issue({"grant_type": "refresh_token"})["access_token"]
        in_pis_keyring(ring, server.url, token, pieces=3)
        before = dict(ring.kept)
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(NeedsAuth):  # pi is not here, so nobody asks the keyring
                await room.call("ok", server="raw")
        (data / ".pi" / "agent").mkdir(parents=True)
        async with room_at(server.url, connect=False) as room:
            assert (await room.call("ok", server="raw")).text == "ok"
        assert main.run(["auth", "--config", _config(data, server)]) == 0
        assert capsys.readouterr().out == "raw: logged in by pi at its own server\n"
        assert ring.kept == before


def test_what_the_keyring_has_of_pi_counts_at_its_own_url_and_when_it_is_whole(
    data: Path, ring: Ring
) -> None:
    (data / ".pi" / "agent").mkdir(parents=True)
    url = "http://h/mcp"

    def token(server: str = "raw", at: str = url) -> str | None:
        found = logins().load(server, at)
        return None if found is None else found.access_token

    assert token() is None
    in_pis_keyring(ring, url, "short")
    assert (token(), token("other"), token(at="http://h/other")) == ("short", None, None)
    assert logins().made("raw", url) is None, "no keyring is asked for that"
    in_pis_keyring(ring, url, "long", pieces=2)
    assert token() == "long"
    wrongs: list[dict[str, Any]] = [
        {"chunkCount": 3}, {"chunkCount": 0}, {"chunkCount": 10**9}, {"chunkCount": "2"},
        {"chunkDigest": "../x"}, {"chunkDigest": 5}, {"__piMcpAdapterOAuthChunked": 2},
    ]  # fmt: skip
    for wrong in wrongs:
        in_pis_keyring(ring, url, "long", pieces=2, **wrong)
        assert token() is None, wrong
    ring.kept = dict.fromkeys(ring.kept, "{")
    assert token() is None
    left_by_pi(data, url, "over", expiresAt=5)
    assert token() == "over"
    in_pis_keyring(ring, url, "newer")
    assert token() == "newer", "that of the file is over"
    left_by_pi(data, url, "of the file".replace(" ", "-"))
    assert token() == "of-the-file"
    keep(Login("raw", url, "ours"))
    assert token() == "ours"
    logins().forget("raw", url)
    ring.is_locked = True
    left_by_pi(data, "http://h/elsewhere", "x")
    assert token() is None


def test_pis_setting_says_where_its_logins_are(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://h/mcp"
    elsewhere = data / "elsewhere"
    left_by_pi(data, url, "token").parent.parent.rename(elsewhere)
    servers = {"raw": {"url": url}}
    ours = data / "greenroom" / "mcp.json"
    ours.parent.mkdir(exist_ok=True)
    ours.write_text(json.dumps({"imports": ["pi"]}))
    agent = data / ".pi" / "agent" / "mcp.json"
    for oauth_dir, expected in (
        (None, "none"),
        (os.fspath(elsewhere), "logged in"),
        ("elsewhere", "logged in"),
    ):
        agent.write_text(json.dumps({"mcpServers": servers, "settings": {"oauthDir": oauth_dir}}))
        assert main.run(["auth", "--json", "--config", os.fspath(ours)]) == 0
        said = capsys.readouterr()
        assert [each["state"] for each in json.loads(said.out)["logins"]] == [expected]
        assert "oauthDir" not in said.err
    found = with_settings(ServerDefinition("raw", url=url), Settings(oauth_dir=os.fspath(elsewhere)))
    login = stored_login(found)
    assert login is not None
    assert login.access_token == "token"
    monkeypatch.setenv("MCP_OAUTH_DIR", os.fspath(data))
    assert stored_login(found) is None, "the variable is stronger, as it is for pi"


# ---- where it is kept --------------------------------------------------------------------------------------------


def test_the_folder_and_the_file_are_ours_alone(data: Path) -> None:
    keep(Login("s", "http://h", "token"))
    (file,) = (data / "greenroom" / "logins").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o622)
    with pytest.raises(LoginFailed, match="others may write"):
        logins().load("s", "http://h")


def test_the_keyring_holds_the_secrets_where_there_is_one(data: Path, ring: Ring) -> None:
    login = keep(Login("s", "http://h", "token-secret", refresh_token="refresh-secret", client_id="me"))
    (file,) = (data / "greenroom" / "logins").glob("*.json")
    assert "secret" not in file.read_text()
    assert logins().load("s", "http://h") == login
    ring.is_locked = True
    with pytest.raises(LoginFailed, match="keyring cannot be read"):
        logins().load("s", "http://h")
    keep(login)  # a file is better than no login
    assert logins().load("s", "http://h") == login
    ring.is_locked = False
    assert logins().forget("s", "http://h")
    assert ring.kept == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"access_token": 5}', "[" * 100_000, '{"server": "s"}'])
def test_a_file_that_is_no_login_says_so(data: Path, content: str) -> None:
    keep(Login("s", "http://h", "token"))
    logins().path("s", "http://h").write_text(content)
    with pytest.raises(LoginFailed):
        logins().load("s", "http://h")
    assert logins().made("s", "http://h") is None


def test_secrets_are_sent_over_tls_or_to_this_machine_alone() -> None:
    login = keep(
        Login("s", "http://h", "token", refresh_token="r", token_endpoint="http://elsewhere.example/token")
    )
    with pytest.raises(LoginFailed, match="not reached over https"):
        renew(logins(), login, {})
    assert issubclass(AuthorizationServerDown, LoginFailed)


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[str]:
    """What the person is told."""
    found: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(auth_command, "_tell", found.put)
    return found


def _config(data: Path, server: AuthServer) -> str:
    path = data / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"raw": {"url": server.url}, "program": {"command": "x"}}}))
    return str(path)


def test_the_command_logs_in_with_a_browser_lists_and_logs_out(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: queue.Queue[str]
) -> None:
    with auth_server() as server:
        visits: list[int] = []

        def browse(url: str) -> bool:
            back = server.approve(url)
            assert back.startswith("http://127.0.0.1:")
            visits.append(follow(back.replace("state=", "state=x")))  # of another login: changes nothing
            visits.append(follow(back))
            return True

        monkeypatch.setattr(auth_command, "can_browse", lambda: True, raising=False)
        monkeypatch.setattr(auth_command, "can_browse", lambda: True)
        monkeypatch.setattr(auth_command.webbrowser, "open", browse)
        config = _config(data, server)
        assert main.run(["auth", "--config", config]) == 0
        assert capsys.readouterr().out == "raw: no login\n"
        assert main.run(["auth", "raw", "--config", config, "--json"]) == 0
        assert visits == [400, 200]
        shown = conforms("auth S", json.loads(capsys.readouterr().out))
        assert (shown["server"], shown["state"], shown["renewable"]) == ("raw", "logged in", True)
        assert main.run(["auth", "--config", config]) == 0
        assert capsys.readouterr().out.startswith(f"raw: logged in at {server.base}")
        capsys.readouterr()
        assert main.run(["auth", "raw", "--logout", "--config", config, "--json"]) == 0
        assert server.revoked == [f"{REFRESH}1", f"{ACCESS}1"]
        assert stored_login(definition(server)) is None
        out, err = capsys.readouterr()
        assert conforms("auth S --logout", json.loads(out))["wasThere"]
        assert "secret" not in out + err
        assert main.run(["auth", "program", "--config", config]) == 2
        assert main.run(["auth", "nobody", "--config", config]) == 2
        assert main.run(["auth", "--logout", "--config", config]) == 2


@pytest.mark.parametrize("whole", [True, False], ids=["address", "code"])
def test_the_command_takes_a_pasted_answer(
    data: Path, whole: bool, monkeypatch: pytest.MonkeyPatch, told: queue.Queue[str]
) -> None:
    reading, writing = os.pipe()
    with auth_server() as server, open(reading) as stdin, open(writing, "w") as paste:
        monkeypatch.setattr(sys, "stdin", stdin)

        def person() -> None:
            back = server.approve(told.get().splitlines()[-1])
            paste.write("what is this?\n")
            paste.flush()
            assert "not an answer" in told.get()
            paste.write((back if whole else back.partition("code=")[2].partition("&")[0]) + "\n")
            paste.flush()

        thread = threading.Thread(target=person)
        thread.start()
        assert main.run(["auth", "raw", "--no-browser", "--config", _config(data, server)]) == 0
        thread.join()
        assert stored_login(definition(server)) is not None


def test_nothing_is_kept_of_a_login_that_nobody_finished(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: queue.Queue[str]
) -> None:
    reading, writing = os.pipe()
    with auth_server() as server, open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        words = ["auth", "raw", "--no-browser", "--config", _config(data, server)]
        assert main.run([*words, "--timeout", "1"]) == 1
        assert "nobody logged in within 1 s. Nothing was changed." in capsys.readouterr().err
        while not told.empty():  # on a slow machine the second was over before anything was told
            told.get()

        def interrupt() -> None:
            told.get()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        assert main.run(words) == 130
        thread.join()
        assert stored_login(definition(server)) is None
    os.close(writing)


@in_real_time
async def test_no_token_is_shown_when_a_server_quotes_it() -> None:
    with auth_server() as server:
        await logged_in(server)
        async with room_at(server.url) as room:
            server.quotes = True
            with pytest.raises(Exception, match="you sent") as caught:
                await room.call("ok")
            assert ACCESS not in str(caught.value)


@attrs.define
class Answers(Person):
    """Comes back with this, whatever page was shown."""

    said: Mapping[str, str] = {}

    async def answer(self) -> Mapping[str, str]:
        return self.said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": "access_denied"}, "the authorization server refused: access_denied"),
        ({"error": "planted token"}, "the authorization server refused"),
        ({"error": "planted" * 10}, "the authorization server refused"),
        ({"code": "planted", "state": "planted"}, "the answer belongs to another login: start again"),
    ],
)
@in_real_time
async def test_an_answer_that_brings_no_login_says_why_and_nothing_that_may_be_secret(
    said: Mapping[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with auth_server() as server, pytest.raises(LoginFailed) as failed:
        await log_in(definition(server), {}, Answers(server, said=said), None)
    assert str(failed.value).startswith(words)
    assert "planted" not in str(failed.value)
    assert "planted" not in caplog.text


@in_real_time
async def test_a_login_that_cannot_be_read_can_be_logged_out_of() -> None:
    with auth_server() as server:
        await logged_in(server)
        logins().path("raw", server.url).write_text("{")
        assert log_out(definition(server)) == (True, "a stored login cannot be read")
        assert log_out(definition(server)) == (False, None)


@on_asyncio
@in_real_time
async def test_logging_out_of_nothing_and_of_a_provider_that_is_down() -> None:
    with auth_server() as server:
        assert log_out(definition(server)) == (False, None)
        await logged_in(server)
        server.is_down = True
        there, problem = log_out(definition(server))
        assert there
        assert problem is not None
        assert "out of order" in problem
        assert stored_login(definition(server)) is None


def test_a_renewal_says_what_the_login_is_for_and_who_asks(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said = logins(), list[dict[str, str]]()
    for resource in (None, "https://h/mcp"):
        login = Login(
            "s",
            "http://h",
            "one",
            token_endpoint="http://h/token",
            refresh_token="r",
            client_id="me",
            resource=resource,
        )
        with store.locked("s", "http://h"):
            store.save(login, None)

        def post(url: str, form: Any, _headers: Any) -> Any:
            said.append({**form, "to": url})
            return 200, {"access_token": "two", "token_type": "Bearer"}

        monkeypatch.setattr("greenroom.actors.login.token_endpoint.post", post)
        found = renew(store, login, {})
        assert found is not None
        assert found.access_token == "two"
        more = {} if resource is None else {"resource": resource}
        assert said.pop().items() >= {"grant_type": "refresh_token", "refresh_token": "r", **more}.items()


@pytest.mark.parametrize("option", [["--logout"], ["--no-browser"], ["--device"], ["--scope", "a"]])
def test_what_is_about_one_login_needs_the_name_of_its_server(
    option: list[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "mcp.json").write_text('{"mcpServers": {}}')
    assert main.run(["auth", *option, "--config", os.fspath(data / "mcp.json")]) == 2
    assert "Name the server" in capsys.readouterr().err


@for_each(
    ("line", "said"),
    [
        ("CODE", {"code": "CODE", "state": "S"}),
        (" 'CODE' \n", {"code": "CODE", "state": "S"}),
        ("<CODE>", {"code": "CODE", "state": "S"}),
        ("http://127.0.0.1:1/callback?code=C&state=S", {"code": "C", "state": "S"}),
        ("http://127.0.0.1:1/callback?error=access_denied&state=S", {"error": "access_denied", "state": "S"}),
        ("?code=C&state=S", {"code": "C", "state": "S"}),
        ("code=C&state=S", {"code": "C", "state": "S"}),
        ("code=C", {"code": "C", "state": "S"}),
        ("http://127.0.0.1:1/callback?code=C&state=OTHER", None),
        ("http://127.0.0.1:1/?mycode=C&state=S", None),
        ("http://127.0.0.1:1/callback", None),
        ("", None),
        ("two words", None),
    ],
)
def test_what_a_person_pastes_is_an_answer_to_this_login_or_none(
    line: str, said: dict[str, str] | None
) -> None:
    assert pasted(line, "S") == said


@pytest.mark.parametrize(
    ("environ", "platform", "can"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"BROWSER": "w3m"}, "linux", True),
        ({}, "linux", False),
        ({}, "darwin", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux", False),
        ({"SSH_CONNECTION": "x"}, "darwin", False),
        ({"DISPLAY": ":0", "CI": "1"}, "linux", False),
    ],
)
@pytest.mark.parametrize("has_one", [True, False])
def test_a_browser_is_opened_only_where_the_person_sees_it(
    environ: dict[str, str], platform: str, can: bool, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def get() -> None:
        if not has_one:
            raise webbrowser.Error

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(webbrowser, "get", get)
    assert can_browse() == (can and has_one)


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        line.listen()
        port = line.getsockname()[1]
        person = TerminalLogin(
            "a",
            f"http://127.0.0.1:{port}/x",
            browses=False,
            prefers_device=False,
            insists_on_device=False,
        )
        with pytest.raises(LoginFailed, match=f"port {port} of the redirect address cannot be used"):
            person.__enter__()


# ---- the person at the terminal --------------------------------------------------------------------------------------


def at_the_terminal(redirect_uri: str | None = None, *, browses: bool = False) -> TerminalLogin:
    return TerminalLogin("a", redirect_uri, browses=browses, prefers_device=False, insists_on_device=False)


def test_the_port_takes_the_answer_to_this_login_alone_and_writes_nothing_down(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    before = len(os.listdir("/proc/self/fd"))
    with at_the_terminal("http://127.0.0.1:0/back") as person:
        assert person._http is not None
        host, port = "127.0.0.1", person._http.server_port
        assert person._http.server_address == (host, port), "nobody else's machine reaches it"
        here = f"http://127.0.0.1:{port}"
        assert follow(f"{here}/back?code=C&state=") == 400, "no login has begun"
        assert follow(f"{here}/back?code=C") == 400
        anyio.run(person.send_to, "https://h.example/authorize?x=1&state=S")
        for path in ("/else?code=C&state=S", "/back?code=C&state=T", "/back?code=C", "/back", "/?state=S"):
            assert follow(here + path) == 400, path
        with socket.create_connection((host, port)) as line:
            line.sendall(b"GET /back?code=C&state=S HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            while piece := line.recv(4096):  # it is closed after the answer
                said += piece
        head, _, page = said.partition(b"\r\n\r\n")
        assert head.splitlines()[0].split()[1] == b"200"
        assert f"content-length: {len(page)}".encode() in head.lower()
        assert b"You can close this page" in page
        assert anyio.run(person.answer) == {"code": "C", "state": "S"}
        assert person._answers.empty()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))
    patience.until(lambda: len(os.listdir("/proc/self/fd")) == before)
    out, err = capfd.readouterr()
    assert (out, "code=C" in err) == ("", False)
    assert "Open this address in a browser, log in at a" in err


@pytest.mark.parametrize(
    ("redirect_uri", "listens_at", "told"),
    [
        (None, 0, "http://127.0.0.1:4711/callback"),
        ("http://localhost:8123/x/y", 8123, "http://localhost:8123/x/y"),
        ("http://127.0.0.1/cb", 80, "http://127.0.0.1/cb"),
        ("http://[::1]:9", 9, "http://[::1]:9"),
        ("https://other.example/cb", None, "https://other.example/cb"),
        ("http://localhost.example:1/cb", None, "http://localhost.example:1/cb"),
    ],
)
def test_the_answer_is_heard_where_the_redirect_address_leads_if_that_is_here(
    redirect_uri: str | None, listens_at: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[str, int]] = []

    class Http:
        server_port = 4711

        def __init__(self, address: tuple[str, int], _handler: Any) -> None:
            bound.append(address)

        def serve_forever(self, _every: float) -> None: ...

        def shutdown(self) -> None: ...

        def server_close(self) -> None: ...

    monkeypatch.setattr(auth_command, "ThreadingHTTPServer", Http)
    with at_the_terminal(redirect_uri) as person:
        assert person.redirect_uri == told
    assert bound == ([] if listens_at is None else [("127.0.0.1", listens_at)])


def test_an_answer_may_come_in_pieces_and_what_is_behind_it_is_not_read(
    monkeypatch: pytest.MonkeyPatch, told: queue.Queue[str]
) -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with at_the_terminal("https://other.example/cb") as person:
            before = len(os.listdir("/proc/self/fd"))
            anyio.run(person.send_to, "https://h.example/authorize?state=S")
            assert "paste the address" in told.get(timeout=PATIENCE)
            for piece in (b"\n  \n", b"https://other.example/cb?co", b"de=C&state=S\nmore=2&code=D\n"):
                os.write(writing, piece)
            assert anyio.run(person.answer) == {"code": "C", "state": "S"}
            assert person._reader is not None
            person._reader.join(PATIENCE)
            assert person._answers.empty()
            assert told.empty(), "an empty line is no mistake"
        assert anyio.run(person.answer) == {}, "whoever still waits is woken"
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(writing)


@pytest.mark.parametrize(
    ("browses", "opens", "words"),
    [(True, True, "Your browser shows"), (True, False, "Open this address"), (False, True, "Open this")],
)
def test_a_browser_that_does_not_open_is_made_up_for_by_the_address(
    browses: bool, opens: bool, words: str, monkeypatch: pytest.MonkeyPatch, told: queue.Queue[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or opens)  # pyright: ignore[reportUnknownLambdaType]
    url = "https://h.example/authorize?state=S"
    with at_the_terminal("https://other.example/cb", browses=browses) as person:
        anyio.run(person.send_to, url)
    said = told.get(timeout=PATIENCE)
    assert said.startswith(words)
    assert said.endswith(f"\n{url}")
    assert opened == ([url] if browses else [])


def test_what_a_person_is_told_goes_to_the_terminal_and_not_into_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    person = at_the_terminal()
    person.show_code("https://h.example/\x1b[2Jenter", "ABCD", None)
    person.show_code("https://h.example/enter", "ABCD", "https://h.example/enter?code=ABCD")
    out, err = capsys.readouterr()
    assert (out, "\x1b" in err) == ("", False)
    first, second, third = err.splitlines()
    assert first.endswith("enter this code: ABCD")
    assert second == "Open https://h.example/enter in any browser, and enter this code: ABCD"
    assert third == "Or open: https://h.example/enter?code=ABCD"


# ---- the command and what it asks of the login -----------------------------------------------------------------------


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize(
    ("options", "browses", "prefers_device", "insists"),
    [
        ([], True, False, False),
        (["--no-browser"], False, False, False),
        (["--device"], False, True, True),
        (["--no-browser", "--device"], False, False, True),
    ],
)
def test_how_a_person_logs_in_is_what_was_asked_for_or_what_is_possible_here(
    can: bool,
    options: list[str],
    browses: bool,
    prefers_device: bool,
    insists: bool,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    class Terminal:
        def __init__(self, server: str, redirect_uri: str | None, **how: bool) -> None:
            asked.append((server, redirect_uri, how))

        def __enter__(self) -> Terminal:
            return self

        def __exit__(self, *_: object) -> None: ...

    async def within(timeout: float, found: ServerDefinition, oauth: Any, person: Any, scope: Any) -> Login:
        asked.append((timeout, found.name, oauth["clientId"], type(person), scope))
        return Login("raw", "http://h.example/mcp", "token")

    monkeypatch.setattr(auth_command, "TerminalLogin", Terminal)
    monkeypatch.setattr(auth_command, "can_browse", lambda: can)
    monkeypatch.setattr(auth_command, "_within", within)
    oauth = {"clientId": "me", "redirectUri": "http://localhost:7/cb"}
    entry = {"url": "https://h.example/mcp", "oauth": oauth}
    (data / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": entry}}))
    words = ["auth", "raw", *options, "--scope", "a b", "--timeout", "7", "--json", "--config", "mcp.json"]
    assert main.run(words) == 0
    assert asked == [
        (
            "raw",
            "http://localhost:7/cb",
            {
                "browses": can and browses,
                "prefers_device": prefers_device or (not can and not options),
                "insists_on_device": insists,
            },
        ),
        (7.0, "raw", "me", Terminal, "a b"),
    ]
    assert json.loads(capsys.readouterr().out)["state"] == "logged in"
    kept = logins().load("raw", "http://h.example/mcp")
    assert kept is not None
    assert kept.access_token == "token"


@for_each(
    ("row", "words"),
    [
        ({"state": "none"}, "no login"),
        ({"state": "unreadable", "why": "locked"}, "unreadable (locked)"),
        (
            {"state": "expired", "scope": "a b", "grant": "pi", "issuer": None},
            "expired by pi at its own server, scope a b",
        ),
        (
            {"state": "logged in", "scope": None, "grant": "", "issuer": "https://i"},
            "logged in at https://i",
        ),
    ],
)
def test_the_state_of_a_login_in_words(row: dict[str, Any], words: str) -> None:
    assert auth_command._state_in_words(auth_command.LoginJson(server="s", **row)) == words


@pytest.mark.parametrize(
    ("more", "renewable"),
    [
        ({}, False),
        ({"grant": "client_credentials"}, True),
        ({"refresh_token": "r", "token_endpoint": "http://h/token"}, True),
    ],
)
def test_a_login_that_needs_nobody_counts_as_renewable_and_no_secret_is_shown(
    more: dict[str, Any], renewable: bool
) -> None:
    login = Login("s", "http://h", "token", issuer="i", scope="a", expires_at=2e9, **more)
    assert auth_command._shown("s", login) == auth_command.LoginJson(
        server="s",
        state="logged in",
        issuer="i",
        scope="a",
        expires_at=2e9,
        renewable=renewable,
        grant=login.grant,
    )


def test_a_login_that_cannot_be_read_is_listed_among_the_others(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {
        "odd": {"url": "https://h.example/odd"},
        "keyed": {"url": "https://h.example/mcp", "headers": {"Authorization": "Bearer x"}},
        "off": {"url": "https://h.example/mcp", "auth": False},
        "plain": {"url": "https://h.example/mcp"},
    }
    (data / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    keep(Login("odd", "https://h.example/odd", "token"))
    logins().path("odd", "https://h.example/odd").write_text("{}")
    assert main.run(["auth", "--json", "--config", "mcp.json"]) == 0
    rows = conforms("auth", json.loads(capsys.readouterr().out))["logins"]
    assert [(row["server"], row["state"]) for row in rows] == [("odd", "unreadable"), ("plain", "none")]
    assert rows[0]["why"]
    for name in ("keyed", "off"):
        assert main.run(["auth", name, "--config", "mcp.json"]) == 2
        assert "has another credential in its entry" in capsys.readouterr().err


def test_nobody_logs_in_at_a_server_that_is_called_as_its_caller(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oauth = {"grantType": "token_exchange", "issuer": "https://i.example", "clientId": "c"}
    entries = {"a": {"url": "https://h.example/mcp", "isolation": "per_session", "oauth": oauth}}
    (data / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    assert main.run(["auth", "--json", "--config", "mcp.json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"logins": []}
    assert main.run(["auth", "a", "--config", "mcp.json"]) == 2
    assert "each caller has a token of his own" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("problem", [None, "out of order"])
def test_logging_out_says_what_was_there_and_what_was_not_revoked(
    there: bool,
    problem: str | None,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (data / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": {"url": "https://h.example/mcp"}}}))
    monkeypatch.setattr("greenroom.actors.login.login_auth.log_out", lambda _: (there, problem))  # pyright: ignore[reportUnknownLambdaType]
    assert main.run(["auth", "raw", "--logout", "--config", "mcp.json", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"server": "raw", "state": "none", "wasThere": there, "notRevoked": problem}
    assert ("was not revoked: out of order" in err) == (problem is not None)
    assert main.run(["auth", "raw", "--logout", "--config", "mcp.json"]) == 0
    words = "Logged out of raw.\n" if there else "There was no login for raw.\n"
    assert capsys.readouterr().out == words


@pytest.mark.parametrize(("asked", "scope"), [("mine", "mine"), (None, "configured")])
@on_asyncio
@in_real_time
async def test_the_scope_that_a_person_asks_for_is_stronger_than_the_configured_and_both_than_the_servers(
    asked: str | None, scope: str
) -> None:
    with auth_server(scope="of-the-server") as server:
        login = await log_in(definition(server), {"scope": "configured"}, Person(server), asked)
        (page,) = server.pages
        assert (page["scope"], login.scope) == (scope, scope)
