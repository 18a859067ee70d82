"""Arguments that a person typed, or that came in a URL: texts, read by the schema of the tool.

A text is read as JSON (`5`, `true`, `[1, 2]`) if it is JSON of a type that the schema allows for its parameter, and
stays a text otherwise; so `5` stays a text for a parameter that is a string. Where the schema does not say, JSON is
read as JSON. Nothing else is changed: whether the arguments are right is the server's to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

_TYPES: Final[Mapping[type, tuple[str, ...]]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}
_DEPTH: Final = 8  # alternatives and references one inside the other


def decode_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also for texts that only Python accepts, such as NaN, and for a
    number that is too large for a float."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def typed_arguments(texts: Mapping[str, str], schema: object) -> dict[str, Any]:
    """The arguments that these texts mean. `schema`: the tool's input schema; anything else says nothing."""
    root = _object(schema)
    parameters = _object(root.get("properties"))
    return {name: _typed(text, parameters.get(name), root) for name, text in texts.items()}


def _typed(text: str, schema: object, root: Mapping[str, Any]) -> Any:
    try:
        value = decode_json(text)
    except ValueError:
        return text
    types = {*_types(schema, root, _DEPTH)}
    return value if not types or not types.isdisjoint(_TYPES[type(value)]) else text


def _types(schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    said = _object(schema)
    if depth == 0:
        return
    stated: object = said.get("type")
    values = _list(said.get("enum")) if "const" not in said else (said["const"],)
    if isinstance(stated, str):
        yield stated
    elif isinstance(stated, list):
        yield from (each for each in _list(said["type"]) if isinstance(each, str))
    elif values:
        yield from (
            name
            for value in values
            for kind, names in _TYPES.items()
            if type(value) is kind
            for name in names
        )
    elif isinstance(reference := said.get("$ref"), str):
        yield from _types(_pointed(root, reference), root, depth - 1)
    else:
        parts = [
            [*_types(part, root, depth - 1)] for key in ("anyOf", "oneOf") for part in _list(said.get(key))
        ]
        if all(parts):
            yield from (each for part in parts for each in part)


def _pointed(root: Mapping[str, Any], reference: str) -> object:
    """What a reference within the schema (`#/$defs/Name`) points at; nothing for any other."""
    path, *keys = reference.split("/")
    found: object = root if path == "#" else None
    for key in keys:
        found = _object(found).get(key.replace("~1", "/").replace("~0", "~"))
    return found


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()
