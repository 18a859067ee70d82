"""An event as JSON: what event files, the page, `/events` and tapes have of it."""

from __future__ import annotations

import enum
from functools import cache
from typing import Any, Final

import msgspec

from .events import Event, Lagged


def record_of(event: Event | Lagged) -> dict[str, Any]:
    """One event as JSON: which event it is, its fields by name, without those at their defaults, and what happened in
    words. A default that is a word stands there, too: `not_sent` says something."""
    if isinstance(event, Lagged):
        return {"kind": "lagged", "missed": event.missed}
    record: dict[str, Any] = {"seq": event.seq, "at": round(event.at, 6), "kind": event.kind.value}
    record["event"] = type(event).__name__
    if event.address is not None:
        record |= {"server": event.address.server, "scope": event.address.scope}
    for name, default in _defaults(type(event)):
        value = getattr(event, name)
        if value is not None and (value is not default or isinstance(value, enum.Enum)):
            record[KEYS.get(name, name)] = _plain(value)
    if event.detail:
        record["detail"] = event.detail
    return {**record, "inFlight": getattr(event, "in_flight", 0), "queued": getattr(event, "queued", 0)}


# Fields that the record has under another name, in another form, or in the words.
SAID: Final = frozenset({"seq", "at", "address", "words", "in_flight", "queued"})
KEYS: Final[dict[str, str]] = {
    "before": "from",
    "after": "to",
    "open_for": "openFor",
    "at_terminal": "atTerminal",
    "is_error": "isError",
}


@cache
def _defaults(of: type[Event]) -> tuple[tuple[str, Any], ...]:
    """The fields that the record has under their own names or those of `KEYS`, and their defaults."""
    return tuple((each.name, each.default) for each in msgspec.structs.fields(of) if each.name not in SAID)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return round(value, 6) if isinstance(value, float) else value
