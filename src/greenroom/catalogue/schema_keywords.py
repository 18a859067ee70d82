"""What each keyword of JSON Schema 2020-12 may hold, and what was meant where a server wrote something else.

One tool whose schema is invalid makes the APIs of models refuse a whole request, and some clients the whole list. So
each schema of arguments is looked through to its depth, and mended where the meaning can be told: words of older drafts
(`items` as a list, `exclusiveMinimum: true`, `required: true` in a property), of other languages (`float`, `STRING`),
and values in the wrong form (`minLength: "1"`). What has no meaning that can be told is left out, which only allows
more: the server checks its arguments anyway. If a model would miss it (an unknown type, a reference that leads nowhere,
a pattern that cannot be compiled), it is kept in the description.

An array says what its items are, if only with `{}`: that is the same to a validator, and OpenAI, Gemini and VS Code
refuse one that does not say it.

A schema without faults is returned as the same object. Rejected: to check against the metaschema with a validator,
which is thirty times slower and says what is wrong but not what was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import unquote

from ..protocol.json_values import array_or_empty, is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern

Schema = Mapping[str, Any]
Place = tuple[Any, ...]  # empty, or (the place it is in, its key or position there)


class NothingLeft:
    """The result of a check when nothing of the value can be kept."""


GONE: Final = NothingLeft()
_MOST_FAULTS: Final = 20  # that are told of one schema
_SHOWN: Final = 80  # characters of a value that is told
_PASSES: Final = 3  # what was mended may be what a reference led to
_LONGEST_PATTERN: Final = 4_096


def said_of(place: Place) -> str:
    """The place in words: `inputSchema.properties.a`, `icons[2].src`."""
    if not place:
        return "it"
    around, key = place
    if isinstance(key, int):
        return f"{said_of(around)}[{key}]"
    return f"{said_of(around)}.{key}" if around else key


def mended_schema(
    schema: Schema, place: Place, faults: list[str], *, items_may_be_missing: bool = False
) -> Schema:
    """The schema, valid in JSON Schema 2020-12; the same object if it is. What was wrong is added to `faults`.
    `items_may_be_missing`: arrays need not say what their items are."""
    for _ in range(_PASSES):
        found = cast("Schema", _Walk(schema, faults, items_may_be_missing).schema(schema, place))
        if found is schema:
            break
        schema = found
    return schema


class _Walk:
    """One pass through one schema."""

    def __init__(self, root: Schema, faults: list[str], items_may_be_missing: bool) -> None:
        self._root, self._faults, self._is_lenient = root, faults, items_may_be_missing
        self._base = root  # what references within the schema begin at
        self._told = 0

    def fault(self, place: Place, words: str) -> None:
        said = f"{said_of(place)} {words}"
        if said not in self._faults:
            self._told += 1
            if self._told <= _MOST_FAULTS:
                self._faults.append(said)

    def schema(self, value: Any, place: Place) -> Any:
        """A schema anywhere."""
        if isinstance(value, bool):
            return value
        if not is_object(value):
            self.fault(place, "is not a schema")
            return _meant(value)
        around = self._base
        if value is not self._root and isinstance(value.get("$id"), str) and not value["$id"].startswith("#"):
            self._base = value
        node = _Node(value, place)
        for key, each in value.items():
            look = _KEYWORDS.get(key)
            if look is not None:
                found = look(self, node, each, (place, key))
                if found is not each:
                    node.changed[key] = found
        self._required_by_properties(node)
        if not self._is_lenient:
            self._items_said(node)
        self._base = around
        return node.result()

    def _required_by_properties(self, node: _Node) -> None:
        """`required: true` in a property (draft 3) is the object's to say."""
        properties = node.said.get("properties")
        if properties is None or not is_object(properties):
            return
        named = [
            name
            for name, each in properties.items()
            if is_object(each) and each.get("required") in (True, "true")
        ]
        if named:
            already = node.changed.get("required", node.said.get("required"))
            node.changed["required"] = list(dict.fromkeys([*array_or_empty(already), *named]))

    def _items_said(self, node: _Node) -> None:
        kind = node.changed.get("type", node.said.get("type"))
        if kind != "array" and (isinstance(kind, str) or not is_array(kind) or "array" not in kind):
            return
        if "items" not in node.said and "items" not in node.changed:
            self.fault((node.place, "items"), "is missing")
            node.changed["items"] = {}

    # -- what keywords hold --

    def of_schema(self, node: _Node, value: Any, place: Place) -> Any:
        return self.schema(value, place)

    def items(self, node: _Node, value: Any, place: Place) -> Any:
        if not is_array(value):
            return self.schema(value, place)
        self.fault(place, "is a list: a tuple has prefixItems")
        if not value:
            return {}
        node.changed["prefixItems"] = [
            self.schema(one, ((node.place, "prefixItems"), n)) for n, one in enumerate(value)
        ]
        rest = node.said.get("additionalItems", {})
        node.changed["additionalItems"] = GONE
        return self.schema(rest, (node.place, "additionalItems"))

    def several(self, node: _Node, value: Any, place: Place) -> Any:
        if not is_array(value) or not value:
            self.fault(place, "is not a list of schemas")
            return [self.schema(value, place)] if is_object(value) and value else GONE
        kept = [self.schema(one, (place, number)) for number, one in enumerate(value)]
        return value if all(a is b for a, b in zip(kept, value, strict=True)) else kept

    def named(self, node: _Node, value: Any, place: Place) -> Any:
        """A schema for each name."""
        if not is_object(value):
            self.fault(place, "is not an object")
            return self._by_their_names(value, place)
        changed: dict[str, Any] = {}
        is_pattern = place[1] == "patternProperties"
        at_top = place[1] == "properties" and node.said is self._root
        for name, each in value.items():
            inner = (place, name)
            if at_top and isinstance(each, bool):  # the protocol wants objects here
                self.fault(inner, "is not an object")
                changed[name] = {} if each else {"not": {}}
            elif is_pattern and not _is_pattern(name):
                self.fault(place, f"has {_short(name)}, which is not a pattern")
                changed[name] = GONE
            elif (found := self.schema(each, inner)) is not each:
                changed[name] = found
        return _with(value, changed) if changed else value

    def _by_their_names(self, value: Any, place: Place) -> Any:
        """Properties in a list, each with its name. (PHP writes an empty object as a list.)"""
        found: dict[str, Any] = {}
        for each in array_or_empty(value):
            inner = dict(each) if is_object(each) else {}
            name = inner.pop("name", None)
            if not isinstance(name, str):
                break
            found[name] = self.schema(inner, (place, name))
        return found or ({} if place[1] == "properties" and value == [] else GONE)

    def kind(self, node: _Node, value: Any, place: Place) -> Any:
        if isinstance(value, str) and value in _TYPES:
            return value
        if (
            is_array(value)
            and value
            and all(isinstance(each, str) and each in _TYPES for each in value)
            and len(set(value)) == len(value)
        ):
            return value
        self.fault(place, f"{_short(value)} is not a type")
        return self._kind_meant(node, value)

    def _kind_meant(self, node: _Node, value: Any) -> Any:
        schemas: Sequence[Any] = [value] if is_object(value) else array_or_empty(value)
        if any(is_object(each) for each in schemas):
            if "anyOf" not in node.said:  # a union of draft 3
                node.changed["anyOf"] = [
                    self.schema(each if is_object(each) else _meant(each), node.place) for each in schemas
                ]
            return GONE
        if isinstance(value, str) and value.strip().endswith("[]"):
            if "items" not in node.said:
                node.changed["items"] = _meant(value.strip()[:-2])
            return "array"
        if is_array(value):
            kinds = ["null" if each is None else type_meant(each) for each in value]
            known = list(dict.fromkeys(kind for kind in kinds if kind is not None))
            if known and None not in kinds:
                return known[0] if len(known) == 1 else known
        elif (kind := type_meant(value)) is not None:
            return kind
        if isinstance(value, str) and value.strip().lower() not in _ANY:
            node.note(f"type: {_short(value)}")
        return GONE

    def names(self, node: _Node, value: Any, place: Place) -> Any:
        """A list of names."""
        if is_array(value):
            kept = list(dict.fromkeys(one for one in value if isinstance(one, str)))
            if len(kept) == len(value):
                return value
            self.fault(place, "is not a list of different names")
            return kept
        self.fault(place, "is not an array")
        return [value] if isinstance(value, str) and value not in ("", "true", "false") else GONE

    def needs(self, node: _Node, value: Any, place: Place) -> Any:
        """Of each name the names that it needs, or (`dependencies`) a schema."""
        if not is_object(value):
            self.fault(place, "is not an object")
            return GONE
        changed: dict[str, Any] = {}
        for name, each in value.items():
            may_be_schema = place[1] == "dependencies" and isinstance(each, dict | bool)
            found = (self.of_schema if may_be_schema else self.names)(node, each, (place, name))
            if found is not each:
                changed[name] = found
        return _with(value, changed) if changed else value

    def values(self, node: _Node, value: Any, place: Place) -> Any:
        if is_array(value) and value:
            different = {_identity(one): one for one in value}
            if len(different) == len(value):
                return value
            self.fault(place, "has a value twice")
            return list(different.values())
        self.fault(place, "is not a list of values")
        return [value] if isinstance(value, str | int | float) else GONE

    def examples(self, node: _Node, value: Any, place: Place) -> Any:
        if is_array(value):
            return value
        self.fault(place, "is not an array")
        return GONE if value is None else [value]

    def text(self, node: _Node, value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return value
        self.fault(place, "is not a string")
        lines = array_or_empty(value) if place[1] == "description" else ()
        return " ".join(line for line in lines if isinstance(line, str)) or GONE

    def pattern(self, node: _Node, value: Any, place: Place) -> Any:
        if isinstance(value, str) and _is_pattern(value):
            return value
        self.fault(place, "is not a pattern that can be compiled everywhere")
        if isinstance(value, str):
            node.note(f"pattern: {_short(value)}")
        return GONE

    def spelled(self, node: _Node, value: Any, place: Place) -> Any:
        """A text of one form."""
        if isinstance(value, str) and _SPELLED[place[1]].fullmatch(value):
            return value
        self.fault(place, "is not written as it must be")
        return GONE

    def vocabulary(self, node: _Node, value: Any, place: Place) -> Any:
        if is_object(value) and all(isinstance(each, bool) for each in value.values()):
            return value
        self.fault(place, "is not an object of flags")
        return GONE

    def flag(self, node: _Node, value: Any, place: Place) -> Any:
        if isinstance(value, bool):
            return value
        self.fault(place, "is not true or false")
        return _FLAGS.get(value, GONE) if isinstance(value, str) else GONE

    def number(self, node: _Node, value: Any, place: Place) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        self.fault(place, "is not a number")
        return _number_in(value)

    def positive(self, node: _Node, value: Any, place: Place) -> Any:
        found = self.number(node, value, place)
        if found is GONE or found > 0:
            return found
        self.fault(place, "is not above zero")
        return GONE

    def count(self, node: _Node, value: Any, place: Place) -> Any:
        found = self.number(node, value, place)
        if found is GONE or (found >= 0 and found == int(found)):
            return found
        self.fault(place, "is not a count")
        return GONE

    def beyond(self, node: _Node, value: Any, place: Place) -> Any:
        """`exclusiveMinimum`: until draft 4 it was `true`, beside the bound."""
        if not isinstance(value, bool) and value not in ("true", "false"):
            return self.number(node, value, place)
        self.fault(place, "is not a number")
        plain = "minimum" if place[1] == "exclusiveMinimum" else "maximum"
        bound = _number_in(node.said.get(plain))
        if value in (False, "false") or bound is GONE:
            return GONE
        node.changed[plain] = GONE
        return bound

    def reference(self, node: _Node, value: Any, place: Place) -> Any:
        if not isinstance(value, str):
            self.fault(place, "is not a string")
            return GONE
        if not value.startswith("#") or _leads(self._base, value):
            return value
        self.fault(place, f"refers to {value[:_SHOWN]}, which it does not have")
        name = value.rpartition("/")[2]
        for other in (value.replace("/items/", "/prefixItems/"), f"#/$defs/{name}", f"#/definitions/{name}"):
            if other != value and _leads(self._base, other):
                return other
        node.note(f"as {value[:_SHOWN]}")
        return GONE


class _Node:
    """One schema on its way: what was said there, what is changed of it, and what goes into its description."""

    __slots__ = ("_notes", "changed", "place", "said")

    def __init__(self, said: Schema, place: Place) -> None:
        self.said, self.place = said, place
        self.changed: dict[str, Any] = {}
        self._notes: list[str] = []

    def note(self, words: str) -> None:
        self._notes.append(words)

    def result(self) -> Schema:
        if not self.changed:
            return self.said
        found = _with(self.said, self.changed)
        if self._notes:
            old = found.get("description")
            found["description"] = f"{old or ''} ({'; '.join(self._notes)})".strip()
        return found


def _with(said: Schema, changed: Schema) -> dict[str, Any]:
    return {key: each for key, each in {**said, **changed}.items() if each is not GONE}


_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_ANY: Final = frozenset(
    {"any", "mixed", "unknown", "*", "", "all", "value", "json", "undefined", "type_unspecified"}
)
_MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("float", "double", "decimal", "numeric", "real", "float32", "float64"), "number"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "uint", "uint32", "uint64", "bigint"), "integer"),
    **dict.fromkeys(("str", "text", "char", "varchar", "date", "datetime", "date-time", "time", "uuid"), "string"),
    **dict.fromkeys(("url", "uri", "email", "file", "binary", "password", "enum", "bytes"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "dictionary", "map", "hash", "struct", "record", "mapping"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "sequence", "vector"), "array"),
    **dict.fromkeys(("none", "nil", "nonetype", "void"), "null"),
}  # fmt: skip
_FLAGS: Final = {"true": True, "false": False}


