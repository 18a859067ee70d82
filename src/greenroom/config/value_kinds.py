"""Kinds of values: how one value of a configuration file becomes one value of the model.

A kind says its rule once, as a type. msgspec checks values against it, and makes of it the JSON Schema that an editor
reads. What is wrong with a value is said in our words, because msgspec's name neither the entry of an object nor what
to write instead: `_explained` looks for the smallest part that the type refuses, and says what its type wants.

Nothing is coerced. For a number in quotes, a `true` where a number belongs or a bare number in `env`, the message
says what to write instead. A guess that is right today is a server that starts differently tomorrow. Numbers have
a lower and an upper bound, so that no NaN, no infinity and no duration that overflows a clock is accepted.

Messages do not repeat a value, since it might be a secret in the wrong place. The exceptions are a number, and a key
that takes one of a few words.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct, UnsetType
from msgspec.structs import replace

from ..protocol.json_values import is_array, is_number, is_object
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.near_names import nearest
from .asked_values import KEYRING_ENTRY, of_keyring

LONGEST: Final = 1e9  # seconds: some thirty years; a longer duration is a slip
HEADER_NAME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what a header may be called
VALUE_NAME: Final = lazy_pattern(r"\w+")  # and a session's value, for which `${session.NAME}` stands
# What no process and no request can take: NUL, and half of a pair, which JSON can escape.
_UNUSABLE: Final = r"\0\ud800-\udfff"
_SITE: Final = (
    r"(?:https://[A-Za-z0-9.-]+|http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?(?:/[^\s?#]*)?"
)


# With half a character where a word is expected, it is the second.
_REFUSALS: Final = (msgspec.ValidationError, UnicodeError)


class BadValueError(ValueError):
    """What is wrong with a value, in words that follow its place. `inside`: the place within the value."""

    def __init__(self, what: str, *inside: str | int) -> None:
        super().__init__(what)
        self.what = what
        self.inside = inside


class ValueKind(msgspec.Struct, frozen=True):
    """One kind of value. `type`: what a file may say; its `Meta` has the rules and the words (`wanted`). `then` makes
    the value of the model from what msgspec has read. `scale`: how many units of the model make one `unit` of the file
    (minutes: 60). `part` reads the members of an object each by itself, and what is no object as a whole: what it
    refuses is left out alone."""

    type: Any
    unit: str
    then: Callable[[Any], Any] | None = None
    scale: float = 1
    part: Callable[[Any], Any] | None = None

    def read(self, value: Any, left_out: Callable[[BadValueError], object] | None = None) -> Any:
        """The value of the model. `left_out` is told of each part that is left out. Raises `BadValueError`, also
        for such a part if nobody is told."""
        try:
            read = msgspec.convert(value, self.type)
        except _REFUSALS:
            plain = _with_plain_numbers(value)
            if not _fits(plain, self.type):
                raise _explained(plain, self.type) from None
            read = msgspec.convert(plain, self.type)
        read = read if self.then is None else self.then(read)
        return read if self.part is None else self._in_parts(self.part, read, left_out or _raised)

    def _in_parts(
        self, part: Callable[[Any], Any], read: Any, left_out: Callable[[BadValueError], object]
    ) -> Any:
        found: dict[str, Any] = {}
        for name, said in read.items() if is_object(read) else [(None, read)]:
            try:
                if name is None:
                    return part(said)
                found[name] = part(said)
            except BadValueError as wrong:
                inside = () if name is None else (name,)
                left_out(BadValueError(f"{wrong.what}; it is left out", *inside, *wrong.inside))
        return found

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what a file may say."""
        schema = msgspec.json.schema(self.type)
        return _inlined(schema, schema.pop("$defs", {}))


def _raised(wrong: BadValueError) -> NoReturn:
    raise wrong


def _with_plain_numbers(value: Any) -> Any:
    """The value with each number of a subclass of float (NumPy has one) as a plain float, because msgspec takes no
    others."""
    if isinstance(value, float):
        return float(value)
    if is_object(value):
        return {key: _with_plain_numbers(each) for key, each in value.items()}
    return [_with_plain_numbers(each) for each in value] if is_array(value) else value


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema without references and without the names and docstrings of our types, which do not help whoever writes
    a file. Its patterns compile in JavaScript, RE2 and Python alike."""
    if is_array(schema):
        return [_inlined(each, definitions) for each in schema]
    if not is_object(schema):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    ours = {name for name in ("title", "description") if isinstance(schema.get(name), str)}
    inlined = {name: _inlined(each, definitions) for name, each in schema.items() if name not in ours}
    if isinstance(pattern := schema.get("pattern"), str):
        inlined["pattern"] = pattern.replace(_UNUSABLE, r"\x00").replace(r"\Z", "$")
    return inlined


# ---- what is wrong with a value ------------------------------------------------------------------------------------
def kind_of(value: Any) -> str:
    """The kind of a value in the terms of JSON: "a string", "null", "an object"."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "an array"
        case Mapping():
            return "an object"
        case _:
            return f"a Python {type(value).__name__}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "…"?`, or nothing when no known word is close."""
    near = nearest(word, known)
    return "" if near is None else f'; did you mean "{near}"?'


