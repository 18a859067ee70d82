"""What the trace checker knows of each address and each gate from the events. What events do not tell, it asks the
`GroundTruth`.

A `Life` is one address: its state and since when, its calls, and why it ended. `Lives` holds them all, and what can be
known of each gate from outside (`_gate_model`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import attrs

from ..protocol.address import Address
from ..protocol.config import Config
from ..protocol.lifecycle import Cause, State
from ._gate_model import EPS, GateModel


@attrs.frozen
class Seats:
    """The pool's slots at one moment. A connection that is ending still has one."""

    capacity: int  # slots that are set aside for nobody
    minimum: int
    staying: int  # held by connections that are not ending
    shared: int  # held, and not set aside
    leaving: int  # how many of `shared` are ending
    waiting: int


class GroundTruth(Protocol):
    """Knows what was done to the servers and the room."""

    @property
    def config(self) -> Config:
        """The room's, as it is now."""
        ...

    def was(self, fault: str, server: str, since: float) -> bool:
        """Whether the server had this fault at any moment from `since` on."""
        ...

    def lines(self) -> Mapping[str, tuple[Address, ...]]:
        """The addresses that now wait for a slot, and for a permit, in order of arrival."""
        ...

    def seats(self) -> Seats:
        """How the slots are held now."""
        ...

    def asked(self, what: str, server: str, since: float) -> bool:
        """Whether somebody asked for this by name, or still does, from `since` on."""
        ...


@attrs.define(eq=False)
class Leave:
    """One cause for which an incarnation ends. It holds until a stronger cause comes, or until the incarnation has
    closed."""

    at: float
    cause: Cause
    until: float = math.inf


@attrs.define(eq=False)
class Life:
    """One address, as its transitions describe it."""

    address: Address
    state: State = State.IDLE
    incarnation: int = 1
    since: float = 0.0  # of this state
    connecting_at: float = -math.inf
    connected_at: float = -math.inf
    rested_at: float = -math.inf  # its last call ended
    failed_last: bool = False  # its last ending was a loss or a failure
    unsent: dict[int, None] = attrs.field(factory=dict[int, None])  # accepted, in order
    open: dict[int, float] = attrs.field(factory=dict[int, float])  # sent, not ended: since when
    sends: dict[int, int] = attrs.field(factory=dict[int, int])
    leaves: list[Leave] = attrs.field(factory=lambda: list[Leave]())

    def end_leave(self, at: float) -> None:
        """The last cause no longer holds. Harmless when there is none, or when it has ended."""
        if self.leaves and self.leaves[-1].until == math.inf:
            self.leaves[-1].until = at

    def ended_as(self, cause: Cause, since: float) -> bool:
        """Whether it was ending for this cause at any moment from `since` on."""
        return any(leave.cause is cause and leave.until >= since - EPS for leave in self.leaves)


class Lives:
    """All addresses and gates of a room."""

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth
        self.all: dict[Address, Life] = {}
        self.gates: dict[str, GateModel] = {}

    def of(self, address: Address) -> Life:
        found = self.all.get(address)
        if found is None:
            found = self.all[address] = Life(address)
        return found

    def gate(self, address: Address) -> GateModel:
        """The gate of an address: a session has its own, all other addresses of a server share one."""
        key = str(address) if address.is_session else address.server
        found = self.gates.get(key)
        if found is None:
            settings = self.truth.config.settings
            found = self.gates[key] = GateModel(
                settings.failure_threshold,
                settings.cooldown,
                settings.backoff_min,
                settings.backoff_max,
                settings.stable_after,
                settings.failure_backoff,
            )
        return found
