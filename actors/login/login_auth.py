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

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Final

import anyio
import httpx2

from ...config.credentials import SecretValue
from ...config.model import ServerDefinition
from ...config.private_files import data_folder
from ...config.references import expand
from ...protocol.json_values import is_object
from ..timers import in_time
from ..transports.http_faults import LoginOutage
from ..workers import apart
from .login_record import AuthorizationServerDown, Login, LoginFailed
from .login_store import GRANT, LoginStore, pi_agent, pi_folder
from .token_endpoint import WITHIN, renew


def logins(pi: str | None = None) -> LoginStore:
    """This user's logins: `logins` in the user's data folder, and those of pi's adapter. `pi`: where those are, if its
    settings say so."""
    return LoginStore(data_folder() / "logins", pi=pi_folder(os.environ, pi), agent=pi_agent(os.environ))


def may_log_in(definition: ServerDefinition) -> bool:
    """Whether a login is used for this server. Beside an `Authorization` header it is not, unless `auth` says so."""
    if definition.url is None or definition.auth is False or definition.oauth is False:
        return False
    if definition.is_as_caller:
        return False  # each caller has a token of his own (`caller_auth`)
    if definition.auth == "oauth" or definition.oauth is not None:
        return True
    return not any(name.lower() == "authorization" for name in definition.headers)


def oauth_of(definition: ServerDefinition, environ: Mapping[str, str]) -> dict[str, Any]:
    """The `oauth` of the definition, expanded. Raises `LoginFailed` for an empty client id or secret."""
    found: dict[str, Any] = {}
    for name, value in (definition.oauth or {}).items():
        if is_object(value):
            found[name] = {str(key): expand(text, environ) for key, text in value.items()}
        else:
            found[name] = expand(value, environ).strip()
            if not found[name]:
                raise LoginFailed(f'"oauth.{name}" is empty: set the variable that it refers to')
    return found


def stored_login(definition: ServerDefinition) -> Login | None:
    """The login of this server, or None. `definition` is expanded. Raises `LoginFailed`. Blocks."""
    assert definition.url is not None
    return logins(definition.pi_logins).load(definition.name, definition.url)


def auth_for(
    definition: ServerDefinition,
    environ: Mapping[str, str],
    learn: Callable[[Iterable[SecretValue]], object],
) -> Any:
    """The `httpx2.Auth` for connections to this server. None when it has no login and none can be had without a person;
    then its requests cost nothing more. `definition` is expanded. `learn` is told each token that is used, so that no
    text shows it."""
    if not may_log_in(definition):
        return None
    assert definition.url is not None
    store, name, url = logins(definition.pi_logins), definition.name, definition.url
    obtains = (definition.oauth or {}).get("grantType") == "client_credentials"
    if not obtains and not store.may_have(name, url):
        return None

    def obtain(replaces: str | None) -> Login:
        from .oauth import obtained

        return obtained(store, definition, oauth_of(definition, environ), replaces)

    return StoredLogin(store, name, url, definition.headers, learn, obtain if obtains else None)


async def log_in(
    definition: ServerDefinition, oauth: Mapping[str, Any], person: Any, scope: str | None
) -> Login:
    """A login that `person` (`_sdk.Person`) makes; it is not stored yet. Raises `LoginFailed`."""
    from . import oauth as oauth_module

    return await oauth_module.log_in(definition, oauth, person, scope)


def keep(login: Login) -> Login:
    """Store a login, whatever was there. Blocks. Raises `LoginFailed`."""
    store = logins()
    with store.locked(login.server, login.url):
        return store.save(login, None)


def obtain(definition: ServerDefinition, oauth: Mapping[str, Any]) -> Login:
    """A new login by client credentials, stored. Blocks. Raises `LoginFailed`."""
    from .oauth import obtained

    kept = stored_login(definition)
    return obtained(logins(), definition, oauth, kept.id if kept is not None else None)


def log_out(definition: ServerDefinition) -> tuple[bool, str | None]:
    """Revoke the login and forget it. Returns whether there was one, and why it was not revoked, if so. Blocks.

    Raises `LoginFailed` for one that pi has made.
    """
    from .token_endpoint import revoke

    assert definition.url is not None
    try:
        login = stored_login(definition)
    except LoginFailed as error:
        login, problem = None, str(error)
    else:
        if login is not None and login.grant == GRANT:
            raise LoginFailed('it is a login of pi\'s: log out there, or write "auth": false into the entry')
        problem = None if login is None else revoke(login, definition.headers)
    return logins().forget(definition.name, definition.url), problem


_BEFORE_END: Final = 30.0  # seconds
_PATIENCE: Final = 2.0  # seconds for the renewal of a token that is valid, at most half of what it has left
_PAUSE: Final = 5.0  # seconds after a renewal that failed


class StoredLogin(httpx2.Auth):
    """The stored login of one server, which is renewed when it has to be. `obtain`: gets a login without a person
    (client credentials), or None. It blocks."""

    def __init__(
        self,
        store: LoginStore,
        server: str,
        url: str,
        headers: Mapping[str, str],
        learn: Callable[[Iterable[SecretValue]], object],
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
        """The login to use, when this one is valid for `left` more seconds: a renewed one, or this one."""
        if self._pauses():
            return login
        try:
            async with in_time(min(_PATIENCE, left / 2)):
                return await self._in_place_of(login, is_needed=False)
        except (TimeoutError, httpx2.TransportError):
            pass
        assert login.expires_at is not None
        # The machine may have slept meanwhile: then it is not valid any more, and another is needed.
        return login if login.expires_at > time.time() else await self._in_place_of(login)

    def _pauses(self) -> bool:
        return anyio.current_time() < self._again_at

    async def _in_place_of(self, login: Login | None, *, is_needed: bool = True) -> Login | None:
        """Another login than this one, or None. `is_needed`: this one cannot be used. Raises an HTTP error when no
        other can be had now."""
        async with self._turn:
            if self._login is not login or (
                self._pauses() and not is_needed
            ):  # somebody else's request has tried it
                return self._login
            try:
                self._take(await apart(lambda: self._other(login)))
            except AuthorizationServerDown as error:
                self._again_at = anyio.current_time() + _PAUSE
                raise LoginOutage(str(error)) from None
            except anyio.get_cancelled_exc_class():
                self._again_at = anyio.current_time() + WITHIN  # its thread goes on with that
                raise
            return self._login

    def _take(self, login: Login | None) -> None:
        self._login = login
        if login is not None:
            tokens = (login.access_token, login.refresh_token, login.client_secret)
            self._learn(SecretValue("token", token, known=True) for token in tokens if token is not None)

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
