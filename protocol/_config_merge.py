"""Laying one server entry over another, field by field, with fences.

A stronger file changes single fields of what a weaker one says: the project turns `lifecycle` to eager and
keeps the command of the user's own file. Merging like that must never carry a secret to another recipient. So
what belongs to *where the server is* falls away as soon as that changes:

- a stronger `command` drops the weaker's HTTP fields and socket, a `url` its stdio fields and socket, a
  `socket` both;
- a different `url` drops the weaker's headers and tokens, a different `command` its arguments, environment
  and directory. (The originals fence only the URL; but an `env` full of tokens is as good as a header.)

As every layer is fenced against the sum of all weaker ones, a credential cannot jump over a layer either.
`null` in a stronger file takes a field away. The same value again changes nothing and drops nothing.
"""

from __future__ import annotations

from typing import Final

from ._config_dialects import Givens

WITH_COMMAND: Final = frozenset(
    {"args", "env", "cwd", "inheritEnv", "pluginDataDir", "literalEnv", "envFile"}
)
WITH_URL: Final = frozenset(
    {
        "headers",
        "httpTransport",
        "auth",
        "oauth",
        "bearerToken",
        "bearerTokenEnv",
        "bearerTokenStore",
        "requestHeadersCommand",
    }
)
WHERE: Final = ("command", "url", "socket")
_BELONGINGS: Final = {
    "command": WITH_COMMAND | {"command"},
    "url": WITH_URL | {"url"},
    "socket": frozenset({"socket"}),
}


def lay_over(lower: Givens, higher: Givens) -> Givens:
    """The entry that both together make; `higher` is the stronger file's."""
    dropped: set[str] = set()
    for kind in WHERE:
        if kind in higher and higher[kind].value is not None:
            dropped |= _dropped_by(kind, lower, higher)
    kept = {name: given for name, given in lower.items() if name not in dropped}
    return {**kept, **higher}


def _dropped_by(kind: str, lower: Givens, higher: Givens) -> set[str]:
    dropped = {name for other in WHERE if other != kind for name in _BELONGINGS[other]}
    if kind in lower and lower[kind].value != higher[kind].value:
        dropped |= {name for name in _BELONGINGS[kind] if not _is_refusal(name, lower)}
    return dropped


def _is_refusal(name: str, lower: Givens) -> bool:
    """`oauth: false` is no credential but a decision against one; it stays."""
    return name == "oauth" and name in lower and lower[name].value is False
