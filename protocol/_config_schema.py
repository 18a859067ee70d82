"""The JSON Schema of a configuration file, made from the key tables.

It is for editors, so it rejects only what the parser would complain about. Keys of other programs are allowed,
since files are shared with those programs. It checks one combination, which is often wrong: a server has exactly
one of command, url and socket. (An entry that changes one field of a weaker file's server has none of them, so
the schema says "at most one".)
"""

from __future__ import annotations

from typing import Any

import attrs

from ._config_key import Key, in_file_units
from ._config_keys import IMPORT_KINDS, SERVER_KEYS, SETTING_KEYS
from ._config_profiles import PROFILE_KEYS
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
                "description": "Other programs whose servers are used too. For one name, the first program wins.",
                "type": "array",
                "items": {"enum": list(IMPORT_KINDS)},
            },
            "profiles": {
                "description": "What a client sees, by the name of its profile.",
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": False,
                    "patternProperties": {"^(//|#|\\$|_)": {}},
                    "properties": {
                        name: {"description": meaning, **schema}
                        for name, (meaning, schema) in PROFILE_KEYS.items()
                    },
                },
            },
            "settings": _object(SETTING_KEYS, Settings),
        },
        "$defs": {"server": {**_object(SERVER_KEYS, ServerDefinition), "not": {"anyOf": _pairs()}}},
    }


def default_of(key: Key, model: type[Any]) -> Any:
    """The model's default for a key, in the key's own unit; None when it has none."""
    default = getattr(attrs.fields(model), key.attribute).default
    if getattr(default, "takes_self", False):
        return None  # its default depends on another key
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
