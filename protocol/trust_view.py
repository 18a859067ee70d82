"""What a file of a project would do, as `greenroom trust` shows it to its owner: everything but secrets.

Secrets are hidden as in the printed configuration (`_config_redact`), with some differences. An owner decides here
about what runs and what is sent. So the command that gives a value is shown, and so are variables that decide what a
program runs (`PATH`, `LD_PRELOAD`, `NODE_OPTIONS`), and arguments that a shell could run, wherever they stand. And what
is hidden keeps the names of the variables that are in it.

A key whose form we know is read in that form. In another form nobody reads it, so nothing says which part of it is
secret, and all of it is hidden. A number is hidden where a text would be: it may be somebody's PIN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ._config_dialects import ALIASES
from ._config_keys import SERVER_KEY, SETTING_KEY
from ._credentials import SECRET_WORD
from ._secret_places import Hider
from .asked import BEARER, command_in
from .config_readers import is_array, is_object
from .interpolate import referred_to
from .loader_variables import loaders_among
from .secrets import REDACTED

_VALUES: Final = frozenset({"env", "headers"})
_PATHS: Final = frozenset({"cwd", "socket", "envFile", "bearerTokenEnv"})
_NAMED: Final = frozenset({"auth", "oauth", "requestHeadersCommand"})  # objects with keys of known meaning
_LOGINS: Final = frozenset({"oauth", "bearer"})  # the words of `auth`
_TEXTS: Final = _VALUES | _PATHS | {"args", "command", "url"}
_PLAIN: Final = frozenset({"type", "transport", "transportType", "enabled", *SERVER_KEY}) - _TEXTS
_SECRET_PARTS: Final = frozenset({"authorizationParams", "env_http_headers"})
_RUNS: Final = re.compile(r"[;|&`<>]|\$\(")
# Variables that make a program load or run something else.
_DECIDES: Final = re.compile(
    r"(?:\w*_)?PATH|(?:LD|DYLD|NODE|PYTHON|PERL|RUBY|GIT|NPM|UV|PIP|XDG)_?\w*|\w*_OPTIONS|\w*_?PROXY"
    r"|BASH_ENV|ENV|SHELL|EDITOR|VISUAL|PAGER|HOME|TMPDIR|IFS|COMSPEC",
    re.IGNORECASE,
)


def shown_matter(matter: Mapping[str, Any]) -> dict[str, Any]:
    """What matters in a file (`what_matters`), in the same shape, without secrets."""
    return {
        key: {name: _entry(entry) if is_object(entry) else entry for name, entry in value.items()}
        if key == "mcpServers"
        else _by_name("", value)
        for key, value in matter.items()
    }


def _entry(entry: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _of_key(ALIASES.get(str(key), str(key)), value) for key, value in entry.items()}


def _of_key(key: str, value: Any) -> Any:
    if key in _VALUES and is_object(value):
        return {str(name): _value(str(name), text) for name, text in value.items()}
    if key == "bearerToken":
        return _value(key, value)
    if key in ("args", "command") and is_array(value):
        return _arguments(value)
    if key == "url" and isinstance(value, str):
        return _with_names(value, Hider().url(value))
    if (key == "command" or key in _PATHS) and isinstance(value, str):
        return _with_names(value, Hider().text(value))
    if key in _NAMED and is_object(value):
        return _by_name("", value)
    if key == "auth" and isinstance(value, str) and value.lower() in _LOGINS:
        return value
    if key in _NAMED | _TEXTS:  # in a form that nobody reads
        return _by_name("", value, is_secret=True)
    if key in _PLAIN:
        return value
    return _by_name(key, value) if isinstance(value, bool | int | float | None) else REDACTED


def _value(name: str, value: Any) -> Any:
    """The value of a variable or of a header."""
    if not isinstance(value, str):
        is_kept = is_object(value) and [*value] == ["keyring"]
        return value if is_kept else _by_name(name, value, is_secret=True)
    if command_in(value) is not None:
        scheme, line = (BEARER, value.removeprefix(BEARER)) if value.startswith(BEARER) else ("", value)
        return scheme + _with_names(line, Hider().line(line))
    if (_DECIDES.fullmatch(name) or loaders_among([name])) and not SECRET_WORD.search(name):
        return _with_names(value, Hider().line(value))
    return _with_names(value, Hider().value(Hider().without_defaults(value), name))


def _arguments(value: Any) -> list[Any]:
    """A list for a program. What is no text is shown as it is, and a command is shown as a line, also where a secret
    is expected: no key has such characters, and a program could run it."""
    texts = [each if isinstance(each, str) else str(each) if _is_number(each) else "" for each in value]
    hidden = [
        Hider().line(text) if shown == REDACTED and _RUNS.search(text) else shown
        for text, shown in zip(texts, Hider().arguments(texts), strict=True)
    ]
    shown: list[Any] = []
    for each, text in zip(value, hidden, strict=True):
        if not isinstance(each, str):
            shown.append(REDACTED if text == REDACTED else _by_name("", each))
        else:
            shown.append(_with_names(each, text) if command_in(each) is None else _value("", each))
    return shown


def _by_name(name: str, value: Any, *, is_secret: bool = False) -> Any:
    """A value of which nothing but its name says whether it is secret."""
    if is_object(value) and name in _VALUES:
        return _of_key(name, value)
    if name in _VALUES or (name == "args" and not is_array(value)):
        name, is_secret = "", True  # in a form that nobody reads
    is_plain = not is_secret and name in SETTING_KEY  # as `secretTimeoutMs`, a number
    is_secret = is_secret or name in _SECRET_PARTS or SECRET_WORD.search(name) is not None
    if is_object(value):
        return {str(key): _by_name(str(key), each, is_secret=is_secret) for key, each in value.items()}
    if is_array(value):
        if name in ("args", "command") and not is_secret:
            return _arguments(value)
        return [_by_name(name, each, is_secret=is_secret) for each in value]
    if not isinstance(value, str):
        return REDACTED if is_secret and not is_plain and _is_number(value) else value
    return _value(name, value) if is_secret else _with_names(value, Hider().line(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_names(text: str, shown: str) -> str:
    """`shown`, and the variables of `text` that it does not name."""
    there = {name for name, _ in referred_to(shown)}
    gone = dict.fromkeys(name for name, _ in referred_to(text) if name not in there)
    return f"{shown} (with {', '.join(f'${{{name}}}' for name in gone)})" if gone else shown
