"""OAuth 2.1: the door as a resource server, for the access tokens of one authorization server.

A client without a token is told where to get one: the challenge names our metadata (RFC 9728), and that names the
issuer. What it comes back with is a JWT (RFC 9068), which is checked here: it is signed by a key of the issuer, with an
algorithm whose keys are public (so nobody can sign with what everybody knows), it is for us (`aud`), of that issuer,
valid now, and it has the scopes that are wanted. PyJWT does the checking. It is imported only when an issuer is
configured, as is the fetching of its keys (`issuer_keys`).

A caller is the token's subject and client. What it sees is the profile that a claim names, or that belongs to one of
its scopes. Where one of these is configured, a token without a profile is refused.

A token that was checked is remembered until it ends or the keys change, so a call costs no signature.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs

from ...actors.login.caller_identity import LEEWAY, CallerIdentity
from ...config.model import Settings
from ...config.references import expand, missing_variables
from ...protocol.bounds import ACCESS_TOKEN_BYTES
from ...protocol.errors import UsageError
from .http_request import CLOSE, OAUTH, Caller, DoorRequest, HttpRefusal, is_loopback, is_safe

# ---- Who may use the door: hosts, origins, bearer tokens ------------------------------------------------------------
#
# A page in a browser can send requests to this machine under a name of its own (DNS rebinding), so the host that a
# request names must be one of ours, and a request of a page (it has an `Origin`) must come from an allowed one.
# An address in place of a name cannot be rebound, so every address of this machine will do where we listen on all.
#
# A token is kept as its digest. Comparing takes the same time for every token, so time tells nothing about them. Any
# other token is one of an authorization server, if there is one (`OAuth`).
#
# An `Access` never changes. When the configuration does, the door is given another one (`HttpDoor.admit`). A session
# ends with the token that it was opened with, also when that is replaced under its name: mostly because somebody else
# has it. A token without a name is called by its digest, never by its line, or a line that goes would give each
# client the sessions of the next.

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BEARER: Final = re.compile(rb"bearer +([\x21-\x7e]+) *", re.IGNORECASE)
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="greenroom"')
_WRONG: Final = (b"www-authenticate", b'Bearer realm="greenroom", error="invalid_token"')
_SHORTEST: Final = 16  # characters of a token


@attrs.frozen
class BearerToken:
    """A bearer token, without its text."""

    name: str
    digest: bytes = attrs.field(repr=False)
    profile: str | None = None
    is_owner: bool = False

    @classmethod
    def of(cls, name: str, text: str, profile: str | None = None, *, is_owner: bool = False) -> BearerToken:
        if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"The token {name!r} cannot be used: it needs {_SHORTEST} or more printable ASCII characters "
                "without spaces. `python -c 'import secrets; print(secrets.token_urlsafe())'` makes one."
            )
        if name.startswith(OAUTH):
            raise UsageError(f"The token {name!r} needs another name: those with {OAUTH} are of OAuth.")
        return cls(name, _digest(text.encode()), profile, is_owner)

    @property
    def caller(self) -> Caller:
        """Who comes with it."""
        return Caller(self.name, self.profile, is_owner=self.is_owner)


def tokens_in(
    settings: Settings, environ: Mapping[str, str], file: Path | None, profile: str | None
) -> tuple[BearerToken, ...]:
    """The tokens of the configuration and of a file. The file has one a line, or a name, a token and perhaps a
    profile on each. Raises `UsageError` when one of them cannot be used."""
    found: list[BearerToken] = []
    profiles = settings.http_token_profiles
    for name, text in _expanded(settings.http_tokens, environ):
        found.append(BearerToken.of(name, text, profiles.get(name, profile)))
    for name, text in _expanded(settings.http_owner_tokens, environ):
        found.append(BearerToken.of(name, text, is_owner=True))
    if file is not None:
        found += _in_file(file, profile)
    if owners := profiles.keys() & settings.http_owner_tokens.keys():
        text = f"tokenProfiles binds an owner's token to a profile: {min(owners)!r}. An owner sees everything"
        raise UsageError(f"{text}: move it to http.tokens, or take its profile out.")
    if strays := profiles.keys() - settings.http_tokens.keys():
        raise UsageError(f"tokenProfiles names a token that is not in tokens: {min(strays)!r}. Correct it.")
    if len({token.name for token in found}) < len(found):
        raise UsageError("Two tokens have the same name. Give each its own.")
    owned = [token.digest for token in found if token.is_owner]
    if owned and len({token.digest for token in found}) < len(found):
        raise UsageError("An owner's token is another's, too. Give each its own: one may act, the other not.")
    return tuple(found)


def _expanded(tokens: Mapping[str, str], environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name, text in tokens.items():
        if missing := missing_variables(text, environ, may_be_empty=False):
            what = "is empty" if missing[0] in environ else "is not set"
            raise UsageError(f"The token {name!r} needs the variable {missing[0]}, which {what}. Set it.")
        yield name, expand(text, environ)


def _in_file(file: Path, profile: str | None) -> Iterable[BearerToken]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"The token file {file} cannot be read: {why}. Correct --token-file.") from None
    meant = (" ".join(line.split()) for line in lines if not line.lstrip().startswith("#"))
    words = [line.split() for line in dict.fromkeys(meant) if line]
    if not words:
        raise UsageError(f"The token file {file} has no token. Write one into it, on a line of its own.")
    for number, said in enumerate(words, 1):
        if len(said) == 1:
            yield BearerToken.of(f"token-{_digest(said[0].encode()).hex()[:8]}", said[0], profile)
        elif len(said) <= 3:
            yield BearerToken.of(said[0], said[1], said[2] if len(said) == 3 else profile)
        else:
            raise UsageError(
                f"Line {number} of the tokens in {file} has too many words: name, token, profile."
            )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


class Access:
    """Who may use the door. `host` is the address that is listened on; `oauth` checks the tokens that are not among
    `tokens`. Raises `UsageError` when other machines can reach the address and no token is needed."""

    def __init__(
        self,
        host: str,
        tokens: Iterable[BearerToken] = (),
        *,
        oauth: OAuth | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
    ) -> None:
        self.tokens: tuple[BearerToken, ...] = tuple(tokens)
        self.oauth = oauth
        self._by_token = {token: token.caller for token in self.tokens}
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
        self._known: dict[bytes, bool] = {}  # headers that were judged before; bounded

    def lets_stay(self, caller: Caller, old: Access) -> bool:
        """Whether somebody whom `old` let in as `caller` may stay."""
        if caller.name is None:
            return not self.tokens and self.oauth is None
        if caller.name.startswith(OAUTH):
            return self.oauth is not None
        came_by = {token for token in old.tokens if token.caller == caller}
        return bool(came_by) and came_by <= {*self.tokens}

    def changes_since(self, old: Access) -> str:
        """What is not as it was, in words; empty if nothing. Tokens are named, and not shown."""
        before, after = ({token.name: token for token in each.tokens} for each in (old, self))
        said = {
            "new tokens": after.keys() - before.keys(),
            "changed tokens": {name for name in after.keys() & before.keys() if after[name] != before[name]},
            "tokens that are gone": before.keys() - after.keys(),
            "new hosts": self._hosts - old._hosts,
            "hosts that are gone": old._hosts - self._hosts,
            "new origins": self._origins - old._origins,
            "origins that are gone": old._origins - self._origins,
        }
        return "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in said.items() if names)

    @property
    def callers(self) -> int:
        """How many callers share the door; where an authorization server names them, two more than the tokens."""
        return len(self.tokens) + (2 if self.oauth is not None else 0) or 1

    @property
    def has_owners(self) -> bool:
        """Whether a token is an owner's."""
        return any(token.is_owner for token in self.tokens)

    def check_place(self, request: DoorRequest) -> None:
        """Raises `HttpRefusal` for a host or an origin that is not allowed."""
        if not self._judged(b"h", request.headers.get(b"host", b"")):
            raise HttpRefusal(
                421, "Misdirected Request: this gateway has another name. http.hosts can add this one.", CLOSE
            )
        origin = request.headers.get(b"origin")
        if origin is not None and not self._judged(b"o", origin):
            raise HttpRefusal(403, "Forbidden: the origin of this page is not in http.origins.", CLOSE)

    def may_read(self, request: DoorRequest) -> bool:
        """Whether a page that `http.origins` names sent this request, so that the page may read the answer.

        Pages of this machine may send requests without being named, as any program here may. A browser lets them
        neither read the answers nor send JSON: an origin on localhost may be any development server.
        """
        origin = request.headers.get(b"origin")
        return origin is not None and origin.decode("latin-1").lower() in self._origins

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

    async def caller(self, request: DoorRequest) -> Caller:
        """The caller that sends this request. Raises `HttpRefusal` without a valid token where one is needed."""
        found = self.caller_known(request)
        if isinstance(found, Caller):
            return found
        assert self.oauth is not None
        return await self.oauth.caller(found)

    def caller_known(self, request: DoorRequest) -> Caller | bytes:
        """The caller that sends this request, if nobody has to be asked for that. A token that only its issuer can
        vouch for is returned instead."""
        oauth = self.oauth
        if not self.tokens and oauth is None:
            return _ANYBODY
        given = request.headers.get(b"authorization")
        if not given:
            challenge = _CHALLENGE if oauth is None else oauth.challenge()
            raise HttpRefusal(401, "Unauthorized: a bearer token is needed.", challenge)
        bearer = _BEARER.fullmatch(given)
        digest = _digest(bearer[1] if bearer else b"")
        found: BearerToken | None = None
        for token in self.tokens:  # all of them, whichever fits
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is not None:
            return self._by_token[found]
        if oauth is not None:
            token = bearer[1] if bearer else b""
            return oauth.remembered(token) or token
        raise HttpRefusal(401, "Unauthorized: this token is not known.", _WRONG)


