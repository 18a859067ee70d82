"""Readers: how one value of a configuration file becomes one value of the model.

A reader states one rule twice, side by side so that both stay equal. `read` turns a value of the file into a
value of the model, or raises `BadValueError` with words that follow "key …". `schema` tells an editor the same.

Nothing is coerced. For a number in quotes, a `true` where a number belongs or a bare number in `env`, the message
says what to write instead. A guess that is right today is a server that starts differently tomorrow. Numbers have
a lower and an upper bound, so that no NaN, no infinity and no duration that overflows a clock is accepted.

Messages do not repeat a value, since it might be a secret in the wrong place. The exception is a key that takes
one of a few words.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeGuard

import attrs

from ..protocol.near_names import nearest
from .references import HEADER_NAME, of_keyring

_SITE: Final = (
    r"(?:https://[A-Za-z0-9.-]+|http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{1,5})?(?:/[^\s?#]*)?"
)
LONGEST: Final = 1e9  # seconds: some thirty years; a longer duration is a slip


class BadValueError(ValueError):
    """What is wrong with a value, in words that follow its place. `inside`: the place within the value."""

    def __init__(self, what: str, *inside: str | int) -> None:
        super().__init__(what)
        self.what = what
        self.inside = inside


@attrs.frozen
class Reader:
    """One kind of value. `scale`: how many units of the model make one unit of the file (minutes: 60)."""

    read: Callable[[Any], Any]
    schema: Mapping[str, Any]
    unit: str = ""
    scale: float = 1


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


def is_object(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is an object in the sense of JSON."""
    return type(value) is dict or isinstance(value, Mapping)  # the second takes six times as long


def is_array(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is an array in the sense of JSON."""
    return isinstance(value, list | tuple)


# ---- texts -------------------------------------------------------------------------------------------------
def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValueError(f"must be a string, is {kind_of(value)}{_text_advice(value)}")
    if not value.strip():
        raise BadValueError("is empty: give it a value, or leave the key out")
    return _whole(value)


def is_whole(text: str) -> bool:
    """Whether every character is whole. JSON can escape half of a pair, which no process and no request can take."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _whole(text: str, *inside: str | int) -> str:
    if not is_whole(text):
        raise BadValueError(
            "holds half of a character (a lone \\ud800…\\udfff escape): write all of it", *inside
        )
    return text


def _read_safe_url(value: Any) -> str:
    text = _read_text(value)
    if re.fullmatch(_SITE, text) is None:
        raise BadValueError("must be the URL of a site: https://…, or http:// of this machine")
    return text


def _text_advice(value: Any) -> str:
    if isinstance(value, list):
        return ': put the program in "command" and the rest in "args"'
    return ""


def _read_item(value: Any, *inside: str | int) -> str:
    if isinstance(value, str):
        if "\0" in value:
            raise BadValueError("holds a NUL character, which no process can be given", *inside)
        return _whole(value, *inside)
    advice = ": put it in quotes" if isinstance(value, int | float) else ""
    raise BadValueError(f"must be a string, is {kind_of(value)}{advice}", *inside)


def _read_texts(value: Any) -> tuple[str, ...]:
    if not is_array(value):
        advice = ': write ["…"]' if isinstance(value, str) else ""
        raise BadValueError(f"must be an array of strings, is {kind_of(value)}{advice}")
    return tuple(_read_item(item, position) for position, item in enumerate(value))


def _read_text_map(value: Any) -> dict[str, str]:
    if not is_object(value):
        raise BadValueError(f"must be an object of strings, is {kind_of(value)}")
    return {_read_name(key): _read_item(item, str(key)) for key, item in value.items()}


def _read_name(key: Any) -> str:
    if not isinstance(key, str) or not key or "\0" in key or "=" in key or not is_whole(key):
        raise BadValueError(
            "has a name that cannot be used: names are not empty and hold no '=', no NUL, no half character",
            str(key),
        )
    return key


VALUE_NAME: Final = re.compile(r"\w+")
_SESSION: Final = re.compile(r"(?:\$\{)?session\.(\w+)\}?")


def _read_session_headers(value: Any) -> dict[str, str]:
    named = _read_text_map(value)
    seen: dict[str, str] = {}
    for header, name in named.items():
        if not HEADER_NAME.fullmatch(header):
            raise BadValueError(
                "is not a name that a header may have: write letters, digits and hyphens", header
            )
        if header.lower() in seen:
            raise BadValueError(
                f'is the header "{seen[header.lower()]}" again: take one of the two out', header
            )
        if not VALUE_NAME.fullmatch(name):
            meant = _SESSION.fullmatch(name)
            what = (
                f'write "{meant[1]}"'
                if meant
                else 'write letters, digits and underscores, such as "GITHUB_TOKEN"'
            )
            raise BadValueError(f"must be the NAME of ${{session.NAME}}: {what}", header)
        seen[header.lower()] = header
    return named


def _read_value(value: Any, *inside: str | int) -> str:
    """A text, or `{"keyring": "service/name"}`."""
    if not is_object(value):
        return _read_item(value, *inside)
    entry = value.get("keyring")
    if len(value) == 1 and isinstance(entry, str):
        with suppress(ValueError):
            return of_keyring(_read_item(entry, *inside))
    raise BadValueError('must be a string, or {"keyring": "service/name"} and nothing else', *inside)


def _read_values(value: Any) -> tuple[str, ...]:
    if not is_array(value):
        return _read_texts(value)
    return tuple(_read_value(item, position) for position, item in enumerate(value))


def _read_value_map(value: Any) -> dict[str, str]:
    if not is_object(value):
        return _read_text_map(value)
    return {_read_name(key): _read_value(item, str(key)) for key, item in value.items()}


TEXT: Final = Reader(_read_text, {"type": "string", "minLength": 1}, "text")
SAFE_URL: Final = Reader(_read_safe_url, {"type": "string", "pattern": f"^{_SITE}$"}, "URL")
TEXTS: Final = Reader(_read_texts, {"type": "array", "items": {"type": "string"}}, "list of texts")
TEXT_MAP: Final = Reader(
    _read_text_map, {"type": "object", "additionalProperties": {"type": "string"}}, "name → text"
)
SESSION_HEADERS: Final = Reader(
    _read_session_headers,
    {
        "type": "object",
        "propertyNames": {"pattern": f"^{HEADER_NAME.pattern}$"},
        "additionalProperties": {"type": "string", "pattern": f"^{VALUE_NAME.pattern}$"},
    },
    "name → text",
)
_KEPT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"keyring": {"type": "string", "pattern": "^[^/{}]+/[^{}]+$"}},
    "required": ["keyring"],
    "additionalProperties": False,
}
_VALUE: Final[Mapping[str, Any]] = {"anyOf": [{"type": "string"}, _KEPT]}
VALUE: Final = Reader(
    lambda value: _read_value(value) if is_object(value) else _read_text(value), _VALUE, "text"
)
VALUES: Final = Reader(_read_values, {"type": "array", "items": _VALUE}, "list of texts")
VALUE_MAP: Final = Reader(_read_value_map, {"type": "object", "additionalProperties": _VALUE}, "name → text")