def unknown(word: str, known: Iterable[str], then: str) -> str:
    """`unknown key, did you mean "…"? It is ignored`. `then` says what happens with it."""
    hint = did_you_mean(word, known).removeprefix("; ")
    return f"unknown key, {hint} {then[0].upper()}{then[1:]}" if hint else f"unknown key: {then}"


def is_whole(text: str) -> bool:
    """Whether every character is whole. JSON can escape half of a pair, which no process and no request can take."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


class RefusalWords(msgspec.Struct, frozen=True):
    """The words about a value that a type refuses. `wanted` follows "must be"; `of_array` and `of_object` replace it
    for arrays and objects, and `refused` replaces all other words."""

    wanted: str = ""
    of_array: str = ""
    of_object: str = ""
    refused: str = ""


def _explained(value: Any, type_: Any, *inside: str | int) -> BadValueError:
    """Why msgspec refuses a value: the smallest part of it that is wrong, and what it must be."""
    if is_object(value) and (words := _words(type_).of_object):
        return BadValueError(words, *inside)
    for key, part, of in _parts(value, type_):
        if not _fits(part, of):
            return _explained(part, of, *inside, key)
    for struct in _structs(type_) if is_object(value) else ():
        names = struct.__struct_encode_fields__
        if unread := [str(key) for key in value if key not in names]:
            return BadValueError(unknown(unread[0], names, "it is not a key here"), *inside, unread[0])
        if missing := [name for name in names if name not in value]:
            return BadValueError(f'has no "{missing[0]}": add it', *inside)
    return BadValueError(_what(value, type_), *inside)


def _fits(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except _REFUSALS:
        return False
    return True


def _parts(value: Any, type_: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """The parts of a value, each with its key and its type."""
    members: Mapping[Any, Any] = value if is_object(value) else {}
    for option in _options(type_):
        origin, arguments = get_origin(option), get_args(option)
        if origin is tuple and is_array(value):
            yield from ((at, part, arguments[0]) for at, part in enumerate(value))
        elif origin is Mapping:
            for key, part in members.items():
                yield str(key), key, arguments[0]
                yield str(key), part, arguments[1]
    for struct in _structs(type_):
        types = get_type_hints(struct, include_extras=True)
        fields = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
        yield from ((name, members[name], types[field]) for name, field in fields if name in members)


def _opened(type_: Any) -> tuple[Any, Meta | None]:
    """A type without its rules, and these rules. A member that may be missing counts as present."""
    if get_origin(type_) in (Union, UnionType):
        said = [one for one in get_args(type_) if one not in (type(None), UnsetType)]
        return _opened(said[0]) if len(said) == 1 else (type_, None)
    return get_args(type_)[:2] if get_origin(type_) is Annotated else (type_, None)


def _options(type_: Any) -> list[Any]:
    """The types that a union consists of."""
    base, _ = _opened(type_)
    return [_opened(one)[0] for one in get_args(base)] if get_origin(base) in (Union, UnionType) else [base]


def _structs(type_: Any) -> list[type[Struct]]:
    return [one for one in _options(type_) if isinstance(one, type) and issubclass(one, Struct)]


def _words(type_: Any) -> RefusalWords:
    base, meta = _opened(type_)
    if meta is not None and meta.extra is not None:
        return meta.extra["words"]
    if choices := get_args(base) if get_origin(base) is Literal else _choices(base):
        return RefusalWords(f"one of {_either(_quoted(choices))}")
    return RefusalWords({bool: "true or false", str: "a string"}.get(base, "an object"))


def _what(value: Any, type_: Any) -> str:
    """What is wrong with the value itself, when none of its parts is wrong."""
    words, types = _words(type_), _options(type_)
    if words.refused:
        return words.refused
    if isinstance(value, str):
        choices = [choice for one in types for choice in _choices(one)]
        if choices and value.isprintable():
            return f'"{value[:40]}" is none of {", ".join(_quoted(choices))}{did_you_mean(value, choices)}'
        if any(get_origin(one) is Literal for one in types):
            return f"must be {words.wanted}"
        if str in types:
            return _what_of_text(value, words)
    if float in types and is_number(value):
        _, meta = _opened(type_)
        most = None if meta is None else meta.le
        if most is not None and value > most:
            return f"is too large, {most if isinstance(most, int) else f'{most:g}'} is the most"
        return f"must be {words.wanted}, is {_shown(value)}"
    return f"must be {words.wanted}, is {kind_of(value)}{_advice(value, types, words)}"


def _what_of_text(text: str, words: RefusalWords) -> str:
    if "\0" in text:
        return "holds a NUL character, which no program and no request can be given: take it out"
    if not is_whole(text):
        return "holds half of a character (a lone \\ud800…\\udfff escape): write all of it"
    if words.wanted == "a string":  # every other one is
        return "is empty: give it a value, or leave the key out"
    return f"must be {words.wanted}"


def _choices(base: Any) -> list[str]:
    return [each.value for each in base] if isinstance(base, type) and issubclass(base, enum.Enum) else []


def _advice(value: Any, types: Sequence[Any], words: RefusalWords) -> str:
    if is_array(value):
        return words.of_array
    if str in types and isinstance(value, int | float):  # also `true`, as YAML reads a bare word
        return ": put it in quotes"
    if float in types and isinstance(value, str) and value.strip().isdigit():
        return ": leave out the quotes"
    if bool in types and value in ("true", "false"):
        return ": leave out the quotes"
    if isinstance(value, str) and any(get_origin(one) is tuple for one in types):
        return ': write ["…"]'
    return ""


def _quoted(words: Iterable[str]) -> list[str]:
    return [f'"{each}"' for each in words]


def _either(choices: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]


def _shown(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "far out of range"


# ---- texts ---------------------------------------------------------------------------------------------------------
def wanted(words: str, *, of_array: str = "", of_object: str = "", **rules: Any) -> Meta:
    """Rules of a type that only say in words what a value must be."""
    return Meta(extra={"words": RefusalWords(words, of_array, of_object)}, **rules)


def matching(pattern: str, words: str, *, of_array: str = "") -> Meta:
    """The rule that a text matches `pattern` as a whole."""
    return wanted(words, of_array=of_array, pattern=_whole(pattern))


def name(pattern: str, refused: str) -> Meta:
    """The rule of a name in an object, and the words about a name that breaks it."""
    return Meta(extra={"words": RefusalWords(refused=refused)}, pattern=_whole(pattern))


def _whole(pattern: str) -> str:
    return rf"^(?:{pattern})\Z"  # `$` would let a line break follow


_ANY: Final = f"[^{_UNUSABLE}]*"
_FILLED: Final = rf"\s*[^\s{_UNUSABLE}]{_ANY}"  # matches in one way only, or a long text would take for ever
_NAME: Final = f"[^={_UNUSABLE}]+"
Item: TypeAlias = Annotated[str, matching(_ANY, "a string")]
Text: TypeAlias = Annotated[str, matching(_FILLED, "a string")]
Name: TypeAlias = Annotated[
    str,
    name(
        _NAME,
        "has a name that cannot be used: names are not empty and hold no '=', no NUL, no half character",
    ),
]
Texts: TypeAlias = Annotated[tuple[Item, ...], wanted("an array of strings")]
TextMap: TypeAlias = Annotated[Mapping[Name, Item], wanted("an object of strings")]


class _Keyring(Struct, forbid_unknown_fields=True):
    """A value that the system's keyring keeps."""

    keyring: Annotated[str, Meta(pattern=_whole(KEYRING_ENTRY))]


