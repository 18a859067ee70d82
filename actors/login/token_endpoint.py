"""Forms posted to an authorization server, and its answers. Blocks; call it in a thread.

Tokens and client secrets go over TLS, or to this machine. Redirects are not followed. An answer has a bound.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

import anyio
import httpx2
import msgspec

from ...config.model import ServerDefinition
from ...protocol.version import VERSION
from ..transports.http_client import trusted_certificates
from ..transports.proxies import HttpProxy, ProxyTable
from ..workers import apart
from .login_record import AuthorizationServerDown, Login, LoginFailed, from_json, seconds
from .login_store import LoginStore

_MOST: Final = 1 << 20  # bytes of an answer
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER: Final = 5.0  # seconds more, when the server asks for it
WITHIN: Final = 20.0  # seconds for each step of a request
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TROUBLE: Final = ("temporarily_unavailable", "server_error", "too_many_requests", "rate_limit_exceeded")
_KEPT_BACK: Final = frozenset({"authorization", "cookie", "proxy-authorization", "host", "content-type"})


def is_safe(url: str) -> bool:
    """Whether a secret may be sent to this URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def of_configuration(headers: Mapping[str, str]) -> dict[str, str]:
    """The configured headers that also go to the authorization server: all but the credentials for the server."""
    return {name: value for name, value in headers.items() if name.lower() not in _KEPT_BACK}


def without_credentials(definition: ServerDefinition) -> ServerDefinition:
    """The definition with only those headers that may go to an authorization server too."""
    return msgspec.structs.replace(definition, headers=of_configuration(definition.headers))


