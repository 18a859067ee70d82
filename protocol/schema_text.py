"""Schemas as text: what a tool expects, in lines a model and a person both read.

One line a property, in the schema's own order:

    name (type) *required* - description [minLength: 1] [default: "x"]

Inner parts (properties, items, alternatives with parts of their own) are indented by two more. A schema comes from a
server and may be any JSON. Parts that make no sense are left out and never an error. References within the schema are
followed, since most generators use them for nested objects. Text and work are bounded: nesting, alternatives and
references have limits, a reference is not opened inside itself, and after `MAX_LINES` the text says that there is more.
Without these bounds, twenty lines of schema can refer to each other a million times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

MAX_DEPTH: Final = 6
MAX_LINES: Final = 400
MAX_BRANCHES: Final = 20  # alternatives looked at
MAX_REFERENCES: Final = 32  # opened one inside the other

Schema = Mapping[str, Any]

_NO_SCHEMA: Schema = {}
_CONSTRAINTS: Final = (
    *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum"),
    *(
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
    ),
    "default",
)
_OPEN: Final = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "additionalProperties", "if", "not")


def parameters_text(schema: object, indent: str = "") -> str:
    """The text below `Parameters:`, each line with `indent` in front. Never raises, whatever `schema` is.

    `(no schema)` if it is not a schema, `(no parameters)` if it has no properties, `(complex schema)` if it describes
    the parameters in another way.
    """
    if not isinstance(schema, Mapping):
        return f"{indent}(no schema)"
    root = cast("Schema", schema)
    whole = _resolve(root, root, frozenset())[0]
    lines = list(islice(_properties(whole, root, indent, frozenset(), 0), MAX_LINES + 1))
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"{indent}(more than {MAX_LINES} lines, the rest is left out)"]
    return "\n".join(lines) or f"{indent}{_without_properties(whole)}"


def _without_properties(schema: Schema) -> str:
    closed = schema.get("type", "object") == "object" and not any(schema.get(key) for key in _OPEN)
    return "(no parameters)" if closed else "(complex schema)"


def _properties(schema: Schema, root: Schema, indent: str, seen: frozenset[str], depth: int) -> Iterator[str]:
    required = _list(schema, "required")
    for name, inner in _map(schema, "properties").items():
        yield from _property(name, inner, name in required, root, indent, seen, depth)


def _property(
    name: str, said: object, required: bool, root: Schema, indent: str, seen: frozenset[str], depth: int
) -> Iterator[str]:
    """The line of one property, then what is inside it."""
    schema, seen = _resolve(_schema(said), root, seen)
    kind = _type(schema, root, seen, 0)
    description = schema.get("description")
    parts = [
        _one_line(name),
        f"({kind})" if kind else "",
        "*required*" if required else "",
        f"- {_one_line(description)}" if isinstance(description, str) and description.strip() else "",
        *(f"[{key}: {_json(schema[key])}]" for key in _CONSTRAINTS if key in schema),
    ]
    yield indent + " ".join(filter(None, parts))
    if depth < MAX_DEPTH:
        yield from _inside(schema, root, indent + "  ", seen, depth + 1)


def _inside(schema: Schema, root: Schema, indent: str, seen: frozenset[str], depth: int) -> Iterator[str]:
    yield from _properties(schema, root, indent, seen, depth)
    if isinstance(schema.get("items"), Mapping):
        yield from _property("items", schema["items"], False, root, indent, seen, depth)
    for key in ("anyOf", "oneOf"):
        for branch in _list(schema, key)[:MAX_BRANCHES]:
            inner, deeper = _resolve(_schema(branch), root, seen)
            if _has_inside(inner):
                yield from _property(key, inner, False, root, indent, deeper, depth)


def _has_inside(schema: Schema) -> bool:
    return any(key in schema for key in ("properties", "items", "anyOf", "oneOf"))


def _type(schema: Schema, root: Schema, seen: frozenset[str], depth: int) -> str:
    """`const …`, `enum: …`, `a | b`, or the type; empty where the schema does not say."""
    if "const" in schema:
        return f"const {_json(schema['const'])}"
    values = _list(schema, "enum")
    if values:
        return f"enum: {', '.join(map(_json, values))}"
    stated = schema.get("type")
    if isinstance(stated, str):
        return _one_line(stated)
    names = [_one_line(name) for name in _list(schema, "type") if isinstance(name, str)]
    for key in ("anyOf", "oneOf") if depth < 2 else ():
        for branch in _list(schema, key)[:MAX_BRANCHES]:
            inner, deeper = _resolve(_schema(branch), root, seen)
            names.append(_type(inner, root, deeper, depth + 1))
    return " | ".join(dict.fromkeys(filter(None, names)))


def _resolve(schema: Schema, root: Schema, seen: frozenset[str]) -> tuple[Schema, frozenset[str]]:
    """`schema` with its local reference, if any, replaced by what it means; and the references opened."""
    while isinstance(reference := schema.get("$ref"), str):
        if reference in seen or len(seen) >= MAX_REFERENCES:
            break
        seen |= {reference}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**_pointed(root, reference), **beside}
    return schema, seen


def _pointed(root: Schema, reference: str) -> Schema:
    """What a local reference (`#/$defs/Name`) points at; nothing for any other."""
    path, *keys = reference.split("/")
    found: object = root if path == "#" else None
    for key in keys:
        found = _schema(found).get(key.replace("~1", "/").replace("~0", "~"))
    return _schema(found)


def _schema(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else _NO_SCHEMA


def _map(schema: Schema, key: str) -> Schema:
    return _schema(schema.get(key))


def _list(schema: Schema, key: str) -> Sequence[Any]:
    value = schema.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(deeply nested)"
