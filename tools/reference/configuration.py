"""The pages of keys and bounds, from the fields of the model (`config/model.py`) and `protocol/bounds.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from greenroom.config import foreign_keys
from greenroom.config.keys import Key
from greenroom.config.model import (
    GROUPS,
    PROFILE_KEYS,
    SERVER_KEYS,
    SETTING_KEYS,
    ServerDefinition,
    Settings,
)
from greenroom.config.schema import default_of
from greenroom.protocol.bounds import BOUNDS

from .markdown import anchor, from_docs, page, table

OTHER: Final = "Other keys"
# In which part of the page a key stands; one that is not named stands with its group, or under the last heading.
SERVER_PARTS: Final[Mapping[str, str]] = {
    "Where it is": "command args env envFile cwd inheritEnv url socket resolveNpx",
    "Over HTTP": "headers httpTransport auth oauth requestHeadersCommand",
    "An HTTP API": "openapi specHash includeOperations excludeOperations outputSchemas uploads http",
    "What it shows": "includeTools excludeTools directTools exposeResources toolOverrides bootstrap",
    "Its life": "lifecycle isolation warm reset restartPolicy idleTimeout era disabled placement",
    "What it may do": "approve limits loopGuard pinning scrub",
    "Instead of a setting": (
        "toolPrefix connectTimeoutMs installTimeoutMs requestTimeoutMs drainTimeoutMs stopTimeoutMs "
        "maxInFlight maxQueued"
    ),
}
SETTING_PARTS: Final[Mapping[str, str]] = {
    "Names, and what is shown": (
        "toolPrefix nameLimit clientPrefix directTools toolOverrides registry frequentTools "
        "semanticSearch bootstrap firstListTimeoutMs cacheMaxAgeDays"
    ),
    "What servers and callers may do": (
        "isolation inheritEnv approve approvalTimeoutMs limits loopGuard pinning scrub oauthDir"
    ),
    "Times": (
        "idleTimeout connectTimeoutMs installTimeoutMs probeTimeoutMs requestTimeoutMs "
        "requestTotalTimeoutMs queueTimeoutMs drainTimeoutMs stopTimeoutMs shutdownTimeoutMs "
        "secretTimeoutMs backgroundIdle taskAfterMs tasks.keep"
    ),
    "Restarts and the circuit breaker": (
        "restartPolicy restartBackoff.minMs restartBackoff.maxMs backoffJitter failureBackoff "
        "failureThreshold cooldownMs stableAfterMs restartIntensity restartPeriodMs "
        "healthIntervalMs"
    ),
    "The pool": (
        "maxConnections maxSessionConnections minConnections reserve reserveTimeoutMs "
        "acquireTimeoutMs startPermits installTurns resolveNpx"
    ),
    "Bounds": (
        "maxInFlight maxQueued maxQueuedBytes maxLineBytes stderrBytes maxPages maxListBytes maxListItems"
    ),
    "The HTTP door": "",
    "OAuth at the HTTP door": "",
    "Long output": "",
}
_PART_OF_GROUP: Final = {
    "http.": "The HTTP door",
    "http.oauth.": "OAuth at the HTTP door",
    "outputGuard.": "Long output",
}


def server_keys() -> str:
    return page(
        "# Keys of a server",
        "The keys of one server, an entry of `mcpServers`. [One server's entry](../servers.md) explains how they work "
        "together. [Settings](settings.md) apply to all servers.",
        *_parts(SERVER_KEYS, ServerDefinition, SERVER_PARTS, foreign_keys.ALIASES, {}),
    )


def settings() -> str:
    own = {each.name for each in SERVER_KEYS}
    return page(
        "# Settings",
        "The keys of `settings`, which apply to the whole room. A name with a dot is a key inside an object: "
        '`restartBackoff.minMs` is `"settings": {"restartBackoff": {"minMs": 500}}`. '
        "[Timeouts, restarts and the pool](../policies.md) explains how they work together.",
        *_parts(SETTING_KEYS, Settings, SETTING_PARTS, foreign_keys.SETTING_ALIASES, dict.fromkeys(own)),
        "## Keys of a profile",
        "A [profile](../profiles.md) is a member of `profiles`; its name is the key.",
        table(
            ("key", "type", "meaning"),
            [(f"`{key.name}`", key.kind.unit, from_docs(key.meaning)) for key in PROFILE_KEYS],
        ),
    )


def bounds() -> str:
    settable = {key.attribute: key.name for key in SETTING_KEYS}
    defaults = Settings()
    rows = [
        (
            bound.what,
            f"{bound.value_in(defaults):,} {bound.unit}{_in_binary(bound.value_in(defaults), bound.unit)}",
            bound.over,
            f"[`{settable[bound.setting]}`](settings.md#{anchor(settable[bound.setting])})"
            if bound.setting
            else "–",
        )
        for bound in BOUNDS
    ]
    return page(
        "# Bounds",
        "Everything that comes from a server, a client or a file has a bound. It is checked where the input enters, "
        "before "
        "objects are made from it. If something exceeds a bound, only its sender is affected. The setting in the last "
        "column changes the bound. `tests/hostile` tests the bounds at every door.",
        table(("what", "at most", "beyond that", "setting"), rows),
    )


def default(key: Key, model: type[Any]) -> str:
    value = default_of(key, model)
    said = key.in_words or ("none" if value in (None, [], {}) else f"`{json.dumps(value).strip(chr(34))}`")
    return said + _in_binary(value, key.kind.unit)


def _in_binary(value: Any, unit: str) -> str:
    """A large number of bytes again, as a person says it: ` (64 MiB)`."""
    if unit.startswith("bytes"):
        for size, name in ((2**20, "MiB"), (2**10, "KiB")):
            if value % size == 0:
                return f" ({value // size} {name})"
    return ""


def _parts(
    keys: Sequence[Key],
    model: type[Any],
    named: Mapping[str, str],
    aliases: Mapping[str, str],
    for_each: Mapping[str, object],
) -> Iterator[str]:
    parts = {part: names.split() for part, names in named.items()}
    by_part: dict[str, list[Key]] = {part: [] for part in (*parts, OTHER)}
    known = {key.name for key in keys}
    for names in parts.values():
        assert known.issuperset(names), f"there is no key {set(names) - known}"
    for key in sorted(keys, key=lambda key: _place(key.name, parts)):
        by_part[_part(key.name, parts)].append(key)
    rows = [
        (f"[`{key.name}`](#{anchor(key.name)})", key.kind.unit, default(key, model))
        for each in by_part.values()
        for key in each
    ]
    yield table(("key", "type", "default"), rows)
    for part, inside in by_part.items():
        if not inside:
            continue
        yield f"## {part}"
        group = next((group for group, name in _PART_OF_GROUP.items() if name == part), "")
        if group:
            yield from_docs(GROUPS[group.rstrip(".")])
        for key in inside:
            yield f"### `{key.name}`"
            yield from_docs(key.meaning)
            yield "".join(_facts(key, model, aliases, for_each))


def _facts(
    key: Key, model: type[Any], aliases: Mapping[str, str], for_each: Mapping[str, object]
) -> Iterator[str]:
    said = default(key, model).replace(
        "the setting",
        f"[the setting](settings.md#{anchor(key.name)})" if model is ServerDefinition else "the setting",
    )
    yield f"*{key.kind.unit}* · default: {said}"
    if key.identity:
        yield " · a wrong value breaks the server"
    written = [f"`{name}`" for name, meant in aliases.items() if meant == key.name]
    if written:
        yield f" · also read as {', '.join(written)}"
    if key.name in for_each:
        yield f" · one server may have [its own](servers.md#{anchor(key.name)})"


def _part(name: str, parts: Mapping[str, Sequence[str]]) -> str:
    named = next((part for part, names in parts.items() if name in names), None)
    groups = [group for group in _PART_OF_GROUP if name.startswith(group)]
    if named is None and groups and _PART_OF_GROUP[max(groups, key=len)] in parts:
        return _PART_OF_GROUP[max(groups, key=len)]
    return named or OTHER


def _place(name: str, parts: Mapping[str, Sequence[str]]) -> int:
    listed = [each for names in parts.values() for each in names]
    return listed.index(name) if name in listed else len(listed)
