"""Tools as a model's API takes them: names, schemas, and the way back from a model's arguments to the tool's own.

An API refuses the whole request for one tool that it cannot take, so everything that one might send is fitted here.

* *Names* have 64 characters at most, of the kinds that every API takes. (Anthropic takes 128 in a definition, but 64
  where its tool search refers to a tool; Gemini 128, OpenAI 64.) A name that has to be changed ends with a hash of
  itself: so it does not depend on which other tools there are, and two names never become one.
* *The schema of a tool* has no `anyOf`, `oneOf`, `allOf`, `not`, `enum` or conditions at its top: their branches become
  parameters, and what they said stands in words in the description. References lead to definitions at the top, or they
  are words. Gemini gets no keyword that its `parametersJsonSchema` does not list, and no circle through required
  parameters; Anthropic no name of a parameter that it refuses. What is no JSON Schema 2020-12 was mended before
  (`catalogue.schema_keywords`).
* *Strict* schemas are for decoding that cannot break them. A schema is either put into that subset or it is not strict:
  what only narrows a value (`minLength`) goes to the description, and the server checks it anyway; what would change
  which values there are (a free-form object, a tuple, `not`) makes the tool one that is not strict. OpenAI wants every
  parameter required, so an optional one may be null there, and such a null is left out of the call again.

Where a rule comes from: OpenAI's guide to Structured Outputs (supported schemas, February 2026), the types of the SDKs
(openai 3.57, anthropic 2.14 with its `transform_schema`, google-genai 3.6 with its `response_json_schema`), and the
APIs' own errors for what no page says ("Property keys should match pattern", "at the top level").
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import attrs

from .errors import UsageError
from .model_calls import FORMATS, Format, ToolCall

Schema = dict[str, Any]
_MOST: Final = 64  # characters of a name
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # what all of them take
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # Anthropic's, of a parameter
_HASH: Final = 8
_NOTHING: Final[Mapping[str, str]] = {}


class DescribedTool(Protocol):
    """A tool of a room: a `Target` of the catalogue, a room above this one."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def record(self) -> Mapping[str, Any]: ...
    def schema(self) -> Schema: ...


@attrs.frozen
class FittedTool:
    """One tool as an API takes it. `own_name` is the tool's, `own_schema` its schema with nothing but parameters at the
    top, `keys` the names of parameters that were changed, each with its own."""

    name: str
    own_name: str
    own_schema: Schema
    definition: dict[str, Any]
    is_strict: bool = False
    keys: Mapping[str, str] = _NOTHING

    def own_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A model's arguments as the tool's server takes them."""
        named = {self.keys.get(key, key): value for key, value in arguments.items()}
        if not self.is_strict:
            return named
        return cast("dict[str, Any]", _Nulls(self.own_schema).left_out(named, self.own_schema))


def fit_tools(
    tools: Iterable[DescribedTool], format: Format, *, strict: bool = False, defer_loading: bool = False
) -> list[FittedTool]:
    """The tools as this API takes them. Raises `UsageError` for another format, and for what the API does not have."""
    if format not in FORMATS:
        raise UsageError(f'"{format}" is not a format of tools. There are: {", ".join(FORMATS)}.')
    if strict and format in ("gemini", "mcp"):
        raise UsageError(f'Tools of "{format}" are never strict: leave `strict` out.')
    if defer_loading and format not in ("anthropic", "openai-responses"):
        raise UsageError(f'Tools of "{format}" cannot be loaded later: leave `defer_loading` out.')
    return [_fit(tool, format, strict, defer_loading) for tool in tools]


def own_call(call: ToolCall, tools: Mapping[str, FittedTool]) -> ToolCall:
    """A model's call as the room takes it. `tools`: by the names that the model has."""
    tool = tools.get(call.name)
    if tool is None:
        return call
    return attrs.evolve(call, name=tool.own_name, arguments=tool.own_arguments(call.arguments))


def _fit(tool: DescribedTool, format: Format, strict: bool, defer_loading: bool) -> FittedTool:
    own = tool.schema()
    if format == "mcp":
        definition = {**tool.record, "name": tool.name, "inputSchema": own}
        return FittedTool(tool.name, tool.name, own, definition)
    name = fitted_name(tool.name)
    own = flat_root(local_schema(own))
    keys, schema = _NOTHING, own
    if format == "anthropic":
        keys, schema = _with_keys(schema)
    fitted: Schema | None = None
    if format == "gemini":
        schema = without_required_circles(gemini_schema(schema))
    elif strict:
        fitted = strict_schema(schema, OPENAI if format.startswith("openai") else ANTHROPIC)
    definition = _define(format, name, tool.description, fitted or schema, fitted is not None)
    if defer_loading:
        definition["defer_loading"] = True
    return FittedTool(name, tool.name, own, definition, fitted is not None, keys)


