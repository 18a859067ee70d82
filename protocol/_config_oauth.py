"""The keys `auth` and `oauth` of an HTTP server: whether and how to log in.

`oauth` is an object of a few texts, or `false`. Its names are those of the pi adapter, so that its files can be read as
they are. A wrong value breaks the server: with half of them the login would be another one. Other clients have further
names; these have no effect, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ._config_key import Key
from .config_readers import BadValueError, Reader, did_you_mean, is_object, kind_of

_TEXTS: Final = (
    "grantType",
    "clientId",
    "clientSecret",
    "clientMetadataUrl",
    "issuer",
    "scope",
    "redirectUri",
    "clientName",
    "clientUri",
    "logoUri",
)
GRANTS: Final = ("authorization_code", "client_credentials", "device_code")
_PARAMS: Final = "authorizationParams"
_NAMES: Final = (*_TEXTS, _PARAMS)
# What the flow itself puts into the request for a login; a configured value would break its checks.
RESERVED: Final = frozenset(
    {"response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method"}
)


def _read_auth(value: Any) -> str | bool:
    if value == "oauth":
        return "oauth"
    if value is False or value == "bearer":
        return False
    raise BadValueError('must be "oauth", "bearer" or false')


def _read_oauth(value: Any) -> Mapping[str, Any] | bool:
    if value is False:
        return False
    if not is_object(value):
        raise BadValueError(f"must be an object or false, is {kind_of(value)}")
    found: dict[str, Any] = {}
    for name, each in value.items():
        name = str(name)
        if each is None:
            continue
        if name == _PARAMS:
            found[name] = _params(each)
        elif name not in _TEXTS:
            continue
        elif not isinstance(each, str) or not each.strip():
            raise BadValueError(f"must be a non-empty string, is {kind_of(each)}", name)
        else:
            found[name] = each
    _check(found)
    return found


def without_effect(value: Any) -> Iterator[tuple[str, str]]:
    """The names in `oauth` that have no effect, each with what to say about it."""
    for name in value if is_object(value) else ():
        if str(name) not in _NAMES:
            hint = did_you_mean(str(name), _NAMES)
            yield str(name), f"has no effect on a login{hint}"


def _params(value: Any) -> dict[str, str]:
    if not is_object(value):
        raise BadValueError(f"must be an object of strings, is {kind_of(value)}", _PARAMS)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadValueError(f"must be a string, is {kind_of(each)}", _PARAMS, str(name))
        if name in RESERVED:
            raise BadValueError("is set by the login itself: remove it", _PARAMS, str(name))
    return {str(name): each for name, each in value.items()}


def _check(found: Mapping[str, Any]) -> None:
    grant = found.get("grantType", GRANTS[0])
    if grant not in GRANTS:
        raise BadValueError(f"must be one of {', '.join(GRANTS)}", "grantType")
    if grant == "client_credentials":
        for name in ("clientId", "clientSecret"):
            if name not in found:
                raise BadValueError(f'"client_credentials" needs it: add "{name}"', name)


_TEXT: Final = {"type": "string", "minLength": 1}
_AUTH: Final = Reader(_read_auth, {"enum": ["oauth", "bearer", False]}, "`oauth` / `bearer` / false")
_OAUTH: Final = Reader(
    _read_oauth,
    {
        "anyOf": [
            {"enum": [False]},
            {
                "type": "object",
                "properties": {
                    **dict.fromkeys(_TEXTS, _TEXT),
                    "grantType": {"enum": list(GRANTS)},
                    _PARAMS: {"type": "object", "additionalProperties": {"type": "string"}},
                },
                "additionalProperties": {},
            },
        ]
    },
    "object / false",
)
LOGIN_KEYS: Final = (
    Key(
        "auth",
        "auth",
        _AUTH,
        '`"oauth"`: it wants an OAuth login (docs/login.md). `false`: never log in. `"bearer"`: as `bearerToken` says.',
        True,
        "a stored login is used, unless there is an `Authorization` header",
    ),
    Key("oauth", "oauth", _OAUTH, "How to log in (docs/login.md); `false`: never.", True),
)
