"""Check plain data against a shape. The result is the value itself when it fits, a mended value, or `GONE`.

A value that fits is returned as the same object, not as an equal one. So a check of thousands of good items makes no
new objects, and the caller sees by identity that an item is good. Places are linked pairs; they are put into words
only when something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast


class Gone:
    """The result of a check when nothing of the value can be kept."""


GONE: Final = Gone()
Place = tuple[Any, ...]  # empty, or (the place it is in, its key or position there)
Check = Callable[[Any, Place, list[str]], Any]  # the value (the same, or mended), its place, what was wrong


def _is(*kinds: type, words: str) -> Check:
    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if isinstance(value, kinds):
            return value
        faults.append(f"{said_of(place)} is not {words}")
        return GONE

    return check


def where(test: Callable[[Any], bool], words: str) -> Check:
    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if test(value):
            return value
        faults.append(f"{said_of(place)} is not {words}")
        return GONE

    return check


TEXT: Final = _is(str, words="a string")
FLAG: Final = _is(bool, words="true or false")
OBJECT: Final = _is(dict, words="an object")


def one_of(*words: str) -> Check:
    return where(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}")


def list_of(each: Check) -> Check:
    """A list; items that cannot be kept are removed."""

    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if not isinstance(value, list):
            faults.append(f"{said_of(place)} is not an array")
            return GONE
        items = cast("list[Any]", value)
        kept = [each(item, (place, number), faults) for number, item in enumerate(items)]
        if all(one is other for one, other in zip(kept, items, strict=True)):
            return items
        return [item for item in kept if item is not GONE]

    return check


def record_of(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    """An object. Optional fields that cannot be kept are removed; if a required one cannot, the object is `GONE`."""

    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if not isinstance(value, dict | Mapping):
            faults.append(f"{said_of(place)} is not an object")
            return GONE
        said = cast("Mapping[str, Any]", value)
        changed: dict[str, Any] = {}
        for key, look in required.items():
            if key not in said:
                faults.append(f"{said_of((place, key))} is missing")
                return GONE
            found = look(said[key], (place, key), faults)
            if found is GONE:
                return GONE
            if found is not said[key]:
                changed[key] = found
        for key, look in optional.items():
            if key in said:
                found = look(said[key], (place, key), faults)
                if found is not said[key]:
                    changed[key] = found
        if not changed:
            return said
        return {key: each for key, each in {**said, **changed}.items() if each is not GONE}

    return check


def said_of(place: Place) -> str:
    """`inputSchema.properties.a`, `icons[2].src`."""
    if not place:
        return "it"
    around, key = place
    if isinstance(key, int):
        return f"{said_of(around)}[{key}]"
    return f"{said_of(around)}.{key}" if around else key
