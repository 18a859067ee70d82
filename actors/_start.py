"""The start: an actor's way to its connection.

Each actor has one `Start`, and it is in exactly one `Place`. What the actor waits for, and whether it holds a slot or a
start permit, is read from the place and kept nowhere else. So leaving every queue is one move, and no two lists can
disagree about who stands in them. The actor reads its start; the supervisor moves it, in one function (`Starts.move`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from ..protocol.start import WAITING, Place

if TYPE_CHECKING:
    from ._timers import Timer


@attrs.define(eq=False)
class Start:
    """Times are of the room's clock, in seconds."""

    place: Place = Place.OUT
    since: float = -math.inf  # in this place
    began: float = -math.inf  # when it last set out
    by_policy: bool = False  # its lifecycle, or a visit, wants it: no caller that leaves can undo it
    after_failure: bool = False  # it follows a loss or a failure: restart intensity counts it
    deadline: Timer | None = None  # until when it may wait for a slot

    @property
    def waiting_for(self) -> str | None:
        return self.place.value if self.place in WAITING else None

    @property
    def waits_since(self) -> float:
        """Since when it waits for what it waits for now: for its turn to connect, or for its connection."""
        return self.since if self.place is Place.STARTING else self.began