_ANYBODY: Final = Caller()


def _is_wildcard(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# The whole of an origin, or of a `Host` behind "//". (`urlsplit` takes more for one: what follows a bracket, an empty
# fragment, tabs.)
_PLACE: Final = re.compile(
    r"(?:https?:)?//(?:\[([0-9a-f:.]+)\]|([^\[\]@:/?#\\\s\x00-\x20]+))(?::([0-9]{0,5}))?"
)


def _name_of(url: str) -> str | None:
    """The host that a URL in small letters names; None when it has more than a host and a port, or none."""
    found = _PLACE.fullmatch(url)
    if found is None or int(found[3] or 0) > 65_535:
        return None
    address, name, _ = found.groups()
    if address is None:
        return name
    return address if _is_address(address) else None


WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_REMEMBERED: Final = 1024  # tokens
_RETRY: Final = (b"retry-after", b"5")


@attrs.frozen
class Terms:
    """What an access token must fulfil. `profiles`: what callers see, by scope; the first scope that a token has
    counts."""

    issuer: str
    resource: str
    audiences: tuple[str, ...]
    scopes: tuple[str, ...] = ()
    profile_claim: str | None = None
    profiles: Mapping[str, str] = {}
    keys: str | None = None  # where its keys are, if that is not in its metadata

    @property
    def binds(self) -> bool:
        """Whether every caller needs a profile."""
        return self.profile_claim is not None or bool(self.profiles)


def terms_in(settings: Settings) -> Terms | None:
    """The terms that the configuration sets; None: there is no issuer. Raises `UsageError` when they cannot be used."""
    issuer, resource = settings.http_oauth_issuer, settings.http_oauth_resource
    if issuer is None:
        return None
    if resource is None:
        text = 'http.oauth needs "resource", the URL by which clients know this gateway. Add it: '
        raise UsageError(f'{text}"resource": "https://gateway.example/mcp".')
    for name, url in (("issuer", issuer), ("resource", resource), ("jwksUrl", settings.http_oauth_jwks)):
        if url is not None and not _is_plain(url):
            raise UsageError(f"http.oauth.{name} must be an https URL without user, query or fragment.")
    for name, texts in (("audiences", settings.http_oauth_audiences), ("scopes", settings.http_oauth_scopes)):
        if not all(text.strip() for text in texts):
            raise UsageError(
                f"http.oauth.{name} holds an empty text. Write what a token must have, or take it out."
            )
    return Terms(
        issuer=issuer,
        resource=resource,
        audiences=settings.http_oauth_audiences or (resource,),
        scopes=settings.http_oauth_scopes,
        profile_claim=settings.http_oauth_profile_claim,
        profiles=settings.http_oauth_scope_profiles,
        keys=settings.http_oauth_jwks,
    )


def _is_plain(url: str) -> bool:
    return is_safe(url) and "@" not in urlsplit(url).netloc and not set(url) & set('?#"\\ ')


class OAuth:
    """Checks access tokens. `note` is given the texts that belong in the log."""

    def __init__(self, terms: Terms, note: Callable[[str], None]) -> None:
        import jwt

        from ...actors.transports.http_client import fetched
        from .issuer_keys import IssuerKeys

        self._jwt = jwt
        self._checker = jwt.PyJWT(options={"enforce_minimum_key_length": True})
        self._terms = terms
        self._keys = IssuerKeys(terms.issuer, terms.keys, fetched, note)
        self._remembered: dict[bytes, tuple[Caller, int]] = {}  # and until when, by the digest of a token
        self._generation = 0  # of the keys by which they were checked
        parts = urlsplit(terms.resource)
        self._place = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"
        about: dict[str, Any] = {
            "resource": terms.resource,
            "authorization_servers": [terms.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Greenroom",
        }
        if wanted := [*terms.scopes, *(scope for scope in terms.profiles if scope not in terms.scopes)]:
            about["scopes_supported"] = wanted
        self.metadata: bytes = json.dumps(about).encode()

    async def keep(self) -> None:
        """Fetch the issuer's keys now and then. Runs until cancelled."""
        await self._keys.keep()

    # ---- what a client is told -----------------------------------------------------------------------------------

    def challenge(self, error: str = "") -> tuple[bytes, bytes]:
        said = ['Bearer realm="greenroom"']
        if error:
            said.append(f'error="{error}"')
        if self._terms.scopes:
            said.append(f'scope="{" ".join(self._terms.scopes)}"')
        said.append(f'resource_metadata="{self._place}"')
        return (b"www-authenticate", ", ".join(said).encode())

    def _wrong(self, why: str) -> HttpRefusal:
        return HttpRefusal(401, f"Unauthorized: {why}.", self.challenge("invalid_token"))

    def identity(self, header: bytes, caller: Caller) -> CallerIdentity | None:
        """Who has come with this header as this caller, with the token. None: it was no token of the issuer."""
        bearer = _BEARER.fullmatch(header)
        if bearer is None or caller.name is None or not caller.name.startswith(OAUTH):
            return None
        return CallerIdentity(bearer[1].decode(), self._terms.issuer, caller.name.removeprefix(OAUTH))

    # ---- who comes -----------------------------------------------------------------------------------------------

    def remembered(self, token: bytes) -> Caller | None:
        """The caller that this token names, if it was checked before. Raises `HttpRefusal`."""
        if len(token) > ACCESS_TOKEN_BYTES:
            raise self._wrong("the token is too long")
        if self._generation != self._keys.generation:
            self._remembered.clear()
            self._generation = self._keys.generation
        digest = _digest(token)
        known = self._remembered.get(digest)
        if known is not None:
            if time.time() < known[1]:
                return known[0]
            del self._remembered[digest]
        return None

    async def caller(self, token: bytes) -> Caller:
        """The caller that this token names. Raises `HttpRefusal`."""
        known = self.remembered(token)
        if known is not None:
            return known
        digest = _digest(token)
        claims = await self._claims(token)
        caller = self._caller_of(claims)
        if len(self._remembered) >= _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = caller, int(claims["exp"])  # which may be too large for a float
        return caller

    async def _claims(self, token: bytes) -> Mapping[str, Any]:
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in _ALGORITHMS:
                raise self._wrong("the token is signed in a way that is not accepted")
            keys = await self._keys.find(header.get("kid"))
            if keys is None:
                text = "The authorization server's keys cannot be had at the moment. Try again later."
                raise HttpRefusal(503, text, _RETRY)
            if len(keys) != 1:
                raise self._wrong("the token is signed by an unknown key")
            key = keys[0]
            if key.get("alg", algorithm) != algorithm:
                raise self._wrong("the token is signed in a way that its key is not for")
            return self._checker.decode(
                token,
                jwt.PyJWK(dict(key), algorithm),
                algorithms=[algorithm],
                audience=self._terms.audiences,
                issuer=self._terms.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise self._wrong("the token has expired") from None
        except jwt.InvalidAudienceError:
            raise self._wrong("the token is for somebody else") from None
        except jwt.InvalidIssuerError:
            raise self._wrong("the token is of another issuer") from None
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise self._wrong("the token is not valid") from None

    def _caller_of(self, claims: Mapping[str, Any]) -> Caller:
        scopes = _scopes_in(claims)
        terms = self._terms
        if not scopes.issuperset(terms.scopes):
            raise HttpRefusal(
                403, "Forbidden: the token lacks a scope.", self.challenge("insufficient_scope")
            )
        profile = _said_in(claims, terms.profile_claim) if terms.profile_claim is not None else None
        if profile is None:
            profile = next((name for scope, name in terms.profiles.items() if scope in scopes), None)
        if profile is None and terms.binds:
            text = "Forbidden: the token belongs to no profile of this gateway."
            raise HttpRefusal(403, text, self.challenge("insufficient_scope"))
        subject = _said_in(claims, "sub")
        if subject is None:
            raise self._wrong("the token is nobody's")
        client = _said_in(claims, "client_id") or _said_in(claims, "azp")
        return Caller(f"{OAUTH}{subject}", profile, client, scopes=scopes)


def _said_in(claims: Mapping[str, Any], name: str) -> str | None:
    """The text of a claim. None: it is missing, empty or no text."""
    said = claims.get(name)
    return said if isinstance(said, str) and said.strip() else None


def _scopes_in(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` is a text with spaces (RFC 9068); some issuers have `scp`, which may be a list."""
    said: Any = claims.get("scope", claims.get("scp", ""))
    if isinstance(said, str):
        return frozenset(said.split())
    listed = map(str, cast("list[Any]", said)) if isinstance(said, list) else ()
    return frozenset(scope for scope in listed if scope.strip())
