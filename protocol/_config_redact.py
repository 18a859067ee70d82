"""The effective configuration without secrets, each value with its source.

The place of a value decides whether it may be secret, not its looks, and in doubt it is secret: all values of
`env` and `headers`, the user and the query of a URL, everything under unknown keys. Looks count only where hiding
everything would hide the configuration itself: in arguments and in the path of a URL (`_secret_places`).

The values hidden here and the values of references may be secrets of a server (`secrets_of`). Those of them that are
known to be credentials (`_credentials`) are cut out of every text about the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import attrs

from ._config_key import Key, in_file_units, leaves
from ._config_keys import SERVER_KEYS, SETTING_KEYS
from ._credentials import SECRET_WORD
from ._secret_places import BY_FORM, Hider
from .asked import is_asked
from .config import Config, ServerDefinition, Settings
from .config_readers import is_array, is_object
from .errors import ConfigError
from .interpolate import SESSION, expand, expand_definition, referred_to, texts_of
from .secrets import REDACTED, Hidden


def redacted(config: Config) -> dict[str, Any]:
    """The effective configuration as plain data, in the shape and units of a file, together with its sources.

    Keys: `files` (strongest first), `untrusted` (those of them that are not obeyed), `mcpServers`, `settings`,
    `sources` (the same paths, holding file names or "default"), `broken` (name → reason), `problems`.
    """
    return {
        "files": list(config.files),
        "untrusted": list(config.untrusted),
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
    """One server in the shape of a file's entry, with only the fields that were given and with secrets hidden."""
    return _redacted_by(Hider(), definition)


def secrets_of(definition: ServerDefinition, environ: Mapping[str, str]) -> list[Hidden]:
    """The values that may be secrets of this server: everything hidden in its definition, as written and as expanded,
    what stands in its variables and headers as in an argument, and the values of its references."""
    hider = Hider()
    _redacted_by(hider, definition)
    _inside(hider, definition)
    oauth = [each.value for each in _of_login(definition, {})]
    for text in (*(text for _, _, text in texts_of(definition)), definition.url or "", *oauth):
        hider.found += (_referred(name, environ.get(name) or default) for name, default in referred_to(text))
    hider.found += _under("", definition.extra)
    hider.found += _of_command(definition)
    hider.found += _of_login(definition, environ)
    hider.found += _inherited(definition, environ)
    try:
        expanded = expand_definition(definition, environ).definition
        _redacted_by(hider, expanded)
        _inside(hider, expanded)
        hider.found += _of_command(expanded)
    except ConfigError:  # it cannot be reached, but messages may still quote parts of it
        hider.url(expand(definition.url or "", environ))
    return hider.found


def _referred(name: str, value: str) -> Hidden:
    """The secret behind a reference. A session's value is always a credential, whatever its name is."""
    return Hidden(name.removeprefix(SESSION), value, known=name.startswith(SESSION))


def _inside(hider: Hider, definition: ServerDefinition) -> None:
    """A value may be an address, or arguments, with a secret in it. Its form is judged with its name."""
    inside = Hider()
    for text in (*definition.env.values(), *definition.headers.values()):
        inside.line(text)
    hider.found += (each for each in inside.found if each.name != BY_FORM)


def _inherited(definition: ServerDefinition, environ: Mapping[str, str]) -> Iterator[Hidden]:
    """The variables of our environment that the server gets because its entry says so."""
    wanted = ("*",) if definition.inherit_env is True else definition.inherit_env or ()
    for name, value in environ.items():
        if any(fnmatchcase(name, pattern) for pattern in wanted):
            yield Hidden(name, value)


def _of_command(definition: ServerDefinition) -> Iterator[Hidden]:
    """What the command that gives headers has in its environment and its arguments."""
    said = definition.request_headers_command or {"env": {}, "args": ()}
    yield from (Hidden(name, value) for name, value in said["env"].items())
    hider = Hider()
    hider.arguments(said["args"])
    yield from hider.found


def _of_login(definition: ServerDefinition, environ: Mapping[str, str]) -> Iterator[Hidden]:
    """What `oauth` may hold of secrets: the client's, and what is added to the request for a login."""
    given = definition.oauth or {}
    for name in ("clientSecret", "authorizationParams"):
        for hidden in _under(name, given.get(name)):
            yield hidden if not environ else Hidden(hidden.name, expand(hidden.value, environ))
            if environ:
                yield hidden


def _under(name: str, value: Any) -> Iterator[Hidden]:
    """Every text in a value of unknown meaning."""
    if isinstance(value, str):
        yield Hidden(name, value)
    pairs = value.items() if is_object(value) else ((name, each) for each in value) if is_array(value) else ()
    for key, each in pairs:
        yield from _under(str(key), each)


def hides(args: Any) -> bool:
    """Whether arguments, as a file gives them, hold something that may be secret."""
    given = cast("list[Any]", args) if isinstance(args, list) else []
    said = [arg for arg in given if isinstance(arg, str)]
    hider = Hider()
    hider.arguments([expand(arg, _Anything()) for arg in said])
    names = (name for arg in said for name, _ in referred_to(arg))
    if len(said) < len(given) or any(is_asked(arg) for arg in said):  # of the keyring, or of a command
        return True
    return bool(hider.found) or any(SECRET_WORD.search(name) for name in names)


class _Anything(dict[str, str]):
    """An environment that has every variable."""

    def get(self, key: str, default: Any = None) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return key


def _is_said(key: Key, definition: ServerDefinition) -> bool:
    default = getattr(attrs.fields(ServerDefinition), key.attribute).default
    value = getattr(definition, key.attribute)
    return key.attribute in definition.sources or (value != default and value != {})


def _redacted_by(hider: Hider, definition: ServerDefinition) -> dict[str, Any]:
    shown = {key.name: _shown(hider, key, definition) for key in SERVER_KEYS if _is_said(key, definition)}
    return shown | dict.fromkeys(definition.extra, REDACTED)


def _shown(hider: Hider, key: Key, definition: ServerDefinition) -> Any:
    value = getattr(definition, key.attribute)
    match key.attribute:
        case "env" | "headers":
            return {name: hider.value(text, name) for name, text in value.items()}
        case "oauth":
            return value if isinstance(value, bool) else REDACTED
        case "request_headers_command":
            return REDACTED
        case "url":
            return hider.url(value)
        case "args":
            return hider.arguments(value)
        case "command" | "cwd" | "socket" | "env_file":
            return hider.text(value)
        case _:
            return in_file_units(key, value)


def _settings(keys: Sequence[Key], settings: Settings) -> dict[str, Any]:
    return {key.name: _setting(key, settings) for key in keys}


def _setting(key: Key, settings: Settings) -> Any:
    if key.parts:
        return _settings(key.parts, settings)
    if key.attribute == "http_tokens":
        return dict.fromkeys(settings.http_tokens, REDACTED)
    return in_file_units(key, getattr(settings, key.attribute))


def _server_sources(definition: ServerDefinition) -> dict[str, str]:
    named = {key.attribute: key.name for key in SERVER_KEYS}
    return {named.get(attribute, attribute): source for attribute, source in definition.sources.items()}


def _setting_sources(config: Config) -> dict[str, str]:
    return {name: config.setting_sources.get(key.attribute, "default") for name, key in leaves(SETTING_KEYS)}
