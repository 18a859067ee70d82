"""A token for one server, for one caller: what is asked, of whom, and what is not believed.

Two ways, which differ in who vouches for whom:

* `token_exchange` (RFC 8693): the provider that knows the caller gives a token for the server, in exchange for the one
  by which the caller came.
* `id_jag` (Identity Assertion JWT Authorization Grant; MCP calls it enterprise-managed authorization): the provider
  gives an assertion about the caller in the same way, and the server's own authorization server gives a token for that
  (RFC 7523).

Who is asked stands in the configuration and nowhere else. A server is never asked where its tokens come from, so it
cannot send an assertion or a secret elsewhere. Metadata (RFC 8414, OpenID Connect) must name the issuer that was asked
for. Nothing goes over another way than TLS, or to this machine; a redirect to another origin is not followed.

Each answer must be what was asked for, and visibly for whom it was asked: the type of what was issued, the issuer, the
audience, the client, the resource, the time. An assertion that says another thing is not sent on, and a token that is
for somebody else is not used. Whatever is no JWT says nothing of that, and is taken at its issuer's word.

An assertion is fetched for each exchange and used once. Nothing is kept here, neither in memory nor on a disk.

Rejected: the SDK's provider (`IdentityAssertionOAuthProvider`) for the second step. It holds a lock while a request is
on its way, so the calls of a connection would run one after another; it gets a token only once a request was refused;
and its errors quote answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

import attrs
import msgspec

from ...config.model import ServerDefinition
from ..transports.http_client import fetched, posted
from ..transports.http_faults import ExchangeFault
from .caller_identity import CallerIdentity, Claims, claims_of, is_same_place
from .login_record import AuthorizationServerDown, LoginFailed, seconds, usable
from .token_endpoint import client_headers, is_safe, outage, refusal

_PREFIX: Final = "urn:ietf:params:oauth:token-type:"
_ID_JAG: Final = f"{_PREFIX}id-jag"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_KIND_OF_ID_JAG: Final = "oauth-id-jag+jwt"
_KIND_OF_ACCESS: Final = "at+jwt"
_MOST: Final = 1 << 20  # bytes of an answer


@attrs.frozen
class Provider:
    """One authorization server, and us as its client."""

    issuer: str
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)

    @property
    def host(self) -> str:
        try:
            return urlsplit(self.issuer).hostname or "?"
        except ValueError:
            return "?"

    async def endpoint(self) -> tuple[str, str]:
        """Its token endpoint, and how a client says there who it is, as its metadata says. Raises `LoginFailed`, and
        `AuthorizationServerDown` where there is none to be had."""
        parts = urlsplit(self.issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        why = "it has no metadata"
        for place in (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}{path}/.well-known/openid-configuration",
        ):
            try:
                said = _object(await fetched(place, _MOST))
            except ExchangeFault as error:
                why = str(error)
                continue
            endpoint, issuer = said.get("token_endpoint"), said.get("issuer")
            if issuer is None:  # a page for everything that is not there, for one
                why = "what is there is none"
                continue
            if issuer != self.issuer:
                raise LoginFailed(f"the metadata of {self.host} is of another issuer: correct the entry")
            if (
                not isinstance(endpoint, str)
                or not is_safe(endpoint)
                or not endpoint.startswith(parts.scheme)
            ):
                raise LoginFailed(f"the metadata of {self.host} names no token endpoint that can be trusted")
            methods: Any = said.get("token_endpoint_auth_methods_supported")
            listed: list[Any] = methods if isinstance(methods, list) else ["client_secret_basic"]  # pyright: ignore[reportUnknownVariableType]
            return (
                endpoint,
                "client_secret_basic" if "client_secret_basic" in listed else "client_secret_post",
            )
        raise AuthorizationServerDown(f"the metadata of {self.host} cannot be had ({why})")


@attrs.frozen
class ExchangeTerms:
    """What the configuration says of a server that is called as its caller. `provider` knows the callers; `server`
    gives tokens for the server (None: `provider` does)."""

    url: str
    provider: Provider
    server: Provider | None
    subject_type: str
    resource: str | None
    audience: str | None
    scope: str | None

    def why_unfit(self, identity: CallerIdentity, caller: CallerIdentity | None, now: float) -> str | None:
        """Why the token of this caller must not be sent to the provider; None: it may. `caller`: who the door says it
        is."""
        ours = self.provider.issuer
        if identity.issuer and not is_same_place(identity.issuer, ours):
            return f"this caller's token is of {identity.issuer}, and is not shown to {ours}"
        said = claims_of(identity.token)
        if said is None:
            return None
        issuer, subject = said.text("iss"), said.text("sub")
        if issuer is not None and not is_same_place(issuer, ours):
            return "this caller's token is of another issuer than the identity provider in the entry"
        if said.is_over(now):
            return "this caller's token has ended: log in again"
        if (
            caller is not None
            and is_same_place(caller.issuer, ours)
            and subject not in (None, caller.subject)
        ):
            return "the token that this session gave is another person's than the caller's"
        if self.subject_type == "id_token" and said.kind in (_KIND_OF_ACCESS, _KIND_OF_ID_JAG):
            return 'this caller\'s token is not an ID token: correct "subjectTokenType"'
        if self.subject_type == "access_token" and said.kind == _KIND_OF_ID_JAG:
            return "this caller's token is an assertion for somebody else"
        return None


@attrs.frozen
class CallerToken:
    """A token for the server. `expires_at`: seconds since 1970; None: nobody said. `scopes`: what it is good for, as
    far as its issuer said."""

    access_token: str = attrs.field(repr=False)
    lasts: float | None
    expires_at: float | None
    scopes: frozenset[str] | None


def terms_of(definition: ServerDefinition, oauth: Mapping[str, Any]) -> ExchangeTerms:
    """The terms of this definition; both are expanded. Raises `LoginFailed` when they cannot be used."""
    assert definition.url is not None
    own = Provider(oauth["issuer"], oauth["clientId"], oauth.get("clientSecret"))
    by_assertion = oauth["grantType"] == "id_jag"
    provider = own
    if by_assertion:
        known_as = oauth.get("identityClientId")
        secret = oauth.get("identityClientSecret")
        provider = Provider(oauth["identityProvider"], known_as or own.client_id, secret)
        if known_as is None and secret is None:
            provider = attrs.evolve(provider, client_secret=own.client_secret)
    for each in (provider, own):
        if not is_safe(each.issuer):
            raise LoginFailed(
                f'the issuer {each.host} is not reached over https: correct "oauth" in its entry'
            )
    audience, resource = oauth.get("audience"), oauth.get("resource")
    if resource is None and (by_assertion or audience is None):
        resource = _identifier(definition.url)
    return ExchangeTerms(
        url=definition.url,
        provider=provider,
        server=own if by_assertion else None,
        subject_type=oauth.get("subjectTokenType", "access_token"),
        resource=resource,
        audience=audience,
        scope=oauth.get("scope"),
    )


def _identifier(url: str) -> str:
    """What a server is called by its URL: without what may be a secret in there, the user and the query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Exchanger:
    """Gets tokens by these terms. Where each provider's token endpoint is, it finds out once."""

    def __init__(self, terms: ExchangeTerms) -> None:
        self._terms = terms
        self._endpoints: dict[
            str, tuple[str, str]
        ] = {}  # by issuer: the endpoint, and how a client is known there

    async def token_for(self, subject: str, scope: str | None) -> CallerToken:
        """A token for whom `subject` is about. Raises `LoginFailed`, and `AuthorizationServerDown` when it may work
        later."""
        terms = self._terms
        if terms.server is None:
            answer = await self._exchanged(subject, scope, f"{_PREFIX}access_token")
            issued = answer.get("issued_token_type")
            if issued not in (f"{_PREFIX}access_token", f"{_PREFIX}jwt"):
                raise LoginFailed(
                    f"{terms.provider.host} answered with something that is not an access token"
                )
            return self._token_in(answer, terms.provider, (subject,))
        answer = await self._exchanged(subject, scope, _ID_JAG)
        assertion = answer.get("access_token")
        if answer.get("issued_token_type") != _ID_JAG or not isinstance(assertion, str):
            raise LoginFailed(f"{terms.provider.host} answered with something that is not an ID-JAG")
        if (why := _unlike(assertion, terms, time.time())) is not None:
            raise LoginFailed(f"the ID-JAG of {terms.provider.host} {why}, so it is not sent on")
        form = {"grant_type": _BEARER, "assertion": assertion, **_named(resource=terms.resource, scope=scope)}
        return self._token_in(await self._asked(terms.server, form), terms.server, (subject, assertion))

    async def _exchanged(self, subject: str, scope: str | None, wanted: str) -> Mapping[str, Any]:
        terms = self._terms
        form = {
            "grant_type": _EXCHANGE,
            "requested_token_type": wanted,
            "subject_token": subject,
            "subject_token_type": f"{_PREFIX}{terms.subject_type}",
            **_named(
                audience=terms.audience if terms.server is None else terms.server.issuer,
                resource=terms.resource,
                scope=scope,
            ),
        }
        return await self._asked(terms.provider, form)

    async def _asked(self, provider: Provider, form: dict[str, str]) -> Mapping[str, Any]:
        endpoint, method = await self._endpoint(provider)
        headers = client_headers(provider.client_id, provider.client_secret, method, form)
        try:
            status, body = await posted(endpoint, form, headers, _MOST)
        except ExchangeFault as error:
            raise AuthorizationServerDown(f"{provider.host} cannot be reached ({error})") from None
        answer = _object(body)
        if (why := outage(status, answer)) is not None:
            raise AuthorizationServerDown(f"{provider.host} is out of order ({why})")
        if status != HTTPStatus.OK or "error" in answer:
            raise LoginFailed(f"{provider.host} refuses it ({refusal(answer, status)})")
        return answer

    async def _endpoint(self, provider: Provider) -> tuple[str, str]:
        found = self._endpoints.get(provider.issuer)
        if found is None:
            found = self._endpoints[provider.issuer] = await provider.endpoint()
        return found

    def _token_in(self, answer: Mapping[str, Any], issuer: Provider, sent: tuple[str, ...]) -> CallerToken:
        token, kind = answer.get("access_token"), answer.get("token_type")
        if not isinstance(token, str) or not usable(token) or str(kind).lower() != "bearer":
            raise LoginFailed(f"{issuer.host} answered without a bearer token")
        if token in sent:
            raise LoginFailed(f"{issuer.host} answered with what it was sent, which no server may be given")
        if (why := _not_for(token, self._terms, time.time())) is not None:
            raise LoginFailed(f"the token of {issuer.host} {why}, so it is not used")
        lasts, said = seconds(answer.get("expires_in")), answer.get("scope")
        return CallerToken(
            token,
            lasts,
            None if lasts is None else time.time() + lasts,
            frozenset(said.split()) if isinstance(said, str) else None,
        )