def _define(format: Format, name: str, description: str, schema: Schema, is_strict: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"name": name, "description": description}
    if format == "openai":
        function = {**about, "parameters": schema, **({"strict": True} if is_strict else {})}
        return {"type": "function", "function": function}
    if format == "openai-responses":  # where not to say whether it is strict means that it is
        return {"type": "function", **about, "parameters": schema, "strict": is_strict}
    if format == "gemini":
        return {**about, "parametersJsonSchema": schema}
    return {**about, "input_schema": schema, **({"strict": True} if is_strict else {})}


# ---- names -----------------------------------------------------------------------------------------------------------
def fitted_name(name: str) -> str:
    """The name, if every API takes it; else one that they take, which no other name becomes."""
    return name if _NAME.fullmatch(name) and not _ends_with_hash(name) else _hashed(name, name)


def _ends_with_hash(name: str) -> bool:
    """Whether it looks like a name of ours, so that it might be that of another tool."""
    return len(name) == _MOST and re.search(rf"_[0-9a-f]{{{_HASH}}}$", name) is not None


def _hashed(name: str, what: str, letters: str = "A-Za-z0-9_-") -> str:
    plain = re.sub(rf"[^{letters}]", "_", name)
    plain = plain if re.match("[A-Za-z_]", plain) else f"_{plain}"
    mark = hashlib.sha256(what.encode(errors="surrogatepass")).hexdigest()[:_HASH]
    return f"{plain[: _MOST - _HASH - 1]}_{mark}"


def _with_keys(schema: Schema) -> tuple[Mapping[str, str], Schema]:
    """The same schema with the names of parameters that Anthropic takes; and which own names they stand for."""
    properties = cast("Schema", schema["properties"])
    wrong = {key for key in properties if not _KEY.fullmatch(key)}
    if not wrong:
        return _NOTHING, schema
    given = {key: _hashed(key, key, "A-Za-z0-9_.-") for key in properties if key in wrong}
    renamed = {given.get(key, key): value for key, value in properties.items()}
    said = {given[key]: key for key in given}
    for new, own in said.items():
        renamed[new] = _with_notes(renamed[new], f"its own name is {own[:200]}")
    more = {"required": [given.get(key, key) for key in schema["required"]]} if "required" in schema else {}
    return said, {**schema, "properties": renamed, **more}


# ---- references, and what is said without them -----------------------------------------------------------------------
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SEVERAL: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedProperties", "unevaluatedItems", "contentSchema",
)  # fmt: skip
_DRAFT: Final = ("$schema", "$id", "$anchor", "$dynamicAnchor", "$vocabulary", "$recursiveAnchor")


def local_schema(schema: Schema) -> Schema:
    """The schema with every definition under `$defs` at its top, under a name that all take, and every reference to one
    of these or to the whole (`#`). What leads elsewhere allows anything, and the description says what it was. Nothing
    of it names a draft: APIs check it as 2020-12. A tuple says in `items` what comes behind it: anything, and when it
    has an end, that is a bound."""
    return _LocalSchema(schema).whole()


