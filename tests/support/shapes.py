"""Whether what a command prints with `--json` has the shape that is documented for it."""

from __future__ import annotations

from typing import Any

import msgspec
from tools.reference.shapes import shapes_of


def conforms(command: str, value: Any) -> Any:
    """Assert that `value` has one of the shapes of `command`. Returns it."""
    found = {str(shape): wrong(value, shape) for shape in shapes_of(command)}
    assert None in found.values(), (command, value, found)
    return value


def wrong(value: Any, shape: Any) -> str | None:
    """What is not of that type: a wrong value, a field that is missing, one that nobody knows."""
    try:
        read = msgspec.to_builtins(msgspec.convert(value, shape))
    except msgspec.ValidationError as error:
        return str(error)
    return None if read == value else f"has fields that nobody knows: {value} is more than {read}"
