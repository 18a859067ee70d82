"""The device flow (RFC 8628): a code that a person enters on any machine with a browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from ..apart import apart
from ._endpoint import as_client, of_configuration, post, refusal
from ._record import Login, LoginFailed, Unreachable

DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER: Final = 5.0  # seconds more, when the server asks for it


async def device_login(
    endpoint: str,
    login: Login,
    headers: Mapping[str, str],
    show_code: Callable[[str, str, str | None], None],
) -> Login:
    """`login` with tokens, once the person has entered the code. Raises `LoginFailed`."""
    form = {name: value for name, value in (("scope", login.scope), ("resource", login.resource)) if value}
    said = {**of_configuration(headers), **as_client(login, form)}
    status, answer = await apart(lambda: post(endpoint, form, said))
    page, code, device = (answer.get(name) for name in ("verification_uri", "user_code", "device_code"))
    if status != 200 or not (isinstance(page, str) and isinstance(code, str) and isinstance(device, str)):
        raise LoginFailed(f"the authorization server refused the device flow ({refusal(answer, status)})")
    complete = answer.get("verification_uri_complete")
    show_code(page, code, complete if isinstance(complete, str) else None)
    pause = _seconds(answer.get("interval"), 5.0)
    over = anyio.current_time() + min(_seconds(answer.get("expires_in"), 600.0), 1800.0)
    while anyio.current_time() < over:
        await anyio.sleep(pause)
        try:
            status, answer = await apart(lambda: _asked(login, device, headers))
        except Unreachable:
            continue
        if status == 200:
            return login.renewed(answer, time.time())
        match answer.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                pause += _SLOWER
            case _:
                raise LoginFailed(f"the authorization server refused ({refusal(answer, status)})")
    raise LoginFailed("the code was not entered in time")


def _asked(login: Login, device: str, headers: Mapping[str, str]) -> tuple[int, dict[str, object]]:
    assert login.token_endpoint is not None
    form = {"grant_type": DEVICE_GRANT, "device_code": device}
    return post(login.token_endpoint, form, {**of_configuration(headers), **as_client(login, form)})


def _seconds(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < 86_400 else otherwise
