"""Admission: an actor that its circuit breaker lets start gets a slot, then a start permit.

An actor that starts only for discovery first waits for a turn. So discoveries never take all the permits, and they
hold no slot while they wait. An actor that is called waits for no turn, and passes ahead of the discoveries that wait
for a slot. Even fewer discoveries may start at a time when their command may first have to install its server: such a
start takes minutes and the whole bandwidth, and these starts share one cache that they lock and can break.

The slot comes first, so no actor holds a permit while it waits for a slot. Which actors wait, hold something, idle
or are being stopped is read off the actors and their starts at each decision; nothing of it is kept here. `look`
decides until nothing moves any more: turns, slots (`pool.decide`), permits, and then evictions. It runs after
every move, so a free place is never left unused. A slot is freed when its start leaves the places that hold one.
That is when nothing of its process tree is left, and not before.
"""

from __future__ import annotations

import math
from itertools import chain, islice

from ..actors.room_context import RoomContext
from ..actors.server import ServerActor
from ..actors.timers import Timer
from ..config.installers import is_installer
from ..config.model import Lifecycle, Settings
from ..protocol.errors import CallError
from ..protocol.events import HOLDS_SLOT, TURNS, Eviction, Place
from ..protocol.lifecycle import Cause, Ending, Reason, State
from .circuit_breaker import Breakers, breaker_of
from .pool import Decision, PoolView, Starts, decide, may_expire
from .records import Directory, record_of


