"""The effective configuration for other eyes: every value with its source, no secret among them.

What may be secret is decided by place, not by looks, and in doubt it is: all values of `env` and `headers`,
user and query of a URL, everything under keys we do not know. Looks are only asked where hiding everything
would hide the configuration itself: arguments (`--token x`, `--api-key=x`, a value shaped like a key) and the
path of a URL (some services put the key there). References to the environment are shown, as they are what one
wants to check and say nothing; one with a default is not, for the default may be the secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import attrs

from ._config_keys import SERVER_KEYS, SETTING_KEYS, Key, in_file_units, leaves
from .config import Config, ServerDefinition, Settings
from .interpolate import without_references
from .secrets import REDACTED, without_logins

_SECRET_WORD: Final = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|auth|bearer|credential|cookie"
    r"|signature|\bkey\b|\bpat\b|\bpwd\b)"
)
_SHAPED: Final = re.compile(r"(?=[^/\s]*\d)(?=[^/\s]*[A-Za-z])[A-Za-z0-9_\-.+=~]{16,}")
_KNOWN: Final = re.compile(r"\b(sk-|pk-|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|AKIA|eyJ)[\w\-.]{4,}")
_SCHEMES: Final = frozenset({"", "bearer", "basic", "token"})


def redacted(config: Config) -> dict[str, Any]:
    """The effective configuration as plain data, in the shape and units of a file, with its sources.

    Keys: `files` (strongest first), `mcpServers`, `settings`, `sources` (the same paths, holding file names
    or "default"), `broken` (name → reason), `problems`.
    """
    return {
        "files": list(config.files),
        "mcpServers": {name: redacted_server(server) for name, server in config.servers.items()},
        "settings": _settings(SETTING_KEYS, config.settings),
        "sources": {
            "mcpServers": {name: _server_sources(server) for name, server in config.servers.items()},
            "settings": _setting_sources(config),
        },
        "broken": {name: str(problem) for name, problem in config.broken.items()},
        "problems": [str(problem) for problem in config.problems],
    }


def redacted_server(definition: ServerDefinition) -> dict[str, Any]:
    """One server in the shape of a file's entry: what was said, secrets hidden."""
    shown = {key.name: _shown(key, definition) for key in SERVER_KEYS if _is_said(key, definition)}
    return shown | dict.fromkeys(definition.extra, REDACTED)


def redacted_url(url: str) -> str:
    """A URL without what may be secret in it: user, password, query values, fragment, key-like parts."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REDACTED
    path = "/".join(_path_part(part) for part in parts.path.split("/"))
    shown = f"{parts.scheme}://{_host(parts)}{path}" if parts.scheme else path
    return (
        shown
        + (f"?{_query(parts.query)}" if parts.query else "")
        + (f"#{REDACTED}" if parts.fragment else "")
    )


def _is_said(key: Key, definition: ServerDefinition) -> bool:
    default = getattr(attrs.fields(ServerDefinition), key.attribute).default
    value = getattr(definition, key.attribute)
    return key.attribute in definition.sources or (value != default and value != {})


def _shown(key: Key, definition: ServerDefinition) -> Any:
    value = getattr(definition, key.attribute)
    match key.attribute:
        case "env" | "headers":
            return {name: _hidden(text) for name, text in value.items()}
        case "url":
            return redacted_url(value)
        case "args":
            return _arguments(value)
        case "command" | "cwd" | "socket":
            return _KNOWN.sub(REDACTED, value)
        case _:
            return in_file_units(key, value)


def _hidden(text: str) -> str:
    """A value that is nothing but references (and an authentication scheme) is shown, any other is not."""
    rest = without_references(text)
    return text if rest != text and rest.strip().lower() in _SCHEMES else REDACTED


def _arguments(args: Sequence[str]) -> list[str]:
    shown: list[str] = []
    follows_secret = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if follows_secret and not arg.startswith("-"):
            shown.append(_hidden(arg))
        elif equals and _SECRET_WORD.search(name):
            shown.append(f"{name}={_hidden(value)}")
        else:
            shown.append(_argument(arg))
        follows_secret = arg.startswith("-") and not equals and _SECRET_WORD.search(arg) is not None
    return shown


def _argument(arg: str) -> str:
    name, equals, value = arg.partition("=")
    if equals and "://" in value and "://" not in name and " " not in arg:  # --proxy=http://…
        return f"{name}={redacted_url(value)}"
    if "://" in arg and " " not in arg:
        return redacted_url(arg)
    if ":" in arg and _SECRET_WORD.search(arg.partition(":")[0]):  # a header as an argument
        return f"{arg.partition(':')[0]}: {_hidden(arg.partition(':')[2])}"
    return without_logins(_KNOWN.sub(REDACTED, arg))


def _host(parts: SplitResult) -> str:
    userinfo, at, host = parts.netloc.rpartition("@")
    return f"{_hidden(userinfo)}@{host}" if at else host


def _path_part(part: str) -> str:
    return REDACTED if _SHAPED.fullmatch(part) and without_references(part) else part


def _query(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return "&".join(f"{name}={_hidden(value)}" if equals else REDACTED for name, equals, value in pairs)


def _settings(keys: Sequence[Key], settings: Settings) -> dict[str, Any]:
    return {key.name: _setting(key, settings) for key in keys}


def _setting(key: Key, settings: Settings) -> Any:
    if key.parts:
        return _settings(key.parts, settings)
    return in_file_units(key, getattr(settings, key.attribute))


def _server_sources(definition: ServerDefinition) -> dict[str, str]:
    named = {key.attribute: key.name for key in SERVER_KEYS}
    return {named.get(attribute, attribute): source for attribute, source in definition.sources.items()}


def _setting_sources(config: Config) -> dict[str, str]:
    return {name: config.setting_sources.get(key.attribute, "default") for name, key in leaves(SETTING_KEYS)}