_OR_KEYRING: Final = wanted(
    "a string", of_object='must be a string, or {"keyring": "service/name"} and nothing else'
)
_Value: TypeAlias = Annotated[Item | _Keyring, _OR_KEYRING]


def _value(read: str | _Keyring) -> str:
    return read if isinstance(read, str) else of_keyring(read.keyring)


def _session_headers(read: Mapping[str, str]) -> Mapping[str, str]:
    seen: dict[str, str] = {}
    for header in read:
        if (first := seen.setdefault(header.lower(), header)) != header:
            raise BadValueError(f'is the header "{first}" again: take one of the two out', header)
    return read


TEXT: Final = ValueKind(Text, "string")
PROGRAM: Final = ValueKind(
    Annotated[
        str, matching(_FILLED, "a string", of_array=': put the program in "command" and the rest in "args"')
    ],
    "string",
)
SAFE_URL: Final = ValueKind(
    Annotated[str, matching(_SITE, "the URL of a site (https://…, or http:// of this machine)")], "URL"
)
SHA256: Final = ValueKind(
    Annotated[str, matching("(?:sha256:)?[0-9A-Fa-f]{64}", "a SHA-256 of 64 hexadecimal digits")],
    "string",
    lambda read: read.removeprefix("sha256:").lower(),
)
TEXTS: Final = ValueKind(Texts, "array of strings")
TEXT_MAP: Final = ValueKind(TextMap, "object of strings")
VALUE: Final = ValueKind(Annotated[Text | _Keyring, _OR_KEYRING], "string", _value)
VALUES: Final = ValueKind(
    Annotated[tuple[_Value, ...], wanted("an array of strings")],
    "array of strings",
    lambda read: tuple(map(_value, read)),
)
VALUE_MAP: Final = ValueKind(
    Annotated[Mapping[Name, _Value], wanted("an object of strings")],
    "object of strings",
    lambda read: {name: _value(one) for name, one in read.items()},
)
_Header: TypeAlias = Annotated[
    str, name(HEADER_NAME.pattern, "is not a name that a header may have: write letters, digits and hyphens")
]
_ValueName: TypeAlias = Annotated[
    str,
    matching(
        VALUE_NAME.pattern,
        'a name of letters, digits and underscores like "TOKEN" (the NAME of ${session.NAME})',
    ),
]
SESSION_HEADERS: Final = ValueKind(
    Annotated[Mapping[_Header, _ValueName], wanted("an object of strings")],
    "object of strings",
    _session_headers,
)


