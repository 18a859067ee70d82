"""Reads profiles: which servers and tools exist for a client, and how they are shown.

A profile leaves out, and may show tools otherwise. What it leaves out does not exist for its clients. So a profile
that cannot be read is left out itself, and a client that names it is refused: it must never see more because of a
mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ._config_dialects import is_remark
from ._config_place import place
from .config import EXPOSURES, Profile
from .config_readers import TEXTS, BadValueError, did_you_mean, is_object, kind_of, unknown
from .errors import Problem
from .names import selector
from .overrides import OVERRIDES

PROFILE_KEYS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "servers": ("Its servers; `*` and `?` match. Without it: all.", TEXTS.schema),
    "tools": ("Its tools, of those servers; `*` and `?` match. Without it: all.", TEXTS.schema),
    "toolOverrides": (
        "By server: tools shown otherwise, on top of what the server's own entry says.",
        {"type": "object", "additionalProperties": OVERRIDES.schema},
    ),
    "expose": ("What its clients see: `proxy`, `direct` or `meta`.", {"enum": list(EXPOSURES)}),
}


def read_profiles(
    layers: Sequence[tuple[str, Any]], servers: Sequence[str], problems: list[Problem]
) -> dict[str, Profile]:
    """The profiles of `(source, content)` pairs, weakest first. A stronger file replaces a whole profile."""
    found: dict[str, Profile] = {}
    for source, raw in layers:
        said = raw.get("profiles") if is_object(raw) else None
        if is_object(said):
            for name, one in said.items():
                found.pop(str(name), None)
                if not is_remark(str(name)):
                    _read_one(str(name), one, source, servers, found, problems)
        elif said is not None:
            what = f'must be an object like {{"work": {{"servers": […]}}}}, is {kind_of(said)}'
            problems.append(Problem(place(source, "profiles"), what, fatal=False))
    return found


def _read_one(
    name: str,
    said: Any,
    source: str,
    servers: Sequence[str],
    found: dict[str, Profile],
    problems: list[Problem],
) -> None:
    def bad(what: str, *where: str | int) -> None:
        problems.append(Problem(place(source, "profiles", name, *where), what, fatal=False))

    refused = "; the profile is left out, and clients that name it are refused"
    if not is_object(said):
        bad(f'must be an object like {{"servers": […]}}, is {kind_of(said)}{refused}')
        return
    values: dict[str, Any] = {}
    for key, value in said.items():
        try:
            if key in ("servers", "tools"):
                values[key] = TEXTS.read(value)
            elif key == "toolOverrides":
                values["overrides"] = _read_overrides(value)
            elif key == "expose":
                if value not in EXPOSURES:
                    raise BadValueError(f"is none of {', '.join(EXPOSURES)}")
                values[key] = value
            elif not is_remark(str(key)):
                # It may have been meant to leave something out.
                raise BadValueError(unknown(str(key), PROFILE_KEYS, "it is no key of a profile"))
        except BadValueError as error:
            bad(f"{error.what}{refused}", str(key), *error.inside)
            return
    for at, pattern in enumerate(values.get("servers", ())):
        if not any(map(selector((pattern,)), servers)):
            bad(f"no server has this name{did_you_mean(pattern, servers)}", "servers", at)
    found[name] = Profile(**values)


def _read_overrides(value: Any) -> dict[str, Mapping[str, Any]]:
    if not is_object(value):
        raise BadValueError(f"must be an object of servers, is {kind_of(value)}")
    found: dict[str, Mapping[str, Any]] = {}
    for server, said in value.items():
        try:
            found[str(server)] = OVERRIDES.read(said)
        except BadValueError as error:
            raise BadValueError(error.what, str(server), *error.inside) from None
    return found
