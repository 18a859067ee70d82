"""The key `requestHeadersCommand` of an HTTP server: a program that gives further headers for each request.

Its names are those of the pi adapter, so that its files can be read as they are: `command`, `args`, `env`, `timeoutMs`.
A wrong value breaks the server, because requests without these headers would be other requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .config_readers import (
    TEXT,
    TEXT_MAP,
    TEXTS,
    BadValueError,
    Reader,
    did_you_mean,
    is_object,
    kind_of,
    number,
)

TIMEOUT: Final = 10.0  # seconds, when the file says nothing
_PARTS: Final = {
    "command": TEXT,
    "args": TEXTS,
    "env": TEXT_MAP,
    "timeoutMs": number("milliseconds", scale=0.001, most=60),
}


def _read(value: Any) -> Mapping[str, Any]:
    if not is_object(value):
        raise BadValueError(f'must be an object like {{"command": "…"}}, is {kind_of(value)}')
    found: dict[str, Any] = {"args": (), "env": {}, "timeoutMs": TIMEOUT}
    for name, each in value.items():
        if name not in _PARTS:
            raise BadValueError(f"is an unknown key{did_you_mean(str(name), _PARTS)}", str(name))
        if each is not None:
            try:
                found[name] = _PARTS[name].read(each)
            except BadValueError as wrong:
                raise BadValueError(wrong.what, name, *wrong.inside) from None
    if "command" not in found:
        raise BadValueError('has no "command": add the program to run')
    return found


REQUEST_HEADERS: Final = Reader(
    _read,
    {
        "type": "object",
        "properties": {name: reader.schema for name, reader in _PARTS.items()},
        "required": ["command"],
        "additionalProperties": False,
    },
    "object",
)
