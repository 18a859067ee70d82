"""What a key of a configuration file is. The keys themselves are in `_config_keys`.

A key knows where its value goes in the model and what happens when the value is wrong. A wrong value of an
`identity` key breaks its server. Such keys say which program runs, with what, what it may show and who shares it,
and half of that is worse than none of it. The other keys are policy. Their default is used and the problem is
listed, for a server with the wrong idle timeout is better than no server. (A wrong setting has two outcomes as
well. A file that was named is refused; a file that was only found is served with the default.)
"""

from __future__ import annotations

from typing import Any

import attrs

from .config_readers import Reader, is_array, is_object


@attrs.frozen
class Key:
    """One key of a file. A key with `parts` is an object with these keys, and has no value of its own."""

    name: str
    attribute: str
    reader: Reader
    meaning: str
    identity: bool = False
    default: str = ""  # in words, when the default in the model says too little
    parts: tuple[Key, ...] = ()


def leaves(keys: tuple[Key, ...], prefix: str = "") -> list[tuple[str, Key]]:
    """Every key that holds a value, with its dotted name: `restartBackoff.minMs`."""
    found: list[tuple[str, Key]] = []
    for key in keys:
        found += leaves(key.parts, f"{prefix}{key.name}.") if key.parts else [(prefix + key.name, key)]
    return found


def in_file_units(key: Key, value: Any) -> Any:
    """A value of the model as a file would say it: seconds in the key's unit, enums as their word."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return _tidy(value / key.reader.scale)
    if is_array(value):
        return list(value)
    return dict(value) if is_object(value) else value.value


def _tidy(number: float) -> float | int:
    rounded = round(number, 6)
    return int(rounded) if rounded == int(rounded) else rounded
