"""OAuth 2.1: the door as a resource server, for the access tokens of one authorization server.

A client without a token is told where to get one: the challenge names our metadata (RFC 9728), and that names the
issuer. What it comes back with is a JWT (RFC 9068), which is checked here: it is signed by a key of the issuer, with an
algorithm whose keys are public (so nobody can sign with what everybody knows), it is for us (`aud`), of that issuer,
valid now, and it has the scopes that are wanted. PyJWT does the checking. It is imported only when an issuer is
configured, as is the fetching of its keys (`_issuer_keys`).

A caller is the token's subject and client. What it sees is the profile that a claim names, or that belongs to one of
its scopes. Where one of these is configured, a token without a profile is refused.

A token that was checked is remembered until it ends or the keys change, so a call costs no signature.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import attrs

from ...protocol.bounds import ACCESS_TOKEN_BYTES
from ...protocol.errors import UsageError
from ._caller import OAUTH, Caller, is_safe
from ._refusals import Refusal

if TYPE_CHECKING:
    from ...protocol.config import Settings

WELL_KNOWN: Final = b"/.well-known/oauth-protected-resource"
_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_LEEWAY: Final = 30  # seconds by which clocks may differ
_REMEMBERED: Final = 1024  # tokens
_RETRY: Final = (b"retry-after", b"5")


@attrs.frozen
class Terms:
    """What a token must be. `profiles`: what callers see, by scope; the first that a token has counts."""

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
    """What the configuration says; None: there is no issuer. Raises `UsageError` when it cannot be used."""
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
    """Checks tokens. `note` is given the texts that belong in the log."""

    def __init__(self, terms: Terms, note: Callable[[str], None]) -> None:
        import jwt

        from ...actors import fetched
        from ._issuer_keys import IssuerKeys

        self._jwt = jwt
        self._checker = jwt.PyJWT(options={"enforce_minimum_key_length": True})
        self._terms = terms
        self._keys = IssuerKeys(terms.issuer, terms.keys, fetched, note)
        self._remembered: dict[bytes, tuple[Caller, int]] = {}  # and until when, by the digest of a token
        self._generation = 0  # of the keys by which they were checked
        self.keep = self._keys.keep
        parts = urlsplit(terms.resource)
        self._place = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN.decode()}{parts.path.rstrip('/')}"
        about: dict[str, Any] = {
            "resource": terms.resource,
            "authorization_servers": [terms.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Greenroom",
        }
        if wanted := [*terms.scopes, *(scope for scope in terms.profiles if scope not in terms.scopes)]:
            about["scopes_supported"] = wanted
        self.metadata = json.dumps(about).encode()

    # ---- what a client is told -----------------------------------------------------------------------------------

    def challenge(self, error: str = "") -> tuple[bytes, bytes]:
        said = ['Bearer realm="greenroom"']
        if error:
            said.append(f'error="{error}"')
        if self._terms.scopes:
            said.append(f'scope="{" ".join(self._terms.scopes)}"')
        said.append(f'resource_metadata="{self._place}"')
        return (b"www-authenticate", ", ".join(said).encode())

    def _wrong(self, why: str) -> Refusal:
        return Refusal(401, f"Unauthorized: {why}.", self.challenge("invalid_token"))

    # ---- who comes -----------------------------------------------------------------------------------------------

    async def caller(self, token: bytes) -> Caller:
        """Whose token this is. Raises `Refusal`."""
        if len(token) > ACCESS_TOKEN_BYTES:
            raise self._wrong("the token is too long")
        if self._generation != self._keys.generation:
            self._remembered.clear()
            self._generation = self._keys.generation
        digest = hashlib.sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None:
            if time.time() < known[1]:
                return known[0]
            del self._remembered[digest]
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
                raise Refusal(503, text, _RETRY)
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
                leeway=_LEEWAY,
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
            raise Refusal(403, "Forbidden: the token lacks a scope.", self.challenge("insufficient_scope"))
        profile = _said_in(claims, terms.profile_claim) if terms.profile_claim is not None else None
        if profile is None:
            profile = next((name for scope, name in terms.profiles.items() if scope in scopes), None)
        if profile is None and terms.binds:
            text = "Forbidden: the token belongs to no profile of this gateway."
            raise Refusal(403, text, self.challenge("insufficient_scope"))
        subject = _said_in(claims, "sub")
        if subject is None:
            raise self._wrong("the token is nobody's")
        return Caller(f"{OAUTH}{subject}", profile, _said_in(claims, "client_id") or _said_in(claims, "azp"))


def _said_in(claims: Mapping[str, Any], name: str) -> str | None:
    """What a claim says. None: it is not there, it is no text, or it is empty and so says nothing."""
    said = claims.get(name)
    return said if isinstance(said, str) and said.strip() else None


def _scopes_in(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` is a text with spaces (RFC 9068); some issuers have `scp`, which may be a list."""
    said: Any = claims.get("scope", claims.get("scp", ""))
    if isinstance(said, str):
        return frozenset(said.split())
    listed = map(str, cast("list[Any]", said)) if isinstance(said, list) else ()
    return frozenset(scope for scope in listed if scope.strip())
