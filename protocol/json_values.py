"""What a value is in the sense of JSON, for whoever reads what somebody else wrote. Pure.

Each question tells a type checker the type with the answer. `isinstance` leaves the types of members unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Final, TypeGuard

# What else a decoder makes: `isinstance` takes six times as long to say that one of these is no `Mapping`.
_NO_OBJECTS: Final = frozenset({str, list, int, float, bool, NoneType})


def is_object(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is an object in the sense of JSON."""
    kind = type(value)
    return kind is dict or (kind not in _NO_OBJECTS and isinstance(value, Mapping))


def is_array(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is an array in the sense of JSON."""
    return isinstance(value, list | tuple)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number in the sense of JSON, where true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def object_or_empty(value: object) -> Mapping[Any, Any]:
    """The value, if it is an object; else an empty one."""
    return value if is_object(value) else {}


def array_or_empty(value: object) -> Sequence[Any]:
    """The value, if it is an array; else an empty one."""
    return value if is_array(value) else ()
