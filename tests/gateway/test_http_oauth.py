"""OAuth 2.1: the HTTP door as a resource server, with a real authorization server beside it, and the SDK's client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx2
import jwt
import pytest
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from tests.gateway.test_http_door import echo, text_of, with_door
from tests.gateway.test_http_serve import call, served
from tests.gateway.test_profiles import room_with
from tests.support import in_virtual_time, run
from tests.support.asking import AskingServer
from tests.support.auth_server import KEY, AuthServer, SigningKey, auth_server
from tests.support.bodies import body_of
from tests.support.gateway import PATIENCE, faulty
from tests.support.http_door import HELLO, NO_CERTIFICATES, Opened, http_door, request
from tests.support.loops import on_asyncio
from tests.support.rooms import teach
from tests.support.rows import for_each

from greenroom.actors.transports.http_faults import ExchangeFault
from greenroom.config.model import Settings
from greenroom.gateway.doors.http_auth import Access, BearerToken, OAuth, Terms, terms_in
from greenroom.gateway.doors.http_request import HttpRefusal
from greenroom.gateway.doors.issuer_keys import IssuerKeys, _keys_in, _metadata_urls
from greenroom.protocol.bounds import ACCESS_TOKEN_BYTES, ISSUER_BYTES, ISSUER_KEYS
from greenroom.protocol.errors import UsageError
from greenroom.testing.fake_servers import tool

OTHER, RSA = SigningKey("second"), SigningKey("rsa", "RS256")
STATIC = "token-of-ben-0123456789"
Body = Callable[[Opened, AuthServer], Awaitable[None]]


def with_oauth(
    body: Body, notes: list[str] | None = None, tokens: Sequence[BearerToken] = (), **terms: Any
) -> None:
    """Run `body` with a door that takes the tokens of an authorization server, which signs with `KEY`."""
    with auth_server(signs=True, keys=[KEY.public()]) as stage:
        said: list[str] = []

        def access(port: int) -> Access:
            resource = f"http://127.0.0.1:{port}/mcp"
            all_terms = Terms(issuer=stage.base, resource=resource, audiences=(resource,))
            return Access("127.0.0.1", tokens, oauth=OAuth(attrs.evolve(all_terms, **terms), said.append))

        async def with_stage(opened: Opened, _server: AskingServer) -> None:
            await body(opened, stage)

        with_door(with_stage, AskingServer({"echo": echo}), access=access)
        assert [note.partition(stage.base)[0] for note in said] == (notes or [])


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ---- logging in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_sdks_client_finds_the_issuer_logs_in_and_calls(mode: str) -> None:
    from mcp import Client
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata, ProtectedResourceMetadata

    class Storage:
        tokens: Any = None
        client: Any = None

        async def get_tokens(self) -> Any:
            return self.tokens

        async def set_tokens(self, tokens: Any) -> None:
            self.tokens = tokens

        async def get_client_info(self) -> Any:
            return self.client

        async def set_client_info(self, client_info: Any) -> None:
            self.client = client_info

    async def body(opened: Opened, stage: AuthServer) -> None:
        pages: list[str] = []

        async def show(page: str) -> None:
            pages.append(page)

        async def answer() -> Any:
            location = await anyio.to_thread.run_sync(stage.approve, pages[-1])
            said = httpx2.URL(location).params
            return AuthorizationCodeResult(code=said["code"], state=said["state"], iss=said["iss"])

        redirect: Any = ["http://127.0.0.1:9/callback"]
        metadata = OAuthClientMetadata(
            redirect_uris=redirect, client_name="test", token_endpoint_auth_method="none"
        )
        storage: Any = Storage()
        provider = OAuthClientProvider(opened.url, metadata, storage, show, answer)
        async with httpx2.AsyncClient(auth=provider, trust_env=False, verify=NO_CERTIFICATES) as http:
            transport = streamable_http_client(opened.url, http_client=http)
            async with Client(transport, mode=mode) as client:
                assert [each.name for each in (await client.list_tools()).tools] == ["own_echo"]
                result = await client.call_tool("own_echo", {"text": "hello"})
                assert json.loads(result.content[0].text) == "hello"  # pyright: ignore
        assert stage.grants == ["authorization_code"]
        assert [page["resource"] for page in stage.pages] == [opened.url]
        assert [page["scope"] for page in stage.pages] == ["mcp"]
        assert stage.looked == 1
        told = await opened.http.get("/.well-known/oauth-protected-resource/mcp")
        said = ProtectedResourceMetadata.model_validate_json(told.content)
        assert (str(said.resource), said.scopes_supported) == (opened.url, ["mcp"])

    with_oauth(body, scopes=("mcp",))


@body_of(with_oauth)
async def test_who_has_no_token_is_told_where_to_get_one(opened: Opened, stage: AuthServer, /) -> None:
    refused = await opened.post(b"{}")
    challenge = refused.headers["www-authenticate"]
    assert (refused.status_code, "error=" in challenge) == (401, False)
    place = challenge.partition('resource_metadata="')[2].partition('"')[0]
    told = await opened.http.get(place)
    assert told.json()["authorization_servers"] == [stage.base]
    for path in ("", "/mcp/work", "/mcp/"):
        same = await opened.http.get(f"/.well-known/oauth-protected-resource{path}")
        assert same.content == told.content
    for path in ("x", "/admin", "/mcp/../x"):
        assert (await opened.http.get(f"/.well-known/oauth-protected-resource{path}")).status_code == 401
    assert (await opened.http.post(place)).status_code == 405
    assert (await opened.http.get(place, headers={"host": "evil.example"})).status_code == 421


# ---- tokens ----------------------------------------------------------------------------------------------------------


def b64(data: bytes | dict[str, Any]) -> bytes:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def forged(stage: AuthServer, opened: Opened, secret: bytes, **header: Any) -> str:
    """A token that is signed with what everybody knows; without `secret` it is not signed."""
    claims = {"iss": stage.base, "sub": "eve", "aud": opened.url, "exp": int(time.time()) + 600}
    head = b".".join((b64({"typ": "JWT", "kid": KEY.kid, **header}), b64(claims)))
    signature = hmac.new(secret, head, hashlib.sha256).digest() if secret else b""
    return b".".join((head, b64(signature))).decode()


@body_of(with_oauth, scopes=("mcp",))
async def test_only_what_the_issuer_signed_for_us_is_taken(opened: Opened, stage: AuthServer, /) -> None:
    ours: dict[str, Any] = {"aud": opened.url, "scope": "mcp other"}
    now = int(time.time())
    stage.keys += [RSA.public(), {"kty": "oct", "kid": "secret", "k": b64(b"x" * 32).decode()}]
    good = {
        "plain": stage.signed(KEY, **ours),
        "for several": stage.signed(KEY, aud=["https://other.example", opened.url], scope="mcp"),
        "a clock that is slow": stage.signed(KEY, **ours, exp=now - 10),
        "a clock that is fast": stage.signed(KEY, **ours, nbf=now + 10),
        "scopes of some issuers": stage.signed(KEY, aud=opened.url, scp=["mcp"]),
        "RSA": stage.signed(RSA, **ours),
        "until a time that no float can hold": stage.signed(KEY, **ours, exp=10**400),
    }
    wrong = {
        "not signed": forged(stage, opened, b"", alg="none"),
        "not signed, in capitals": forged(stage, opened, b"", alg="NONE"),
        "signed with the public key": forged(stage, opened, KEY.pem(), alg="HS256"),
        "signed with the key as JWKS has it": forged(
            stage, opened, json.dumps(KEY.public()).encode(), alg="HS256"
        ),
        "signed with a secret of the issuer": forged(stage, opened, b"x" * 32, alg="HS256", kid="secret"),
        "another algorithm than the key's": forged(stage, opened, KEY.pem(), alg="RS256"),
        "algorithm that is not text": forged(stage, opened, b"x", alg=["ES256"]),
        "key id that is not text": forged(stage, opened, b"x", alg="ES256", kid=["first"]),
        "signed by somebody else": stage.signed(OTHER, header={"kid": KEY.kid}, **ours),
        "brings its own key": stage.signed(OTHER, header={"kid": KEY.kid, "jwk": OTHER.public()}, **ours),
        "brings its own place of keys": stage.signed(OTHER, header={"jku": "http://127.0.0.1:9/"}, **ours),
        "an extension": stage.signed(KEY, header={"crit": ["x"], "x": 1}, **ours),
        "another issuer": stage.signed(KEY, **ours, iss="https://evil.example"),
        "another issuer with our issuer in it": stage.signed(KEY, **ours, iss=f"{stage.base}/"),
        "no issuer": stage.signed(KEY, **ours, iss=None),
        "for somebody else": stage.signed(KEY, aud="https://other.example"),
        "for the root of us": stage.signed(KEY, aud=opened.url.removesuffix("/mcp")),
        "for nobody": stage.signed(KEY, scope="mcp"),
        "expired": stage.signed(KEY, **ours, exp=now - 40),
        "not valid yet": stage.signed(KEY, **ours, nbf=now + 40),
        "for ever": stage.signed(KEY, **ours, exp=None),
        "until infinity": stage.signed(KEY, **ours, exp=float("inf")),
        "of nobody": stage.signed(KEY, **ours, sub=None),
        "unknown key": stage.signed(OTHER, **ours),
        "too long": stage.signed(KEY, **ours, x="x" * ACCESS_TOKEN_BYTES),
        "deep": f"{b64(b'[' * 5000).decode()}.{b64(b'[' * 900).decode()}.x",
        "no token": "nobody",
        "dots": "..",
        "cut": stage.signed(KEY, **ours)[:-8],
    }
    for name, token in good.items():
        person = await opened.session(**bearer(token))
        assert text_of(await person.call("own_echo", text=name)) == name
    for name, token in wrong.items():
        refused = await opened.post(b"{}", **bearer(token))
        assert refused.status_code == 401, name
        assert 'error="invalid_token"' in refused.headers["www-authenticate"], name
        assert token not in refused.text, name
    refused = await opened.post(b"{}", **bearer(stage.signed(KEY, aud=opened.url, scope="other")))
    assert refused.status_code == 403
    assert 'error="insufficient_scope", scope="mcp"' in refused.headers["www-authenticate"]
    assert stage.looked <= 2  # when the door was opened, and perhaps for the key that came then


def test_a_session_belongs_to_the_subject_and_the_program_that_opened_it() -> None:
    async def body(opened: Opened, stage: AuthServer) -> None:
        def of(**claims: Any) -> dict[str, str]:
            return bearer(stage.signed(KEY, aud=opened.url, **claims))

        ann = await opened.session(**of(sub="ann"))
        again = await ann.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', **of(sub="ann", jti="renewed"))
        assert again.status_code == 200
        for other in (of(sub="eve"), of(sub="ann", client_id="d"), bearer(STATIC)):
            refused = await ann.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', **other)
            assert refused.status_code == 404
            assert (await opened.http.delete("/mcp", headers=ann.real_headers(**other))).status_code == 404
        ben = await opened.session(**bearer(STATIC))
        assert text_of(await ben.call("own_echo", text="a")) == "a"

    with_oauth(body, tokens=[BearerToken.of("oauth-ann", STATIC)])
    with pytest.raises(UsageError, match="another name"):
        BearerToken.of("oauth:ann", STATIC)


@body_of(with_oauth, profile_claim="team", profiles={"mcp:work": "work", "mcp:home": "home"})
async def test_a_token_has_the_profile_that_its_claim_or_scope_names(
    opened: Opened, stage: AuthServer, /
) -> None:
    def of(**claims: Any) -> dict[str, str]:
        return bearer(stage.signed(KEY, aud=opened.url, **claims))

    hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}'
    for claims in ({"team": "home", "scope": "mcp:work"}, {"team": 7, "scope": "x mcp:home"}):
        refused = await opened.post(hello, "/mcp/work", **of(**claims))
        assert refused.status_code == 404  # it is bound to `home`
    refused = await opened.post(hello, **of(scope="mcp:work"))
    assert refused.status_code == 404  # this room has no profiles
    for claims in ({}, {"team": None}, {"scope": "mcp"}):
        refused = await opened.post(hello, **of(**claims))
        assert (refused.status_code, "profile" in refused.text) == (403, True)


def test_t58_who_brings_an_empty_claim_sees_nothing(tmp_path: Path) -> None:
    resource = "https://gateway.example/mcp"
    with auth_server(signs=True, keys=[KEY.public()]) as stage:
        oauth = {"issuer": stage.base, "resource": resource, "profileClaim": "team"}
        with served(tmp_path, {"one": faulty(tmp_path, "one")}, http={"oauth": oauth}) as one:

            def of(**claims: Any) -> dict[str, str]:
                return bearer(stage.signed(KEY, aud=resource, **claims))

            hello = request("initialize", 0, {**HELLO, "capabilities": {}})
            for claims in ({"team": ""}, {"team": "  "}, {"team": None}):
                assert one.post(hello, **of(**claims)).status_code == 403
                for page in ("status", "map", "events"):
                    answer = one.http.get(one.url.replace("/mcp", f"/{page}"), headers=of(**claims))
                    assert (answer.status_code, "one" in answer.text) == (403, False), page
            assert one.post(hello, **of(team="work", sub="")).status_code == 401
            assert one.post(hello, **of(team="work")).status_code == 404, "there is no such profile here"


def test_what_a_caller_sees_is_its_profile() -> None:
    with auth_server(signs=True, keys=[KEY.public()]) as stage:

        def access(port: int) -> Access:
            resource = f"http://127.0.0.1:{port}/mcp"
            terms = Terms(stage.base, resource, (resource,), profiles={"mcp:work": "work", "mcp:all": "all"})
            return Access("127.0.0.1", oauth=OAuth(attrs.evolve(terms, profile_claim="team"), print))

        async def main() -> None:
            servers = {"own": AskingServer({"echo": echo}), "far": AskingServer({"echo": echo})}
            async with room_with(servers, work={"servers": ["own"]}, all={"servers": ["own", "far"]}) as room:
                for name in servers:
                    await teach(room, name, [tool("echo")])
                async with http_door(room, access=access) as opened:
                    cases: list[tuple[dict[str, Any], list[str]]] = [
                        ({"scope": "mcp:work"}, ["own_echo"]),
                        ({"scope": "mcp:all"}, ["far_echo", "own_echo"]),
                        ({"scope": "mcp:all", "team": "work"}, ["own_echo"]),
                    ]
                    for claims, seen in cases:
                        token = stage.signed(KEY, aud=opened.url, **claims)
                        person = await opened.session(**bearer(token))
                        listed = await person.ask("tools/list")
                        assert sorted(each["name"] for each in listed["result"]["tools"]) == seen

        run("asyncio", main)


def test_the_command_takes_such_tokens_and_logs_none(tmp_path: Path) -> None:
    resource = "https://gateway.example/mcp"
    with auth_server(signs=True, keys=[KEY.public()]) as stage:
        oauth = {"issuer": stage.base, "resource": resource, "scopes": ["mcp"]}
        with served(tmp_path, {"one": faulty(tmp_path, "one")}, http={"oauth": oauth}) as one:
            good = stage.signed(KEY, aud=resource, scope="mcp")
            wrong = stage.signed(OTHER, aud=resource, scope="mcp")
            assert one.post({}, **bearer(wrong)).status_code == 401
            assert one.post(request("initialize", 0, {**HELLO, "capabilities": {}})).status_code == 200
            one.http.headers |= bearer(good)
            session = one.session()
            assert "hi" in one.post(call("one_echo", text="hi"), **session).text
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE) == 0
            log = one.log.read_text()
            assert not any(part in log for token in (good, wrong) for part in token.split("."))


# ---- the issuer's keys -----------------------------------------------------------------------------------------------


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_only_keys_that_check_signatures_and_are_no_secrets_count() -> None:
    many = [{"kty": "EC", "kid": str(number)} for number in range(ISSUER_KEYS + 1)]
    assert _keys_in({"keys": many}) == many[:-1]
    good = [{"kty": kind, **use} for kind in ("RSA", "EC", "OKP") for use in ({}, {"use": "sig"})]
    bad = [{"kty": "oct"}, {"kty": "RSA", "use": "enc"}, {}, {"use": "sig"}, {"kty": ["RSA"]}]
    bad += [{"kty": "RSA", "d": "AQAB"}]
    assert _keys_in({"keys": [*bad[:2], *good, *bad[2:], "RSA", None]}) == good
    for keys in (bad, [], None, {"kty": "RSA"}):
        with pytest.raises(ExchangeFault, match="no key among them"):
            _keys_in({"keys": keys})


@on_asyncio
@in_virtual_time
async def test_made_up_keys_do_not_flood_the_issuer_and_a_new_key_is_found() -> None:
    asked: list[str] = []
    here = [{"kty": "EC", "kid": "a"}]

    async def fetch(url: str, most: int) -> bytes:
        asked.append(url)
        await anyio.sleep(1)
        return jwks(*here)

    keys = IssuerKeys("https://i", "https://i/keys", fetch, lambda _: None)
    for start in range(3):
        async with anyio.create_task_group() as flood:
            for number in range(100):
                flood.start_soon(keys.find, f"made-up-{start}-{number}")
    assert (len(asked), keys.generation) == (1, 1)
    here.append({"kty": "EC", "kid": "b"})
    assert await keys.find("b") == []  # it is too early
    await anyio.sleep(61)
    assert await keys.find("b") == [here[1]]
    assert await keys.find("a") == [here[0]]
    assert (len(asked), keys.generation) == (2, 2)


@on_asyncio
@in_virtual_time
async def test_keys_that_cannot_be_fetched_again_count_for_a_day_and_none_are_made_up() -> None:
    is_down = True
    notes: list[str] = []
    asked: list[float] = []

    async def fetch(url: str, most: int) -> bytes:
        asked.append(anyio.current_time())
        if is_down:
            raise ExchangeFault("HTTP 503")
        return jwks({"kty": "EC", "kid": "a"})

    keys = IssuerKeys("https://i", "https://i/keys", fetch, notes.append)
    for _ in range(50):
        assert await keys.find("a") is None
    assert len(asked) == 1
    await anyio.sleep(6)
    is_down = False
    found = await keys.find("a")
    assert found is not None
    assert len(found) == 1
    is_down = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keys.keep)
        await anyio.sleep(86_000)
        assert await keys.find("a") == found
        await anyio.sleep(1_000)
        assert await keys.find("a") is None
        tasks.cancel_scope.cancel()
    assert len(notes) == 2
    assert "cannot be fetched: HTTP 503" in notes[0]


@on_asyncio
@in_virtual_time
async def test_a_token_is_remembered_until_it_ends_or_the_keys_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greenroom.gateway.doors.http_auth._REMEMBERED", 3)
    here, notes = [KEY.public()], list[str]()

    async def fetch(url: str, most: int) -> bytes:
        return jwks(*here)

    issuer = AuthServer()
    terms = Terms(issuer.base, "http://127.0.0.1/mcp", ("us",), keys="http://127.0.0.1/keys")
    door = OAuth(terms, notes.append)
    keys = door._keys = IssuerKeys(terms.issuer, terms.keys, fetch, notes.append)
    now = int(time.time())
    ended, good = (issuer.signed(KEY, aud="us", exp=now + left).encode() for left in (-5, 600))
    for token in (ended, good, ended):  # the keys are new at the first
        assert (await door.caller(token)).name == f"oauth:{issuer.subject}"
    known, keys._keys = keys._keys, ()  # so nothing can be checked now
    assert await door.caller(good)
    with pytest.raises(HttpRefusal):  # it has ended, and was taken only because clocks may differ
        await door.caller(ended)
    keys._keys = known
    here[:] = [OTHER.public()]
    await keys._look()
    with pytest.raises(HttpRefusal) as refused:
        await door.caller(good)
    assert "unknown key" in refused.value.message
    for number in range(4):
        await door.caller(issuer.signed(OTHER, aud="us", jti=str(number)).encode())
    assert len(door._remembered) == 3


@body_of(with_oauth, scopes=("mcp", "more"))
async def test_a_key_is_for_one_algorithm_and_all_scopes_are_wanted(
    opened: Opened, stage: AuthServer, /
) -> None:
    stage.keys += [RSA.public(alg="RS256")]
    said: dict[str, Any] = {"aud": opened.url, "scope": "mcp more"}
    by_rsa = {"iss": stage.base, "sub": "ann", "exp": int(time.time()) + 600, **said}
    for token, status in (
        (
            jwt.encode(by_rsa, RSA.private, "RS256", {"kid": RSA.kid}),
            400,
        ),  # it is let in, and `{}` is no request
        (jwt.encode({**by_rsa, "jti": "a"}, RSA.private, "PS256", {"kid": RSA.kid}), 401),
        (stage.signed(KEY, **said), 400),
        (stage.signed(KEY, aud=opened.url, scope="mcp"), 403),
        (stage.signed(KEY, aud=opened.url, scope="more"), 403),
    ):
        assert (await opened.post(b"{}", **bearer(token))).status_code == status


@body_of(with_oauth)
async def test_a_key_published_with_its_private_part_lets_nobody_in(
    opened: Opened, stage: AuthServer, /
) -> None:
    to_jwk = {"RS256": RSAAlgorithm.to_jwk, "ES256": ECAlgorithm.to_jwk}
    said = {"iss": stage.base, "sub": "ann", "aud": opened.url, "exp": int(time.time()) + 600}
    for key, algorithm in ((RSA, "RS256"), (OTHER, "ES256")):
        stage.keys += [{**json.loads(to_jwk[algorithm](key.private)), "kid": key.kid}]
    for key, algorithm in ((RSA, "RS256"), (OTHER, "ES256")):
        token = jwt.encode(said, key.private, algorithm, {"kid": key.kid})
        assert (await opened.post(b"{}", **bearer(token))).status_code == 401


@pytest.mark.parametrize(
    "said",
    [
        None,
        b'{"keys":[' + b" " * ISSUER_BYTES + b"]}",
        b"[" * 100_000,
        b"[]",
        b'{"keys":{}}',
        b'{"keys":[1,null,{"kty":"oct","kid":"first","k":"eA"}]}',
    ],
    ids=["down", "huge", "deep", "no object", "no list", "only secrets"],
)
def test_without_the_issuers_keys_nobody_comes_and_everybody_is_told_to_wait(said: bytes | None) -> None:
    async def body(opened: Opened, stage: AuthServer) -> None:
        refused = await opened.post(b"{}", **bearer(stage.signed(KEY, aud=opened.url)))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert (
            await opened.post(b"{}", **bearer(STATIC))
        ).status_code == 400  # who needs none of them, goes on

    with auth_server(signs=True) as other:
        other.is_down, other.keys_text = said is None, said
        with_oauth(
            body,
            ["the keys of the issuer "],
            [BearerToken.of("ben", STATIC)],
            keys=f"{other.base}/jwks",
        )


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"issuer": "https://evil.example", "jwks_uri": "https://i/keys"}, "another issuer"),
        ({"issuer": "https://i/x", "jwks_uri": "http://evil.example/keys"}, "no place"),
        ({"issuer": "https://i/x"}, "no place"),
    ],
)
@on_asyncio
@in_virtual_time
async def test_metadata_of_another_issuer_or_without_a_safe_place_is_not_used(
    metadata: Any, why: str
) -> None:
    asked: list[str] = []
    notes: list[str] = []

    async def fetch(url: str, most: int) -> bytes:
        asked.append(url)
        if "oauth-authorization-server" in url:
            raise ExchangeFault("HTTP 404")
        return json.dumps(metadata).encode()

    keys = IssuerKeys("https://i/x", None, fetch, notes.append)
    assert await keys.find("a") is None
    assert why in notes[0]
    assert asked == [
        "https://i/.well-known/oauth-authorization-server/x",
        "https://i/x/.well-known/openid-configuration",
    ]


# ---- configuration ---------------------------------------------------------------------------------------------------


@for_each(
    ("settings", "word"),
    [
        ({"http_oauth_resource": None}, '"resource"'),
        ({"http_oauth_issuer": "http://login.example"}, "issuer must be an https URL"),
        ({"http_oauth_issuer": "https://ann:secret@login.example"}, "issuer must be"),
        ({"http_oauth_resource": "https://gateway.example/mcp#x"}, "resource must be"),
        ({"http_oauth_resource": 'https://gateway.example/"'}, "resource must be"),
        ({"http_oauth_jwks": "file:///etc/passwd"}, "jwksUrl must be"),
    ],
)
def test_what_cannot_be_trusted_is_refused_at_the_start(settings: Any, word: str) -> None:
    given: dict[str, Any] = {
        "http_oauth_issuer": "https://login.example",
        "http_oauth_resource": "https://gateway.example/mcp",
        **settings,
    }
    with pytest.raises(UsageError, match=word):
        terms_in(Settings(**given))


def test_other_machines_may_come_when_there_is_an_issuer() -> None:
    assert terms_in(Settings()) is None
    with pytest.raises(UsageError, match=r"http\.oauth"):
        Access("0.0.0.0")
    terms = terms_in(
        Settings(http_oauth_issuer="https://i.example", http_oauth_resource="https://g.example/mcp")
    )
    assert terms is not None
    assert terms.audiences == ("https://g.example/mcp",)
    assert Access("0.0.0.0", oauth=OAuth(terms, lambda _: None)).callers == 2


@for_each("end", ["", "/"])
@for_each("path", ["", "/realms/x"])
def test_where_an_issuers_metadata_may_be(path: str, end: str) -> None:
    assert _metadata_urls(f"https://i:8443{path}{end}") == (
        f"https://i:8443/.well-known/oauth-authorization-server{path}",
        f"https://i:8443{path}/.well-known/openid-configuration",
    )


# ---- one by one ------------------------------------------------------------------------------------------------------

US = Terms("https://i", "https://us.example/mcp", ("us",))


@on_asyncio
@in_virtual_time
async def test_the_issuer_is_asked_every_ten_minutes_and_each_minute_while_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    notes: list[str] = []
    down = range(1_000, 1_500)

    async def fetch(_url: str, most: int) -> bytes:
        assert most == 256 << 10
        asked.append(anyio.current_time())
        if int(asked[-1]) in down:
            raise ExchangeFault("HTTP 503")
        return jwks({"kty": "EC", "kid": "a"})

    keys = IssuerKeys("https://i", "https://i/keys", fetch, notes.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keys.keep)
        await anyio.sleep(1_190)
        assert keys.generation == 1, "the same keys again are no change"
        await anyio.sleep(1_400)
        tasks.cancel_scope.cancel()
    assert asked == [0, 600, 1200, 1260, 1320, 1380, 1440, 1500, 2100]
    assert len(notes) == 1


@on_asyncio
@in_virtual_time
async def test_an_unknown_key_is_looked_for_once_a_minute_and_sooner_while_none_is_known() -> None:
    asked: list[float] = []
    is_down = True

    async def fetch(_url: str, _most: int) -> bytes:
        asked.append(anyio.current_time())
        if is_down:
            raise ExchangeFault("HTTP 503")
        return jwks({"kty": "EC", "kid": "a"}, {"kty": "EC", "kid": "b"})

    keys = IssuerKeys("https://i", "https://i/keys", fetch, [].append)
    for _ in range(12):
        assert await keys.find("made-up") is None
        await anyio.sleep(1.0)
    is_down = False
    await anyio.sleep(3.0)
    assert await keys.find("made-up") == []
    assert asked == [0, 5, 10, 15]
    named = await keys.find(None)
    assert [key["kid"] for key in named or ()] == ["a", "b"], "a token that names no key may be of any"
    is_down = True
    for _ in range(130):
        assert await keys.find("made-up") == []
        await anyio.sleep(1.0)
    assert asked[4:] == [75, 135]


@on_asyncio
@in_virtual_time
async def test_it_is_told_why_the_keys_cannot_be_had() -> None:
    async def fetch(url: str, _most: int) -> bytes:
        raise ExchangeFault(f"HTTP 404 at {url}")

    notes: list[str] = []
    assert await IssuerKeys("https://i/x", None, fetch, notes.append).find("a") is None
    where = "https://i/x/.well-known/openid-configuration"
    assert notes == [f"the keys of the issuer https://i/x cannot be fetched: HTTP 404 at {where}"]


@on_asyncio
@in_virtual_time
async def test_one_of_two_keys_with_the_same_id_is_not_guessed() -> None:
    async def fetch(_url: str, _most: int) -> bytes:
        return jwks(KEY.public(), {**OTHER.public(), "kid": KEY.kid})

    door = OAuth(US, [].append)
    door._keys = IssuerKeys("https://i", "https://i/keys", fetch, [].append)
    with pytest.raises(HttpRefusal, match="unknown key") as refused:
        await door.caller(AuthServer().signed(KEY, aud="us").encode())
    assert (refused.value.status, b"invalid_token" in refused.value.headers[0][1]) == (401, True)


@for_each(
    ("more", "claims", "seen"),
    [
        ({}, {}, None),
        ({"profiles": {"mcp:home": "home"}}, {"scope": "mcp:home"}, "home"),
        ({"profiles": {"mcp:home": "home"}}, {"scope": "mcp"}, 403),
        ({"profile_claim": "team"}, {"team": "work"}, "work"),
        ({"profile_claim": "team"}, {}, 403),
        ({"profile_claim": "team"}, {"team": ""}, 403),
        ({"profile_claim": "team"}, {"team": " "}, 403),
        ({"profile_claim": "team", "profiles": {"mcp": "home"}}, {"team": "", "scope": "mcp"}, "home"),
        ({"profiles": {"b": "first", "a": "second"}}, {"scope": "a b"}, "first"),
        ({"scopes": ("mcp",)}, {"scope": "other"}, 403),
        ({"scopes": ("mcp",)}, {"scope": 7}, 403),
        ({"scopes": ("mcp", "7")}, {"scp": ["mcp", 7]}, None),
        ({"profile_claim": "team", "profiles": {"mcp": "home"}}, {"team": 7, "scope": "mcp"}, "home"),
    ],
)
def test_what_the_claims_of_a_token_let_it_see(more: Any, claims: Any, seen: str | int | None) -> None:
    door = OAuth(attrs.evolve(US, **more), [].append)
    if seen == 403:
        with pytest.raises(HttpRefusal, match="Forbidden") as refused:
            door._caller_of({"sub": "ann", **claims})
        ((name, challenge),) = refused.value.headers
        assert (refused.value.status, name) == (403, b"www-authenticate")
        assert b'error="insufficient_scope"' in challenge
    else:
        for program, client in (
            ({"client_id": 7}, None),
            ({"azp": "p"}, "p"),
            ({"client_id": "c", "azp": "p"}, "c"),
        ):
            caller = door._caller_of({"sub": "ann", **program, **claims})
            assert (caller.name, caller.profile, caller.client) == ("oauth:ann", seen, client)


@for_each(
    ("more", "scopes"),
    [
        ({}, None),
        ({"scopes": ("a",)}, ["a"]),
        ({"profiles": {"b": "x", "a": "y"}}, ["b", "a"]),
        ({"scopes": ("a",), "profiles": {"b": "x", "a": "y"}}, ["a", "b"]),
    ],
)
def test_a_client_is_told_each_scope_once(more: Any, scopes: list[str] | None) -> None:
    told = json.loads(OAuth(attrs.evolve(US, **more), [].append).metadata)
    assert told.pop("scopes_supported", None) == scopes
    assert told == {
        "resource": "https://us.example/mcp",
        "authorization_servers": ["https://i"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Greenroom",
    }


@pytest.mark.parametrize(
    ("resource", "place"),
    [
        ("https://us.example", "https://us.example/.well-known/oauth-protected-resource"),
        ("https://us.example/", "https://us.example/.well-known/oauth-protected-resource"),
        ("https://us.example:8443/mcp/", "https://us.example:8443/.well-known/oauth-protected-resource/mcp"),
    ],
)
def test_where_a_client_finds_what_to_do(resource: str, place: str) -> None:
    door = OAuth(attrs.evolve(US, resource=resource, scopes=("a", "b")), [].append)
    told = f'scope="a b", resource_metadata="{place}"'
    assert door.challenge() == (b"www-authenticate", f'Bearer realm="greenroom", {told}'.encode())
    assert door.challenge("x") == (
        b"www-authenticate",
        f'Bearer realm="greenroom", error="x", {told}'.encode(),
    )
