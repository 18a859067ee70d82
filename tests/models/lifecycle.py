"""The lifecycle, with pencil and paper: an incarnation as its list of calls, its causes, its deadlines."""

from __future__ import annotations

import math

import attrs

from greenroom.protocol.lifecycle import Cause

ARROWS = {
    "idle": {"connect": "connecting", "stop": "closed"},
    "connecting": {"ready": "connected", "failed": "draining", "stop": "draining"},
    "connected": {"drain": "draining", "stop": "draining", "lost": "draining"},
    "draining": {
        "drain": "draining", "stop": "draining", "lost": "draining", "deadline": "draining", "gone": "closed"
    },
    "closed": {},
}  # fmt: skip


@attrs.define
class LifeModel:
    state: str = "idle"
    in_flight: int = 0
    causes: list[Cause] = attrs.field(factory=list[Cause])
    deadlines: list[float] = attrs.field(factory=list[float])
    told_to_stop: bool = False  # the process tree

    def allows(self, trigger: str) -> bool:
        """`gone` is told only of a tree that was told to stop, with no call in flight; a deadline only where one is."""
        if trigger == "gone":
            return self.state == "draining" and self.told_to_stop and not self.in_flight
        return trigger in ARROWS[self.state]

    def happens(self, trigger: str, cause: Cause | None, deadline: float) -> None:
        if cause is not None:
            self.causes.append(cause)
        self.state = ARROWS[self.state][trigger]
        if self.state != "draining":
            return
        if trigger == "drain" and self.in_flight:
            self.deadlines.append(deadline)
        else:
            self.in_flight = 0
            self.told_to_stop = True

    def a_call_ends(self) -> None:
        self.in_flight -= 1
        if not self.in_flight and self.state == "draining":
            self.told_to_stop = True

    @property
    def cause(self) -> Cause | None:
        """The strongest there was; of equals all are the same."""
        order = list(Cause)
        return max(self.causes, key=order.index, default=None)

    @property
    def deadline(self) -> float:
        return min(self.deadlines, default=math.inf)
