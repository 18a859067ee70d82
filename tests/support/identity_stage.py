"""An organisation's identity provider, and two servers whose authorization servers trust it: real HTTP on loopback.

Tokens are made and checked by joserfc, as strictly as the drafts say, so a client that mixes them up is refused here.
Whoever plays an attacker turns an answer of one of them into another (`twists`). Everything that came in is kept.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal
from urllib.parse import unquote

import attrs
import uvicorn
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

TYPE = "urn:ietf:params:oauth:token-type:"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AT_PROVIDER = ("greenroom", "secret-at-the-provider-4711")  # we as its client
AT_SERVER = ("greenroom-at-server", "secret-at-the-server-4711")
Twist = Callable[[Mapping[str, str], dict[str, Any]], dict[str, Any] | Response]
_numbers = itertools.count(1)


def signed(key: ECKey, kind: str, /, **claims: Any) -> str:
    now = int(time.time())
    said = {"iat": now, "exp": now + 300, "jti": f"jti-{next(_numbers)}", **claims}
    kept = {name: value for name, value in said.items() if value is not None}
    return jwt.encode({"alg": "ES256", "typ": kind, "kid": "first"}, kept, key)


@attrs.define(eq=False)
class Issuer:
    """What both kinds of authorization server have."""

    port: int = 0
    key: ECKey = attrs.field(factory=lambda: ECKey.generate_key("P-256"))
    client: tuple[str, str] = AT_SERVER
    lasts: float | None = 300
    scopes: frozenset[str] | None = None  # that it gives at most; None: all
    twist: Twist | None = None  # what it answers instead
    metadata: Mapping[str, Any] = {}  # what its metadata says instead
    methods: tuple[str, ...] | None = None  # how its clients are known
    is_openid: bool = False  # its metadata is at the other place, and the first has a page for everything
    forms: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])
    gone: list[str] = attrs.field(factory=list[str])  # what its clients were refused

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> dict[str, Any]:
        return {"keys": [{**self.key.as_dict(private=False), "kid": "first", "use": "sig", "alg": "ES256"}]}

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/oauth-authorization-server", self._about),
            Route("/.well-known/openid-configuration", self._about),
            Route("/jwks", self._keys),
            Route("/token", self._token, methods=["POST"]),
        ]

    async def _about(self, request: Request) -> Response:
        if self.is_openid != request.url.path.endswith("openid-configuration"):
            return PlainTextResponse("<html>", 200 if self.is_openid else 404)
        said: dict[str, Any] = {
            "issuer": self.issuer,
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
        }
        if self.methods is not None:
            said["token_endpoint_auth_methods_supported"] = list(self.methods)
        return JSONResponse({**said, **self.metadata})

    async def _keys(self, _request: Request) -> Response:
        return JSONResponse(self.keys)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.forms.append(form)
        try:
            self._check_client(request, form)
            answer = self.granted(form)
        except (AssertionError, JoseError, KeyError, ValueError) as error:
            self.gone.append(f"{type(error).__name__}: {error}")
            return JSONResponse({"error": "invalid_grant", "error_description": repr(form)}, 400)
        twisted = answer if self.twist is None else self.twist(form, answer)
        return twisted if isinstance(twisted, Response) else JSONResponse(twisted)

    def _check_client(self, request: Request, form: Mapping[str, str]) -> None:
        name, secret = form.get("client_id", ""), form.get("client_secret", "")
        basic = request.headers.get("authorization", "")
        if basic.startswith("Basic "):
            assert not secret, "two ways at once"
            name, _, secret = base64.b64decode(basic[6:]).decode().partition(":")
            name, secret = unquote(name), unquote(secret)
        assert (name, secret) == self.client, "unknown client"

    def given(self, form: Mapping[str, str]) -> set[str]:
        wanted = set(form.get("scope", "").split())
        return wanted if self.scopes is None else wanted & self.scopes

    def granted(self, form: Mapping[str, str]) -> dict[str, Any]:
        raise NotImplementedError

    def read(self, token: str, key: ECKey, kind: str | None) -> dict[str, Any]:
        found = jwt.decode(token, key, algorithms=["ES256"])
        assert kind is None or found.header.get("typ") == kind, f"typ {found.header.get('typ')}"
        assert found.claims["exp"] > time.time(), "over"
        return found.claims


@attrs.define(eq=False)
class IdentityProvider(Issuer):
    """Knows the people of an organisation. `denied`: whom it vouches for at no such audience or resource."""

    client: tuple[str, str] = AT_PROVIDER
    denied: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    gateway: str = ""  # for whom its access tokens are

    def access_token(self, subject: str, **claims: Any) -> str:
        """The token by which a caller comes to the gateway."""
        said = {"iss": self.issuer, "sub": subject, "aud": self.gateway, "client_id": "agent", **claims}
        return signed(self.key, "at+jwt", **said)

    def id_token(self, subject: str, **claims: Any) -> str:
        return signed(
            self.key, "JWT", **{"iss": self.issuer, "sub": subject, "aud": self.client[0], **claims}
        )

    def granted(self, form: Mapping[str, str]) -> dict[str, Any]:
        assert form["grant_type"] == EXCHANGE
        is_id = form["subject_token_type"] == f"{TYPE}id_token"
        said = self.read(form["subject_token"], self.key, "JWT" if is_id else "at+jwt")
        assert said["iss"] == self.issuer
        assert said["aud"] == (self.client[0] if is_id else self.gateway), "for somebody else"
        subject, scopes = said["sub"], self.given(form)
        places = {form.get("audience"), form.get("resource")}
        assert not any((subject, place) in self.denied for place in places), "denied"
        about = {"iss": self.issuer, "sub": subject, "scope": " ".join(sorted(scopes))}
        answer: dict[str, Any] = {"scope": about["scope"], "expires_in": self.lasts}
        if form["requested_token_type"] == f"{TYPE}id-jag":
            about |= {"aud": form["audience"], "resource": form["resource"], "client_id": AT_SERVER[0]}
            token, kind = signed(self.key, "oauth-id-jag+jwt", **about), "N_A"
        else:
            token, kind = (
                signed(self.key, "at+jwt", aud=form.get("resource") or form["audience"], **about),
                "Bearer",
            )
        kept = {name: value for name, value in answer.items() if value is not None}
        return {
            "access_token": token,
            "token_type": kind,
            "issued_token_type": form["requested_token_type"],
            **kept,
        }


@attrs.define(eq=False)
class GuardedServer(Issuer):
    """An MCP server, and its authorization server. `needs`: the scope that a tool wants."""

    provider: IdentityProvider = attrs.field(factory=IdentityProvider)
    needs: dict[str, str] = attrs.field(factory=lambda: {"write": "notes:write"})
    wants: str = ""  # a challenge instead, whatever the token may do
    tokens: dict[str, tuple[str, set[str], float]] = attrs.field(factory=dict[str, Any])
    used: set[str] = attrs.field(factory=set[str])  # ids of assertions
    shown: list[str] = attrs.field(factory=list[str])  # the tokens that came with requests
    calls: list[tuple[str, str]] = attrs.field(factory=list[tuple[str, str]])  # who called what
    opened: int = 0  # sessions
    ended: int = 0
    quotes: bool = False  # its tools fail, and tell by which token they are called
    trusts_provider: bool = False  # it takes the provider's own tokens (token exchange)

    @property
    def url(self) -> str:
        return f"{self.issuer}/mcp"

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("/mcp", self._mcp, methods=["GET", "POST", "DELETE"])]

    def granted(self, form: Mapping[str, str]) -> dict[str, Any]:
        assert form["grant_type"] == BEARER
        said = self.read(form["assertion"], self.provider.key, "oauth-id-jag+jwt")
        assert said["iss"] == self.provider.issuer
        assert said["aud"] == self.issuer, "for somebody else"
        assert said["resource"] == self.url
        assert said["client_id"] == self.client[0]
        assert said["jti"] not in self.used, "replayed"
        self.used.add(said["jti"])
        scopes = self.given(form) & set(said["scope"].split())
        token = f"token-of-{said['sub']}-{secrets.token_hex(12)}"
        self.tokens[token] = said["sub"], scopes, time.time() + (3600 if self.lasts is None else self.lasts)
        answer = {"access_token": token, "token_type": "Bearer", "scope": " ".join(sorted(scopes))}
        return answer if self.lasts is None else {**answer, "expires_in": self.lasts}

    def expire(self) -> None:
        self.tokens.clear()

    def _whose(self, token: str) -> tuple[str, set[str]] | None:
        if self.trusts_provider:
            try:
                said = self.read(token, self.provider.key, "at+jwt")
                assert said["aud"] == self.url
            except (AssertionError, JoseError, ValueError, KeyError):
                return None
            return said["sub"], set(said["scope"].split())
        known = self.tokens.get(token)
        return known[:2] if known is not None and known[2] > time.time() else None

    async def _mcp(self, request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.shown.append(token)
        who = self._whose(token)
        if who is None:
            elsewhere = 'Bearer resource_metadata="http://127.0.0.1:1/nowhere", error="invalid_token"'
            return Response(status_code=401, headers={"WWW-Authenticate": elsewhere})
        if request.method != "POST":
            self.ended += request.method == "DELETE"
            return Response(status_code=405 if request.method == "GET" else 200)
        message = json.loads(await request.body())
        method, params = message["method"], message.get("params") or {}
        if "id" not in message:
            return Response(status_code=202)
        if method == "tools/call":
            needed = self.wants or self.needs.get(params["name"], "")
            if needed and (self.wants or not set(needed.split()) <= who[1]):
                challenge = f'Bearer error="insufficient_scope", scope="{needed}"'
                return Response(status_code=403, headers={"WWW-Authenticate": challenge})
            self.calls.append((who[0], params["name"]))
            if self.quotes:
                error = {"code": -32000, "message": f"called by {token}"}
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return self._answer(message["id"], method, who)

    def _answer(self, key: Any, method: str, who: tuple[str, set[str]]) -> Response:
        headers: dict[str, str] = {}
        if method == "initialize":
            self.opened += 1
            headers["mcp-session-id"] = f"session-{self.opened}"
        text = json.dumps({"sub": who[0], "scopes": sorted(who[1])})
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "guarded", "version": "1"},
            },
            "tools/list": {
                "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("whoami", "write")]
            },
            "tools/call": {"content": [{"type": "text", "text": text}]},
            "ping": {},
        }
        found = results.get(method)
        said = (
            {"error": {"code": -32601, "message": "unknown method"}} if found is None else {"result": found}
        )
        return JSONResponse({"jsonrpc": "2.0", "id": key, **said}, headers=headers)


@attrs.define(eq=False)
class Stage:
    """All three. `one` and `two` trust the provider, and not each other."""

    provider: IdentityProvider
    one: GuardedServer
    two: GuardedServer

    def entry(self, server: GuardedServer, **more: Any) -> dict[str, Any]:
        """The entry of a server that is called as its caller, by an ID-JAG."""
        oauth = {
            "grantType": "id_jag",
            "identityProvider": self.provider.issuer,
            "identityClientId": AT_PROVIDER[0],
            "identityClientSecret": AT_PROVIDER[1],
            "issuer": server.issuer,
            "clientId": AT_SERVER[0],
            "clientSecret": AT_SERVER[1],
            "scope": "notes:read",
            **more,
        }
        return {"url": server.url, "isolation": "per_session", "oauth": oauth}

    def exchange_entry(self, server: GuardedServer, **more: Any) -> dict[str, Any]:
        """The same by token exchange: the provider's own token for this server."""
        server.trusts_provider = True
        oauth = {
            "grantType": "token_exchange",
            "issuer": self.provider.issuer,
            "clientId": AT_PROVIDER[0],
            "clientSecret": AT_PROVIDER[1],
            "scope": "notes:read",
            **more,
        }
        return {"url": server.url, "isolation": "per_session", "oauth": oauth}

    def secrets(self) -> list[str]:
        """Every token and client secret that has gone anywhere."""
        found = {AT_PROVIDER[1], AT_SERVER[1], *self.one.shown, *self.two.shown}
        for each in (self.provider, self.one, self.two):
            found |= {
                form[name] for form in each.forms for name in ("subject_token", "assertion") if name in form
            }
        return sorted(found - {""})


@contextmanager
def identity_stage() -> Generator[Stage]:
    provider = IdentityProvider()
    stage = Stage(provider, GuardedServer(provider=provider), GuardedServer(provider=provider))
    with ExitStack() as ends:
        for each in (stage.provider, stage.one, stage.two):
            ends.enter_context(_served(each))
        yield stage


@contextmanager
def _served(issuer: Issuer) -> Generator[None]:
    with on_loopback() as listener:
        issuer.port = listener.getsockname()[1]
        with served(Starlette(routes=issuer.routes()), listener):
            yield


@contextmanager
def on_loopback() -> Generator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener


@contextmanager
def served(
    app: Starlette, listener: socket.socket, lifespan: Literal["on", "off"] = "off"
) -> Generator[None]:
    """Serve an application from a thread of its own."""
    said = uvicorn.Config(app, lifespan=lifespan, log_config=None, ws="none", timeout_keep_alive=1)
    server = uvicorn.Server(said)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
