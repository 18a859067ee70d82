"""Writes the reference of `docs/json.md` from the shapes of `--json` (`greenroom.cli.json_shapes`).

    python tools/json_page.py        # a test says when it has to be run again

A shape that has all fields of a common one refers to that, so that nothing is told twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import attrs

from greenroom.cli import json_shapes
from greenroom.cli.json_shapes import SHAPES, Says

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "json.md"
MARK: Final = "<!-- made by tools/json_page.py -->"
_COMMON: Final[tuple[Any, ...]] = (
    json_shapes.Answered,
    json_shapes.Address,
    json_shapes.Origin,
    json_shapes.Source,
)
_PLAIN: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Any: "any",
}


@attrs.frozen
class Field:
    name: str
    type: Any
    says: Says
    is_always: bool


def fields_of(shape: Any) -> list[Field]:
    """The fields of a TypedDict, those of its bases first."""
    found: list[Field] = []
    for name, hint in get_type_hints(shape, include_extras=True).items():
        is_always = get_origin(hint) is not NotRequired
        inner = hint if is_always else get_args(hint)[0]
        assert get_origin(inner) is Annotated, f"{shape.__name__}.{name} does not say what it means"
        kind, says = get_args(inner)
        assert is_always == (not says.when), (
            f"{shape.__name__}.{name} must say when it is there, or always be"
        )
        found.append(Field(name, kind, says, is_always))
    return found


def page(text: str) -> str:
    """`text` with the reference anew below its mark."""
    head, mark, _ = text.partition(MARK)
    assert mark, f"docs/json.md has no {MARK}"
    return "\n".join([head + mark, "", *_commands(), *_reference()])


def _commands() -> Iterator[str]:
    yield "| command | prints |"
    yield "|---|---|"
    for command, shapes in SHAPES.items():
        yield f"| `{command}` | {', or '.join(map(worded, shapes))} |"
    yield ""


def _reference() -> Iterator[str]:
    for shape in _all():
        yield from (f"## {shape.__name__}", "", " ".join((shape.__doc__ or "").split()), "")
        own = fields_of(shape)
        base = next((each for each in _COMMON if each is not shape and _has(own, each)), None)
        if base is not None:
            theirs = {field.name for field in fields_of(base)}
            own = [field for field in own if field.name not in theirs]
            yield from (f"The fields of {worded(base)}, and:", "")
        yield "| field | type | unit | |"
        yield "|---|---|---|---|"
        for field in own:
            when = f" (only {_when(field.says.when)})" if field.says.when else ""
            yield f"| `{field.name}` | {worded(field.type)} | {field.says.unit} | {field.says.what}{when} |"
        yield ""


def _when(when: str) -> str:
    return f"with {when}" if when.startswith("`") else f"if {when}"


def _has(own: list[Field], base: Any) -> bool:
    return {(field.name, str(field.type)) for field in fields_of(base)} <= {
        (field.name, str(field.type)) for field in own
    }


def _all() -> list[Any]:
    """Every shape that a command prints, or that is a part of one, in the order in which they are met."""
    found: list[Any] = []

    def meet(kind: Any) -> None:
        if is_typeddict(kind):
            if kind in found:
                return
            found.append(kind)
            for base in _COMMON:
                if base is not kind and _has(fields_of(kind), base):
                    meet(base)
            for field in fields_of(kind):
                meet(field.type)
        else:
            for inner in get_args(kind):
                meet(inner)

    for shapes in SHAPES.values():
        for shape in shapes:
            meet(shape)
    return found


def worded(kind: Any) -> str:
    """A type in the words of JSON."""
    if is_typeddict(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return f"array of {worded(inner[0])}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {worded(inner[1])}"
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(map(worded, inner))
    return _PLAIN[kind]


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(old), encoding="utf-8")
    sys.exit(0)
