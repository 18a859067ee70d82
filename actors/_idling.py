"""How long one actor has had nothing to do, and when that has been long enough.

An actor rests when no call is in flight, nothing waits and nobody holds a lease. Its idle time counts from the end of
its last call, or from when it connected. When the idle time is over, the pool's minimum may still keep the actor. In
that case the pool stops it later, as soon as the minimum allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.lifecycle import Cause, Ending, Reason, State, Trigger
from ._call_table import CONNECTED

if TYPE_CHECKING:
    from ._server import ServerActor


class Idling:
    __slots__ = ("_actor", "_time", "is_listed", "leases", "since")

    def __init__(self, actor: ServerActor) -> None:
        self._actor = actor
        self._time = math.inf  # as the supervisor answered when it connected or its policy changed
        self.since = -math.inf  # when its last call ended, or it connected
        self.leases = 0
        self.is_listed = False  # the supervisor looks at it by itself when it looks for an idle actor

    @property
    def until(self) -> float:
        """When its idle time is over, if it rests."""
        return self.since + self._time

    def lease(self) -> Callable[[], None]:
        """Take a lease, for a caller that is about to call the actor or is deciding whether to. Until the returned
        function is called, neither idle time nor pressure ends the actor."""
        self.leases += 1
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self.leases -= 1
                self._actor.calls.call_over()

        return release

    def ask_time(self) -> None:
        """Ask the supervisor for the idle time under the present policy."""
        self._time = self._actor.supervisor.idle_timeout(self._actor)

    def shorten(self, seconds: float) -> None:
        """It is connected although nobody requested it. Unless it is called, it stays at most this long."""
        self._time = min(self._time, seconds)

    def rest(self, since: float | None = None) -> None:
        """The last call is over: begin to idle (from `since`, or from now), or go on draining."""
        actor = self._actor
        state = actor.life.state
        if state is CONNECTED and not self.leases:
            self.since = actor.context.backend.now() if since is None else since
            until = self.since + self._time
            if actor.alarm.when > until:
                actor.alarm.wake_by(until)
            if not self.is_listed:
                actor.supervisor.rested(actor)
        elif state is State.DRAINING:
            actor.steps.settle()
        if actor.address.is_call and not self.leases and not actor.is_installing:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.CALL_OVER), 0)

    def expire(self, now: float) -> None:
        """Stop the actor if its idle time is over and the supervisor allows it."""
        actor = self._actor
        if not actor.is_idle or now < self.until:
            return
        if self.since > actor.connected_at and self._time < actor.supervisor.idle_timeout(actor):
            actor.rearm()  # called since its idle time was shortened
        elif actor.supervisor.may_expire(actor):  # otherwise the pool stops it when its minimum allows
            ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=self._time)
            actor.steps.move(Trigger.DRAIN, ending, now)
