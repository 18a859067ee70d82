"""Turn the settings of one or several files into `Settings`.

Settings are merged shallowly: a stronger file replaces single keys. Only `http` is merged part by part, so that no file
drops a token by saying something else of the door. A wrong value is fatal in a file that was
named, and a warning in one that was found; the caller knows which it is. When limits contradict each other
(`minConnections` not below `maxConnections`), both fall back to their defaults, for neither can be trusted alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from ._config_dialects import SETTING_ALIASES, Given, Givens, Note, adapter_settings, is_remark
from ._config_foreign import SETTINGS_NO_EFFECT, foreign_settings
from ._config_key import Key
from ._config_keys import SETTING_KEY
from ._config_place import place
from ._config_server import read_value
from .config import SHORTEST_NAME, Approve, Settings
from .config_readers import is_object, kind_of, unknown
from .errors import Problem


def merged_settings(layers: Iterable[tuple[str, Any]], note: Note) -> Givens:
    """The settings of `(source, content)` pairs, weakest first; the stronger replaces single keys."""
    merged: Givens = {}
    for source, raw in layers:
        if is_object(raw):
            _lay(merged, _layer_settings(raw, source, note))
    return merged


_BY_PART: Final = ("http", "oauth")  # and what is in it


def _lay(lower: Givens, upper: Givens) -> None:
    """Lay `upper` over `lower`."""
    for name, given in upper.items():
        below = lower.get(name)
        if name not in _BY_PART or below is None or not is_object(below.value) or not is_object(given.value):
            lower[name] = given
            continue
        parts = _parts_of(below)
        _lay(parts, _parts_of(given))
        lower[name] = attrs.evolve(given, value=parts)


def _parts_of(given: Given) -> Givens:
    """Each part of a group with its own place; the value of a group that was laid over another has them already."""
    return {
        str(name): value if isinstance(value, Given) else Given(value, given.source, (*given.path, str(name)))
        for name, value in given.value.items()
    }


def _layer_settings(raw: Mapping[Any, Any], source: str, note: Note) -> Givens:
    found: Givens = {}
    for block in ("adapter", "settings"):
        said = raw.get(block)
        if is_object(said):
            _lay(found, _block(block, said, source, note))
        elif said is not None:
            note(Problem(place(source, block), f"must be an object, is {kind_of(said)}"))
    return found


def _block(block: str, said: Mapping[Any, Any], source: str, note: Note) -> Givens:
    if block == "adapter":
        return adapter_settings(said, source, note)
    givens = {str(key): Given(value, source, (block, str(key))) for key, value in said.items()}
    for theirs, ours in SETTING_ALIASES.items():
        if theirs in givens:
            givens.setdefault(ours, givens.pop(theirs))
    return givens


def read_settings(merged: Givens, note: Note) -> tuple[Settings, dict[str, str]]:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, given in merged.items():
        if name in SETTING_KEY:
            _read_setting(SETTING_KEY[name], given, values, sources, note)
        elif not is_remark(name) and name not in SETTINGS_NO_EFFECT:
            note(given.problem(unknown(name, SETTING_KEY, "it is ignored")))
    for problem in foreign_settings(merged):
        note(problem)
    _check_ranges(values, merged, note)
    if "approve" in merged and "approve" not in sources and merged["approve"].value is not None:
        values["approve"] = (
            Approve.ALL
        )  # it cannot be read, so nobody knows which calls it would have let pass
    return Settings(**values), sources


def _read_setting(
    key: Key, given: Given, values: dict[str, Any], sources: dict[str, str], note: Note
) -> None:
    if given.value is None:
        return
    if key.parts:
        _read_parts(key, given, values, sources, note)
        return
    read_value(attrs.evolve(key, identity=True), given, values, sources, note)


def _read_parts(key: Key, given: Given, values: dict[str, Any], sources: dict[str, str], note: Note) -> None:
    if key.name == "outputGuard" and isinstance(given.value, bool):
        guard = {} if given.value else {"maxBytes": 0, "maxLines": 0, "maxImageBytes": 0}
        given = attrs.evolve(given, value=guard)
    if not is_object(given.value):
        note(given.problem(f"must be an object, is {kind_of(given.value)}", fatal=True))
        return
    parts = {part.name: part for part in key.parts}
    for name, inner in _parts_of(given).items():
        if name in parts:
            _read_setting(parts[name], inner, values, sources, note)
        else:
            note(inner.problem(unknown(name, parts, "it is ignored")))


_RANGES: Final = (
    ("backoff_min", "backoff_max", "restartBackoff", "minMs must not be above maxMs", False),
    ("min_connections", "max_connections", "minConnections", "must be below maxConnections", True),
)


def _check_ranges(values: dict[str, Any], merged: Givens, note: Note) -> None:
    defaults = Settings()
    for low, high, name, what, apart in _RANGES:
        least, most = values.get(low, getattr(defaults, low)), values.get(high, getattr(defaults, high))
        if least > most or (apart and least == most):
            note(merged[name].problem(what, fatal=True))
            values.pop(low, None)
            values.pop(high, None)
    if Settings(**values).longest_name < SHORTEST_NAME:
        what = f"leaves names fewer than {SHORTEST_NAME} characters: use a shorter one, or a larger nameLimit"
        note(merged["clientPrefix"].problem(what, fatal=True))
        del values["client_prefix"]
