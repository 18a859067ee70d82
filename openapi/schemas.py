"""Schemas of a document as JSON Schema 2020-12, which is what tools are described in.

A `$ref` stays one: what it refers to comes to `$defs`, once, however often and in whatever circle it is referred to.
So a schema is as large as what it names, and recursion is no special case. (Expanding references makes Stripe's lists
two hundred megabytes.) References are worked off from a list, because a chain of them may be longer than Python
recurses.

Older dialects differ in a few keywords: `nullable`, `exclusiveMinimum: true`, a list as `items`, `type: file`. A
keyword whose value has the wrong kind is left out, because a client would refuse the whole list of tools for it; so is
what says nothing about a value (`xml`, `example`, extensions).

What a caller may not send is not in its schema: properties that are `readOnly` are left out of arguments, and those
that are `writeOnly` out of answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

from ..protocol.bounds import ITEM_PARTS
from .references import BrokenReference, Raw, at, followed, is_object, text

PARTS: Final = ITEM_PARTS // 2  # objects and lists of one schema: a tool with more could not be listed
_DEEPEST: Final = 60  # levels in one schema, references not counted
_ANYTHING: Final[Raw] = {}
_UNSUITED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_ONE: Final = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"dependentSchemas", "patternProperties", "properties"})
_NUMBERS: Final = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
_COUNTS: Final = (
    "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties",
)  # fmt: skip
_TEXTS: Final = ("contentEncoding", "contentMediaType", "description", "format", "title")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    """Whether clients in Python can read it. (They refuse a schema with one that they cannot.)"""
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return False


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))


_PLAIN: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_TEXTS, lambda value: isinstance(value, str)),
    "const": lambda _: True,
    "default": lambda _: True,
    "deprecated": lambda value: isinstance(value, bool),
    "enum": lambda value: isinstance(value, list) and bool(cast("list[Any]", value)),
    "pattern": _is_pattern,
    "required": _is_names,
    "uniqueItems": lambda value: isinstance(value, bool),
}  # keywords whose values are no schemas, and which values they may have

FILE_WORDS: Final = 'A file: its text, or {"path": …}, or {"base64": …}'
_FILE: Final[Raw] = {
    "type": ["string", "object"],
    "properties": {name: {"type": "string"} for name in ("path", "base64", "filename")},
    "additionalProperties": False,
}


def file_schema(description: str = "") -> Raw:
    """The schema of a file as a caller gives it."""
    return {"description": f"{description} ({FILE_WORDS})" if description else FILE_WORDS, **_FILE}


def is_file(root: Raw, schema: object) -> bool:
    """Whether a schema stands for the bytes of a file."""
    try:
        said = followed(root, schema)
    except BrokenReference:
        return False
    if not is_object(said):
        return False
    if said.get("type") == "file" or (said.get("type") == "string" and said.get("format") == "binary"):
        return True
    media = said.get("contentMediaType")
    is_text = isinstance(media, str) and (media.startswith("text/") or "json" in media)
    return isinstance(media, str) and not is_text and "contentEncoding" not in said


def is_hidden(root: Raw, schema: object, hides: str) -> bool:
    """Whether a property is not for one direction: `hides` is `readOnly` for what is sent, `writeOnly` for answers."""
    try:
        said = followed(root, schema)
    except BrokenReference:
        return False
    return any(is_object(each) and each.get(hides) is True for each in (schema, said))


class SchemaWriter:
    """Writes schemas that share one `$defs`. `hides`: the keyword of properties that are left out, `readOnly` or
    `writeOnly`. `files`: whether a file is written as what a caller gives (`file_schema`)."""

    def __init__(self, root: Raw, hides: str, *, files: bool = False) -> None:
        self._root = root
        self._hides = hides
        self._files = files
        self._names = dict[str, str]()  # reference → name in `$defs`
        self._taken = set[str]()
        self._waiting = list[str]()
        self._parts = 0
        self._notes = dict[str, None]()

    @property
    def notes(self) -> list[str]:
        """What could not be written, in sentences, each once."""
        return list(self._notes)

    def written(self, schema: object, depth: int = 0) -> Any:
        """One schema. What it refers to is written by `definitions`."""
        if isinstance(schema, bool):
            return schema
        if not is_object(schema):
            return _ANYTHING
        self._parts += 1
        if self._parts > PARTS or depth > _DEEPEST:
            self._notes.setdefault("Its schema is too large, and what is beyond the bounds is not described.")
            return _ANYTHING
        if self._files and is_file(self._root, schema):
            return file_schema(text(schema, "description"))
        said = dict[str, Any]()
        if isinstance(reference := schema.get("$ref"), str) and (name := self._name(reference)):
            said["$ref"] = f"#/$defs/{name}"
        hidden = self.hidden(schema)
        for keyword, value in schema.items():
            self._write(said, keyword, value, hidden, depth + 1)
        _mend(said, schema)
        return _or_null(said) if schema.get("nullable") is True or schema.get("x-nullable") is True else said

    def hidden(self, schema: Raw) -> set[str]:
        """The names of properties that are not for this direction."""
        properties = schema.get("properties")
        if not is_object(properties):
            return set()
        return {name for name, each in properties.items() if is_hidden(self._root, each, self._hides)}

    def definitions(self) -> Raw:
        """The `$defs` of everything written so far."""
        found = dict[str, Any]()
        while self._waiting:
            reference = self._waiting.pop()
            found[self._names[reference]] = self.written(at(self._root, reference))
        return dict(sorted(found.items()))

    def _write(self, said: Raw, keyword: str, value: Any, hidden: set[str], depth: int) -> None:
        if keyword in _PLAIN:
            if _PLAIN[keyword](value):
                said[keyword] = value
            if keyword == "required" and hidden and _is_names(value):
                said[keyword] = [name for name in value if name not in hidden]
        elif keyword in _NAMED and is_object(value):
            left_out = hidden if keyword == "properties" else ()
            said[keyword] = {
                str(name): self.written(each, depth)
                for name, each in value.items()
                if name not in left_out and (keyword != "patternProperties" or _is_pattern(name))
            }
        elif (keyword in _MANY or keyword == "items") and isinstance(value, list) and value:
            name = "prefixItems" if keyword == "items" else keyword
            said[name] = [self.written(each, depth) for each in cast("list[Any]", value)]
        elif keyword in _ONE and isinstance(value, dict | bool):
            said[keyword] = self.written(cast("Any", value), depth)

    def _name(self, reference: str) -> str:
        """The name in `$defs` of what is referred to; empty when there is no such thing."""
        if reference in self._names:
            return self._names[reference]
        try:
            at(self._root, reference)
        except BrokenReference as problem:
            self._notes.setdefault(f"Part of its schema is not described: the reference {problem}.")
            return ""
        plain = (
            _UNSUITED.sub("_", unquote(reference.rpartition("/")[2]).replace("~1", "/")).strip("_")[:100]
            or "schema"
        )
        name, number = plain, 1
        while name in self._taken:
            number += 1
            name = f"{plain}_{number}"
        self._taken.add(name)
        self._names[reference] = name
        self._waiting.append(reference)
        return name


def _mend(said: Raw, schema: Raw) -> None:
    """Keywords that older dialects write otherwise."""
    types = schema.get("type")
    if isinstance(types, str):
        types = "string" if types == "file" else types
        if types in _TYPES:
            said["type"] = types
    elif _is_names(types):
        known = list(dict.fromkeys(each for each in cast("list[str]", types) if each in _TYPES))
        if known:
            said["type"] = known
    for bound in ("Minimum", "Maximum"):
        if schema.get(f"exclusive{bound}") is True and bound.lower() in said:
            said[f"exclusive{bound}"] = said.pop(bound.lower())


def _or_null(said: Raw) -> Raw:
    """The schema that allows null besides."""
    kind = said.get("type")
    if "$ref" in said or kind is None:
        others = {name: said.pop(name) for name in ("title", "description", "default") if name in said}
        return {**others, "anyOf": [said, {"type": "null"}]} if said else others
    kinds = [kind] if isinstance(kind, str) else kind
    said["type"] = kinds if "null" in kinds else [*kinds, "null"]
    if isinstance(values := said.get("enum"), list) and None not in values:
        said["enum"] = [*cast("list[Any]", values), None]
    return said


# --------------------------------------------------------------------------------------------------------------
#
#
# Objects whose properties are arguments of their own


class Members:
    """The properties of an object, also where `allOf` puts it together, by name; and which are required."""

    def __init__(self) -> None:
        self.properties: dict[str, Any] = {}
        self.required: dict[str, None] = {}


_CLOSED: Final = (None, False)  # what `additionalProperties` says of an object that has no others
_BINDING: Final = frozenset({
    "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "patternProperties", "then", "unevaluatedProperties",
})  # fmt: skip


def members(root: Raw, schema: object) -> Members | None:
    """The properties of an object, if its names are known and nothing but `allOf` joins them; else None. Whether the
    object may be null is not told: whoever means that gives none of them."""
    found, waiting, seen = Members(), [schema], set[int]()
    while waiting:
        try:
            said = followed(root, waiting.pop(0))
        except BrokenReference:
            return None
        if not is_object(said) or not _is_plain_object(said):
            return None
        if id(said) in seen:
            continue
        seen.add(id(said))
        parts = said.get("allOf")
        waiting = [*(cast("list[Any]", parts) if isinstance(parts, list) else []), *waiting]
        for name, each in cast("Raw", said.get("properties") or {}).items():
            known = found.properties.get(name)
            found.properties[name] = each if known is None else {"allOf": [known, each]}
        required = said.get("required")
        found.required |= dict.fromkeys(cast("list[str]", required) if _is_names(required) else ())
    return found if found.properties else None


def _is_plain_object(said: Raw) -> bool:
    kind, properties, parts = said.get("type"), said.get("properties"), said.get("allOf")
    if kind not in ("object", None, ["object", "null"]) or said.get("additionalProperties") not in _CLOSED:
        return False
    if properties is not None and not is_object(properties):
        return False
    if kind is None and not properties and not isinstance(parts, list) and "required" not in said:
        return False
    return _BINDING.isdisjoint(said)


def says_nothing(root: Raw, schema: object) -> bool:
    """Whether a schema is that of an object which has no property, and says so."""
    try:
        said = followed(root, schema)
    except BrokenReference:
        return False
    return is_object(said) and said.get("properties") == {} and _is_plain_object({**said, "type": "object"})
