"""Where a start is on its way to a connection. Every actor's start is in exactly one place."""

from __future__ import annotations

import enum
from typing import Final


class Place(enum.Enum):
    """The values of waiting places are shown to people after "waiting for"."""

    OUT = "out"  # it waits for nothing and holds nothing
    GATE = "gate"  # waits for its server's gate to open
    INSTALL_TURN = "its turn to install"  # only visited, and may have to be installed first
    TURN = "its turn to be visited"  # only visited
    SLOT = "slot"  # waits for a slot of the pool
    PERMIT = "permit"  # has its slot, waits for a start permit
    STARTING = "starting"  # has both: it connects, or a failed attempt is being cleaned up
    LIVE = "live"  # has its slot: it is connected
    LEAVING = "leaving"  # has its slot until nothing of its process tree is left


WAITING: Final = frozenset({Place.GATE, Place.INSTALL_TURN, Place.TURN, Place.SLOT, Place.PERMIT})
TURNS: Final = frozenset({Place.INSTALL_TURN, Place.TURN})
HOLDS_SLOT: Final = frozenset({Place.PERMIT, Place.STARTING, Place.LIVE, Place.LEAVING})