def type_meant(value: Any) -> str | None:
    """The type that a word stands for; None if that cannot be told."""
    if not isinstance(value, str):
        return None
    name = value.strip().lower().removeprefix("type_")
    return name if name in _TYPES else _MEANT.get(name)


def _meant(value: Any) -> Schema:
    """What stands where a schema should."""
    if isinstance(value, str) and value.strip():
        kind = type_meant(value)
        if kind is not None:
            return {"type": kind, "items": {}} if kind == "array" else {"type": kind}
        return {} if value.strip().lower() in _ANY else {"description": value}
    if is_array(value) and value:
        kinds = ["null" if each is None else type_meant(each) for each in value]
        if None not in kinds:
            return {"type": list(dict.fromkeys(kinds))}
    return {}


def _number_in(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"\s*-?\d{1,15}(\.\d{1,15})?\s*", value):
        return GONE
    return float(value) if "." in value else int(value)


def _identity(value: Any) -> str:
    """Equal for values that are equal in JSON, where 1 is 1.0 but not true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{type(value).__name__} {value!r}"


def _short(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False)
    return said if len(said) <= _SHOWN else f"{said[: _SHOWN - 1]}…"


_OF_SETS: Final = lazy_pattern(r"(?<=\[)\[|--|&&|~~|\|\|")


def _is_pattern(text: str) -> bool:
    """Whether the pattern can be compiled. Two signs in a set that a later Python may read in another way are no
    reason to warn whoever reads our stderr."""
    if len(text) > _LONGEST_PATTERN:
        return False
    try:
        re.compile(_OF_SETS.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), text))
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _leads(root: Any, reference: str) -> bool:
    """Whether a reference within the schema leads to something that may be a schema."""
    if not reference.startswith("#/"):
        return reference == "#" or any(reference[1:] == name for name in _anchors(root))
    return any(
        isinstance(_at(root, path), dict | bool | str) for path in (reference[2:], unquote(reference[2:]))
    )


def _at(here: Any, path: str) -> Any:
    for step in path.split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if is_array(here) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        elif is_object(here):
            here = here.get(key, GONE)
        else:
            return GONE
    return here


def _anchors(root: Any) -> Iterator[str]:
    rest: list[Any] = [root]
    while rest:
        here = rest.pop()
        if is_object(here):
            yield from (here[key] for key in ("$anchor", "$dynamicAnchor") if isinstance(here.get(key), str))
            rest += here.values()
        elif is_array(here):
            rest += here


_ANCHOR: Final = lazy_pattern(r"[A-Za-z_][-A-Za-z0-9._]*")
_SPELLED: Final[Mapping[str, re.Pattern[str]]] = {
    "$id": lazy_pattern(r"[^#]*#?"),
    "$anchor": _ANCHOR,
    "$dynamicAnchor": _ANCHOR,
    "$recursiveAnchor": _ANCHOR,
}
_Look = Callable[[_Walk, _Node, Any, Place], Any]
_KEYWORDS: Final[Mapping[str, _Look]] = {
    "type": _Walk.kind,
    "items": _Walk.items,
    "required": _Walk.names,
    "enum": _Walk.values,
    "examples": _Walk.examples,
    "pattern": _Walk.pattern,
    "$ref": _Walk.reference,
    "$vocabulary": _Walk.vocabulary,
    "multipleOf": _Walk.positive,
    **dict.fromkeys(("minimum", "maximum"), _Walk.number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _Walk.beyond),
    **dict.fromkeys(
        (
            *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
            *("minContains", "maxContains"),
        ),
        _Walk.count,
    ),
    **dict.fromkeys(("uniqueItems", "readOnly", "writeOnly", "deprecated"), _Walk.flag),
    **dict.fromkeys(
        (
            *("title", "description", "format", "$comment", "$schema", "$dynamicRef", "$recursiveRef"),
            *("contentEncoding", "contentMediaType"),
        ),
        _Walk.text,
    ),
    **dict.fromkeys(_SPELLED, _Walk.spelled),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _Walk.named),
    **dict.fromkeys(("dependentRequired", "dependencies"), _Walk.needs),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _Walk.several),
    **dict.fromkeys(
        (
            *("additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
            *("unevaluatedProperties", "unevaluatedItems", "contentSchema"),
        ),
        _Walk.of_schema,
    ),
}  # fmt: skip
