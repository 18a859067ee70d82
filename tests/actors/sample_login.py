"""A login as a server of "http://h/mcp" would have given it, and a store of such logins."""

from __future__ import annotations

from greenroom.actors.login.login_record import Login
from greenroom.actors.login.login_store import LoginStore

OURS = Login(
    "s",
    "http://h/mcp",
    "access",
    token_endpoint="http://127.0.0.1:9/token",
    revocation_endpoint="http://127.0.0.1:9/revoke",
    client_id="me",
    refresh_token="refresh",
    scope="a b",
    resource="http://h/mcp",
)
HEADERS = {
    "X-Tenant": "stage",
    "Authorization": "Basic abc",
    "Cookie": "c=1",
    "Host": "h",
}  # of the server's entry
TOKENS = {"access_token": "new", "token_type": "Bearer", "expires_in": 60}  # what a renewal is answered with


def put(store: LoginStore, login: Login) -> Login:
    """Keep this login there, as it is kept then."""
    with store.locked(login.server, login.url):
        return store.save(login, None)