def _unlike(assertion: str, terms: ExchangeTerms, now: float) -> str | None:
    """What is wrong with an assertion; None: nothing that can be seen."""
    said, server = claims_of(assertion), terms.server
    assert server is not None
    if said is None or said.kind != _KIND_OF_ID_JAG or str(said.header["alg"]).lower() == "none":
        return "is none"
    resource = said.text("resource")
    checks = (
        (is_same_place(said.text("iss") or "", terms.provider.issuer), "is of another issuer"),
        (_is_only(said, server.issuer), "is for another authorization server"),
        (said.text("client_id") == server.client_id, "is for another client"),
        (resource is None or is_same_place(resource, terms.resource or ""), "is for another server"),
        (said.text("sub") is not None and said.text("jti") is not None, "is about nobody"),
        ("exp" in said.body and not said.is_over(now), "has ended"),
    )
    return next((why for holds, why in checks if not holds), None)


def _is_only(said: Claims, audience: str) -> bool:
    return len(said.audiences) == 1 and is_same_place(said.audiences[0], audience)


def _not_for(token: str, terms: ExchangeTerms, now: float) -> str | None:
    """Why a token is not for this server; None: nothing can be seen that speaks against it."""
    said = claims_of(token)
    if said is None:
        return None
    if said.kind == _KIND_OF_ID_JAG:
        return "is an assertion and not an access token"
    if said.is_over(now):
        return "has ended"
    ours = [place for place in (terms.resource, terms.audience, terms.url) if place is not None]
    is_ours = any(is_same_place(each, place) for each in said.audiences for place in ours)
    return None if is_ours or "aud" not in said.body else "is for another server"


def _named(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
