"""Which servers may have a login, and where it is: the part that a room needs before there is any."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...protocol.config import ServerDefinition
from ...protocol.config_readers import is_object
from ...protocol.interpolate import expand
from ...protocol.secrets import Hidden
from ._pi import GRANT, pi_agent, pi_folder
from ._record import Login, LoginFailed
from ._store import LoginStore


def logins(pi: str | None = None) -> LoginStore:
    """This user's logins: `logins` in the user's data folder, and those of pi's adapter. `pi`: where those are, if its
    settings say so."""
    import platformdirs

    folder = platformdirs.user_data_path("greenroom", appauthor=False) / "logins"
    return LoginStore(folder, pi=pi_folder(os.environ, pi), agent=pi_agent(os.environ))


def may_log_in(definition: ServerDefinition) -> bool:
    """Whether a login is used for this server. Not beside an `Authorization` header, unless `auth` says so."""
    if definition.url is None or definition.auth is False or definition.oauth is False:
        return False
    if definition.auth == "oauth" or definition.oauth is not None:
        return True
    return not any(name.lower() == "authorization" for name in definition.headers)


def oauth_of(definition: ServerDefinition, environ: Mapping[str, str]) -> dict[str, Any]:
    """What `oauth` says, expanded. Raises `LoginFailed` for an empty client id or secret."""
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
    learn: Callable[[Iterable[Hidden]], object],
) -> Any:
    """The `httpx2.Auth` for a connection to this server; None when it has no login and none can be had without a
    person, so that its requests cost nothing more. `definition` is expanded. `learn` is told each token that is used,
    so that no text shows it."""
    if not may_log_in(definition):
        return None
    assert definition.url is not None
    store, name, url = logins(definition.pi_logins), definition.name, definition.url
    obtains = (definition.oauth or {}).get("grantType") == "client_credentials"
    if not obtains and not store.may_have(name, url):
        return None
    from ._requests import StoredLogin

    def obtain(replaces: str | None) -> Login:
        from ._sdk import obtained

        return obtained(store, definition, oauth_of(definition, environ), replaces)

    return StoredLogin(store, name, url, definition.headers, learn, obtain if obtains else None)


async def log_in(
    definition: ServerDefinition, oauth: Mapping[str, Any], person: Any, scope: str | None
) -> Login:
    """A login that `person` (`_sdk.Person`) makes; it is not stored yet. Raises `LoginFailed`."""
    from . import _sdk

    return await _sdk.log_in(definition, oauth, person, scope)


def keep(login: Login) -> Login:
    """Store a login, whatever was there. Blocks. Raises `LoginFailed`."""
    store = logins()
    with store.locked(login.server, login.url):
        return store.save(login, None)


def obtain(definition: ServerDefinition, oauth: Mapping[str, Any]) -> Login:
    """A new login by client credentials, stored. Blocks. Raises `LoginFailed`."""
    from ._sdk import obtained

    kept = stored_login(definition)
    return obtained(logins(), definition, oauth, kept.id if kept is not None else None)


def log_out(definition: ServerDefinition) -> tuple[bool, str | None]:
    """Revoke the login and forget it. Returns whether there was one, and why it was not revoked, if so. Blocks.

    Raises `LoginFailed` for one that pi has made.
    """
    from ._renewal import revoke

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