class _LocalSchema:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # by reference
        self._defs: Schema = {}
        self._left: list[str] = []  # the references whose definitions are still to be written

    def whole(self) -> Schema:
        for kind in ("$defs", "definitions"):
            known = self._root.get(kind)
            for name, each in cast("Schema", known).items() if isinstance(known, dict) else ():
                if isinstance(each, dict):
                    self._named(f"#/{kind}/{name.replace('~', '~0').replace('/', '~1')}")
        found = self._of({k: v for k, v in self._root.items() if k not in ("$defs", "definitions")})
        while self._left:
            reference = self._left.pop()
            self._defs[self._names[reference]] = self._of(_resolved(reference, self._root))
        return {**found, "$defs": self._defs} if self._defs else found

    def _named(self, reference: str) -> str:
        """The name of what a reference within the schema leads to."""
        name = self._names.get(reference)
        if name is None:
            last = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])[:_MOST] or "schema"
            taken = self._names.values()
            name = last if last not in taken else _hashed(last, reference, "A-Za-z0-9_.-")
            self._names[reference] = name
            self._left.append(reference)
        return name

    def _of(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        said = {key: each for key, each in cast("Schema", schema).items() if key not in _DRAFT}
        for key in _MAPS:
            inner = said.get(key)
            if isinstance(inner, dict):
                if key in ("$defs", "definitions"):  # whoever refers to one brings it to the top
                    del said[key]
                else:
                    said[key] = {name: self._of(each) for name, each in cast("Schema", inner).items()}
        for key in _SEVERAL:
            if isinstance(said.get(key), list):
                said[key] = [self._of(each) for each in said[key]]
        for key in _SINGLE:
            if key in said:
                said[key] = self._of(said[key])
        return self._referring(_open_tuple(said))

    def _referring(self, said: Schema) -> Schema:
        said = {
            ("$ref" if key in ("$dynamicRef", "$recursiveRef") else key): each for key, each in said.items()
        }
        reference = said.get("$ref")
        if reference is None or reference == "#":
            return said
        beside = {key: each for key, each in said.items() if key != "$ref"}
        target = self._end_of(reference)
        if target is None:
            return cast("Schema", _with_notes(beside, f"as {_short(reference)}"))
        if target == "#":
            return {**said, "$ref": target}
        found = _resolved(target, self._root)
        if isinstance(found, bool):
            return beside if found else {**beside, "not": {}}
        return {**said, "$ref": f"#/$defs/{self._named(target)}"}

    def _end_of(self, reference: Any) -> str | None:
        """Where a reference leads to; None: to no schema, elsewhere, or in a circle of nothing but references."""
        seen = set[str]()
        while isinstance(reference, str) and reference.startswith("#") and reference not in seen:
            seen.add(reference)
            target = _resolved(reference, self._root)
            if not isinstance(target, dict):
                return reference if isinstance(target, bool) else None
            inner = cast("Schema", target)
            if reference == "#" or inner.keys() != {"$ref"}:
                return reference
            reference = inner["$ref"]
        return None


def _open_tuple(said: Schema) -> Schema:
    first = said.get("prefixItems")
    if not isinstance(first, list) or isinstance(said.get("items"), dict):
        return said
    size, most = len(cast("list[Any]", first)), said.get("maxItems")
    end = (
        {"maxItems": min(size, most) if isinstance(most, int) else size} if said.get("items") is False else {}
    )
    return {**said, "items": {}, **end}


# ---- the top of a schema ---------------------------------------------------------------------------------------------
_CONDITIONS: Final = ("not", "if", "then", "else", "enum", "const")
_DEEP: Final = 32  # references of references that are followed
_BRANCHES: Final = (
    1000  # that are followed at the top of one tool: a few lines of references can mean billions
)


def flat_root(schema: Schema) -> Schema:
    """The schema as an object with parameters, and nothing else at its top. What branches and conditions said beside
    stands in its description."""
    branches = iter(range(_BRANCHES))
    flat, notes = _flat(schema, schema, 0, branches)
    if next(branches, None) is None:
        flat.pop("additionalProperties", None)
        notes.append("there may be parameters that are not listed: the schema has too many branches")
    for key in _CONDITIONS:
        if key in flat:
            notes.append(f"{key}: {_short(flat.pop(key))}")
    properties = flat.pop("properties", None)
    known = cast("Schema", properties) if isinstance(properties, dict) else {}
    required = list(dict.fromkeys(key for key in _required(flat) if key in known))
    flat = {**flat, "type": "object", "properties": known, "required": required}
    if not required:
        del flat["required"]
    return cast("Schema", _with_notes(flat, *notes))


def _flat(schema: Schema, root: Schema, depth: int, left: Iterator[int]) -> tuple[Schema, list[str]]:
    flat, notes = dict(schema), list[str]()
    if "$ref" in flat:
        target = _resolved(flat.pop("$ref"), root)
        if isinstance(target, dict) and depth < _DEEP:
            inner, notes = _flat(cast("Schema", target), root, depth + 1, left)
            flat = _merged({key: value for key, value in inner.items() if key != "$defs"}, flat)
    for key in ("allOf", "anyOf", "oneOf"):
        branches = flat.pop(key, None)
        if not isinstance(branches, list) or depth >= _DEEP:
            continue
        found = [cast("Schema", each) for each in cast("list[Any]", branches) if isinstance(each, dict)]
        inner = [_flat(each, root, depth + 1, left) for each in found if next(left, None) is not None]
        for _, more in inner:
            notes += more
        parts = [part for part, _ in inner]
        for part in parts:
            always = key == "allOf"
            flat = _merged(flat, part if always else {k: v for k, v in part.items() if k == "properties"})
        if key != "allOf" and parts:
            notes += _either(parts, flat)
    return flat, notes


def _either(parts: Sequence[Schema], flat: Schema) -> list[str]:
    """What is required in every branch is required; the rest is said."""
    needs = [_required(part) for part in parts]
    everywhere = [key for key in needs[0] if all(key in each for each in needs)]
    if everywhere:
        flat["required"] = list(dict.fromkeys([*_required(flat), *everywhere]))
    ways = [" and ".join(key for key in each if key not in everywhere) for each in needs]
    known = list(dict.fromkeys(way for way in ways if way))
    return [f"give one of these: {'; '.join(known)}"] if len(known) > 1 else []


def _required(schema: Schema) -> list[str]:
    said = schema.get("required")
    return [key for key in cast("list[Any]", said) if isinstance(key, str)] if isinstance(said, list) else []


def _merged(one: Schema, other: Schema) -> Schema:
    """Both schemas of objects in one: a parameter that both have is either."""
    merged = {**one, **{key: value for key, value in other.items() if key not in one or key == "type"}}
    ours, theirs = one.get("properties"), other.get("properties")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        properties: Schema = {**cast("Schema", ours)}
        for key, value in cast("Schema", theirs).items():
            known = properties.get(key, value)
            properties[key] = value if known == value else {"anyOf": [known, value]}
        merged["properties"] = properties
    if "required" in one or "required" in other:
        merged["required"] = list(dict.fromkeys([*_required(one), *_required(other)]))
    return merged


def _resolved(reference: Any, root: Schema) -> Any:
    """What a reference inside of this schema points to; None when it points elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Schema", found).get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(key)]
        else:
            return None
    return found


def _with_notes(schema: Any, *notes: str) -> Any:
    """The schema with these notes in its description."""
    if not notes or not isinstance(schema, dict):
        return schema
    said = cast("Schema", schema)
    old = said.get("description")
    text = f"({'; '.join(notes)})"
    return {**said, "description": f"{old} {text}" if isinstance(old, str) and old else text}


def _short(value: Any) -> str:
    said = str(value)
    return said if len(said) <= 200 else f"{said[:199]}…"


# ---- strict ----------------------------------------------------------------------------------------------------------
@attrs.frozen
class StrictRules:
    """What an API takes in a strict schema, by the types of values. `everything_required`: of each object."""

    kept: Mapping[str, frozenset[str]]
    formats: frozenset[str]
    everything_required: bool
    recursion: bool
    depth: int
    properties: int
    letters: int
    enums: int


_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
OPENAI: Final = StrictRules(
    {
        "string": frozenset({"pattern"}),
        "number": _NUMBERS,
        "integer": _NUMBERS,
        "array": frozenset({"minItems", "maxItems"}),
    },
    _FORMATS, True, True, depth=10, properties=5000, letters=120_000, enums=1000,
)  # fmt: skip
ANTHROPIC: Final = StrictRules(
    {}, _FORMATS | {"uri"}, False, False, depth=_DEEP, properties=5000, letters=120_000, enums=1000
)
_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
# What a schema with one of these means cannot be said in the subset.
_BEYOND: Final = frozenset({
    "not", "if", "then", "else", "patternProperties", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "prefixItems", "additionalItems",
    "$dynamicRef", "$recursiveRef",
})  # fmt: skip
_UNSAID: Final = frozenset(
    {"title", "examples", "example", "deprecated", "readOnly", "writeOnly", "nullable"}
)


class _NotStrictError(Exception):
    """This schema cannot be put into the subset."""


def strict_schema(schema: Schema, rules: StrictRules) -> Schema | None:
    """The schema of a tool's arguments in the subset of strict decoding. None: it cannot be put into it."""
    try:
        strict = _StrictSchema(schema, rules)
        return strict.fitted()
    except (_NotStrictError, RecursionError):
        return None


class _StrictSchema:
    """One schema on its way into the subset."""

    def __init__(self, root: Schema, rules: StrictRules) -> None:
        self._root, self._rules = root, rules
        self._defs: dict[str, Any] = {}
        self._inside: list[str] = []  # the definitions that are being fitted, for finding cycles
        self._properties = self._letters = self._enums = 0

    def fitted(self) -> Schema:
        top = {key: value for key, value in self._root.items() if key not in ("$defs", "definitions")}
        fitted = self._object(top, top, 1, is_root=True)
        return {**fitted, "$defs": self._defs} if self._defs else fitted

    def _any(self, node: Any, depth: int) -> Schema:
        if not isinstance(node, Mapping) or depth > self._rules.depth:
            raise _NotStrictError
        said = dict(cast("Mapping[str, Any]", node))
        if _BEYOND & said.keys():
            raise _NotStrictError
        if "$ref" in said:
            return self._reference(said)
        all_of = said.pop("allOf", None)
        if all_of is not None:
            if not isinstance(all_of, list) or len(cast("list[Any]", all_of)) != 1:
                raise _NotStrictError
            [only] = cast("list[Any]", all_of)
            if not isinstance(only, dict) or said.keys() & cast("Schema", only).keys() - {
                "description",
                "title",
            }:
                raise _NotStrictError
            return self._any({**cast("Schema", only), **said}, depth)
        for key in ("anyOf", "oneOf"):
            if key in said:
                return self._union(said.pop(key), said, depth)
        if "enum" in said or "const" in said:
            return self._values(said)
        kinds = said.get("type")
        if isinstance(kinds, list):
            alone = [{**said, "type": kind} for kind in cast("list[Any]", kinds)]
            return self._union([_of_its_type(one) for one in alone], _about(said), depth)
        if kinds not in _TYPES:
            raise _NotStrictError
        if kinds == "object":
            return self._object(said, said, depth)
        return self._array(said, depth) if kinds == "array" else self._kept(said, {"type": kinds})

    def _reference(self, said: Schema) -> Schema:
        reference = said.pop("$ref")
        found = (
            re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", reference)
            if isinstance(reference, str)
            else None
        )
        if reference == "#" and self._rules.recursion:
            plain: Schema = {"$ref": "#"}
        elif found is None:
            raise _NotStrictError
        else:
            name = found[2]
            self._define(name, _resolved(reference, self._root))
            plain = {"$ref": f"#/$defs/{name}"}
        return plain if not said else self._kept(said, {"anyOf": [plain]})

    def _define(self, name: str, target: Any) -> None:
        if name in self._inside and not self._rules.recursion:
            raise _NotStrictError
        if name in self._defs:
            return
        self._letters += len(name)
        self._defs[name] = None  # until it is known
        self._inside.append(name)
        self._defs[name] = self._any(target, 2)
        self._inside.pop()

    def _union(self, branches: Any, said: Schema, depth: int) -> Schema:
        if not isinstance(branches, list) or not branches:
            raise _NotStrictError
        kind = said.pop("type", None)
        if {"properties", "required", "items", "enum", "const", "additionalProperties"} & said.keys():
            raise _NotStrictError
        typed = [
            {"type": kind, **cast("Schema", each)} if kind is not None and isinstance(each, dict) else each
            for each in cast("list[Any]", branches)
        ]
        return self._kept(said, {"anyOf": [self._any(each, depth) for each in typed]})

    def _values(self, said: Schema) -> Schema:
        values = [said.pop("const")] if "const" in said else said.pop("enum")
        said.pop("enum", None)
        said.pop("type", None)
        if not isinstance(values, list) or not values:
            raise _NotStrictError
        by_type: dict[str, list[Any]] = {}
        known = cast("list[Any]", values)
        for value in known:
            by_type.setdefault(_type_of(value), []).append(value)
        if by_type.keys() & {"object", "array"}:
            raise _NotStrictError
        self._enums += len(known)
        strings = by_type.get("string", [])
        size = sum(len(str(each)) for each in strings)
        self._letters += size
        if self._enums > self._rules.enums or (len(strings) > 250 and size > 15_000):
            raise _NotStrictError
        parts = [_of_values(kind, each) for kind, each in by_type.items()]
        return self._kept(said, parts[0] if len(parts) == 1 else {"anyOf": parts})

    def _object(self, node: Schema, said: Schema, depth: int, *, is_root: bool = False) -> Schema:
        known, open_ended = _properties(node), node.get("additionalProperties", False)
        if is_root and _BEYOND & said.keys():
            raise _NotStrictError
        if open_ended is not False or not (known or is_root or "additionalProperties" in node):
            raise _NotStrictError  # free-form: its keys are not known
        required = _required(node)
        if any(key not in known for key in required):
            raise _NotStrictError
        self._properties += len(known)
        self._letters += sum(map(len, known))
        fitted: Schema = {}
        for key, value in known.items():
            inner = self._any(value, depth + 1)
            if self._rules.everything_required and key not in required and not allows_null(value, self._root):
                inner = _nullable(inner)
            fitted[key] = inner
        if self._properties > self._rules.properties or self._letters > self._rules.letters:
            raise _NotStrictError
        return self._kept(
            {
                k: v
                for k, v in said.items()
                if k not in ("properties", "required", "additionalProperties", "type")
            },
            {
                "type": "object",
                "properties": fitted,
                "required": list(known) if self._rules.everything_required else list(dict.fromkeys(required)),
                "additionalProperties": False,
            },
        )

    def _array(self, said: Schema, depth: int) -> Schema:
        items = said.pop("items", None)
        fitted: Schema = {"type": "array", "items": self._any(items, depth + 1)}
        if not self._rules.recursion and said.get("minItems") in (0, 1):  # Anthropic takes no other
            fitted["minItems"] = said.pop("minItems")
        return self._kept(said, fitted)

    def _kept(self, said: Schema, fitted: Schema) -> Schema:
        """What was fitted, with what else may be said. What may not goes to the description."""
        kind = str(fitted.get("type"))
        keeps, notes = self._rules.kept.get(kind, frozenset()), list[str]()
        description = said.get("description")
        if isinstance(description, str) and description:
            fitted["description"] = description
        for key, value in said.items():
            if key in ("description", "type") or key in _UNSAID or key.startswith(("$", "x-")):
                continue
            if key in keeps or (key == "format" and kind == "string" and value in self._rules.formats):
                fitted[key] = value
            elif not (key == "default" and value is None):
                notes.append(f"{key}: {_short(value)}")
        return cast("Schema", _with_notes(fitted, *notes))


_OF_A_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": _NUMBERS,
    "integer": _NUMBERS,
}
_ALL_OF_TYPES: Final = frozenset[str]().union(*_OF_A_TYPE.values())


