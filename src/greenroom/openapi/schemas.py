"""Schemas of a document as JSON Schema 2020-12, which is what tools are described in.

A `$ref` stays one: what it refers to comes to `$defs`, once, however often and in whatever circle it is referred to.
So a schema is as large as what it names, and recursion is no special case. (Expanding references makes Stripe's lists
two hundred megabytes.)

A schema may still name most of its document: an answer of Stripe's names six hundred kilobytes. So each has a bound in
bytes (`most`), and making it takes as long as that is large, however large the document is. It is written level by
level, from a list: what is nearest to the caller comes first, and what is beyond the bound says that it is not shown.
A shortened schema must not refuse what the whole one allows, so where that would follow (`oneOf`, `not`), it asks for
less.

Older dialects differ in a few keywords: `nullable`, `exclusiveMinimum: true`, a list as `items`, `type: file`. A
keyword whose value has the wrong kind is left out, because a client would refuse the whole list of tools for it; so is
what says nothing about a value (`xml`, `example`, extensions).

What a caller may not send is not in its schema: properties that are `readOnly` are left out of arguments, and those
that are `writeOnly` out of answers.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from ..protocol.bounds import DEPTH, KIB
from ..protocol.json_values import array_or_empty, is_array
from ..protocol.jsonrpc.encoding import UNWRITABLE, encode
from .document_names import Names
from .document_references import BrokenReference, Raw, at, followed, is_object, text

MOST: Final = 128 * KIB  # bytes of one schema; of 122,846 tools of public APIs, 497 have a larger one
LEFT_OUT: Final = "Not shown: too large"  # what stands in the place of a part beyond the bound
PROPERTIES: Final = 1_000  # of an object whose properties are arguments
_PARTS: Final = 1_000  # schemas that `allOf` puts together for one
_BRACKET: Final = (
    16  # bytes that an object or a list counts at least: a tool may not have too many of those either
)
_PLACE: Final = len(encode({"description": LEFT_OUT})) + 8  # bytes that a schema takes if it is not shown
_AROUND: Final = 4  # levels of JSON around a schema: the tool, its schema, and there `properties` or `$defs`
_WITHIN: Final = 8  # levels of a value that is no schema, such as a default
_DEEPEST: Final = DEPTH - _WITHIN - 2
_FILE_BRACKETS: Final = 8 * _BRACKET
_TEXT: Final = 8 * KIB  # characters of a description
_PATTERN: Final = 2 * KIB  # characters
_KEYWORDS: Final = 100  # of a schema that are gone through; of one with more, those that are known
_UNSUITED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME: Final = 100  # characters of a name in `$defs`
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_FLAGS: Final = re.compile(r"\(\?[a-zA-Z-]")
_SET: Final = re.compile(r"\\.|\[(\^?\]?(?:\\.|[^\\\]])*)\]", re.DOTALL)
# Python warns of these in a set: they may come to mean something.
_DOUBTFUL: Final = re.compile(r"\[|(?:\\.|[^\\])*?(?:--|&&|~~|\|\|)", re.DOTALL)


@lru_cache(1_000)
def _is_readable(pattern: str) -> bool:
    if _FLAGS.search(pattern) or any(_DOUBTFUL.match(each[1] or "") for each in _SET.finditer(pattern)):
        return False
    try:
        return bool(re.compile(pattern))
    except (re.error, OverflowError, RecursionError):
        return False


def _is_pattern(value: Any) -> bool:
    """Whether clients in Python can read it, without a warning. (They refuse a schema with one that they cannot.)"""
    return isinstance(value, str) and len(value) <= _PATTERN and _is_readable(value)


def _is_names(value: Any) -> bool:
    return is_array(value) and all(isinstance(each, str) for each in value)


_PLAIN: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_TEXTS, lambda value: isinstance(value, str)),
    "const": lambda _: True,
    "default": lambda _: True,
    "deprecated": lambda value: isinstance(value, bool),
    "enum": lambda value: is_array(value) and bool(value),
    "pattern": _is_pattern,
    "required": _is_names,
    "uniqueItems": lambda value: isinstance(value, bool),
}  # keywords whose values are no schemas, and which values they may have

_KNOWN: Final = frozenset({*_ONE, *_MANY, *_NAMED, *_PLAIN})

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


class _SchemaPlace(NamedTuple):
    """A schema that is still to be written, and where."""

    schema: Raw
    said: Raw
    depth: int  # levels of JSON around it
    description: str  # instead of its own


class SchemaWriter:
    """Writes schemas that share one `$defs` and one bound. `hides`: the keyword of properties that are left out,
    `readOnly` or `writeOnly`. `files`: whether a file is written as what a caller gives (`file_schema`). `most`: bytes
    of all of them, but for the names of arguments."""

    def __init__(self, root: Raw, hides: str, *, files: bool = False, most: int = MOST) -> None:
        self._root = root
        self._hides = hides
        self._files = files
        self._left = most
        self._references = dict[str, str]()  # each with its name in `$defs`
        self._names = Names(_NAME)
        self._definitions = dict[str, Any]()
        self._waiting = deque[_SchemaPlace]()
        self._exact = list[Raw]()  # schemas that must not be told by less than all of their parts
        self._is_open = False  # whether not all properties of the schema that is being written are told
        self._is_short = False  # whether anything is missing that the document says
        self._notes = dict[str, None]()

    @property
    def notes(self) -> list[str]:
        """What could not be written, in sentences, each once."""
        return list(self._notes)

    def place(self, schema: object, description: str = "", depth: int = _AROUND) -> Any:
        """The place of one schema in what is being written. `finish` fills it."""
        if isinstance(schema, bool):
            return schema
        said = dict[str, Any]()
        self._left -= _PLACE
        self._waiting.append(_SchemaPlace(schema if is_object(schema) else {}, said, depth, description))
        return said

    def finish(self) -> Raw:
        """Write all schemas that have a place. Returns the `$defs` that they refer to."""
        while self._waiting:
            self._fill(self._waiting.popleft())
        for said in self._exact if self._is_short else ():
            _loosen(said)
        return dict(sorted(self._definitions.items()))

    # -- one schema --

    def _fill(self, place: _SchemaPlace) -> None:
        schema, said, depth, description = place
        if self._is_full or depth > _DEEPEST:
            self._shorten()
            said["description"] = LEFT_OUT
        elif self._files and is_file(self._root, schema):
            said.update(file_schema(cut(description or text(schema, "description"))))
            self._left -= _FILE_BRACKETS
        else:
            self._left += _PLACE - _BRACKET
            self._describe(schema, said, depth)
            if description:
                said["description"] = cut(description)
                self._left -= len(description)

    def _describe(self, schema: Raw, said: Raw, depth: int) -> None:
        is_nullable = schema.get("nullable") is True or schema.get("x-nullable") is True
        depth += 2 if is_nullable else 0
        self._is_open = False
        if isinstance(reference := schema.get("$ref"), str) and (name := self._name(reference)):
            said["$ref"] = f"#/$defs/{name}"
            self._left -= len(name) + _PLACE
        for keyword in schema if len(schema) <= _KEYWORDS else sorted(_KNOWN & schema.keys()):
            self._write(said, keyword, schema, depth)
        if self._is_open:
            said.pop("additionalProperties", None)
        _mend(said, schema)
        inner = _or_null(said) if is_nullable else said
        if not _EXACT.isdisjoint(inner):
            self._exact.append(inner)

    def _write(self, said: Raw, keyword: str, schema: Raw, depth: int) -> None:
        value = schema[keyword]
        if keyword in _PLAIN:
            self._write_plain(said, keyword, schema)
        elif keyword in _NAMED and is_object(value):
            said[keyword] = dict(self._named(keyword, value, depth + 2))
        elif (keyword in _MANY or keyword == "items") and is_array(value) and value:
            name = "prefixItems" if keyword == "items" else keyword
            said[name] = list(self._many(value, depth + 2))
        elif keyword in _ONE and isinstance(value, dict | bool):
            said[keyword] = self.place(cast("Any", value), depth=depth + 1)

    def _write_plain(self, said: Raw, keyword: str, schema: Raw) -> None:
        value = schema[keyword]
        if keyword in _TEXTS and isinstance(value, str):
            value = cut(value)
        size = _size(value, self._left // 2)
        if size is None:
            self._shorten()
        elif _PLAIN[keyword](value):
            self._left -= len(keyword) + size
            said[keyword] = self._sent(cast("list[str]", value), schema) if keyword == "required" else value
        elif keyword == "pattern":
            self._is_short = True

    def _sent(self, required: list[str], schema: Raw) -> list[str]:
        known = schema.get("properties")
        if not is_object(known):
            return required
        return [name for name in required if not is_hidden(self._root, known.get(name), self._hides)]

    def _named(self, keyword: str, schemas: Raw, depth: int) -> Iterator[tuple[str, Any]]:
        self._left -= _BRACKET
        least = self._left // 2  # for all others
        for key, each in schemas.items():
            name = str(key)
            if self._left <= least or len(name) > self._left:
                self._shorten()
                self._is_open = True
                return
            if keyword == "patternProperties" and not _is_pattern(name):
                self._is_short = self._is_open = True
            elif keyword == "properties" and is_hidden(self._root, each, self._hides):
                self._left -= 1  # to look at it is work, too
            else:
                self._left -= _length(name)
                yield name, self.place(each, depth=depth)

    def _many(self, schemas: Sequence[Any], depth: int) -> Iterator[Any]:
        self._left -= _BRACKET
        least = self._left // 2
        for each in schemas:
            if self._left <= least:
                self._shorten()
                yield {"description": LEFT_OUT}  # in the place of all others
                return
            yield self.place(each, depth=depth)

    # -- what it names --

    def _name(self, reference: str) -> str:
        """The name in `$defs` of what is referred to; empty when there is no such thing."""
        if reference in self._references:
            return self._references[reference]
        try:
            schema = at(self._root, reference)
        except BrokenReference as problem:
            self._is_short = True
            self._notes.setdefault(f"Part of its schema is not described: the reference {problem}.")
            return ""
        last = unquote(reference.rpartition("/")[2]).replace("~1", "/")
        name = self._names.new(_UNSUITED.sub("_", last).strip("_") or "schema")
        self._references[reference] = name
        self._left -= len(name)
        self._definitions[name] = self.place(schema)
        return name

    # -- the bound --

    @property
    def _is_full(self) -> bool:
        return self._left <= 0

    def _shorten(self) -> None:
        self._is_short = True
        self._notes.setdefault("Its schema is too large, and what is beyond the bounds is not described.")


def cut(text: str) -> str:
    """A description as a tool may show it."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _length(text: str) -> int:
    return len(text) + _BRACKET * (text.count("{") + text.count("["))


