"""A login on each request of one connection.

The token in memory is used as long as it is valid. Shortly before its end it is renewed. When the server refuses it
all the same (401), it is replaced once: by what another process has stored meanwhile, or by a renewed one. A second
401 is the answer, and parks the server. Nobody is asked anything here.

A token that is still valid does not have to wait for its renewal: after a while it is used as it is. A renewal that
failed is not tried again at once, and one that nobody waited for is given its time first: it goes on in its thread and
stores what it gets, and a second one would only stand behind it. A request whose token is over, or refused, waits.

A 401 means that the request did not run, so it is sent again with the other token: a token that ends in the middle of
a session costs no call.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Final

import anyio
import httpx2

from ...protocol.secrets import Hidden
from ..apart import apart
from ._endpoint import WITHIN
from ._record import Login, Unreachable
from ._renewal import renew
from ._store import LoginStore

_BEFORE_END: Final = 30.0  # seconds
_PATIENCE: Final = 2.0  # seconds for the renewal of a token that is valid, at most half of what it has left
_PAUSE: Final = 5.0  # seconds after a renewal that failed


class StoredLogin(httpx2.Auth):
    """`obtain`: gets a login without a person (client credentials), or None. It blocks."""

    def __init__(
        self,
        store: LoginStore,
        server: str,
        url: str,
        headers: Mapping[str, str],
        learn: Callable[[Iterable[Hidden]], object],
        obtain: Callable[[str | None], Login] | None,
    ) -> None:
        self._store = store
        self._server, self._url, self._headers = server, url, headers
        self._learn = learn
        self._obtain = obtain
        self._login: Login | None = None
        self._is_loaded = False
        self._turn = anyio.Lock()
        self._again_at = float("-inf")  # in the loop's time: until then, no valid token is renewed

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        login = await self._present()
        if login is not None:
            request.headers["Authorization"] = f"Bearer {login.access_token}"
        response = yield request
        if response.status_code != 401:
            return
        other = await self._in_place_of(login)
        if other is not None:
            request.headers["Authorization"] = f"Bearer {other.access_token}"
            yield request

    async def _present(self) -> Login | None:
        if not self._is_loaded:
            async with self._turn:
                if not self._is_loaded:
                    self._take(await apart(lambda: self._store.load(self._server, self._url)))
                    self._is_loaded = True
        login = self._login
        if login is None:
            return await self._in_place_of(None) if self._obtain is not None else None
        if login.expires_at is None:
            return login
        left = login.expires_at - time.time()
        if left > _BEFORE_END:
            return login
        return await (self._in_place_of(login) if left <= 0 else self._while_valid(login, left))

    async def _while_valid(self, login: Login, left: float) -> Login | None:
        """What takes the place of a login that is valid for `left` seconds, or that login."""
        if self._pauses():
            return login
        try:
            with anyio.fail_after(min(_PATIENCE, left / 2)):
                return await self._in_place_of(login, is_needed=False)
        except TimeoutError:
            self._again_at = anyio.current_time() + WITHIN
        except httpx2.TransportError:
            pass
        return login

    def _pauses(self) -> bool:
        return anyio.current_time() < self._again_at

    async def _in_place_of(self, login: Login | None, *, is_needed: bool = True) -> Login | None:
        """Another login than this one, or None. `is_needed`: this one cannot be used. Raises an HTTP error when another
        cannot be had at the moment."""
        async with self._turn:
            if self._login is not login or (
                self._pauses() and not is_needed
            ):  # somebody else's request has tried it
                return self._login
            try:
                self._take(await apart(lambda: self._other(login)))
            except Unreachable as error:
                self._again_at = anyio.current_time() + _PAUSE
                raise httpx2.TransportError(str(error)) from None
            return self._login

    def _take(self, login: Login | None) -> None:
        self._login = login
        if login is not None:
            tokens = (login.access_token, login.refresh_token, login.client_secret)
            self._learn(Hidden("token", token, known=True) for token in tokens if token is not None)

    def _other(self, login: Login | None) -> Login | None:
        if login is None:
            kept = self._store.load(self._server, self._url)
            if kept is not None or self._obtain is None:
                return kept
            return self._obtain(None)
        other = renew(self._store, login, self._headers)
        if other is None and self._obtain is not None:
            return self._obtain(login.id)
        return other
