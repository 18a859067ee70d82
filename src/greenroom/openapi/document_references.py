"""References inside one document. Those to files and URLs are never followed: a document would read files of this
machine, or make it ask other ones.

A reference is a JSON pointer in a fragment, so its parts may be percent-encoded; documents in the field also have keys
that look so themselves. Both readings are tried, the literal one first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

from ..protocol.bounds import DEPTH
from ..protocol.json_values import array_or_empty

Raw = dict[str, Any]  # an object of the document, as it was decoded
_POSITION: Final = re.compile("[0-9]{1,9}")
CHAIN: Final = 32  # references that refer to references
_LONGEST: Final = 2_000  # characters of a reference
_STEPS: Final = DEPTH + 1  # parts of a reference: a document is not nested deeper


class BrokenReference(ValueError):
    """A reference that leads nowhere, in a circle, or out of the document. The message is the rest of a sentence."""


def is_object(value: object) -> TypeGuard[Raw]:
    """Whether it is an object of the document. Keys that YAML makes other than text are not looked for."""
    return isinstance(value, dict)


def objects(value: object) -> list[Raw]:
    """The objects in a list; nothing for anything else."""
    return [each for each in array_or_empty(value) if is_object(each)]


def member(value: object, name: str) -> Raw:
    """The object that `value` has under this name; an empty one when it has none."""
    found = value.get(name) if is_object(value) else None
    return found if is_object(found) else {}


def text(value: object, name: str) -> str:
    """The text that `value` has under this name; empty when it has none."""
    found = value.get(name) if is_object(value) else None
    return found if isinstance(found, str) else ""


def at(root: Raw, reference: str) -> Any:
    """What a reference stands for. Raises `BrokenReference`."""
    if not reference.startswith("#"):
        raise BrokenReference(f"{shown(reference)} is outside the document, and is not read")
    if not reference.startswith("#/") or len(reference) > _LONGEST:
        raise BrokenReference(f"{shown(reference)} names no place in the document")
    place: Any = root
    for part in reference[2:].split("/", _STEPS):
        place = _step(place, part, reference)
    return place


def followed(root: Raw, value: object) -> Any:
    """The value itself, or what it refers to, however many references lie between. Raises `BrokenReference`."""
    for _ in range(CHAIN):
        if not is_object(value) or not isinstance(reference := value.get("$ref"), str):
            return value
        value = at(root, reference)
    raise BrokenReference(f"{shown(text(value, '$ref'))} refers to itself")


def followed_object(root: Raw, value: object) -> Raw:
    """What `followed` finds, which has to be an object. Raises `BrokenReference`."""
    found = followed(root, value)
    if not is_object(found):
        raise BrokenReference(
            f"{shown(text(value, '$ref'))} is not an object" if is_object(value) else "it is not an object"
        )
    return found


def shown(reference: str) -> str:
    """A reference in a sentence, cut where it is long."""
    return f'"{reference[:200]}"'


def _step(place: object, part: str, reference: str) -> Any:
    for key in dict.fromkeys((_unescaped(part), _unescaped(unquote(part)))):
        for found in _under(place, key):
            return found
    raise BrokenReference(f"{shown(reference)} leads nowhere")


def _under(place: object, key: str) -> Sequence[Any]:
    """What is there under this key or position, if anything."""
    if is_object(place):
        return [place[key]] if key in place else []
    return array_or_empty(place)[int(key) : int(key) + 1] if _POSITION.fullmatch(key) else []


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
