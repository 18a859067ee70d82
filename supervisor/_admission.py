"""Admission: what stands between a reason to connect and the grant, after the gate: a slot, then a start permit.

What only a visit wants waits for its turn before that, so that visits never take all the permits, and hold no slot
while they wait: whoever is called waits for no turn, and passes ahead of the visits that wait for a slot. Of visits
whose command may have to install its server first there are fewer still at a time: such a start takes minutes and all
of the line, and they share one cache that they lock and break.

A slot first, so a permit is never held by somebody who waits for a slot. The pool and the permits decide; this is where
their decisions are carried out: a grant goes on to the permits, an eviction asks the victim to leave. Its slot comes
back with `closed`, when nothing of its tree is left, and not before.

Who rests and who is on its way out is read off the actors when the pool is about to decide, instead of being told to it
as it happens: the actors know it anyway, a call on a connected server must not pay for a pool that has room, and no
ending, whatever its cause, can be forgotten. Only while somebody waits (`RoomContext.pressed`) does an actor say so the
moment it comes to rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..actors import INSTALL_TURN, TURN, RoomContext, ServerActor, Timer
from ..protocol.config import Settings
from ..protocol.events import Eviction
from ..protocol.installers import is_installer
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ._permits import Permits
from ._pool import Evict, Grant, Pool, PoolLimits

_Decisions = list[Grant[ServerActor] | Evict[ServerActor]]


class Admission:
    def __init__(self, context: RoomContext) -> None:
        settings = context.settings
        self._context = context
        self._cues: dict[ServerActor, Callable[[], None]] = {}
        self._deadlines: dict[ServerActor, Timer] = {}
        self._look: Timer | None = None
        self.install_turns: Permits[ServerActor] = Permits(settings.install_turns)
        self.turns: Permits[ServerActor] = Permits(_turns(settings))
        self.permits: Permits[ServerActor] = Permits(settings.start_permits)
        self.pool: Pool[ServerActor] = Pool(_limits(settings))

    def limits_changed(self) -> None:
        """The settings are others now. Who is live stays; who waits may be served."""
        settings = self._context.settings
        self.install_turns.resize(settings.install_turns)
        self.turns.resize(_turns(settings))
        self.permits.resize(settings.start_permits)
        self.pool.limits = _limits(settings)
        self._look_again()

    def set_aside(self, actor: ServerActor) -> bool:
        """A slot for a keep-alive server, for good. False when the rest would be left without."""
        is_aside = self.pool.set_aside(actor)
        self._look_again()
        return is_aside

    def give_back(self, actor: ServerActor) -> None:
        """It is no keep-alive server any more: its slot is anybody's. Harmless when it had none."""
        if self.pool.give_back(actor):
            self._look_again()

    def enter(self, actor: ServerActor, granted: Callable[[], None], *, in_turn: bool = False) -> None:
        """Queue for a slot and a permit; `granted()` when both are had, at once or later. `in_turn`: it is only
        visited. Entering again changes nothing but that."""
        self._cues[actor] = granted
        if not in_turn:
            self.install_turns.give_up(actor)
            self.turns.give_up(actor)
            self._enter_pool(actor)
        elif is_installer(actor.definition.command, actor.definition.args):
            actor.waiting_for = INSTALL_TURN
            self.install_turns.acquire(actor, lambda: self._wait_for_turn(actor))
        else:
            self._wait_for_turn(actor)

    def _wait_for_turn(self, actor: ServerActor) -> None:
        actor.waiting_for = TURN
        self.turns.acquire(actor, lambda: self._enter_pool(actor, gives_way=True))

    def _enter_pool(self, actor: ServerActor, *, gives_way: bool = False) -> None:
        if self.pool.holds(actor):
            self._granted(actor)
            return
        actor.waiting_for = "slot"
        self._read_the_actors()
        group = None if actor.address.is_shared else actor.address.server
        self._carry_out(self.pool.acquire(actor, self._now(), group, gives_way=gives_way))
        if actor.waiting_for == "slot":
            self._bound_the_wait(actor)

    def started(self, actor: ServerActor) -> None:
        """The attempt to connect is over: its permit goes to the next."""
        self.install_turns.release(actor)
        self.turns.release(actor)
        self.permits.release(actor)

    def leave(self, actor: ServerActor) -> None:
        """It is closed, or no longer wants to connect: nothing of it is held or queued any more."""
        self._cues.pop(actor, None)
        self._forget_deadline(actor)
        self.install_turns.release(actor)
        self.turns.release(actor)
        self.permits.release(actor)
        self._read_the_actors()
        now = self._now()
        self._carry_out(
            self.pool.free(actor, now) if self.pool.holds(actor) else self.pool.abandon(actor, now)
        )

    def return_slot(self, actor: ServerActor) -> None:
        """Its transport holds no connection: it is ready without a slot."""
        self._read_the_actors()
        self._carry_out(self.pool.free(actor, self._now()))

    def rested(self, actor: ServerActor) -> None:
        """While somebody waits: it has come to rest, and may be asked to go."""
        self._read_the_actors()
        self._carry_out(self.pool.rested(actor, self._now(), is_victim=_is_victim(actor)))

    def may_expire(self, actor: ServerActor) -> bool:
        """Its idle time is over. False: the minimum holds it; it goes when the total exceeds that."""
        self._read_the_actors()
        return self.pool.may_expire(actor)

    # ---- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, decisions: _Decisions) -> None:
        for decision in decisions:
            if isinstance(decision, Grant):
                self._granted(decision.who)
            elif self.pool.still_goes(decision.who):
                self._evicted(decision.who)
            elif decision.who.is_held:
                self.pool.may_expire(decision.who)
        self._context.pressed = self.pool.is_pressed
        self._watch()

    def _granted(self, actor: ServerActor) -> None:
        granted = self._cues.get(actor)
        if granted is None:
            return  # it left while another's grant, decided in the same step, was carried out
        self._forget_deadline(actor)
        actor.waiting_for = "permit"
        self.permits.acquire(actor, granted)

    def _evicted(self, actor: ServerActor) -> None:
        reason = Reason.MAKES_ROOM if self.pool.waiting else Reason.OVER_LIMIT
        self._context.events.emit(Eviction, actor.address, actor.life.incarnation, reason=reason)
        # Patient: if a call slips in before this is handled, it is finished first.
        actor.leave(Ending(Cause.EVICTED, reason=reason))

    def _read_the_actors(self) -> None:
        for actor in self.pool.holders:
            if actor.life.state is State.DRAINING:
                self.pool.leaving(actor)
            elif not actor.is_held:
                self.pool.busy(actor)  # it was used, since it was held for its idle time
        resting = [actor for actor in self.pool.holders if actor.is_connected and actor.is_resting]
        resting.sort(key=lambda actor: actor.idle_since)
        self.pool.see_idle({actor: _is_victim(actor) for actor in resting})

    def _watch(self) -> None:
        """Look again when time alone may open the reserve."""
        when = self.pool.next_look()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if when < math.inf:
            self._look = self._context.timers.at(when, self._look_again)

    def _look_again(self) -> None:
        self._read_the_actors()
        self._carry_out(self.pool.look(self._now()))

    # ---- the bound on waiting ---------------------------------------------------------------------------------------

    def _bound_the_wait(self, actor: ServerActor) -> None:
        """Whoever waits for a slot waits so long, each from when he came; calls have a bound of their own besides."""
        since = min(actor.awaited_since, self._now())
        when = since + self._context.settings.acquire_timeout
        self._forget_deadline(actor)
        self._deadlines[actor] = self._context.timers.at(when, lambda: self._too_late(actor, since))

    def _too_late(self, actor: ServerActor, since: float) -> None:
        self._deadlines.pop(actor, None)
        if actor.waiting_for == "slot":
            actor.refuse_waiting(f"no slot of {self.pool.limits.slots} became free in time", since)
        if actor.waiting_for == "slot" and actor not in self._deadlines:
            self._bound_the_wait(actor)

    def _forget_deadline(self, actor: ServerActor) -> None:
        timer = self._deadlines.pop(actor, None)
        if timer is not None:
            timer.cancel()

    def _now(self) -> float:
        return self._context.backend.now()


def _is_victim(actor: ServerActor) -> bool:
    """Whether pressure may take it: a session's child is ended by its session's own limits only."""
    return actor.address.is_shared


def _turns(settings: Settings) -> int:
    """How many visits may start at a time: a fifth of the permits is for those who are called."""
    return max(1, settings.start_permits - max(1, settings.start_permits // 5))


def _limits(settings: Settings) -> PoolLimits:
    return PoolLimits(
        settings.max_connections,
        settings.reserve_connections,
        settings.reserve_timeout,
        settings.min_connections,
    )
