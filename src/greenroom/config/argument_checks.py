"""Checks what a program gives at the public door. A mistake is reported where the program makes it, and not later by
whatever the wrong value breaks, perhaps the calls of others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..protocol.errors import ConnectFailed, GreenroomError, UsageError
from ..protocol.json_values import is_number
from ..protocol.safe_text import in_words
from .model import ServerDefinition

if TYPE_CHECKING:
    from ..protocol.events import Kind

F = TypeVar("F", bound="Callable[..., Any] | None")


def text(value: object, what: str) -> str:
    """A string. `what`: its name in the error."""
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a string, got {_type_name(value)}.", code="invalid_args")
    return value


def name_of(value: object, what: str) -> str:
    """The name of something: a tool, a server."""
    return text(value, f"The name of {what}")


def named_values(value: object, what: str, server: str = "") -> Mapping[str, Any] | None:
    """An object of named values, or None."""
    if value is not None and type(value) is not dict and not isinstance(value, Mapping):
        said = f"{what} must be an object of named values, got {_type_name(value)}."
        raise UsageError(said, code="invalid_args", server=server)
    return cast("Mapping[str, Any] | None", value)


def json_object(value: object, what: str) -> Mapping[str, Any] | None:
    """An object of named values that can be written as JSON, or None."""
    named = named_values(value, what)
    from ..protocol.jsonrpc.encoding import encode  # commands that only look need no JSON-RPC

    try:
        encode(named)
    except Exception as error:
        said = f"{what} cannot be written as JSON: {in_words(error)}. Give only JSON values."
        raise UsageError(said, code="invalid_args") from None
    return named


def seconds(value: Any, what: str) -> float | None:
    """A number of seconds, or None."""
    if value is None or (is_number(value) and value == value):
        return value
    said = "that is not a number" if isinstance(value, float) else _type_name(value)
    raise UsageError(f"{what} must be a number of seconds, got {said}.", code="invalid_args")


def time_limit(value: Any, what: str) -> float | None:
    """A number of seconds above 0, or None."""
    limit = seconds(value, what)
    if limit is not None and limit <= 0:
        raise UsageError(f"{what} must be above 0 seconds, got {limit:g}.", code="invalid_args")
    return limit


def flag(value: object, what: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{what} must be True or False, got {_type_name(value)}.", code="invalid_args")
    return value


def texts(value: object, what: str) -> Collection[str]:
    """Strings. One alone is refused: its letters would be taken for them."""
    if isinstance(value, str):
        raise UsageError(f"{what} must be a list of strings: write {what}=[{value!r}].", code="invalid_args")
    kind, is_list = (
        _type_name(value),
        isinstance(value, Collection) and not isinstance(value, bytes | Mapping),
    )
    if not is_list:
        raise UsageError(f"{what} must be a list of strings, got {kind}.", code="invalid_args")
    for each in cast("Collection[object]", value):
        text(each, f"Each of {what}")
    return cast("Collection[str]", value)


def similarity(value: Any, what: str) -> float | None:
    """A number from 0 to 1, or None."""
    if value is None:
        return None
    if not is_number(value) or not 0 <= value <= 1:
        said = value if is_number(value) else _type_name(value)
        raise UsageError(f"{what} must be a number from 0 to 1, got {said}.", code="invalid_args")
    return value


def number_of(value: Any, what: str) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{what} must be a whole number, got {_type_name(value)}.", code="invalid_args")
    return value


def path_of(value: object, what: str, or_else: str = "") -> str | os.PathLike[str]:
    """A path, as text or as a path object. `or_else`: what it may be instead, for the error."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{what} must be a path{or_else}, got {_type_name(value)}.", code="invalid_args")
    place = cast("str | os.PathLike[str]", value)
    try:
        is_whole = b"\0" not in os.fsencode(place)
    except UnicodeEncodeError:
        is_whole = False
    if not is_whole:
        said = f"{what} must be a path, and holds a character that no path has: {os.fspath(place)!a}."
        raise UsageError(said, code="invalid_args")
    return place


def file_of(value: object, what: str) -> Path:
    """The path of a file: one with a name."""
    place = Path(path_of(value, what))
    if not place.name:
        raise UsageError(f'{what} must be the path of a file, got "{place}".', code="invalid_args")
    return place


def function(value: F, what: str) -> F:
    """A function, or None."""
    if value is not None and not callable(value):
        raise UsageError(f"{what} must be a function, got {_type_name(value)}.", code="invalid_args")
    return value


def maker(factory: Callable[..., Any] | None, what: str, makes: str, having: str, *, or_none: bool) -> Any:
    """A program's own function that makes something for a server. If it raises, or makes something else, that is the
    reason why the server cannot be connected."""
    if function(factory, what) is None:
        return None

    def make(definition: ServerDefinition, *more: Any) -> Any:
        try:
            made = cast("Callable[..., Any]", factory)(definition, *more)
        except GreenroomError:
            raise
        except Exception as error:
            why = f"`{what}` could not make {makes}: {in_words(error)}"
            raise ConnectFailed(why, server=definition.name) from error
        if hasattr(made, having) or (made is None and or_none):
            return made
        why = f"`{what}` must return {makes}{' or None' if or_none else ''}, and returned {_type_name(made)}"
        raise ConnectFailed(why, server=definition.name)

    return make


def list_or_function(value: object, what: str, of: str) -> None:
    """A list, or a function, or None."""
    kind = _type_name(value)
    if isinstance(value, str | bytes | Mapping) or not (
        value is None or callable(value) or isinstance(value, Sequence)
    ):
        said = f"{what} must be a list of {of}, or a function that returns one, got {kind}."
        raise UsageError(said, code="invalid_args")


def kinds_of(value: object) -> list[Kind] | None:
    """Kinds of events, or None."""
    from ..protocol.events import Kind  # commands that only look have no events

    if value is None:
        return None
    is_one = isinstance(value, str) or not hasattr(value, "__iter__")
    given = [value] if is_one else [*cast("Iterable[object]", value)]
    found = [kind for kind in given if isinstance(kind, Kind)]
    if len(found) < len(given):
        odd = next(each for each in given if not isinstance(each, Kind))
        raise UsageError(f"{odd!r} is not a kind of events. Give some of Kind: Kind.CALL, Kind.TRANSITION, …")
    return found


def _type_name(value: object) -> str:
    return "None" if value is None else type(value).__name__
