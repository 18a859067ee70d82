"""The caller's own token on each request of one connection, which belongs to one session.

What a request carries was got for the caller of this session, by the token that the caller showed last. When the
caller shows another one, because that was renewed or because it may do less, a new token is got; the old one is not
used again, and no other caller's ever is. It is renewed shortly before its end. All of that is in memory, here, and
goes with the connection.

A server that refuses the token (401) is asked once more with a new one. One that wants further scopes (403,
`insufficient_scope`) is asked once more with a token that has them, if the providers give it; a token for which they
refuse that stays as it is. A renewal asks for the configured scopes again, so a step up lasts as long as its token.

Both refusals mean that the request did not run. So does everything for which no token can be had (`NoIdentity`): that
call is refused, the connection stays, and the next call tries again, after a few seconds at the earliest.

When the session is over and nobody is known any more, the token that is held is good for one thing: to end the session
at the server.

A token goes to the origin of the server's URL alone.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncGenerator, Callable
from http import HTTPMethod
from typing import Final

import anyio
import attrs
import httpx2

from ...config.credentials import SecretValue
from ..timers import in_time
from ..transports.http_client import SecretLearner
from ..transports.http_faults import NoIdentity, lacks_scope, named_scopes
from .caller_identity import CallerIdentity
from .login_record import AuthorizationServerDown, LoginFailed
from .token_exchange import CallerToken, Exchanger, ExchangeTerms

_BEFORE_END: Final = 30.0  # seconds, at most a quarter of a token's life
_WITHIN: Final = 30.0  # seconds for all requests of an exchange
_PAUSE: Final = 5.0  # seconds after an exchange that failed
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749
_MOST_SCOPES: Final = 50  # that one challenge may name
_MOST_ASKED: Final = 100  # scopes that challenges may add to those of the configuration
_NAMED: Final = 200  # characters of scopes in a text


@attrs.frozen
class _CachedToken:
    token: CallerToken
    subject: str = attrs.field(repr=False)  # by which it was got
    asked: frozenset[str]  # the scopes that were asked for

    def serves(self, subject: str, scopes: frozenset[str]) -> bool:
        return self.subject == subject and scopes <= self.asked


@attrs.frozen
class _ExchangeFailure:
    text: str
    subject: str = attrs.field(repr=False)
    asked: frozenset[str]
    until: float  # in the loop's time


class CallerLogin(httpx2.Auth):
    """`identity`: the token that vouches for the caller now, `caller`: who the door says it is. `learn` is told each
    token, so that no text shows it."""

    def __init__(
        self,
        terms: ExchangeTerms,
        identity: Callable[[], CallerIdentity | None],
        caller: Callable[[], CallerIdentity | None],
        learn: SecretLearner,
    ) -> None:
        self._terms = terms
        self._identity = identity
        self._caller = caller
        self._learn = learn
        self._exchanger = Exchanger(terms)
        self._url = httpx2.URL(terms.url)
        self._scopes = frozenset((terms.scope or "").split())
        self._held: _CachedToken | None = None
        self._failure: _ExchangeFailure | None = None
        self._turn = anyio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not _is_origin(request.url, self._url):
            request.headers.pop("Authorization", None)
            yield request
            return
        if request.method == HTTPMethod.DELETE and self._identity() is None:
            yield _carrying(request, self._last())
            return
        held = await self._present()
        response = yield _carrying(request, held)
        if response.status_code == 401:
            held = await self._in_place_of(held, self._scopes)
            response = yield _carrying(request, held)
            if response.status_code == 401:
                text = "the server refuses the token that its authorization server has just given"
                self._pause(text, held.subject, self._scopes)
                raise NoIdentity(text)
        if lacks_scope(response):
            wanted = _scopes_of(response)
            held = await self._with_further(held, wanted)
            response = yield _carrying(request, held)
            if lacks_scope(response):
                raise NoIdentity(_lacking(wanted, "and refuses a token that was got for it"))

    def _last(self) -> _CachedToken:
        """The token that is held, for a farewell. Raises `NoIdentity` when it does not serve any more."""
        held = self._held
        if held is None or (held.token.expires_at or math.inf) <= time.time():
            raise NoIdentity("nobody knows who calls here any more")
        return held

    def _subject(self) -> str:
        """The token that vouches for the caller. Raises `NoIdentity`."""
        identity = self._identity()
        if identity is None:
            raise NoIdentity("nobody knows who calls here any more")
        if (why := self._terms.why_unfit(identity, self._caller(), time.time())) is not None:
            raise NoIdentity(why)
        return identity.token

    async def _present(self) -> _CachedToken:
        held, subject = self._held, self._subject()
        if held is None or held.subject != subject:
            return await self._in_place_of(held, self._scopes)
        token, now = held.token, time.time()
        if token.expires_at is None or token.lasts is None:
            return held
        left = token.expires_at - now
        if left > min(_BEFORE_END, token.lasts / 4):
            return held
        try:
            return await self._in_place_of(held, self._scopes)
        except NoIdentity:
            if token.expires_at > time.time():
                return held
            raise

    async def _with_further(self, held: _CachedToken, wanted: frozenset[str]) -> _CachedToken:
        """A token that has these scopes too. Raises `NoIdentity` when there is none."""
        if not wanted or wanted <= held.asked:
            raise NoIdentity(_lacking(wanted, "which this caller's token was asked for already"))
        before = held.asked | (held.token.scopes or frozenset())
        if len((before | wanted) - self._scopes) > _MOST_ASKED:
            raise NoIdentity(_lacking(wanted, "and has wanted too many already"))
        try:
            return await self._in_place_of(held, before | wanted, wanted)
        except NoIdentity as error:
            raise NoIdentity(_lacking(wanted, f"and it cannot be had: {error}")) from None

    async def _in_place_of(
        self, held: _CachedToken | None, scopes: frozenset[str], needed: frozenset[str] = frozenset()
    ) -> _CachedToken:
        """Another token than this one, asked for with these scopes. Raises `NoIdentity`."""
        async with self._turn:
            subject, present = self._subject(), self._held
            if present is not None and present is not held and present.serves(subject, scopes):
                return present  # somebody else's request has got it
            self._check_pause(subject, scopes)
            try:
                token = await self._got(subject, " ".join(sorted(scopes)) or None)
                if token.scopes is not None and not needed <= token.scopes:
                    raise LoginFailed("the token that was given lacks it")
            except LoginFailed as error:
                text = str(error)
                if isinstance(error, AuthorizationServerDown):
                    text += "; try again later"
                self._pause(text, subject, scopes)
                raise NoIdentity(text) from None
            except Exception as error:
                text = f"no token can be had: the exchange failed ({type(error).__name__})"
                self._pause(text, subject, scopes)
                raise NoIdentity(text) from error
            self._held, self._failure = _CachedToken(token, subject, scopes), None
            return self._held

    def _pause(self, text: str, subject: str, scopes: frozenset[str]) -> None:
        self._failure = _ExchangeFailure(text, subject, scopes, anyio.current_time() + _PAUSE)

    def _check_pause(self, subject: str, scopes: frozenset[str]) -> None:
        failure = self._failure
        if failure is None or anyio.current_time() >= failure.until:
            return
        if failure.subject == subject and failure.asked == scopes:
            raise NoIdentity(failure.text)

    async def _got(self, subject: str, scope: str | None) -> CallerToken:
        if self._held is not None:  # which others may be using, and is so none of the first to be forgotten
            self._learn((SecretValue("token", self._held.token.access_token, known=True),))
        self._learn((SecretValue("token", subject, known=True),))
        try:
            async with in_time(_WITHIN):
                token = await self._exchanger.token_for(subject, scope)
        except TimeoutError:
            raise AuthorizationServerDown(f"no token was had within {_WITHIN:g} s") from None
        self._learn((SecretValue("token", token.access_token, known=True),))
        return token


def _carrying(request: httpx2.Request, held: _CachedToken) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {held.token.access_token}"
    return request


def _is_origin(url: httpx2.URL, own: httpx2.URL) -> bool:
    """Whether a request goes to the server itself. The same host over TLS is no other one."""
    if (url.scheme, url.host, url.port) == (own.scheme, own.host, own.port):
        return True
    return (
        (own.scheme, url.scheme) == ("http", "https")
        and url.host == own.host
        and own.port is url.port is None
    )


def _scopes_of(response: httpx2.Response) -> frozenset[str]:
    """The scopes that the server wants. A challenge that names something else names none."""
    named = named_scopes(response).split()
    if len(named) > _MOST_SCOPES or not all(map(_SCOPE.fullmatch, named)):
        return frozenset()
    return frozenset(named)


def _lacking(wanted: frozenset[str], why: str) -> str:
    if not wanted:
        return 'the server wants a further scope and does not say which: name it as "scope" in the server\'s entry'
    named = " ".join(sorted(wanted))
    scopes = f'the scope "{named if len(named) <= _NAMED else f"{named[:_NAMED]}…"}"'
    return f"the server wants {scopes}, {why}. The administrator of the identity provider can allow it"