class Admission:
    def __init__(self, context: RoomContext, starter: Starter, directory: Directory) -> None:
        self.starts: Starts = Starts(context)
        self.view: PoolView = PoolView(context, self.starts, directory, starter.is_discovery)
        self._context = context
        self._starter = starter
        self._is_looking = False
        self._look_again = False
        self._reserve_from = -math.inf  # when the last slot over the limit was freed
        self._alarm: Timer | None = None  # set when time alone may open the reserve

    # ---- moves ------------------------------------------------------------------------------------------------------

    def enter(self, actor: ServerActor) -> None:
        """The circuit breaker lets the actor start: queue it for a slot and a permit. An actor that starts only for
        discovery queues for its turn first. An HTTP API has neither process nor connection, so it starts at once."""
        if actor.definition.is_api:
            self._starter.begin(actor, Place.OPENING)
        elif not self._starter.is_discovery(actor):
            self.move(actor, Place.SLOT)
        elif is_installer(actor.definition.command, actor.definition.args):
            self.move(actor, Place.INSTALL_TURN)
        else:
            self.move(actor, Place.TURN)

    def move(self, actor: ServerActor, place: Place) -> None:
        """Move the actor's start, and decide what follows for the others."""
        gives_back = (
            actor.start.place in HOLDS_SLOT and place not in HOLDS_SLOT and not self.view.is_kept(actor)
        )
        self.starts.move(actor, place)
        if gives_back and self.view.shared() >= self.view.capacity:
            self._reserve_from = self._now()  # that slot was over the limit
        self.look()
        if actor.start.place is Place.SLOT and actor.start.deadline is None:
            self._bound_the_wait(actor)

    def became_idle(self, actor: ServerActor) -> None:
        """The actor has become idle and is not in the list of idle actors: list it, and decide."""
        if not actor.address.is_shared:
            actor.idling.is_listed = True  # it is never asked to make room, so nobody has to look at it
            return
        self.view.idle_order.add(actor, self.starts.count(Place.LIVE))
        self.look()

    def may_expire(self, actor: ServerActor) -> bool:
        """Whether an actor whose idle time is over may stop. If the pool's minimum keeps it, it stops once there are
        more."""
        return actor.start.place not in HOLDS_SLOT or may_expire(self.view.staying(), self.view.limits)

    # ---- deciding ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Decide until nothing moves any more. A move made meanwhile is seen by the loop that already runs."""
        self._look_again = True
        if self._is_looking:
            return
        self._is_looking = True
        try:
            while self._look_again:
                self._look_again = False
                while self._give_turns() or (decision := self._give_slots()).grants or self._give_permits():
                    pass
                self._send_away(decision)
        finally:
            self._is_looking = False

    def _give_turns(self) -> bool:
        """Give turns to waiting discoveries. Returns whether any got one."""
        settings, starts = self._context.settings, self.starts
        places = (Place.TURN, *_TURN_TAKEN)
        if starts.count(Place.INSTALL_TURN) and not self._has_discoveries(
            settings.install_turns, *places, installs=True
        ):
            starts.move(next(iter(starts.at(Place.INSTALL_TURN))), Place.TURN)
            return True
        if starts.count(Place.TURN) and not self._has_discoveries(_turns(settings), *_TURN_TAKEN):
            self._enter_pool(next(iter(starts.at(Place.TURN))))
            return True
        return False

    def _has_discoveries(self, count: int, *places: Place, installs: bool = False) -> bool:
        """Whether at least `count` discoveries are at these places. `installs`: count only those that may have to
        install something first. Called after every move, so it stops as soon as it knows."""
        if sum(map(self.starts.count, places)) < count:
            return False
        found = chain.from_iterable(map(self.starts.at, places))
        discoveries = (
            actor
            for actor in found
            if (not installs or _installs(actor)) and self._starter.is_discovery(actor)
        )
        return next(islice(discoveries, count - 1, None), None) is not None

    def _enter_pool(self, actor: ServerActor) -> None:
        self.starts.move(actor, Place.SLOT)
        self._bound_the_wait(actor)

    def _give_slots(self) -> Decision[ServerActor]:
        """Ask the pool for slots, unless nothing can have changed."""
        waits_or_too_many = self.starts.count(Place.SLOT) or self.view.shared() > self.view.capacity
        may_be_overdue = self.view.limits.minimum and may_expire(self.view.staying(), self.view.limits)
        if not waits_or_too_many and not may_be_overdue:
            return _NOTHING
        decision = decide(self.view.snapshot(self._reserve_from))
        for actor in decision.grants:
            self.starts.move(actor, Place.PERMIT)
        return decision

    def _give_permits(self) -> bool:
        if self.starts.count(Place.STARTING) >= self._context.settings.start_permits:
            return False
        first = next(iter(self.starts.at(Place.PERMIT)), None)
        if first is not None:
            self._starter.begin(first)
        return first is not None

    def _send_away(self, decision: Decision[ServerActor]) -> None:
        """No further start can be granted a slot: stop the actors that the pool evicts, and set when to decide
        again."""
        for actor in decision.evictions:
            self._evict(actor)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if decision.look_at < math.inf:
            self._alarm = self._context.timers.at(decision.look_at, self.look)

    def _evict(self, actor: ServerActor) -> None:
        reason = Reason.MAKES_ROOM if self.starts.count(Place.SLOT) else Reason.OVER_LIMIT
        self._context.events.emit(Eviction, actor.address, actor.life.incarnation, reason=reason)
        # Patient: a call that is accepted before this is handled is finished first.
        actor.stop(Ending(Cause.EVICTED, reason=reason))

    # ---- the bound on waiting ---------------------------------------------------------------------------------------

    def _bound_the_wait(self, actor: ServerActor) -> None:
        """Bound the time for which this actor may wait for a slot, counted from its own arrival. Calls have another
        bound."""
        since = min(actor.awaited_since, self._now())
        when = since + self._context.settings.acquire_timeout
        actor.start.deadline = self._context.timers.at(when, lambda: self._too_late(actor, since))

    def _too_late(self, actor: ServerActor, since: float) -> None:
        actor.start.deadline = None
        actor.refuse_waiting(f"no slot of {self.view.limits.slots} became free in time", since)
        if actor.start.place is Place.SLOT and actor.start.deadline is None:
            self._bound_the_wait(actor)

    def _now(self) -> float:
        return self._context.backend.now()


_NOTHING: Decision[ServerActor] = Decision()
_TURN_TAKEN = (Place.STARTING, Place.PERMIT, Place.SLOT)


def _installs(actor: ServerActor) -> bool:
    return is_installer(actor.definition.command, actor.definition.args)


def _turns(settings: Settings) -> int:
    """How many discoveries may start at a time: a fifth of the permits is left for called actors."""
    return max(1, settings.start_permits - max(1, settings.start_permits // 5))


# ---- The starter: from a reason to connect to the connection --------------------------------------------------------
#
# An idle actor needs three things, in this order: its circuit breaker lets it start, a slot of the pool, and a start
# permit. While the breaker refuses, the actor waits (an explicit connect bypasses the breaker, once a second).
# Admission grants the other two. Only the actor's `Start` says at which step it is; leaving every queue is one move.
# The breaker may trip while the actor waits, so it is asked once more when the permit comes.


class Starter:
    def __init__(self, context: RoomContext, directory: Directory) -> None:
        self._directory = directory
        self._context = context
        self.admission: Admission = Admission(context, self, directory)
        self.breakers: Breakers = Breakers(context, self.admission.starts, directory.all_actors, self._apply)

    # ---- reasons ----------------------------------------------------------------------------------------------------

    def request(self, actor: ServerActor) -> None:
        """The idle actor has a reason to connect: a call, a wait, its policy. May be called again."""
        place = actor.start.place
        if place is Place.OUT or (place in TURNS and not self.is_discovery(actor)):
            self._apply(actor)

    def request_by_name(self, actor: ServerActor) -> None:
        """Connect the actor, whatever its circuit breaker says, and even if it was taken down. End this with
        `withdraw`."""
        self._directory.bring_back(actor.address.server)
        if actor.record.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            actor.start.by_policy = True  # it is kept alive again, even if that caller stops waiting
        if actor.start.place is Place.GATE:  # bypass the breaker
            self._apply(actor)
        else:
            actor.request_start()

    def request_as_called(self, actor: ServerActor) -> None:
        """Connect the actor as a call would: raises the error that a call would be refused with. End this
        with `withdraw`."""
        record = record_of(actor)
        standing = self._directory.closing or record.refusal
        if standing is not None:
            raise made_out_to(actor.address.server, standing)
        if actor.life.state in (State.IDLE, State.DRAINING):
            unavailable = record.breaker.refuses_start()
            if unavailable is not None:
                raise unavailable
        actor.request_start()

    def request_by_policy(self, actor: ServerActor) -> None:
        """Connect the actor by policy. No caller can withdraw that."""
        actor.start.by_policy = True
        actor.request_start()

    def withdraw(self, actor: ServerActor) -> None:
        """A reason to connect is gone. Without any reason the actor's start leaves every queue."""
        has_another_reason = actor.start.by_policy or actor.is_awaited
        if actor.life.state is State.IDLE and not has_another_reason:
            self.admission.move(actor, Place.OUT)
            breaker_of(actor).probe_left(actor)

    # ---- what admission asks ----------------------------------------------------------------------------------------

    def is_discovery(self, actor: ServerActor) -> bool:
        """Whether the actor starts only for discovery: nobody has called it."""
        return record_of(actor).discovery is actor and not actor.is_awaited

    def begin(self, actor: ServerActor, place: Place = Place.STARTING) -> None:
        """The actor's turn has come: start it, or let it wait for its circuit breaker again. `place`: where it is
        while it connects."""
        breaker, now = breaker_of(actor), self._context.backend.now()
        if not breaker.lets_start(actor):  # it has tripped while the actor waited
            self._wait_for_breaker(actor, now)
            return
        if actor.start.after_failure:
            actor.start.after_failure = False
            if not breaker.may_restart(by_name=actor.is_asked_for_by_name):
                self._wait_for_breaker(actor, now)
                self._apply(actor)
                return
        breaker.note_start()
        self.admission.starts.move(actor, place)
        actor.steps.connect()

    # ---- the circuit breaker ----------------------------------------------------------------------------------------

    def _apply(self, actor: ServerActor) -> None:
        """Let the actor pass its circuit breaker, or wait for it."""
        now = self._context.backend.now()
        if breaker_of(actor).lets_start(actor):
            self.admission.enter(actor)
        else:
            self._wait_for_breaker(actor, now)

    def _wait_for_breaker(self, actor: ServerActor, now: float) -> None:
        self.admission.move(actor, Place.GATE)
        breaker_of(actor).set_timer(now)


def made_out_to(server: str, refusal: CallError) -> CallError:
    """A copy of a refusal, for one more caller. `server`: the server that was called."""
    refused = refusal.copy()
    refused.server = server
    return refused