# ---- words ---------------------------------------------------------------------------------------------------------
FLAG: Final = ValueKind(bool, "true / false")
_CHOICE: Final = wanted("true, false or an array of names")
_Variable: TypeAlias = Annotated[
    str, matching(_NAME, 'a name or a pattern like "AWS_*" (values go into "env")')
]
MODEL: Final = ValueKind(
    Annotated[bool | Text, wanted("true, false or the path of a folder")], "true / false / path"
)
CHOICE: Final = ValueKind(Annotated[bool | tuple[Item, ...], _CHOICE], "true / false / array of strings")
ENVIRONMENT: Final = ValueKind(Annotated[bool | tuple[_Variable, ...], _CHOICE], CHOICE.unit)


def word(choices: type[enum.Enum]) -> ValueKind:
    """One of an enum's values."""
    return ValueKind(choices, " / ".join(f"`{member.value}`" for member in choices))


def word_or_names(choices: type[enum.Enum], yes: enum.Enum, no: enum.Enum) -> ValueKind:
    """One of an enum's values, or a list of names. `true` and `false` stand for `yes` and `no`."""
    words: list[str] = [member.value for member in choices]

    def then(read: enum.Enum | bool | tuple[str, ...]) -> enum.Enum | tuple[str, ...]:
        if isinstance(read, bool):
            return yes if read else no
        for position, name in enumerate(read if isinstance(read, tuple) else ()):
            if name in words:
                raise BadValueError(
                    f'"{name}" in a list is the name of a tool; write it without the list', position
                )
        return read

    kinds: Any = choices | bool | tuple[Item, ...]
    either = Annotated[kinds, wanted(_either([*_quoted(words), "an array of names"]))]
    return ValueKind(either, f"{word(choices).unit} / array of strings", then)


# ---- numbers -------------------------------------------------------------------------------------------------------
def number(unit: str, *, scale: float = 1, zero: bool = False, most: float = LONGEST) -> ValueKind:
    """A finite number of `unit`s above 0 (or from 0). Times `scale`, it is at most `most`."""
    words = f"a number{f' of {unit}' if unit else ''} {'from 0' if zero else 'above 0'}"
    rules = wanted(words, ge=0 if zero else None, gt=None if zero else 0, le=most / scale)
    return ValueKind(Annotated[float, rules], unit, lambda read: float(read * scale), scale)


def count(unit: str, *, least: int = 1, most: int = 2**40) -> ValueKind:
    """A whole number of `unit`s from `least` to `most`."""
    words = f"a whole number of {unit} from {least}"
    rules = wanted(words, ge=least, le=most, multiple_of=1)
    return ValueKind(Annotated[float, rules], unit, int)


MINUTES: Final = number("minutes", scale=60, zero=True)
SECONDS: Final = number("seconds")
MILLISECONDS: Final = number("milliseconds", scale=0.001)
MILLISECONDS_FROM_0: Final = number("milliseconds", scale=0.001, zero=True)
HOURS: Final = number("hours", scale=3_600)
DAYS: Final = number("days", scale=86_400)
FRACTION: Final = replace(number("", zero=True, most=1), unit="number")
