"""The truth about a world: which faults its servers have had, what was asked of the room, and how its slots are held.

A `World` writes down what it does, the trace checker and the laws read it. They decide with it whether the room reacted
rightly: a server that was not hurt must not be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

from ..actors import ServerActor
from ..protocol.address import Address
from ..protocol.config import Config
from ..protocol.lifecycle import State
from ..protocol.start import Place
from ..supervisor import Greenroom
from ._lives import EPS, Seats
from ._virtual_run import VirtualRun


@attrs.define(eq=False)
class Ask:
    """Something that was asked of the room, by name. While somebody still asks, `ended` is None."""

    what: str
    server: str
    ended: float | None = None


class Truth:
    """The `GroundTruth` of one world. All times are seconds of its run."""

    def __init__(self, room: Greenroom, run: VirtualRun) -> None:
        self.silent_since: dict[str, float] = {}  # servers that do not answer
        self.reloaded_at = 0.0  # a reload begins health checks anew
        self.redefined_at: dict[str, float] = {}  # servers that a reload gave another definition
        self.slowest_stop: dict[str, float] = {}
        self._room: Any = room  # what the room keeps is looked at, never changed
        self._run = run
        self._faults: dict[tuple[str, str], float] = {}  # (fault, server) -> until when; `inf`: still
        self._asks: list[Ask] = []

    @property
    def config(self) -> Config:
        return self._room.config

    @property
    def root(self) -> Any:
        return self._room._runtime.root

    # ---- faults -----------------------------------------------------------------------------------------------------

    def hurt(self, fault: str, server: str) -> None:
        """The server has this fault from now on."""
        self._faults[fault, server] = math.inf

    def hurt_now(self, fault: str, server: str) -> None:
        """The server has this fault at this moment."""
        self._faults[fault, server] = max(self._faults.get((fault, server), 0.0), self._run.now)

    def healed(self, server: str) -> None:
        """All faults of the server end now."""
        self.silent_since.pop(server, None)
        for (fault, name), until in self._faults.items():
            if name == server and until == math.inf:
                self._faults[fault, name] = self._run.now

    def was(self, fault: str, server: str, since: float) -> bool:
        return self._faults.get((fault, server), -math.inf) >= since - EPS

    # ---- what was asked ---------------------------------------------------------------------------------------------

    def note_ask(self, what: str, server: str) -> None:
        """Something was asked that takes no time."""
        self._asks.append(Ask(what, server, self._run.now))

    def begin_ask(self, what: str, server: str) -> Ask:
        """Somebody begins to ask. Give it to `end_ask` when they stop."""
        ask = Ask(what, server)
        self._asks.append(ask)
        return ask

    def end_ask(self, ask: Ask) -> None:
        ask.ended = self._run.now

    def asked(self, what: str, server: str, since: float) -> bool:
        if what == "down":
            return self.is_down(server)
        kinds = {"connect": ("connect", "restart", "reload"), "drained": ("drain",)}.get(what, (what,))
        return any(ask.ended is None or ask.ended >= since - EPS for ask in self._asks_for(server, *kinds))

    def last_asked(self, what: str, server: str) -> float:
        """When somebody last stopped asking; now, if somebody still asks."""
        ends = (self._run.now if ask.ended is None else ask.ended for ask in self._asks_for(server, what))
        return max(ends, default=-math.inf)

    def is_down(self, server: str) -> bool:
        """It was taken down on purpose, and nobody has asked for it since."""
        what = [ask.what for ask in self._asks if ask.server == server and ask.what != "find"]
        return bool(what) and what[-1] in ("drain", "disabled", "removed")

    def _asks_for(self, server: str, *kinds: str) -> Iterator[Ask]:
        return (ask for ask in self._asks if ask.what in kinds and ask.server == server)

    # ---- slots and permits ------------------------------------------------------------------------------------------

    def lines(self) -> dict[str, tuple[Address, ...]]:
        starts = self.root.admission.starts
        # Servers with a slot of their own, and children of sessions, have bounds of their own.
        slots = [
            actor for actor in starts.at(Place.SLOT) if actor.address.is_shared and not self._is_kept(actor)
        ]
        return {
            "slot": tuple(actor.address for actor in slots),
            "permit": tuple(actor.address for actor in starts.at(Place.PERMIT)),
        }

    def seats(self) -> Seats:
        admission = self.root.admission
        held = admission.starts.holders()
        leaving = [actor for actor in held if actor.life.state is State.DRAINING]
        return Seats(
            admission.view.capacity,
            admission.view.limits.minimum,
            len(held) - len(leaving),
            sum(not self._is_kept(actor) for actor in held),
            sum(not self._is_kept(actor) for actor in leaving),
            admission.starts.count(Place.SLOT),
        )

    def _is_kept(self, actor: ServerActor) -> bool:
        return actor.address.is_shared and actor.address.server in self.root.kept()
