"""Checks that the gateway's own event log keeps its promises.

* No event is missing: the numbers follow each other.
* Every transition is in the table of `protocol/lifecycle.py`, and starts in the state where its address was.
* The incarnation numbers of an address never decrease; a new incarnation starts at idle when the last one is closed.
* A call is accepted once, then ends once: accepted = completed + failed + cancelled.
* There are never more live connections than the highest number of slots. (Children of sessions have their own.)
* No event reports a bug.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from greenroom.protocol.events import NoteCode
from greenroom.protocol.lifecycle import TABLE, State

from ._ledger import Contradiction
from ._server_file import MOST_SLOTS

_MOVES = {(before.value, after.value) for before, row in TABLE.items() for after in row.values()}
_NEXT = (State.CLOSED.value, State.IDLE.value)  # the next incarnation's beginning, the supervisor's to decide
_BUGS = {code.value for code in (NoteCode.BUG, NoteCode.CALLBACK, NoteCode.READER)}


@attrs.define
class Place:
    """The state of an address. `is_over`: nothing of it is left; an address of the same name starts afresh."""

    incarnation: int = 1
    state: str = State.IDLE.value
    is_over: bool = False


@attrs.define
class EventLog:
    path: Path
    seq: int = 0
    places: dict[tuple[str, str], Place] = attrs.field(factory=dict[tuple[str, str], Place])
    calls: dict[int, bool] = attrs.field(factory=dict[int, bool])  # number: has ended
    outcomes: Counter[str] = attrs.field(factory=Counter[str])
    transitions: Counter[str] = attrs.field(factory=Counter[str])
    causes: Counter[str] = attrs.field(factory=Counter[str])
    live: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    _offset: int = 0

    @property
    def accepted(self) -> int:
        return len(self.calls)

    def read_on(self) -> None:
        """Read what is new. Raises `Contradiction`."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            self._take(json.loads(line))

    def tail(self, count: int) -> list[str]:
        return self.path.read_text(errors="replace").splitlines()[-count:] if self.path.exists() else []

    def check_end(self) -> None:
        """After an orderly end: every call has its outcome, and every incarnation is over."""
        open_calls = [number for number, ended in self.calls.items() if not ended]
        if open_calls or self.outcomes.total() != self.accepted:
            raise Contradiction(f"{self.accepted} calls were accepted; these never ended: {open_calls}")
        alive = {at: place for at, place in self.places.items() if place.state not in ("closed", "idle")}
        if alive:
            raise Contradiction(f"not closed at the end: {alive}")

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "lagged":
            raise Contradiction(f"the log has a gap: {event}")
        if event["seq"] != self.seq + 1:
            raise Contradiction(f"event {self.seq} is followed by {event}")
        self.seq = event["seq"]
        if event["kind"] == "transition":
            self._move(event)
        elif event["kind"] == "call":
            self._call(event)
        elif event.get("code") in _BUGS:
            raise Contradiction(f"an event reports a bug: {event}")

    def _move(self, event: Mapping[str, Any]) -> None:
        at = event["server"], event["scope"]
        place = self.places.get(at)
        if place is None or (place.is_over and event["incarnation"] == 1):
            place = self.places[at] = Place()
        if not _follows(place, event):
            raise Contradiction(f"this cannot follow {place}: {event}")
        place.incarnation, place.state = event["incarnation"], event["to"]
        place.is_over = event["to"] == "closed" and (
            event.get("cause") in ("removed", "scope ended") or event["scope"].startswith("call:")
        )
        self._count_live(at, event["to"])
        self.transitions[f"{event['from']} → {event['to']}"] += 1
        if event["to"] == "closed":
            self.causes[event.get("cause", "?")] += 1
        if event.get("cause") == "failed: bug":
            raise Contradiction(f"a bug ended an incarnation: {event}")

    def _count_live(self, at: tuple[str, str], state: str) -> None:
        if state == "connecting":
            self.live.add(at)
        elif state == "closed":
            self.live.discard(at)
        shared = sorted(each for each in self.live if not each[1].startswith("session:"))
        if len(shared) > MOST_SLOTS:
            raise Contradiction(f"{len(shared)} are live, over {MOST_SLOTS} slots: {shared}")

    def _call(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "CallRefused":
            return  # it was never accepted, and has no number
        number, what = event["call"], event["detail"]
        known = self.calls.get(number)
        if what == "accepted" and known is None:
            self.calls[number] = False
        elif what == "ended" and known is False:
            self.calls[number] = True
            self.outcomes[event["outcome"]] += 1
        elif what != "sent" or known is not False:
            raise Contradiction(f"call {number} was {known} (whether ended) before {event}")


def _follows(place: Place, event: Mapping[str, Any]) -> bool:
    move = event["from"], event["to"]
    if move == _NEXT:
        return place.state == "closed" and event["incarnation"] == place.incarnation + 1
    return move in _MOVES and move[0] == place.state and event["incarnation"] == place.incarnation
