"""Arguments that a person typed, or that came in a URL: texts, read by the schema of the tool.

A text is read as JSON (`5`, `true`, `[1, 2]`) if it is JSON of a type that the schema allows for its parameter, and
stays a text otherwise; so `5` stays a text for a parameter that is a string. Where the schema does not say, JSON is
read as JSON. Nothing else is changed: whether the arguments are right is the server's to say, unless the schema itself
refuses their names (`required_in`, `foreign_in`) or their types (`mistyped_in`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .json_values import array_or_empty, is_array, object_or_empty

_TYPES: Final[Mapping[type, tuple[str, ...]]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}
_MORE_NAMES: Final = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if", "dependentSchemas")
_NOT_TEXT: Final = frozenset({"number", "integer", "boolean", "array", "object"})
_DEPTH: Final = 8  # alternatives and references one inside the other
_LOOKS: Final = (
    1_000  # at alternatives and references of one parameter: in a circle they can be without number
)


def decode_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also for texts that only Python accepts, such as NaN, and for a
    number that is too large for a float."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def typed_arguments(texts: Mapping[str, str], schema: object) -> dict[str, Any]:
    """The arguments that these texts mean. `schema`: the tool's input schema; anything else says nothing."""
    root = object_or_empty(schema)
    parameters = object_or_empty(root.get("properties"))
    return {name: _typed(text, parameters.get(name), root) for name, text in texts.items()}


def parameters_in(schema: object) -> Mapping[str, Any]:
    """The parameters that a schema names, each with its own schema."""
    return object_or_empty(object_or_empty(schema).get("properties"))


def required_in(schema: object) -> list[str]:
    """The parameters without which a call is refused: those that the schema requires, and gives no value otherwise."""
    named = parameters_in(schema)
    listed = (
        name for name in array_or_empty(object_or_empty(schema).get("required")) if isinstance(name, str)
    )
    return [name for name in listed if "default" not in object_or_empty(named.get(name))]


def foreign_in(schema: object, given: Mapping[str, Any]) -> list[str]:
    """The given names that are none of the schema's parameters, if it names all that it knows."""
    said = object_or_empty(schema)
    takes_more = said.get("additionalProperties", False) is not False or any(map(said.get, _MORE_NAMES))
    if takes_more or not isinstance(said.get("properties"), Mapping):
        return []
    named = {
        *parameters_in(schema),
        *(name for name in array_or_empty(said.get("required")) if isinstance(name, str)),
    }
    return [name for name in given if name not in named]


def mistyped_in(schema: object, texts: Mapping[str, str]) -> dict[str, str]:
    """Those texts that cannot be of the one type that the schema names for their parameter, each with this type."""
    root, found = object_or_empty(schema), dict[str, str]()
    for name, text in texts.items():
        types = _types(parameters_in(schema).get(name), root)
        if len(types) != 1 or not types <= _NOT_TEXT:
            continue
        try:
            value = decode_json(text)
        except ValueError:
            value = text
        is_whole = isinstance(value, float) and value.is_integer()  # 1.0 is an integer of a schema, too
        if types.isdisjoint((*_TYPES[type(value)], *(("integer",) if is_whole else ()))):
            found[name] = types.pop()
    return found


def _typed(text: str, schema: object, root: Mapping[str, Any]) -> Any:
    try:
        value = decode_json(text)
    except ValueError:
        return text
    types = _types(schema, root)
    return value if not types or not types.isdisjoint(_TYPES[type(value)]) else text


def _types(schema: object, root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say, or takes too long to say."""
    looks = iter(range(_LOOKS))
    found = _allowed(schema, root, _DEPTH, looks)
    return found if next(looks, None) is not None else set()


def _allowed(schema: object, root: Mapping[str, Any], depth: int, looks: Iterator[int]) -> set[str]:
    """The JSON types that a schema allows. `looks`: one is taken for each part, as long as there are any."""
    said = object_or_empty(schema)
    if depth == 0 or next(looks, None) is None:
        return set()
    stated = said.get("type")
    values: Sequence[object] = array_or_empty(said.get("enum")) if "const" not in said else (said["const"],)
    if isinstance(stated, str):
        return {stated}
    if is_array(stated):
        return {each for each in stated if isinstance(each, str)}
    if values:
        return {name for kind in map(type, values) for name in _TYPES.get(kind, ())}
    if isinstance(reference := said.get("$ref"), str):
        return _allowed(_pointed(root, reference), root, depth - 1, looks)
    found = set[str]()
    for part in (part for key in ("anyOf", "oneOf") for part in array_or_empty(said.get(key))):
        types = _allowed(part, root, depth - 1, looks)
        if not types:  # of this one anything is allowed
            return types
        found |= types
    return found


def _pointed(root: Mapping[str, Any], reference: str) -> object:
    """What a reference within the schema (`#/$defs/Name`) points at; nothing for any other."""
    path, *keys = reference.split("/")
    found: object = root if path == "#" else None
    for key in keys:
        found = object_or_empty(found).get(key.replace("~1", "/").replace("~0", "~"))
    return found
