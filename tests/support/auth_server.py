"""An authorization server and an MCP server that wants its tokens: real HTTP on loopback, in one thread pool.

Each variant is a flag. `approve` plays the person's browser: it opens the page of a login and returns where that leads.
With `signs`, its tokens are JWTs for whatever resource they are asked for, and `/jwks` has the keys.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import attrs

from .patience import PATIENCE

ACCESS = "access-secret-"
REFRESH = "refresh-secret-"


@attrs.frozen
class SigningKey:
    """A key pair, made once for all tests: of the curve P-256, or of RSA."""

    kid: str
    algorithm: str = "ES256"

    @property
    def private(self) -> Any:
        return _private(self)

    def public(self, **more: Any) -> dict[str, Any]:
        """As JWKS has it."""
        import jwt

        algorithm: Any = jwt.get_algorithm_by_name(self.algorithm)
        return {**algorithm.to_jwk(self.private.public_key(), as_dict=True), "kid": self.kid, **more}

    def pem(self) -> bytes:
        """The public key as everybody may have it."""
        from cryptography.hazmat.primitives import serialization as how

        return self.private.public_key().public_bytes(how.Encoding.PEM, how.PublicFormat.SubjectPublicKeyInfo)


@lru_cache
def _private(key: SigningKey) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if key.algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


KEY = SigningKey("first")


@attrs.define
class AuthServer:
    """The flags, and what has happened. Everything under `lock`."""

    registers: bool = True  # RFC 7591
    takes_documents: bool = False  # client-id metadata documents
    has_device: bool = False
    has_revocation: bool = True
    given: Mapping[str, str | None] = attrs.field(factory=dict[str, "str | None"])  # client id -> secret
    lasts: float | str | None = 3600.0  # seconds that a token is valid
    says: tuple[int, bytes] | None = None  # what the token endpoint answers instead
    has_metadata: bool = True
    names_issuer: bool = True  # in its metadata
    rotates: bool = True  # a refresh token is good for once
    is_down: bool = False
    quotes: bool = False  # a call is refused, with the token in the message
    scope: str | None = None  # in the challenge
    signs: bool = False
    subject: str = "ann"  # of the next token
    keys: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])  # what /jwks has
    keys_text: bytes | None = None  # what it has instead
    looked: int = 0  # how often
    port: int = 0
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    clients: dict[str, str | None] = attrs.field(factory=dict[str, "str | None"])
    codes: dict[str, dict[str, str]] = attrs.field(factory=dict[str, dict[str, str]])
    slow_downs: int = 0  # times that a device is still asked to come less often
    devices: dict[str, bool] = attrs.field(factory=dict[str, bool])
    tokens: set[str] = attrs.field(factory=set[str])
    refreshes: set[str] = attrs.field(factory=set[str])
    revoked: list[str] = attrs.field(factory=list[str])
    grants: list[str] = attrs.field(factory=list[str])  # of the token requests, in order
    pages: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])  # parameters of the login page
    forms: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])
    headers: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])  # of requests to the provider
    calls: int = 0  # requests that the MCP server answered
    refused: int = 0  # requests that it refused
    made: int = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    def approve(self, page: str) -> str:
        """Open the page of a login as a browser does, and agree. Returns the address that it redirects to."""
        return _location(page)

    def expire(self) -> None:
        """Forget every access token that was given out."""
        with self.lock:
            self.tokens.clear()

    def issue(self, form: Mapping[str, str]) -> dict[str, Any]:
        self.made += 1
        access, refresh = f"{ACCESS}{self.made}", f"{REFRESH}{self.made}"
        if self.signs:
            access = self.signed(KEY, aud=form.get("resource", ""), scope=form.get("scope", ""))
        self.tokens.add(access)
        answer: dict[str, Any] = {"access_token": access, "token_type": "bearer"}
        if self.lasts is not None:
            answer["expires_in"] = self.lasts
        if form["grant_type"] != "client_credentials" and (
            self.rotates or form["grant_type"] != "refresh_token"
        ):
            self.refreshes.add(refresh)
            answer["refresh_token"] = refresh
        return answer

    def signed(self, key: SigningKey, /, *, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """An access token of ours: for `subject`, for an hour. Claims that are None are left out."""
        import jwt

        now = int(time.time())
        said = {
            "iss": self.base,
            "sub": self.subject,
            "exp": now + 3600,
            "iat": now,
            "client_id": "c",
            **claims,
        }
        kept = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(kept, key.private, key.algorithm, {"kid": key.kid, **(header or {})})

    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        }
        if self.registers:
            found["registration_endpoint"] = f"{self.base}/register"
        if self.has_device:
            found["device_authorization_endpoint"] = f"{self.base}/device"
        if self.has_revocation:
            found["revocation_endpoint"] = f"{self.base}/revoke"
        if self.signs:
            found["jwks_uri"] = f"{self.base}/jwks"
        if self.takes_documents:
            found["client_id_metadata_document_supported"] = True
        if not self.names_issuer:
            del found["issuer"]
        return found


@contextmanager
def auth_server(**flags: Any) -> Generator[AuthServer]:
    stage = AuthServer(**flags)
    server = _Server(("127.0.0.1", stage.port), _Handler)
    server.stage = stage
    stage.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stage
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _location(page: str) -> str:
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    try:
        with opener.open(page, timeout=PATIENCE) as answer:
            raise AssertionError(f"no redirect: {answer.status}")
    except urllib.error.HTTPError as error:
        with error:
            return error.headers["Location"]


def follow(address: str) -> int:
    """Open an address as a browser does. Returns its status."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64
    stage: AuthServer


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    @property
    def stage(self) -> AuthServer:
        return cast("_Server", self.server).stage

    def say(
        self,
        status: int,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> None:
        data = raw if raw is not None else b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        stage, parts = self.stage, urllib.parse.urlsplit(self.path)
        if parts.path == "/mcp":
            self.say(405)
            return
        with stage.lock:
            stage.headers.append({name.lower(): text for name, text in self.headers.items()})
        if stage.is_down:
            self.say(503)
        elif parts.path.startswith("/.well-known/oauth-protected-resource"):
            self.say(200, {"resource": stage.url, "authorization_servers": [stage.base]})
        elif parts.path.startswith("/.well-known/oauth-authorization-server") and stage.has_metadata:
            self.say(200, stage.metadata())
        elif parts.path == "/jwks":
            with stage.lock:
                stage.looked += 1
            self.say(200, {"keys": stage.keys}, raw=stage.keys_text)
        elif parts.path == "/authorize":
            self._authorize(dict(urllib.parse.parse_qsl(parts.query)))
        else:
            self.say(404)

    def _authorize(self, asked: dict[str, str]) -> None:
        stage = self.stage
        with stage.lock:
            stage.pages.append(asked)
            code = secrets.token_hex(8)
            stage.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": stage.base}
        self.say(302, headers={"Location": f"{asked['redirect_uri']}?{urllib.parse.urlencode(back)}"})

    def do_DELETE(self) -> None:
        self.say(200)

    def do_POST(self) -> None:
        stage = self.stage
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/mcp":
            self._mcp(json.loads(body))
            return
        with stage.lock:
            stage.headers.append({name.lower(): text for name, text in self.headers.items()})
            if stage.is_down:
                self.say(503)
                return
            if self.path == "/register" and stage.registers:
                name = f"client-{len(stage.clients)}"
                stage.clients[name] = None
                self.say(201, {**json.loads(body), "client_id": name, "token_endpoint_auth_method": "none"})
                return
            form = dict(urllib.parse.parse_qsl(body.decode()))
            stage.forms.append(form)
            if not self._knows_client(form):
                self.say(401, {"error": "invalid_client"})
            elif self.path == "/token" and stage.says is not None:
                self.say(stage.says[0], raw=stage.says[1])
            elif self.path == "/token":
                self._token(form)
            elif self.path == "/device":
                stage.devices["device-1"] = False
                page = {"verification_uri": f"{stage.base}/enter", "user_code": "ABCD-EFGH"}
                self.say(200, {**page, "device_code": "device-1", "expires_in": 600, "interval": 0.01})
            elif self.path == "/revoke":
                stage.revoked.append(form["token"])
                stage.tokens.discard(form["token"])
                stage.refreshes.discard(form["token"])
                self.say(200, {})
            else:
                self.say(404)

    def _knows_client(self, form: dict[str, str]) -> bool:
        name, secret = form.get("client_id", ""), form.get("client_secret")
        basic = self.headers.get("authorization", "")
        if basic.startswith("Basic "):
            name, _, secret = base64.b64decode(basic[6:]).decode().partition(":")
        known = {**self.stage.clients, **self.stage.given}
        if self.stage.takes_documents and name.startswith("https://"):
            return True
        return name in known and known[name] == secret

    def _token(self, form: dict[str, str]) -> None:
        stage = self.stage
        kind = form["grant_type"]
        stage.grants.append(kind)
        if kind == "authorization_code":
            asked = stage.codes.pop(form.get("code", ""), None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if asked is None or asked["code_challenge"] != proof:
                self.say(400, {"error": "invalid_grant"})
                return
            form = {**asked, **form}  # it is for what was asked for on the page
        elif kind == "refresh_token":
            if form.get("refresh_token") not in stage.refreshes:
                self.say(400, {"error": "invalid_grant"})
                return
            if stage.rotates:
                stage.refreshes.discard(form["refresh_token"])
        elif kind.endswith("device_code") and stage.slow_downs:
            stage.slow_downs -= 1
            self.say(400, {"error": "slow_down"})
            return
        elif kind.endswith("device_code") and not stage.devices.get(form.get("device_code", "")):
            self.say(400, {"error": "authorization_pending"})
            return
        self.say(200, stage.issue(form))

    def _mcp(self, message: dict[str, Any]) -> None:
        stage = self.stage
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        with stage.lock:
            knows = token in stage.tokens
            stage.calls += knows
            stage.refused += not knows
        if not knows:
            scope = f', scope="{stage.scope}"' if stage.scope else ""
            where = f"{stage.base}/.well-known/oauth-protected-resource/mcp"
            self.say(401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{where}"{scope}'})
            return
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "guarded", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "ok", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "ok"}]},
            "ping": {},
        }
        if "id" not in message:
            self.say(202)
        elif stage.quotes:
            error = {"code": -32000, "message": f"you sent {token}"}
            self.say(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif message["method"] in results:
            self.say(200, {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})
        else:
            error = {"code": -32601, "message": "unknown method"}
            self.say(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})


if __name__ == "__main__":  # for a page of the docs: the port
    with auth_server(port=int(sys.argv[1]), given={"robot": "of-the-robot"}):
        threading.Event().wait()
