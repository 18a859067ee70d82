"""One login: its tokens, whose they are, and where they are renewed.

It is bound to a server's name and URL and to the issuer of its tokens. It is never sent anywhere else.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

_FOR_EVER: Final = 1e10  # seconds
SECRETS: Final = ("access_token", "refresh_token", "client_secret")


class LoginFailed(Exception):
    """Logging in has failed. The text says why, for a person, and holds no secret."""


class AuthorizationServerDown(LoginFailed):
    """The authorization server could not be reached, or is out of order. It may work later."""


@attrs.frozen
class Login:
    """One login. Times are seconds since 1970, because processes share the record. `id` changes with each change of the
    record; `made` changes with each login of a person and stays at a renewal."""

    server: str
    url: str
    access_token: str = attrs.field(repr=False)
    issuer: str = ""
    grant: str = "authorization_code"
    token_endpoint: str | None = None  # None: it cannot be renewed
    revocation_endpoint: str | None = None
    client_id: str = ""
    client_secret: str | None = attrs.field(default=None, repr=False)
    auth_method: str | None = None
    resource: str | None = None
    scope: str | None = None
    refresh_token: str | None = attrs.field(default=None, repr=False)
    expires_at: float | None = None
    made: str = attrs.field(factory=lambda: secrets.token_hex(8))
    id: str = attrs.field(factory=lambda: secrets.token_hex(8))

    @property
    def can_be_renewed(self) -> bool:
        return bool(self.refresh_token and self.token_endpoint)

    @property
    def is_of_client(self) -> bool:
        """Whether the login needs no person, because the client itself logs in."""
        return self.grant == "client_credentials"

    def is_over(self, now: float) -> bool:
        """Whether only a person can make it usable again."""
        is_past = self.expires_at is not None and self.expires_at <= now
        return is_past and not self.can_be_renewed and not self.is_of_client

    def renewed(self, answer: Mapping[str, Any], now: float) -> Login:
        """The login with the tokens of a token endpoint's answer. What the answer leaves out stays (RFC 6749, 6).

        Raises `LoginFailed` when there is no token in it.
        """
        token, kind = answer.get("access_token"), str(answer.get("token_type") or "bearer")
        if not isinstance(token, str) or not usable(token) or kind.lower() != "bearer":
            raise LoginFailed("the authorization server answered without a bearer token")
        lasts, further, scope = (
            seconds(answer.get("expires_in")),
            answer.get("refresh_token"),
            answer.get("scope"),
        )
        return attrs.evolve(
            self,
            access_token=token,
            refresh_token=further if isinstance(further, str) and further else self.refresh_token,
            expires_at=None if lasts is None else now + lasts,
            scope=scope if isinstance(scope, str) else self.scope,
            id=secrets.token_hex(8),
        )


def seconds(value: object) -> float | None:
    """A positive time in an answer: servers write 3600, 3599.5 and "3600". None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if 0 < found < _FOR_EVER else None


def usable(token: str) -> bool:
    """Whether a token can be sent in a header."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, indent=1).encode()


def from_json(data: bytes | str) -> dict[str, Any]:
    """The object that `data` holds. Raises `LoginFailed` when it holds none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise LoginFailed("a stored login cannot be read")
    return found  # pyright: ignore[reportUnknownVariableType]


def login_of(values: Mapping[str, Any]) -> Login:
    """The login that these values make. Raises `LoginFailed` if they make none."""
    try:
        login = msgspec.convert(values, Login)
    except msgspec.ValidationError:
        raise LoginFailed("a stored login is not one of ours") from None
    if not usable(login.access_token):
        raise LoginFailed("a stored login is not one of ours")
    return login