def _of_values(kind: str, values: list[Any]) -> Schema:
    return {"type": kind} if kind == "null" else {"type": kind, "enum": values}


def _of_its_type(said: Schema) -> Schema:
    """Only what says something about values of this one type."""
    kept = _OF_A_TYPE.get(str(said["type"]), frozenset())
    return {key: value for key, value in said.items() if key == "type" or key in kept}


def _about(said: Schema) -> Schema:
    """What says something about values of every type."""
    return {key: value for key, value in said.items() if key not in _ALL_OF_TYPES and key != "type"}


def _type_of(value: Any) -> str:
    kinds: dict[Any, str] = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        dict: "object",
        list: "array",
    }
    return "null" if value is None else kinds.get(type(value), "object")


def _nullable(schema: Schema) -> Schema:
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return schema if kind == "null" else {**schema, "type": [kind, "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    about = {"description": schema["description"]} if "description" in schema else {}
    inner = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [inner, {"type": "null"}], **about}


def allows_null(schema: Any, root: Schema, known: dict[str, bool] | None = None) -> bool:
    """Whether null is a value of this schema, as far as it can be told. `known`: the references that were followed."""
    if not isinstance(schema, Mapping):
        return schema is True
    said, known = cast("Mapping[str, Any]", schema), {} if known is None else known
    if "$ref" in said and not _refers_to_null(said["$ref"], root, known):
        return False
    if "const" in said and said["const"] is not None:
        return False
    if isinstance(said.get("enum"), list) and None not in said["enum"]:
        return False
    kinds = said.get("type")
    if kinds is not None and kinds != "null" and not (isinstance(kinds, list) and "null" in kinds):
        return False
    for key, every in (("allOf", True), ("anyOf", False), ("oneOf", False)):
        branches = said.get(key)
        if isinstance(branches, list):
            found = [allows_null(each, root, known) for each in cast("list[Any]", branches)]
            if not (all(found) if every else any(found)):
                return False
    return True


def _refers_to_null(reference: Any, root: Schema, known: dict[str, bool]) -> bool:
    if not isinstance(reference, str):
        return False
    if reference not in known:
        known[reference] = False  # until it is known: so a circle ends
        known[reference] = allows_null(_resolved(reference, root), root, known)
    return known[reference]


class _Nulls:
    """The nulls in the arguments of one call that stand for parameters that were not given, by the schema of them.
    Which values are like which definitions is remembered: definitions may refer to the same ones so often that nobody
    could try all the ways."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._like: dict[tuple[int, str], bool] = {}  # by a value in the call, and a reference

    def left_out(self, value: Any, schema: Any) -> Any:
        said = _resolved_whole(schema, self._root)
        if said is None:
            return value
        for key in ("anyOf", "oneOf", "allOf"):
            for branch in _branches(said, key):
                if self.is_like(value, branch):
                    return self.left_out(value, branch)
        if isinstance(value, list):
            return [self.left_out(each, said.get("items")) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        properties, required = _properties(said), _required(said)
        return {
            key: self.left_out(each, properties.get(key))
            for key, each in cast("dict[str, Any]", value).items()
            if not self._is_unsaid(each, key, properties, required)
        }

    def is_like(self, value: Any, schema: Any) -> bool:
        """Whether a value is one of this schema in its strict form."""
        reference = cast("Schema", schema).get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return self._is_like(value, schema)
        asked = id(value), reference
        if asked not in self._like:
            self._like[asked] = False  # until it is known: so a circle ends
            self._like[asked] = self._is_like(value, schema)
        return self._like[asked]

    def _is_like(self, value: Any, schema: Any) -> bool:
        said = _resolved_whole(schema, self._root)
        if said is None:
            return False
        for key in ("anyOf", "oneOf", "allOf"):
            if key in said:
                return any(self.is_like(value, branch) for branch in _branches(said, key))
        if "const" in said or "enum" in said:
            known = [said["const"]] if "const" in said else said["enum"]
            return any(type(each) is type(value) and each == value for each in known)
        kinds, kind = said.get("type"), _type_of(value)
        taken = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
        if kind not in taken and not (kind == "integer" and "number" in taken):
            return False
        if isinstance(value, list):
            return all(self.is_like(each, said.get("items")) for each in cast("list[Any]", value))
        if not isinstance(value, dict):
            return True
        properties, required, given = _properties(said), _required(said), cast("dict[str, Any]", value)
        return given.keys() == properties.keys() and all(
            self._is_unsaid(each, key, properties, required) or self.is_like(each, properties[key])
            for key, each in given.items()
        )

    def _is_unsaid(self, value: Any, key: str, properties: Schema, required: list[str]) -> bool:
        is_optional = key in properties and key not in required
        return value is None and is_optional and not allows_null(properties[key], self._root)


def _branches(schema: Schema, key: str) -> list[Any]:
    """The schemas under this key, each with the type that stands beside them."""
    said = schema.get(key)
    beside: Schema = {"type": schema["type"]} if "type" in schema else {}
    found = cast("list[Any]", said) if isinstance(said, list) else []
    return [{**beside, **cast("Schema", each)} if isinstance(each, dict) else each for each in found]


def _properties(schema: Schema) -> Schema:
    said = schema.get("properties")
    return cast("Schema", said) if isinstance(said, dict) else {}


def _resolved_whole(schema: Any, root: Schema) -> Schema | None:
    """The schema that this one is in the end; None when it is none of an object's form."""
    for _ in range(_DEEP):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = _resolved(cast("Schema", schema)["$ref"], root)
    return cast("Schema", schema) if isinstance(schema, dict) else None


# ---- Gemini ----------------------------------------------------------------------------------------------------------
_GEMINI: Final = frozenset({
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
})  # fmt: skip
_OF_SCHEMAS: Final = ("anyOf", "oneOf", "prefixItems")


def gemini_schema(schema: Any) -> Any:
    """The schema with the keywords that Gemini's `parametersJsonSchema` takes. What the others say is in the
    description."""
    if not isinstance(schema, Mapping):
        return {}  # `true`, or what makes no sense
    said = dict(cast("Mapping[str, Any]", schema))
    if "const" in said:
        said.setdefault("enum", [said.pop("const")])
    all_of = said.pop("allOf", None)
    if isinstance(all_of, list):
        for part in cast("list[Any]", all_of):
            if isinstance(part, dict):
                said = _merged(said, cast("Schema", part))
    reference = said.pop("$ref", None)
    if isinstance(reference, str):
        plain = {"$ref": reference}
        if all(key.startswith("$") for key in said):
            said.update(plain)
        else:
            said.setdefault("anyOf", [plain])
    said = _ended_tuple(said)
    notes: list[str] = []
    enum = said.get("enum")
    if enum is not None and not _is_gemini_enum(enum):
        notes.append(f"one of {_short(said.pop('enum'))}")
    fitted: Schema = {}
    for key, value in said.items():
        if key not in _GEMINI:
            if not (key in _UNSAID or key.startswith(("$", "x-")) or (key == "default" and value is None)):
                notes.append(f"{key}: {_short(value)}")
        elif key in ("properties", "$defs"):
            inner = cast("Schema", value) if isinstance(value, dict) else {}
            fitted[key] = {name: gemini_schema(each) for name, each in inner.items() if each is not False}
        elif key == "required":  # what can have no value was left out above
            fitted[key] = [name for name in _required(said) if _properties(said).get(name) is not False]
        elif key in _OF_SCHEMAS:
            possible = [each for each in cast("list[Any]", value or ()) if each is not False]
            if possible:
                fitted[key] = [gemini_schema(each) for each in possible]
        elif key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
            fitted[key] = gemini_schema(value)
        else:
            fitted[key] = value
    return _with_notes(fitted, *notes)


def _ended_tuple(said: Schema) -> Schema:
    """A tuple ends where nothing can stand."""
    first = cast("list[Any]", said["prefixItems"]) if isinstance(said.get("prefixItems"), list) else []
    end = next((at for at, each in enumerate(first) if each is False), None)
    if end is None:
        return said
    most = said.get("maxItems")
    return {**said, "prefixItems": first[:end], "maxItems": min(end, most) if isinstance(most, int) else end}


def _is_gemini_enum(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, str | int | float) and not isinstance(value, bool)
        for value in cast("list[Any]", values)
    )


