"""Merge two entries of one server, field by field, so that no secret reaches another recipient.

A stronger file changes single fields of a weaker one: a project sets `lifecycle` to eager and keeps the command
from the user's own file. Such a merge must never carry a secret to another recipient. So when the stronger file
changes *where the server is*, these fields of the weaker file are dropped:

- a `command` drops the HTTP fields and the socket; a `url` drops the stdio fields and the socket; a `socket`
  drops both;
- a different `url` drops headers and tokens; a different `command` drops arguments, environment and directory.
  (An `env` full of tokens is as secret as a header.)

The command alone does not say what runs. `node` runs what its arguments name, a relative name is looked up in
`cwd`, and `NODE_OPTIONS` in an `env` can load anything. So a stronger file that changes any of these keeps the
command but takes no credentials that were written for it: no environment, and no arguments that hold a secret.
The transport of a URL is treated the same way. To give a field that the weaker file lacks is to change it. A
warning names what was dropped, because the server may need it.

Every layer is merged with the sum of all weaker layers, so a credential cannot jump over a layer either. `null`
in a stronger file removes a field. A field that has the same value again changes nothing and drops nothing.
"""

from __future__ import annotations

from typing import Final

from ._config_dialects import Givens, Note
from ._config_redact import hides
from .errors import Problem

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
# Fields that decide what runs or who is called, and the credentials that were meant for that.
_STEERS: Final = (
    (
        ("command", "args", "cwd", "env", "pluginDataDir", "literalEnv", "envFile"),
        frozenset({"env", "inheritEnv", "literalEnv", "envFile"}),
    ),
    (("url", "httpTransport", "requestHeadersCommand"), WITH_URL - {"httpTransport"}),
)
_CREDENTIALS: Final = _STEERS[0][1] | _STEERS[1][1]


def lay_over(lower: Givens, higher: Givens, note: Note | None = None) -> Givens:
    """Both entries merged; `higher` is from the stronger file. `note` is told what was dropped."""
    dropped: set[str] = set()
    for kind in WHERE:
        if kind in higher and higher[kind].value is not None:
            dropped |= _dropped_by(kind, lower, higher)
    if lower:
        dropped |= {name for name in _left_behind(lower, higher) if not _is_refusal(name, lower)}
    kept = {name: given for name, given in lower.items() if name not in dropped}
    both = {**kept, **higher}
    if note is not None and (lost := _lost(lower, both, dropped)):
        note(_told(lower, higher, lost))
    return both


def _dropped_by(kind: str, lower: Givens, higher: Givens) -> set[str]:
    dropped = {name for other in WHERE if other != kind for name in _BELONGINGS[other]}
    if kind in lower and _differs(kind, lower, higher):
        dropped |= {name for name in _BELONGINGS[kind] if not _is_refusal(name, lower)}
    return dropped


def _left_behind(lower: Givens, higher: Givens) -> set[str]:
    """The credentials of the weaker file that the stronger file would send to somebody else."""
    found: set[str] = set()
    for steering, credentials in _STEERS:
        if any(name in higher and _differs(name, lower, higher) for name in steering):
            found |= credentials
            if "args" not in higher and "args" in steering and "args" in lower and hides(lower["args"].value):
                found.add("args")
    return found


def _differs(name: str, lower: Givens, higher: Givens) -> bool:
    before = lower[name].value if name in lower else None
    return before != higher[name].value


def _is_refusal(name: str, lower: Givens) -> bool:
    """`oauth: false` is not a credential but a decision against one, so it stays."""
    return name == "oauth" and name in lower and lower[name].value is False


def _lost(lower: Givens, both: Givens, dropped: set[str]) -> list[str]:
    """Dropped credentials that the stronger file does not give itself. Its author may not expect that."""
    names = (_CREDENTIALS | {"args"}) & dropped & lower.keys() - both.keys()
    return sorted(name for name in names if lower[name].value is not None)


def _told(lower: Givens, higher: Givens, lost: list[str]) -> Problem:
    steers = (*WHERE, *(name for names, _ in _STEERS for name in names))
    changed_by = (name for name in steers if name in higher and _differs(name, lower, higher))
    # Where it is was given in two ways, and the stronger file repeats one of them: the other is not used any more.
    steering = next(changed_by, None) or next(name for name in WHERE if name in higher)
    changed = "what runs" if steering in _STEERS[0][0] else "who is called"
    names = ", ".join(f'"{lower[name].path[-1]}"' for name in lost)
    sources = ", ".join(dict.fromkeys(lower[name].source for name in lost))
    return higher[steering].problem(
        f"changes {changed}, so {names} of {sources} {'is' if len(lost) == 1 else 'are'} not used with it: "
        "write them into this file too, if they are meant for it"
    )
