"""Whether what a command prints with `--json` has the shape that is documented for it."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from greenroom.cli.json_shapes import SHAPES


def conforms(command: str, value: Any) -> Any:
    """Assert that `value` has one of the shapes of `command`. Returns it."""
    found = {shape: list(wrong(value, shape)) for shape in SHAPES[command]}
    assert any(not lines for lines in found.values()), (command, value, found)
    return value


def wrong(value: Any, kind: Any, at: str = "") -> Iterator[str]:
    """What is not of that type, with its place: a wrong value, a field that is missing, one that nobody knows."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Annotated, NotRequired):
        yield from wrong(value, inner[0], at)
    elif is_typeddict(kind):
        yield from _wrong_fields(value, kind, at)
    elif origin in (Union, UnionType):
        if all(list(wrong(value, each)) for each in inner):
            yield f"{at}: {value!r} is not {kind}"
    elif origin is Literal:
        if value not in inner:
            yield f"{at}: {value!r} is none of {inner}"
    elif origin is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from wrong(each, inner[0], f"{at}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from wrong(each, inner[1], f"{at}.{key}")
    elif kind is not Any and not _is_plain(value, kind):
        yield f"{at}: {value!r} is not {kind}"


def _wrong_fields(value: Any, shape: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is no object"
        return
    hints = get_type_hints(shape, include_extras=True)
    yield from (f"{at}.{name} is not in {shape.__name__}" for name in value if name not in hints)
    for name, hint in hints.items():
        if name in value:
            yield from wrong(value[name], hint, f"{at}.{name}")
        elif get_origin(hint) is not NotRequired:
            yield f"{at}.{name} is missing"


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is (NoneType if kind is None else kind)