def without_required_circles(schema: Schema) -> Schema:
    """The same, with every circle of references below a parameter that is not required: Gemini unrolls circles, and
    takes them only there. One that no parameter is in the way of is cut."""
    known = schema.get("$defs")
    defs = cast("Schema", known) if isinstance(known, dict) else {}
    top = {key: value for key, value in schema.items() if key != "$defs"}
    nodes: Schema = {**{f"#/$defs/{name}": each for name, each in defs.items()}, "#": top}
    leads = {place: frozenset(_references_in(node)) for place, node in nodes.items()}
    if not any(leads.values()):
        return schema
    opened = {
        place: _Circles(frozenset(_back_to(place, leads))).opened(node) for place, node in nodes.items()
    }
    top = opened.pop("#")
    return {**top, "$defs": {name: opened[f"#/$defs/{name}"] for name in defs}} if defs else top


def _references_in(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in cast("list[Any]", node):
            yield from _references_in(each)
    elif isinstance(node, dict):
        for key, each in cast("Schema", node).items():
            if key == "$ref" and isinstance(each, str):
                yield each
            elif key != "enum":
                yield from _references_in(each)


def _back_to(place: str, leads: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """The references of this place from which one comes back to it."""
    for first in leads[place]:
        seen, rest = {first}, [first]
        while rest:
            here = rest.pop()
            if here == place:
                yield first
                break
            fresh = leads.get(here, frozenset()) - seen
            seen |= fresh
            rest += fresh


@attrs.frozen
class _Circles:
    """The circles through one definition. `closing`: the references that close one."""

    closing: frozenset[str]

    def opened(self, node: Any) -> Any:
        if not self.closing:
            return node
        found, is_closed = self._optional(node, cut=False)
        return self._optional(found, cut=True)[0] if is_closed else found

    def _optional(self, node: Any, *, cut: bool) -> tuple[Any, bool]:
        """The node, and whether a circle is in it that no optional parameter opens."""
        if not isinstance(node, dict):
            return node, False
        said = dict(cast("Schema", node))
        if said.get("$ref") in self.closing:
            return ({"description": f"(as {said['$ref']})"}, False) if cut else (said, True)
        is_closed = False
        properties, required = dict(_properties(said)), _required(said)
        for name in [name for name in required if name in properties]:
            properties[name], inner = self._optional(properties[name], cut=False)
            if inner:
                required.remove(name)
                said = _with_notes(said, f"required: {name}")
        if properties:
            said["properties"] = properties
        if "required" in said:
            said["required"] = required
        for key in ("items", "additionalProperties"):
            if key in said:
                said[key], inner = self._optional(said[key], cut=cut)
                is_closed |= inner
        for key in _OF_SCHEMAS:
            pairs = [self._optional(each, cut=cut) for each in said.get(key) or ()]
            if pairs:
                said[key] = [each for each, _ in pairs]
                is_closed |= any(inner for _, inner in pairs)
        return said, is_closed
