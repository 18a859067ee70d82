"""The keys by which tokens of an authorization server are checked (JWKS, RFC 7517).

They are fetched when the door opens, then every ten minutes, and when a token names a key that is not among them: an
issuer may sign with a new key at any moment. Anybody can make up such a token, so that is done at most once a minute,
by one request for all who wait. When they cannot be fetched, those that are known go on counting for a day.

PyJWT's own client of such keys is not used. Its `timeout` is not one for the whole answer, which it reads without a
bound and under a lock for which whoever has a known key waits as well. While the issuer is down, every made-up token
makes it ask again. It takes a key with its private part, and none without an id.

Where they are is configured, or said by the issuer's metadata (RFC 8414, OpenID Connect Discovery).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec

from ...actors.transports.http_faults import ExchangeFault
from ...protocol.bounds import ISSUER_BYTES, ISSUER_KEYS
from ...protocol.json_values import is_array, is_object
from .http_request import is_safe

Key = Mapping[str, Any]
Fetch = Callable[[str, int], Awaitable[bytes]]
_FRESH: Final = 600.0  # seconds
_AGAIN: Final = 60.0  # between two looks for an unknown key
_AGAIN_WITHOUT_ANY: Final = 5.0  # the same while no key is known
_KINDS: Final = ("RSA", "EC", "OKP")  # a key that is a secret is none of these
_LAST: Final = 86_400.0  # keys that cannot be fetched again count for so long


class IssuerKeys:
    """`place`: where the keys are; None: the metadata of `issuer` says so. `generation` counts how often they
    changed."""

    def __init__(self, issuer: str, place: str | None, fetch: Fetch, note: Callable[[str], None]) -> None:
        self.generation: int = 0
        self._issuer = issuer
        self._place = place
        self._fetch = fetch
        self._note = note
        self._keys: Sequence[Key] = ()
        self._until = float("-inf")
        self._next_look = float("-inf")
        self._turn = anyio.Lock()
        self._has_failed = False

    async def keep(self) -> None:
        """Fetch them now and then. Runs until cancelled."""
        while True:
            async with self._turn:
                await self._look()
            await anyio.sleep(_FRESH if not self._has_failed else _AGAIN)

    async def find(self, kid: str | None) -> Sequence[Key] | None:
        """The keys with this id; all, if a token names none. None: no key of the issuer is known at the moment."""
        found = self._with(kid)
        if not found and anyio.current_time() >= self._next_look:
            async with self._turn:
                if anyio.current_time() >= self._next_look:  # nobody else has just looked
                    await self._look()
            found = self._with(kid)
        return found or (found if self._known() else None)

    def _known(self) -> Sequence[Key]:
        return self._keys if anyio.current_time() < self._until else ()

    def _with(self, kid: str | None) -> Sequence[Key]:
        return [key for key in self._known() if kid is None or key.get("kid") == kid]

    async def _look(self) -> None:
        try:
            keys = _keys_in(await self._read(self._place or await self._find_place()))
        except ExchangeFault as fault:
            self._next_look = anyio.current_time() + (_AGAIN if self._known() else _AGAIN_WITHOUT_ANY)
            if not self._has_failed:
                self._note(f"the keys of the issuer {self._issuer} cannot be fetched: {fault}")
            self._has_failed = True
            return
        now = anyio.current_time()
        self._next_look, self._until, self._has_failed = now + _AGAIN, now + _LAST, False
        if keys != self._keys:
            self._keys = keys
            self.generation += 1

    async def _find_place(self) -> str:
        """Where the issuer's metadata says that its keys are."""
        fault = ExchangeFault("it has no metadata")
        for url in _metadata_urls(self._issuer):
            try:
                said = await self._read(url)
            except ExchangeFault as error:
                fault = error
                continue
            place = said.get("jwks_uri")
            if said.get("issuer") != self._issuer:
                raise ExchangeFault(f'the metadata at {url} is of another issuer. Correct "issuer".')
            if not isinstance(place, str) or not is_safe(place):
                raise ExchangeFault(f"the metadata at {url} names no place for them that can be trusted")
            return place
        raise fault

    async def _read(self, url: str) -> Mapping[str, Any]:
        try:
            said = msgspec.json.decode(await self._fetch(url, ISSUER_BYTES))
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise ExchangeFault("what is there is no JSON") from None
        if not is_object(said):
            raise ExchangeFault("what is there is no object")
        return said


def _metadata_urls(issuer: str) -> tuple[str, ...]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    )


def _keys_in(said: Mapping[str, Any]) -> list[Key]:
    """Those that can check signatures. Raises `ExchangeFault` when there is none."""
    given = said.get("keys")
    some = given[:ISSUER_KEYS] if is_array(given) else ()
    keys = [key for key in some if is_object(key) and _checks_signatures(key)]
    if not keys:
        raise ExchangeFault("there is no key among them that can check a signature")
    return keys


def _checks_signatures(key: Key) -> bool:
    """Not a key that was published with its private part (`d`): then anybody can sign with it."""
    return key.get("kty") in _KINDS and key.get("use", "sig") == "sig" and "d" not in key
