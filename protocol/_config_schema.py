"""The JSON Schema of a configuration file, made from the key tables.

It is for editors, so it says what we would complain about and no more: keys of other programs are allowed,
since files are shared with them. The one combination it knows is the one everybody gets wrong: exactly one of
command, url and socket. (An overlay that changes one field of a weaker file's server has none of them; so it
is at most one here.)
"""

from __future__ import annotations

from typing import Any

import attrs

from ._config_keys import IMPORT_KINDS, SERVER_KEYS, SETTING_KEYS, Key, in_file_units
from .config import ServerDefinition, Settings


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file; a fresh copy, yours to change."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/server"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Greenroom configuration",
        "type": "object",
        "properties": {
            "mcpServers": {"description": "The servers, by name.", **servers},
            "imports": {
                "description": "Other programs whose servers are used too, the first to have a name first.",
                "type": "array",
                "items": {"enum": list(IMPORT_KINDS)},
            },
            "settings": _object(SETTING_KEYS, Settings),
        },
        "$defs": {"server": {**_object(SERVER_KEYS, ServerDefinition), "not": {"anyOf": _pairs()}}},
    }


def default_of(key: Key, model: type[Any]) -> Any:
    """What the model has for a key nobody sets, in the key's own unit; None when there is no such value."""
    default = getattr(attrs.fields(model), key.attribute).default
    if getattr(default, "takes_self", False):
        return None  # it follows another key's
    return in_file_units(key, default.factory() if hasattr(default, "factory") else default)


def _object(keys: tuple[Key, ...], model: type[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key.name: _property(key, model) for key in keys}}


def _property(key: Key, model: type[Any]) -> dict[str, Any]:
    if key.parts:
        described = {"description": key.meaning, **_object(key.parts, model)}
        return {**described, "type": ["object", "boolean"]} if key.name == "outputGuard" else described
    default = default_of(key, model)
    said = {} if default is None or default == [] else {"default": default}
    unit = f" Unit: {key.reader.unit}." if key.reader.scale != 1 else ""
    return {"description": key.meaning + unit, **key.reader.schema, **said}


def _pairs() -> list[dict[str, Any]]:
    return [{"required": pair} for pair in (["command", "url"], ["command", "socket"], ["url", "socket"])]
