"""Configurations, drawn from the tables by which the parser reads them.

Each key is drawn from its schema. Keys that contradict each other are corrected, not filtered out: an eager or
keep-alive server becomes a shared one, and there are enough slots for all keep-alive servers.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hypothesis import strategies as st

from ...protocol._config_key import Key
from ...protocol._config_keys import SERVER_KEYS, SETTING_KEYS
from ...protocol._config_merge import WHERE, WITH_COMMAND, WITH_URL
from ...protocol.config import SHORTEST_NAME
from ._parts import WORDS, together

_LEAST: Final = 0.001  # below it a number of a file's units may round to nothing
_NOT_DRAWN: Final = frozenset({*WHERE, "isolation", "lifecycle"})  # drawn by rules of their own


def _own_rules() -> Mapping[str, st.SearchStrategy[Any]]:
    """Keys whose objects have names of their own, drawn with a few of these."""
    login = st.fixed_dictionaries({}, optional={"scope": WORDS, "clientId": WORDS, "clientName": WORDS})
    shown = st.fixed_dictionaries({}, optional={"description": WORDS, "hide": st.booleans()})
    return {"oauth": st.just(False) | login, "toolOverrides": st.dictionaries(WORDS, shown, max_size=3)}


def server_names() -> st.SearchStrategy[str]:
    """Names of servers. Many differ only by hyphens and underscores, and some have unusual characters."""
    tricky = st.sampled_from(["git-hub", "git_hub", "x-mcp", "mcp", "a b", "ü", "a" * 70])
    return st.text("ab-_", min_size=1, max_size=3) | tricky


def server_entries() -> st.SearchStrategy[dict[str, Any]]:
    """Entries of `mcpServers` that are read without a warning: a command, a URL or a socket, with any keys that it may
    have. No such server exists, so connect them with `fake_connectors`."""
    return st.one_of(
        _entries({"command": WORDS}, without=WITH_URL),
        _entries(
            {"url": st.sampled_from(["http://127.0.0.1:9/mcp", "https://example.org/mcp"])}, WITH_COMMAND
        ),
        _entries({"socket": WORDS}, WITH_COMMAND | WITH_URL),
    )


def configs(*, servers: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Configurations for `Greenroom.open`, as a dict, that are read without a warning, with at most that many
    servers."""
    return st.builds(
        _fitted,
        st.dictionaries(server_names(), server_entries(), max_size=servers),
        st.fixed_dictionaries({}, optional=_setting_values()),
    )


def _entries(
    where: Mapping[str, st.SearchStrategy[Any]], without: Iterable[str]
) -> st.SearchStrategy[dict[str, Any]]:
    left_out = _NOT_DRAWN | set(without)
    others = {key.name: _value_of(key) for key in SERVER_KEYS if key.name not in left_out}
    others |= {name: values for name, values in _own_rules().items() if name in others}
    drawn = st.fixed_dictionaries(dict(where), optional=others)
    return together(drawn, _keeping()).map(_without_useless_idle_time)


def _without_useless_idle_time(entry: dict[str, Any]) -> dict[str, Any]:
    """A keep-alive server has no idle time, because one would cause a warning."""
    if entry.get("lifecycle") != "keep-alive":
        return entry
    return {name: value for name, value in entry.items() if name != "idleTimeout"}


def _keeping() -> st.SearchStrategy[dict[str, Any]]:
    """Draw `lifecycle` and `isolation`: an eager or keep-alive server is shared by all."""
    shared = st.fixed_dictionaries({}, optional={"isolation": st.just("persistent")})
    early = st.fixed_dictionaries({"lifecycle": st.sampled_from(["eager", "keep-alive"])})
    lazy = st.fixed_dictionaries(
        {},
        optional={
            "lifecycle": st.just("lazy"),
            "isolation": st.sampled_from(["persistent", "per_session", "per_call"]),
        },
    )
    return lazy | together(early, shared)


def _setting_values() -> dict[str, st.SearchStrategy[Any]]:
    values = {key.name: _value_of(key) for key in SETTING_KEYS}
    backoff = st.tuples(_number({"exclusiveMinimum": 0}), _number({"exclusiveMinimum": 0})).map(sorted)
    ranges = {"restartBackoff": backoff.map(lambda pair: {"minMs": pair[0], "maxMs": pair[1]})}
    return {**values, **ranges, "toolOverrides": _own_rules()["toolOverrides"]}


def _fitted(servers: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Raise `maxConnections` if the keep-alive servers and the minimum need more slots than that, and `nameLimit` if
    `clientPrefix` leaves too little of it."""
    kept = sum(
        entry.get("lifecycle") == "keep-alive" and not entry.get("disabled") for entry in servers.values()
    )
    least = max(kept, settings.get("minConnections", 0)) + 1
    if settings.get("maxConnections", 20) < least:
        settings = {**settings, "maxConnections": least}
    if "clientPrefix" in settings:
        shortest = len(settings["clientPrefix"]) + SHORTEST_NAME
        settings = {**settings, "nameLimit": max(settings.get("nameLimit", 64), shortest)}
    return {"mcpServers": servers, **({"settings": settings} if settings else {})}


def _value_of(key: Key) -> st.SearchStrategy[Any]:
    if key.parts:
        return st.fixed_dictionaries({}, optional={part.name: _value_of(part) for part in key.parts})
    return _of_schema(key.reader.schema)


def _of_schema(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """The values that the schema of a key allows."""
    match schema:
        case {"anyOf": options}:
            return st.one_of(*map(_of_schema, options))
        case {"enum": words}:
            return st.sampled_from(list(words))
        case {"pattern": pattern}:
            return st.from_regex(pattern, alphabet=string.printable, fullmatch=True)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "array"}:
            return st.lists(WORDS, max_size=3)
        case {"type": "object", "properties": properties, "required": required}:
            parts = {name: _of_schema(part) for name, part in properties.items()}
            return st.fixed_dictionaries(
                {name: parts.pop(name) for name in required},
                optional=parts,
            )
        case {"type": "object", "propertyNames": names, "additionalProperties": each}:
            pairs = st.tuples(_of_schema(names), _of_schema(each))
            return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0].lower()).map(dict)
        case {"type": "object"}:
            return st.dictionaries(st.text(string.ascii_uppercase, min_size=1, max_size=6), WORDS, max_size=3)
        case {"type": "integer", "minimum": least, "maximum": most}:
            return st.integers(least, min(most, least + 1_000_000))
        case {"type": "number"}:
            return _number(schema)
        case _:
            return WORDS


def _number(schema: Mapping[str, Any]) -> st.SearchStrategy[float]:
    most = min(schema.get("maximum", 1e9), 1e9)
    least = 0 if "minimum" in schema else 1
    whole = st.just(least) | st.integers(least, int(most)) if most >= least else st.nothing()
    return whole | st.floats(_LEAST, most, allow_nan=False)
