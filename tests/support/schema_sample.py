"""A small value that fits a schema, for a call of a tool that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEP = 4


def sample(schema: Any, definitions: Mapping[str, Any], depth: int = 0, *, full: bool = False) -> Any:
    """A value of `schema`, with what may be left out if it is to be `full`. `definitions`: its `$defs`."""
    if not isinstance(schema, dict) or not schema:
        return "x"
    said: dict[str, Any] = schema
    if "$ref" in said:
        referred = definitions[said["$ref"].removeprefix("#/$defs/")]
        return sample(referred, definitions, depth + 1, full=full) if depth < 3 * _DEEP else {}
    for keyword in ("default", "const"):
        if keyword in said:
            return said[keyword]
    if said.get("enum"):
        return said["enum"][0]
    for keyword in ("oneOf", "anyOf", "allOf"):
        if said.get(keyword) and "properties" not in said:
            parts = [sample(each, definitions, depth + 1, full=full) for each in said[keyword]]
            if keyword == "allOf" and isinstance(parts[0], dict):
                return {name: value for part in parts for name, value in part.items()}
            return parts[0]
    kinds = said.get("type", "object" if "properties" in said else "string")
    match kinds if isinstance(kinds, str) else next((each for each in kinds if each != "null"), "null"):
        case "object":
            known = said.get("properties", {})
            wanted = known if full and depth < _DEEP else said.get("required", ())
            return {name: sample(known.get(name), definitions, depth + 1, full=full) for name in wanted}
        case "array":
            items = said.get("items") if depth < _DEEP else None
            return [] if items is None else [sample(items, definitions, depth + 1, full=full)]
        case "string":
            return "x" * max(1, said.get("minLength", 1))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return said.get("minimum", 1)