def post(url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """The status and the object of the answer ({}: none).

    Raises `AuthorizationServerDown` when there is no answer, or one that speaks of trouble (`outage`); `LoginFailed`
    for a URL that must not be sent a secret.
    """
    host = urlsplit(url).hostname or "?"
    if not is_safe(url):
        raise LoginFailed(f"the authorization server {host} is not reached over https")
    said = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": f"greenroom/{VERSION}"}
    proxy = ProxyTable().of(httpx2.URL(url))
    try:
        with (
            _client({**said, **headers}, proxy) as client,
            client.stream("POST", url, data=dict(form), follow_redirects=False) as response,
        ):
            body = bytearray()
            if response.headers.get("content-encoding", "identity") == "identity":
                for piece in response.iter_raw():
                    body += piece
                    if len(body) > _MOST:
                        raise LoginFailed(f"the authorization server {host} answered with too much")
            status = response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        is_proxys = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
        why = proxy.failure(error) if proxy is not None and is_proxys else type(error).__name__
        raise AuthorizationServerDown(f"the authorization server {host} cannot be reached ({why})") from None
    try:
        answer = from_json(bytes(body))
    except LoginFailed:
        answer = {}
    if (why := outage(status, answer)) is not None:
        raise AuthorizationServerDown(f"the authorization server {host} is out of order ({why})")
    return status, answer


def outage(status: int, answer: Mapping[str, Any]) -> str | None:
    """Why an answer is no decision but trouble that may pass; None for a decision. Some servers say with 400, as for a
    refusal, that they are out of order (RFC 6749 knows these codes for redirects alone)."""
    is_trouble = status in (408, 425, 429) or status >= 500 or answer.get("error") in _TROUBLE
    return refusal(answer, status) if is_trouble else None


def _client(headers: Mapping[str, str], proxy: HttpProxy | None) -> httpx2.Client:
    """Raises `AuthorizationServerDown` when the proxy cannot be used."""
    try:
        return httpx2.Client(
            timeout=WITHIN,
            headers=headers,
            verify=trusted_certificates(),
            proxy=None if proxy is None else proxy.url,
            trust_env=False,
        )
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        if proxy is None:
            raise
        raise AuthorizationServerDown(proxy.problem(error)) from None


def as_client(login: Login, form: dict[str, str]) -> dict[str, str]:
    """Add to `form` the client of this login. Returns the headers that go with it."""
    return client_headers(login.client_id, login.client_secret, login.auth_method, form)


def client_headers(
    client_id: str, client_secret: str | None, method: str | None, form: dict[str, str]
) -> dict[str, str]:
    """Add to `form` which client asks. Returns the headers for that."""
    form["client_id"] = client_id
    if not client_secret or method == "none":
        return {}
    if method == "client_secret_basic":
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    form["client_secret"] = client_secret
    return {}


def refusal(answer: Mapping[str, Any], status: int) -> str:
    """Why the server refused: only its error code, because its description may quote what we sent."""
    code = answer.get("error")
    plain = isinstance(code, str) and len(code) <= 60 and code.replace("_", "").isalnum()
    return f"HTTP {status}, {code}" if plain else f"HTTP {status}"


def renew(store: LoginStore, login: Login, headers: Mapping[str, str]) -> Login | None:
    """The login to use in place of `login`: one that another process has stored meanwhile, or a renewed one. None when
    there is none any more, or it cannot be renewed.

    One request, however many callers want the new token. It blocks; call it in a thread. The thread goes on when nobody
    waits for it any more. So a renewal whose caller was cancelled still stores what it got: many authorization servers
    accept a refresh token once, and to lose the answer would be to lose the login.

    Raises `AuthorizationServerDown` when the authorization server is out of order, `LoginFailed` when the store is.
    Only an error code of OAuth is a refusal: a page in the place of an answer (of a firewall, a portal, a host that
    moved) is not, and must not cost the login.
    """
    with store.locked(login.server, login.url):
        kept = store.load(login.server, login.url)
        if kept is None or kept.id != login.id:
            return kept
        if not kept.can_be_renewed:
            return None
        assert kept.token_endpoint is not None
        assert kept.refresh_token is not None
        form = {"grant_type": "refresh_token", "refresh_token": kept.refresh_token}
        if kept.resource is not None:
            form["resource"] = kept.resource
        said = {**of_configuration(headers), **as_client(kept, form)}
        status, answer = post(kept.token_endpoint, form, said)
        if "error" in answer:  # some servers refuse with 200
            return None  # only a person can help
        if status != 200 or "access_token" not in answer:
            host = urlsplit(kept.token_endpoint).hostname
            step = "log in again (greenroom auth) if that lasts"
            raise AuthorizationServerDown(
                f"{host} does not answer as an authorization server does (HTTP {status}); {step}"
            )
        return store.save(kept.renewed(answer, time.time()), kept.id)


def revoke(login: Login, headers: Mapping[str, str]) -> str | None:
    """Tell the authorization server that the tokens are over (RFC 7009). Returns why that failed, or None."""
    if login.revocation_endpoint is None:
        return "the authorization server has no way to revoke a token"
    tokens = {"refresh_token": login.refresh_token, "access_token": login.access_token}
    try:
        for kind, token in tokens.items():
            if token is not None:
                form = {"token": token, "token_type_hint": kind}
                said = {**of_configuration(headers), **as_client(login, form)}
                status, answer = post(login.revocation_endpoint, form, said)
                if status != 200:
                    return f"the authorization server refused ({refusal(answer, status)})"
    except LoginFailed as error:
        return str(error)
    return None


async def device_login(
    endpoint: str,
    login: Login,
    headers: Mapping[str, str],
    show_code: Callable[[str, str, str | None], None],
) -> Login:
    """The device flow (RFC 8628): `login` with tokens, once a person has entered the code on any machine with a
    browser. Raises `LoginFailed`."""
    form = {name: value for name, value in (("scope", login.scope), ("resource", login.resource)) if value}
    said = {**of_configuration(headers), **as_client(login, form)}
    status, answer = await apart(lambda: post(endpoint, form, said))
    page, code, device = (answer.get(name) for name in ("verification_uri", "user_code", "device_code"))
    if status != 200 or not (isinstance(page, str) and isinstance(code, str) and isinstance(device, str)):
        raise LoginFailed(f"the authorization server refused the device flow ({refusal(answer, status)})")
    complete = answer.get("verification_uri_complete")
    show_code(page, code, complete if isinstance(complete, str) else None)
    pause = _within_a_day(answer.get("interval"), 5.0)
    over = anyio.current_time() + min(_within_a_day(answer.get("expires_in"), 600.0), 1800.0)
    while anyio.current_time() < over:
        await anyio.sleep(pause)
        try:
            status, answer = await apart(lambda: _asked(login, device, headers))
        except AuthorizationServerDown:
            continue
        if status == 200 and "error" not in answer:  # some servers say with 200 that they wait
            return login.renewed(answer, time.time())
        match answer.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                pause += _SLOWER
            case _:
                raise LoginFailed(f"the authorization server refused ({refusal(answer, status)})")
    raise LoginFailed("the code was not entered in time")


def _asked(login: Login, device: str, headers: Mapping[str, str]) -> tuple[int, dict[str, object]]:
    assert login.token_endpoint is not None
    form = {"grant_type": DEVICE_GRANT, "device_code": device}
    return post(login.token_endpoint, form, {**of_configuration(headers), **as_client(login, form)})


def _within_a_day(value: object, otherwise: float) -> float:
    found = seconds(value)
    return otherwise if found is None or found >= 86_400 else found
