"""Forms posted to an authorization server, and its answers. Blocks; call it in a thread.

Tokens and client secrets go over TLS, or to this machine. Redirects are not followed. An answer has a bound.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

import attrs
import httpx2

from ...protocol.config import ServerDefinition
from ...protocol.version import VERSION
from .._certificates import trusted_certificates
from ._record import Login, LoginFailed, Unreachable, from_json

_MOST: Final = 1 << 20  # bytes of an answer
WITHIN: Final = 20.0  # seconds for each step of a request
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_KEPT_BACK: Final = frozenset({"authorization", "cookie", "proxy-authorization", "host", "content-type"})


def is_safe(url: str) -> bool:
    """Whether a secret may be sent there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def of_configuration(headers: Mapping[str, str]) -> dict[str, str]:
    """The configured headers that also go to the authorization server: all but the credentials for the server."""
    return {name: value for name, value in headers.items() if name.lower() not in _KEPT_BACK}


def without_credentials(definition: ServerDefinition) -> ServerDefinition:
    """The definition with only those headers that may go to an authorization server too."""
    return attrs.evolve(definition, headers=of_configuration(definition.headers))


def post(url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """The status and the object of the answer ({}: none).

    Raises `Unreachable` when there is no answer, and for a status of 429 or from 500 on; `LoginFailed` for a URL that
    must not be sent a secret.
    """
    host = urlsplit(url).hostname or "?"
    if not is_safe(url):
        raise LoginFailed(f"the authorization server {host} is not reached over https")
    said = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": f"greenroom/{VERSION}"}
    try:
        with (
            httpx2.Client(
                timeout=WITHIN, headers={**said, **headers}, verify=trusted_certificates()
            ) as client,
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
        raise Unreachable(
            f"the authorization server {host} cannot be reached ({type(error).__name__})"
        ) from None
    if status == 429 or status >= 500:
        raise Unreachable(f"the authorization server {host} is out of order (HTTP {status})")
    try:
        return status, from_json(bytes(body))
    except LoginFailed:
        return status, {}


def as_client(login: Login, form: dict[str, str]) -> dict[str, str]:
    """Say in `form` which client asks. Returns the headers that it needs."""
    form["client_id"] = login.client_id
    if not login.client_secret or login.auth_method == "none":
        return {}
    if login.auth_method == "client_secret_basic":
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    form["client_secret"] = login.client_secret
    return {}


def refusal(answer: Mapping[str, Any], status: int) -> str:
    """Why it refused: its error code alone, because its description may quote what we sent."""
    code = answer.get("error")
    plain = isinstance(code, str) and len(code) <= 60 and code.replace("_", "").isalnum()
    return f"HTTP {status}, {code}" if plain else f"HTTP {status}"
