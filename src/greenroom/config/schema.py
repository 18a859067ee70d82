"""The JSON Schema of a configuration file, made from the keys of the model.

It is for editors, so it rejects only what the parser would complain about. Keys of other programs are allowed,
since files are shared with those programs. It checks one combination, which is often wrong: a server has exactly
one of command, url and socket. (An entry that changes one field of a weaker file's server has none of them, so
the schema says "at most one".)
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from msgspec import UNSET

from .keys import IMPORT_KINDS, Key, Model, grouped
from .model import GROUPS, PROFILE_KEYS, SERVER_KEYS, SETTING_KEYS, ServerDefinition, Settings


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file; a fresh copy, yours to change."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/server"}}
    server = _object({key.name: _property(key, ServerDefinition) for key in SERVER_KEYS})
    two = [{"required": [*pair]} for pair in combinations(("command", "url", "socket"), 2)]
    profile: dict[str, Any] = {
        **_object({key.name: {**key.kind.schema, "description": key.meaning} for key in PROFILE_KEYS}),
        "additionalProperties": False,
        "patternProperties": {"^(//|#|\\$|_)": {}},
    }
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
                "additionalProperties": profile,
            },
            "settings": _group(grouped((key.name, key) for key in SETTING_KEYS)),
        },
        "$defs": {"server": {**server, "not": {"anyOf": two}}},
    }


def default_of(key: Key, model: type[Model]) -> Any:
    """The model's default for a key, in the key's own unit; None when it has none."""
    default = model.__fields__[key.attribute].default
    return None if default is UNSET else key.in_file_units(default)  # it depends on another key


def _group(keys: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The schema of a group of settings, or of all settings."""
    properties: dict[str, Any] = {}
    for name, one in keys.items():
        if isinstance(one, Key):
            properties[name] = _property(one, Settings)
        else:
            group = prefix + name
            properties[name] = {"description": GROUPS[group], **_group(one, f"{group}.")}
            if group == "outputGuard":
                properties[name]["type"] = ["object", "boolean"]
    return _object(properties)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _property(key: Key, model: type[Model]) -> dict[str, Any]:
    default = default_of(key, model)
    said = {} if default is None or default == [] else {"default": default}
    unit = f" Unit: {key.kind.unit}." if key.kind.scale != 1 else ""
    return {**key.kind.schema, "description": key.meaning + unit, **said}
