"""What a configuration file can do: the part of its content that its owner decides about.

A file that came with a repository is obeyed only when the owner has said yes to it (`supervisor.trust`). The yes is for
*what matters*: which programs would run with what, what would be sent where, what else would be read, and the settings.
Comments, the order of keys and harmless keys do not matter. Harmless is a short list; every other key matters, also one
that we do not know. So a key that is added later matters until somebody has thought about it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from typing import Any, Final

from ._config_dialects import ALIASES, is_remark
from .config_readers import is_object

SECTIONS: Final = ("mcpServers", "mcp-servers", "servers")
_ALSO: Final = ("imports", "settings", "adapter", "profiles")  # of an imported file only the servers are read
_HARMLESS: Final = frozenset(
    {
        "connectTimeoutMs",
        "description",
        "drainTimeoutMs",
        "icon",
        "idleTimeout",
        "installTimeoutMs",
        "maxInFlight",
        "maxQueued",
        "requestTimeoutMs",
        "stopTimeoutMs",
        "title",
        "version",
    }
)
_VERSION: Final = 1  # of the digest; another version asks again


def what_matters(raw: Any, *, imported: bool = False, without: Container[str] = ()) -> dict[str, Any]:
    """The part of a file's content that needs the owner's yes; empty if there is none. `without`: servers that are
    left out anyway."""
    if not is_object(raw):
        return {}
    servers: dict[str, Any] = {}
    for section in SECTIONS:
        entries = raw.get(section)
        for name, entry in entries.items() if is_object(entries) else ():
            if name not in without and is_object(entry) and (said := _of_entry(entry)):
                servers.setdefault(str(name), said)
    rest = {} if imported else {key: raw[key] for key in _ALSO if raw.get(key)}
    return {**({"mcpServers": servers} if servers else {}), **rest}


def digest(file: str, directory: str, matter: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what matters in `file` when it is found from `directory`, which relative commands depend on.
    Raises `ValueError` when it cannot be written down."""
    try:
        text = json.dumps([_VERSION, file, directory, matter], sort_keys=True, default=str)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return hashlib.sha256(text.encode()).hexdigest()


def _of_entry(entry: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in entry.items() if not _is_harmless(str(key), value)}


def _is_harmless(key: str, value: Any) -> bool:
    if is_remark(key) or ALIASES.get(key, key) in _HARMLESS:
        return True
    return (key == "disabled" and value is True) or (key == "enabled" and value is False)
