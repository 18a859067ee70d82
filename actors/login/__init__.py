"""Logins at HTTP servers (OAuth 2.1): where they are kept, how a room uses them, and how a person makes one.

Who needs what: a room asks `auth_for` for the `httpx2.Auth` of a server. `greenroom auth` makes a login with
`log_in`, and ends one with `log_out`. A room never asks anybody anything: without a
login that works, its server is parked, and the error names the command.

* `_record`: one login, bound to a server's name, its URL and the issuer.
* `_store`: where logins are kept, who may write, and when; `_pi`: those that pi's adapter has made.
* `_places`: which servers may have one.
* `_renewal`: renewing an access token: once, whoever and however many want it.
* `_requests`: a login on each request of a connection.
* `_sdk`: everything that needs the SDK: discovery, registration, the flow with the browser, client credentials.
* `_device`, `_endpoint`: the device flow; forms posted to an authorization server.

Nothing here is imported for a server that has no login.
"""

from ._places import (
    auth_for,
    keep,
    log_in,
    log_out,
    logins,
    may_log_in,
    oauth_of,
    obtain,
    stored_login,
)
from ._record import Login, LoginFailed
from ._store import LoginStore

__all__ = [
    "Login",
    "LoginFailed",
    "LoginStore",
    "auth_for",
    "keep",
    "log_in",
    "log_out",
    "logins",
    "may_log_in",
    "oauth_of",
    "obtain",
    "stored_login",
]
