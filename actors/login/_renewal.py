"""Renewing a login: one request, whoever and however many want it. Blocks; call it in a thread.

The thread goes on when nobody waits for it any more. So a renewal whose caller was cancelled still stores what it got:
many authorization servers accept a refresh token once, and to lose the answer would be to lose the login.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ._endpoint import as_client, of_configuration, post, refusal
from ._record import Login, LoginFailed
from ._store import LoginStore


def renew(store: LoginStore, login: Login, headers: Mapping[str, str]) -> Login | None:
    """What takes the place of `login`: what another process has stored meanwhile, or a renewed one; None when there
    is none any more, or it cannot be renewed.

    Raises `Unreachable` when the authorization server is out of order, `LoginFailed` when the store is.
    """
    with store.locked(login.server, login.url):
        kept = store.load(login.server, login.url)
        if kept is None or kept.id != login.id:
            return kept
        if not kept.can_be_renewed:
            return None
        assert kept.token_endpoint is not None
        assert kept.refresh_token is not None
        form = {"grant_type": "refresh_token", "refresh_token": kept.refresh_token}
        if kept.resource is not None:
            form["resource"] = kept.resource
        said = {**of_configuration(headers), **as_client(kept, form)}
        status, answer = post(kept.token_endpoint, form, said)
        if status == 200:
            return store.save(kept.renewed(answer, time.time()), kept.id)
        return None  # refused: only a person can help


def revoke(login: Login, headers: Mapping[str, str]) -> str | None:
    """Tell the authorization server that the tokens are over (RFC 7009). Returns why that failed, or None."""
    if login.revocation_endpoint is None:
        return "the authorization server has no way to revoke a token"
    tokens = {"refresh_token": login.refresh_token, "access_token": login.access_token}
    try:
        for kind, token in tokens.items():
            if token is not None:
                form = {"token": token, "token_type_hint": kind}
                said = {**of_configuration(headers), **as_client(login, form)}
                status, answer = post(login.revocation_endpoint, form, said)
                if status != 200:
                    return f"the authorization server refused ({refusal(answer, status)})"
    except LoginFailed as error:
        return str(error)
    return None