def _size(value: Any, most: int) -> int | None:
    """The bytes of a value as JSON, as the bound counts them; None for one that has more than `most`, or that cannot
    be in a tool. It is not looked through further than `most`."""
    seen, level = 0, [value]
    for _ in range(_WITHIN):
        inner = list[Any]()
        for each in level:
            seen += len(cast("str", each)) if isinstance(each, str | list | dict) else 1
            if seen > most:
                return None
            if isinstance(each, dict):
                inner += cast("Raw", each).keys()
                inner += cast("Raw", each).values()
            elif isinstance(each, list):
                inner += cast("list[Any]", each)
        if not inner:
            break
        level = inner
    else:
        return None
    try:
        data = encode(value)
    except (*UNWRITABLE, TypeError):
        return None
    size = max(len(data), _BRACKET * (data.count(b"{") + data.count(b"[")))
    return size if size <= most else None


# What refuses more if a schema in it refuses less, or if some of them are missing.
_EXACT: Final = frozenset({
    "else", "if", "maxContains", "not", "oneOf", "prefixItems", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip


def _loosen(said: Raw) -> None:
    """Let a schema refuse nothing that it would not refuse if all its parts were whole."""
    choices = said.pop("oneOf", None)
    if choices is not None and "anyOf" not in said:
        said["anyOf"] = choices
    if "prefixItems" in said:
        said.pop("items", None)
    for keyword in _EXACT - {"prefixItems"}:
        said.pop(keyword, None)


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
    """Let the schema allow null besides. Returns what has its keywords now."""
    kind = said.get("type")
    if "$ref" in said or kind is None:
        inner = {name: said.pop(name) for name in [*said] if name not in ("title", "description", "default")}
        if inner:
            said["anyOf"] = [inner, {"type": "null"}]
        return inner
    kinds = [kind] if isinstance(kind, str) else kind
    said["type"] = kinds if "null" in kinds else [*kinds, "null"]
    if isinstance(values := said.get("enum"), list) and None not in values:
        said["enum"] = [*values, None]
    return said


# ---- Objects whose properties are arguments of their own -------------------------------------------------------------


class Members:
    """The properties of an object, also where `allOf` puts it together: by name, what each of its parts says; and which
    are required."""

    def __init__(self) -> None:
        self.properties: dict[str, list[Any]] = {}
        self.required: dict[str, None] = {}


_CLOSED: Final = (None, False)  # what `additionalProperties` says of an object that has no others
_BINDING: Final = frozenset({
    "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "patternProperties", "then", "unevaluatedProperties",
})  # fmt: skip


def members(root: Raw, schema: object) -> Members | None:
    """The properties of an object, if its names are known and nothing but `allOf` joins them; else None, also where
    they are too many. Whether the object may be null is not told: whoever means that gives none of them."""
    found, waiting, seen = Members(), [schema], set[int]()
    while waiting:
        try:
            said = followed(root, waiting.pop())
        except BrokenReference:
            return None
        if not is_object(said) or not _is_plain_object(said):
            return None
        if id(said) in seen:
            continue
        seen.add(id(said))
        parts, properties = said.get("allOf"), cast("Raw", said.get("properties") or {})
        waiting += reversed(array_or_empty(parts))
        if max(len(waiting), len(seen)) > _PARTS or len(properties) + len(found.properties) > PROPERTIES:
            return None
        for name, each in properties.items():
            found.properties.setdefault(name, []).append(each)
        required = said.get("required")
        found.required |= dict.fromkeys(cast("list[str]", required) if _is_names(required) else ())
    return found if found.properties else None


def _is_plain_object(said: Raw) -> bool:
    kind, properties, parts = said.get("type"), said.get("properties"), said.get("allOf")
    if kind not in ("object", None, ["object", "null"]) or said.get("additionalProperties") not in _CLOSED:
        return False
    if properties is not None and not is_object(properties):
        return False
    if kind is None and not properties and not is_array(parts) and "required" not in said:
        return False
    return _BINDING.isdisjoint(said)


def says_nothing(root: Raw, schema: object) -> bool:
    """Whether a schema is that of an object which has no property, and says so."""
    try:
        said = followed(root, schema)
    except BrokenReference:
        return False
    return is_object(said) and said.get("properties") == {} and _is_plain_object({**said, "type": "object"})