def _read_choice(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if not is_array(value):
        raise BadValueError(f"must be true, false or an array of names, is {kind_of(value)}")
    return _read_texts(value)


CHOICE: Final = Reader(
    _read_choice,
    {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]},
    "true / false / list of texts",
)


def _read_environment(value: Any) -> bool | tuple[str, ...]:
    chosen = _read_choice(value)
    if isinstance(chosen, tuple):
        for position, name in enumerate(chosen):
            if not name or "=" in name:
                raise BadValueError(
                    'must be a name or a pattern, like "AWS_*"; a value goes into "env"', position
                )
    return chosen


ENVIRONMENT: Final = attrs.evolve(CHOICE, read=_read_environment)


# ---- words -------------------------------------------------------------------------------------------------
def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValueError(f"must be true or false, is {kind_of(value)}")
    return value


FLAG: Final = Reader(_read_flag, {"type": "boolean"}, "true / false")


def word(choices: type[enum.Enum]) -> Reader:
    """One of an enum's values."""
    words: dict[str, enum.Enum] = {member.value: member for member in choices}

    def read(value: Any) -> enum.Enum:
        if not isinstance(value, str):
            raise BadValueError(f"must be one of {_quoted(words)}, is {kind_of(value)}")
        if value not in words:
            raise BadValueError(f'"{value[:40]}" is none of {_quoted(words)}{did_you_mean(value, words)}')
        return words[value]

    return Reader(read, {"enum": list(words)}, " / ".join(f"`{each}`" for each in words))


def word_or_names(choices: type[enum.Enum], yes: enum.Enum, no: enum.Enum) -> Reader:
    """One of an enum's values, or a list of names. `true` and `false` stand for `yes` and `no`."""
    one = word(choices)
    words: list[str] = [member.value for member in choices]

    def read(value: Any) -> enum.Enum | tuple[str, ...]:
        if isinstance(value, bool):
            return yes if value else no
        if not is_array(value):
            return one.read(value)
        names = _read_texts(value)
        for position, name in enumerate(names):
            if name in words:
                raise BadValueError(
                    f'"{name}" in a list is the name of a tool; write it without the list', position
                )
        return names

    schema = {"anyOf": [one.schema, {"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}
    return Reader(read, schema, f"{one.unit} / list of texts")


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in words)


# ---- numbers -----------------------------------------------------------------------------------------------
def number(unit: str, *, scale: float = 1, zero: bool = False, most: float = LONGEST) -> Reader:
    """A finite number of `unit`s above 0 (or from 0). Times `scale`, it is at most `most`."""
    wanted = f"must be a number{f' of {unit}' if unit else ''} {'from 0' if zero else 'above 0'}"

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(
                f"{wanted}, is {kind_of(value)}{': leave out the quotes' if _is_digits(value) else ''}"
            )
        if value != value or value < 0 or (value == 0 and not zero):
            raise BadValueError(f"{wanted}, is {_shown(value)}")
        if value > most / scale:
            raise BadValueError(f"is too large, {most / scale:g} is the most")
        return float(value * scale)

    bound = {"minimum": 0} if zero else {"exclusiveMinimum": 0}
    return Reader(read, {"type": "number", **bound, "maximum": most / scale}, unit, scale)


def count(unit: str, *, least: int = 1, most: int = 2**40) -> Reader:
    """A whole number of `unit`s from `least` to `most`."""
    wanted = f"must be a whole number of {unit} from {least}"

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(
                f"{wanted}, is {kind_of(value)}{': leave out the quotes' if _is_digits(value) else ''}"
            )
        if not _is_whole(value) or value < least:
            raise BadValueError(f"{wanted}, is {_shown(value)}")
        if value > most:
            raise BadValueError(f"is too large, {most} is the most")
        return int(value)

    return Reader(read, {"type": "integer", "minimum": least, "maximum": most}, unit)


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or value.is_integer()


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and value.strip().isdigit()


def _shown(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "far out of range"


MINUTES: Final = number("minutes", scale=60, zero=True)
SECONDS: Final = number("seconds")
MILLISECONDS: Final = number("milliseconds", scale=0.001)
HOURS: Final = number("hours", scale=3_600)
DAYS: Final = number("days", scale=86_400)
FRACTION: Final = number("", zero=True, most=1)
