"""`greenroom auth`: which logins there are; log in at a server, or out.

The login runs in this process and in front of a person, never in a room. Nothing is stored before it is complete, so
Ctrl-C at any moment leaves what was there before. A running gateway notices the new login by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import UsageError
from ._common import check_usable, config_option, read_config, run_to_end, say, show
from ._complete import complete_servers

if TYPE_CHECKING:
    from ...actors.login import Login
    from ...protocol.config import Config, ServerDefinition
    from . import _shapes as shapes


@click.command("auth")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.option("--logout", is_flag=True, help="Revoke the login and forget it.")
@click.option("--no-browser", is_flag=True, help="Print the address, and read the answer that you paste.")
@click.option(
    "--device", is_flag=True, help="Show a code to enter in any browser, if the server offers that."
)
@click.option("--scope", help="Ask for these scopes, separated by spaces.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds for all of it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def auth_command(
    server: str | None,
    logout: bool,
    no_browser: bool,
    device: bool,
    scope: str | None,
    timeout: float,
    config_path: Path | None,
    as_json: bool,
) -> int:
    """Log in at SERVER, or list the logins.

    Opens your browser and waits for its answer. Without a browser here, open the printed address on any machine, and
    paste the address that it leads to.
    """
    from ...actors.login import LoginFailed
    from .._offline import forget_failure

    config = read_config(config_path)
    if server is None:
        if logout or no_browser or device or scope:
            raise UsageError("Name the server. Without options the logins are listed: greenroom auth")
        return _list(config, as_json)
    try:
        if logout:
            return _log_out(_definition(config, server), as_json)
        code = _log_in(_definition(config, server), no_browser, device, scope, timeout, as_json)
        forget_failure(config, server)
        return code
    except LoginFailed as error:
        say(f"{server}: {error}. Nothing was changed.")
        return 1


def _definition(config: Config, server: str) -> ServerDefinition:
    """The expanded definition of a server that may have a login. Raises `UsageError`, `ConfigError`."""
    from ...actors.login import may_log_in
    from ...protocol.asked import without_asked
    from ...protocol.config import with_settings
    from ...protocol.interpolate import expand_definition

    check_usable(config, server)
    found = config.servers[server]
    if found.url is None:
        raise UsageError(f'Server "{server}" is a program and not an HTTP server: it has no login.')
    if not may_log_in(found):
        raise UsageError(
            f'Server "{server}" has another credential in its entry, or "auth": false. '
            'Remove that, or write "auth": "oauth".'
        )
    return without_asked(expand_definition(with_settings(found, config.settings), os.environ).definition)


# ---- the list --------------------------------------------------------------------------------------------------------


def _list(config: Config, as_json: bool) -> int:
    rows = [row for name in config.servers if (row := _row(config, name)) is not None]
    lines = [f"{row['server']}: {_state_in_words(row)}" for row in rows]
    show("\n".join(lines) or "No configured server may have a login.", {"logins": rows}, as_json)
    return 0


def _row(config: Config, name: str) -> dict[str, Any] | None:
    from ...actors.login import LoginFailed, may_log_in, stored_login
    from ...protocol.asked import without_asked
    from ...protocol.config import with_settings
    from ...protocol.errors import ConfigError
    from ...protocol.interpolate import expand_definition

    if not may_log_in(config.servers[name]):
        return None
    try:
        definition = with_settings(config.servers[name], config.settings)
        login = stored_login(without_asked(expand_definition(definition, os.environ).definition))
    except (ConfigError, LoginFailed) as error:
        return {"server": name, "state": "unreadable", "why": str(error)}
    return {"server": name, "state": "none"} if login is None else {"server": name, **_shown(login)}


def _shown(login: Login) -> dict[str, Any]:
    """What may be shown of a login: no secret."""
    return {
        "state": "expired" if login.is_over(time.time()) else "logged in",
        "issuer": login.issuer,
        "scope": login.scope,
        "expiresAt": login.expires_at,
        "renewable": login.can_be_renewed or login.is_of_client,
        "grant": login.grant,
    }


def _state_in_words(row: Mapping[str, Any]) -> str:
    match row["state"]:
        case "none":
            return "no login"
        case "unreadable":
            return f"unreadable ({row['why']})"
        case state:
            scope = f", scope {row['scope']}" if row["scope"] else ""
            by = " by pi" if row["grant"] == "pi" else ""
            return f"{state}{by} at {row['issuer'] or 'its own server'}{scope}"


# ---- in and out ------------------------------------------------------------------------------------------------------


def _log_in(
    definition: ServerDefinition,
    no_browser: bool,
    device: bool,
    scope: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    from ...actors.login import LoginFailed, keep, oauth_of, obtain
    from ._auth_person import AtTheTerminal, can_browse

    oauth = oauth_of(definition, os.environ)
    if oauth.get("grantType") == "client_credentials":
        login = obtain(definition, oauth)
    else:
        browses = not no_browser and not device and can_browse()
        with AtTheTerminal(
            definition.name,
            oauth.get("redirectUri"),
            browses=browses,
            prefers_device=not browses and not no_browser,
            insists_on_device=device,
        ) as person:
            found = run_to_end(partial(_within, timeout, definition, oauth, person, scope))
        if found is None:
            raise LoginFailed(f"nobody logged in within {timeout:g} s")
        login = keep(found)
    text = f"Logged in at {definition.name}. A running gateway connects it by itself."
    show(text, {"server": definition.name, **_shown(login)}, as_json)
    return 0


async def _within(
    timeout: float, definition: ServerDefinition, oauth: Mapping[str, Any], person: Any, scope: str | None
) -> Login | None:
    import anyio

    from ...actors.login import log_in

    with anyio.move_on_after(timeout):
        return await log_in(definition, oauth, person, scope)
    return None


def _log_out(definition: ServerDefinition, as_json: bool) -> int:
    from ...actors.login import log_out

    there, problem = log_out(definition)
    if problem is not None:
        say(f"{definition.name}: the login is forgotten here, but it was not revoked: {problem}.")
    text = f"Logged out of {definition.name}." if there else f"There was no login for {definition.name}."
    details: shapes.LoggedOut = {
        "server": definition.name,
        "state": "none",
        "wasThere": there,
        "notRevoked": problem,
    }
    show(text, details, as_json)
    return 0
