"""Who may use the door: hosts, origins, bearer tokens.

A page in a browser can send requests to this machine under a name of its own (DNS rebinding), so the host that a
request names must be one of ours, and a request of a page (it has an `Origin`) must come from an allowed one.
An address in place of a name cannot be rebound, so every address of this machine will do where we listen on all.

A token is kept as its digest. Comparing takes the same time for every token, so time tells nothing about them. Any
other token is one of an authorization server, if there is one (`_oauth`).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs

from ...protocol.config import Settings
from ...protocol.errors import UsageError
from ...protocol.interpolate import expand, missing_variables
from ._caller import OAUTH, Caller, is_loopback
from ._cors import Cors
from ._refusals import CLOSE, Refusal
from ._request import Request

if TYPE_CHECKING:
    from ._oauth import OAuth

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BEARER: Final = re.compile(rb"bearer +([\x21-\x7e]+) *", re.IGNORECASE)
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="greenroom"')
_WRONG: Final = (b"www-authenticate", b'Bearer realm="greenroom", error="invalid_token"')
_SHORTEST: Final = 16  # characters of a token


@attrs.frozen
class Token:
    """A bearer token, without its text."""

    name: str
    digest: bytes = attrs.field(repr=False)
    profile: str | None = None

    @classmethod
    def of(cls, name: str, text: str, profile: str | None = None) -> Token:
        if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"The token {name!r} cannot be used: it needs {_SHORTEST} or more printable ASCII characters "
                "without spaces. `python -c 'import secrets; print(secrets.token_urlsafe())'` makes one."
            )
        if name.startswith(OAUTH):
            raise UsageError(f"The token {name!r} needs another name: those with {OAUTH} are of OAuth.")
        return cls(name, _digest(text.encode()), profile)


def tokens_in(
    settings: Settings, environ: Mapping[str, str], file: Path | None, profile: str | None
) -> tuple[Token, ...]:
    """The tokens of the configuration and of a file. The file has one a line, or a name, a token and perhaps a
    profile on each. Raises `UsageError` when one of them cannot be used."""
    found: list[Token] = []
    for name, text in settings.http_tokens.items():
        if missing := missing_variables(text, environ, may_be_empty=False):
            what = "is empty" if missing[0] in environ else "is not set"
            raise UsageError(f"The token {name!r} needs the variable {missing[0]}, which {what}. Set it.")
        found.append(Token.of(name, expand(text, environ), settings.http_token_profiles.get(name, profile)))
    if file is not None:
        found += _in_file(file, profile)
    if strays := settings.http_token_profiles.keys() - settings.http_tokens.keys():
        raise UsageError(f"tokenProfiles names a token that is not in tokens: {min(strays)!r}. Correct it.")
    if len({token.name for token in found}) < len(found):
        raise UsageError("Two tokens have the same name. Give each its own.")
    return tuple(found)


def _in_file(file: Path, profile: str | None) -> Iterable[Token]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"The token file {file} cannot be read: {why}. Correct --token-file.") from None
    words = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not words:
        raise UsageError(f"The token file {file} has no token. Write one into it, on a line of its own.")
    for number, said in enumerate(words, 1):
        if len(said) == 1:
            yield Token.of(f"token-{number}", said[0], profile)
        elif len(said) <= 3:
            yield Token.of(said[0], said[1], said[2] if len(said) == 3 else profile)
        else:
            raise UsageError(
                f"Line {number} of the tokens in {file} has too many words: name, token, profile."
            )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


class Access:
    """`host` is the address that is listened on; `oauth` checks the tokens that are not among `tokens`. Raises
    `UsageError` when other machines can reach it and no token is needed."""

    def __init__(
        self,
        host: str,
        tokens: Iterable[Token] = (),
        *,
        oauth: OAuth | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
    ) -> None:
        self.tokens = tuple(tokens)
        self.oauth = oauth
        is_private = is_loopback(host)
        if not is_private and not self.tokens and oauth is None:
            raise UsageError(
                f"On {host}, other machines can reach this gateway, and no token is needed to use it. "
                "Give --token-file, or http.tokens or http.oauth in the settings; or listen on 127.0.0.1."
            )
        names = {name.lower() for name in hosts}
        if is_private:
            names |= _LOOPBACK
        else:
            names |= {host.lower(), *_LOOPBACK, socket.gethostname().lower()}
        self._hosts = frozenset(names)
        self._any_address = _is_wildcard(host)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self.cors = Cors(self._origins)
        self._known: dict[bytes, bool] = {}  # headers that were judged before; bounded

    @property
    def shares(self) -> int:
        """How many callers share the door; 2: more than one."""
        return 2 if self.oauth is not None else len(self.tokens) or 1

    def check_place(self, request: Request) -> None:
        """Raises `Refusal` for a host or an origin that is not allowed."""
        if not self._judged(b"h", request.headers.get(b"host", b"")):
            raise Refusal(421, "Misdirected Request: this gateway has another name.", CLOSE)
        origin = request.headers.get(b"origin")
        if origin is not None and not self._judged(b"o", origin):
            raise Refusal(403, "Forbidden: the origin of this page is not allowed.", CLOSE)

    def _judged(self, kind: bytes, value: bytes) -> bool:
        judged = self._known.get(kind + value)
        if judged is None:
            text = value.decode("latin-1").lower()
            judged = self._is_ours(text) if kind == b"h" else self._is_allowed(text)
            if len(self._known) < 256:
                self._known[kind + value] = judged
        return judged

    def _is_ours(self, host: str) -> bool:
        name = _name_of(f"//{host}")
        return name is not None and (name in self._hosts or (self._any_address and _is_address(name)))

    def _is_allowed(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        return origin.startswith(("http://", "https://")) and _name_of(origin) in _LOOPBACK

    async def caller(self, request: Request) -> Caller:
        """Who sends it. Raises `Refusal` without a right token, where one is needed."""
        oauth = self.oauth
        if not self.tokens and oauth is None:
            return _ANYBODY
        given = request.headers.get(b"authorization")
        if not given:
            challenge = _CHALLENGE if oauth is None else oauth.challenge()
            raise Refusal(401, "Unauthorized: a bearer token is needed.", challenge)
        bearer = _BEARER.fullmatch(given)
        digest = _digest(bearer[1] if bearer else b"")
        found: Token | None = None
        for token in self.tokens:  # all of them, whichever fits
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is not None:
            return Caller(found.name, found.profile)
        if oauth is not None:
            return await oauth.caller(bearer[1] if bearer else b"")
        raise Refusal(401, "Unauthorized: this token is not known.", _WRONG)


_ANYBODY: Final = Caller()


def _is_wildcard(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(url: str) -> str | None:
    """The host that a URL names; None when it has more than a host and a port, or none."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    if "@" in parts.netloc or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname
