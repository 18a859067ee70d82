"""The start: an actor's way to its connection.

Each actor has one `Start`, which is in exactly one `Place`. The place tells what the actor waits for, and whether
it holds a slot or a start permit; nothing else stores that. So leaving every queue is one move, and no two lists
can disagree about their members. The actor reads its start; the supervisor moves it, in one function
(`Starts.move`).
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
    since: float = -math.inf  # when it came to this place
    began: float = -math.inf  # when it last left `OUT`
    by_policy: bool = False  # its lifecycle or a visit wants it: no caller that leaves can undo it
    after_failure: bool = False  # it follows a loss or a failure: restart intensity counts it
    deadline: Timer | None = None  # until when it may wait for a slot

    @property
    def waiting_for(self) -> str | None:
        return self.place.value if self.place in WAITING else None

    @property
    def waits_since(self) -> float:
        """When the present wait began: for its turn to connect, or for its connection."""
        return self.since if self.place is Place.STARTING else self.began
