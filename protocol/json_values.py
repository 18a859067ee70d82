"""What a value is in the sense of JSON, for whoever reads what somebody else wrote. Pure.

Each question tells a type checker the type with the answer. `isinstance` leaves the types of members unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is an object in the sense of JSON."""
    return type(value) is dict or isinstance(value, Mapping)  # the second takes six times as long


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
