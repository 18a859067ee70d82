"""What a run did and measured, as a table a person reads."""

from __future__ import annotations

from collections import Counter

import attrs

from ._calm import Calm, Holdings
from ._events import EventLog
from ._world import World


@attrs.define
class Report:
    seed: str
    lives: int = 0
    asked: int = 0
    longest: float = 0.0
    events: int = 0
    accepted: int = 0
    asked_outcomes: Counter[str] = attrs.field(factory=Counter[str])
    call_outcomes: Counter[str] = attrs.field(factory=Counter[str])
    commands: Counter[str] = attrs.field(factory=Counter[str])
    faults: Counter[str] = attrs.field(factory=Counter[str])
    transitions: Counter[str] = attrs.field(factory=Counter[str])
    causes: Counter[str] = attrs.field(factory=Counter[str])
    endings: Counter[str] = attrs.field(factory=Counter[str])
    held: list[Holdings | None] = attrs.field(factory=list[Holdings | None])

    def add(self, world: World, log: EventLog, calm: Calm, ending: str) -> None:
        """One life is over."""
        self.lives += 1
        self.asked += len(world.ledger.requests)
        self.longest = max(self.longest, world.ledger.longest)
        self.events += log.seq
        self.accepted += log.accepted
        self.asked_outcomes += world.ledger.outcomes
        self.asked_outcomes["open at the end"] += len(world.ledger.open)
        self.call_outcomes += log.outcomes
        self.commands += world.commands
        self.faults += Counter({kind.value: count for kind, count in world.counts.items()})
        self.transitions += log.transitions
        self.causes += log.causes
        self.endings[ending] += 1

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.lives} gateways, {self.faults.total()} faults, {self.events} events",
            f"requests: {self.asked} sent, the longest answered after {self.longest:.1f}s",
            _row("  answered", self.asked_outcomes),
            f"calls in the event log: {self.accepted} accepted",
            _row("  ended", self.call_outcomes),
            _row("commands", self.commands),
            _row("faults", self.faults),
            _row("transitions", self.transitions),
            _row("incarnations ended by", self.causes),
            _row("gateways ended by", self.endings),
            "in each calm of the long life:",
            *(f"  {held}" for held in self.held),
        ]
        return "\n".join(lines)


def _row(title: str, counts: Counter[str]) -> str:
    return f"{title}: " + ", ".join(f"{count} {what}" for what, count in counts.most_common())
