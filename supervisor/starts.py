"""Starts: from a reason to connect to the connection. Breaker, turn, slot, permit, open, in this order.

* An idle actor with a reason (a call, a wait, its policy) passes its circuit breaker, or waits for it. An explicit
  connect bypasses the breaker, once a second.
* An actor that starts only for discovery then waits for a turn. So discoveries never take all the permits, and they
  hold no slot while they wait. An actor that is called waits for no turn, and passes ahead of the discoveries that wait
  for a slot. Even fewer discoveries may start at a time when their command may first have to install its server: such a
  start takes minutes and the whole bandwidth, and these starts share one cache that they lock and can break.
* The slot comes before the permit, so no actor holds a permit while it waits for a slot. A slot is freed when its start
  leaves the places that hold one. That is when nothing of its process tree is left, and not before.
* The breaker may trip while the actor waits, so it is asked once more when the permit comes.

`look` decides until nothing moves any more: turns, slots (`policy.pool`), permits, then evictions, and last what is
started ahead (`warm_pool`, which is loaded with the first server that asks for that). It runs after every move, so a
free place is never left unused.

Where each start is, and how many there are, is kept in `start_places`. What keeps a server from starting again at once
is its breaker (`breakers`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from ..actors.server import ServerActor
from ..config.installers import is_installer
from ..config.model import Lifecycle, ServerDefinition, Settings
from ..protocol.errors import CallError
from ..protocol.events import HOLDS_SLOT, TURNS, Eviction, Place
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ..protocol.safe_text import typed
from .breakers import LEADS_TO_A_START
from .policy.availability import AvailabilityState
from .policy.breaker import BreakerPolicy
from .policy.pool import Decision, both, decide, may_expire
from .start_places import Places

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..actors.timers import Timer
    from .servers import ServerList, ServerRecord
    from .start_places import SlotHolder
    from .warm_pool import WarmPool


class Starts:
    def __init__(self, context: RoomContext, servers: ServerList) -> None:
        self.context = context
        self.places: Places = Places(context)
        self.has_begun: bool = False  # the room is open, so eager servers are started
        self.warm: WarmPool | None = None  # made when a server is first to have any
        # For jitter, not for secrets. It is seeded from `random` itself, so seeding that repeats a run.
        self.chance: random.Random = random.Random(random.getrandbits(64))  # noqa: S311
        self._servers = servers
        self._is_looking = False
        self._look_again = False
        self._reserve_from = -math.inf  # when the last slot over the limit was freed
        self._alarm: Timer | None = None  # set when time alone may change a decision
        self._numbers: tuple[Settings, BreakerPolicy] | None = None

    def now(self) -> float:
        return self.context.backend.now()

    @property
    def is_closing(self) -> bool:
        """Whether nothing is started any more."""
        return self._servers.closing is not None

    @property
    def policy(self) -> BreakerPolicy:
        """The numbers of the circuit breakers, as the settings are now."""
        settings = self.context.settings
        if self._numbers is None or self._numbers[0] is not settings:
            self._numbers = settings, BreakerPolicy.of(settings)
        return self._numbers[1]

    @property
    def decides_at(self) -> float | None:
        """When the pool decides again because of the time alone. None: nothing waits for that."""
        return None if self._alarm is None else self._alarm.when

    # ---- what is started ahead --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The room is open."""
        self.has_begun = True
        if self.warm is not None:
            self.warm.begin()

    def define(self, record: ServerRecord) -> None:
        """The server has another definition, or another policy."""
        if self.warm is None and record.definition.warm:
            from .warm_pool import WarmPool

            self.warm = WarmPool(self.context, self)
        if self.warm is not None:
            self.warm.define(record)

    def connected(self, record: ServerRecord, actor: ServerActor) -> None:
        """A child of this server has connected: somebody needs the children of this server now."""
        if self.warm is not None:
            self.warm.connected(record, actor)

    def end_warm(self, server: str) -> None:
        """End all that is started ahead of this server: it runs what its definition said before, or it is taken
        down."""
        if self.warm is not None:
            self.warm.end(server)

    def warm_count(self, server: str) -> int:
        """How many children of this server wait to be used."""
        return 0 if self.warm is None else self.warm.count(server)

    def reused_count(self, server: str) -> int:
        """How often somebody has had a child of this server that its tool had reset."""
        return 0 if self.warm is None else self.warm.count_reused(server)

    def close(self) -> None:
        """The room closes: end all that is started ahead."""
        if self.warm is not None:
            self.warm.close()

    async def wait_gone(self) -> None:
        """Wait until nothing of that is left, after `close`."""
        if self.warm is not None:
            await self.warm.wait_gone()

    # ---- reasons to start -------------------------------------------------------------------------------------------

    def request(self, record: ServerRecord, actor: ServerActor) -> None:
        """The idle actor has a reason to connect: a call, a wait, its policy. May be called again. A closing room
        starts nothing."""
        place = actor.start.place
        if self._servers.closing is not None:
            return
        # One behind its breaker asks again, too: the call may have become the probe.
        if place in (Place.OUT, Place.BREAKER) or (place in TURNS and not record.is_discovery(actor)):
            self.apply(record, actor)

    def request_by_name(self, record: ServerRecord, actor: ServerActor) -> None:
        """Connect the actor, whatever its circuit breaker says, and even if it was taken down. End this with
        `withdraw`."""
        self._servers.bring_back(actor.address.server)
        if record.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            actor.start.by_policy = True  # it is kept alive again, even if that caller stops waiting
        actor.request_start()

    def request_as_called(self, record: ServerRecord, actor: ServerActor) -> None:
        """Connect the actor as a call would: raises the error that a call would be refused with. End this
        with `withdraw`."""
        standing = self._servers.closing or record.refusal
        if standing is not None:
            raise made_out_to(actor.address.server, standing)
        if actor.life.state in LEADS_TO_A_START:
            unavailable = record.breaker.refuses_start()
            if unavailable is not None:
                raise unavailable
        actor.request_start()

    def request_by_policy(self, actor: ServerActor) -> None:
        """Connect the actor by policy. No caller can withdraw that."""
        actor.start.by_policy = True
        actor.request_start()

    def withdraw(self, record: ServerRecord, actor: ServerActor) -> None:
        """A reason to connect is gone. Without any reason the actor's start leaves every queue."""
        has_another_reason = actor.start.by_policy or actor.is_awaited
        if actor.life.state is State.IDLE and not has_another_reason:
            self.move(record, actor, Place.OUT)
            record.breaker.probe_left(actor)

    # ---- the way ----------------------------------------------------------------------------------------------------

    def apply(self, record: ServerRecord, actor: ServerActor) -> None:
        """Let the actor pass its circuit breaker, or wait for it."""
        now = self.now()
        if record.breaker.lets_start(actor):
            self._enter(record, actor)
        else:
            self._wait_for_breaker(record, actor, now)

    def _wait_for_breaker(self, record: ServerRecord, actor: ServerActor, now: float) -> None:
        self.move(record, actor, Place.BREAKER)
        record.breaker.set_timer(now)

    def _enter(self, record: ServerRecord, actor: ServerActor) -> None:
        """The circuit breaker lets the actor start: queue it for a slot and a permit. One whose server has a warm child
        has that one's slot. An actor that starts only for discovery queues for its turn first. An HTTP API has neither
        process nor connection, so it starts at once."""
        if actor.definition.is_api:
            self._begin(record, actor, Place.OPENING)
        elif not record.is_discovery(actor):
            if self.warm is not None and self.warm.claim(actor) is not None:
                self.places.move(record, actor, Place.SLOT)
                self.move(record, actor, Place.PERMIT)
            else:
                self.move(record, actor, Place.SLOT)
        elif _installs(actor):
            self.move(record, actor, Place.INSTALL_TURN)
        else:
            self.move(record, actor, Place.TURN)

    def move(self, record: ServerRecord, actor: ServerActor, place: Place) -> None:
        """Move the actor's start, and decide what follows for the others."""
        places = self.places
        gives_back = (
            place not in HOLDS_SLOT
            and actor.start.place in HOLDS_SLOT
            and not actor.address.is_session
            and not places.is_kept(actor)
        )
        places.move(record, actor, place)
        if gives_back and places.shared >= places.capacity:
            self._reserve_from = self.now()  # that slot was over the limit
        if self.warm is not None and place not in HOLDS_SLOT:
            self.warm.left(actor)
        self.look()
        if actor.start.place is Place.SLOT and actor.start.deadline is None:
            self._bound_the_wait(record, actor)

    def _begin(self, record: ServerRecord, actor: ServerActor, place: Place = Place.STARTING) -> None:
        """The actor's turn has come: start it, or let it wait for its circuit breaker again. `place`: where it is
        while it connects."""
        breaker, now = record.breaker, self.now()
        if not breaker.lets_start(actor):  # it has tripped while the actor waited
            self._wait_for_breaker(record, actor, now)
            return
        if actor.start.after_failure:
            actor.start.after_failure = False
            if not breaker.may_restart(by_name=actor.is_asked_for_by_name):
                self._wait_for_breaker(record, actor, now)
                self.apply(record, actor)
                return
        record.server.breaker.last_start = now
        self.places.move(record, actor, place)
        actor.connect()

    def became_idle(self, actor: ServerActor) -> None:
        """The actor has become idle and is not in the list of idle actors: list it, and decide."""
        if actor.address.is_call:
            actor.is_listed_idle = True  # it is never asked to make room, so nobody has to look at it
            return
        self.places.became_idle(actor)
        self.look()

    def may_expire(self, actor: ServerActor) -> bool:
        """Whether an actor whose idle time is over may stop. If the pool's minimum keeps it, it stops once there are
        more."""
        places = self.places
        if actor.start.place not in HOLDS_SLOT or may_expire(places.staying(), places.limits):
            return True
        places.became_overdue(actor)
        return False

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
                self._send_away(self._give())
                if self.warm is not None:
                    self.warm.fill()
        finally:
            self._is_looking = False

    def _give(self) -> Decision[SlotHolder]:
        """Give turns, slots and permits until there is nobody to give one. Returns the last decision of the pool."""
        while self.places.waiting:
            if self._give_turn() or self._give_free_slot():
                continue
            decision = self._ask_pool()
            if not decision.grants and not self._give_permit():
                return decision
        return self._ask_pool()  # more may be held than there is

    def _give_turn(self) -> bool:
        """Give a turn to a discovery that waits for one. Returns whether any got one."""
        settings, places = self.context.settings, self.places
        if places.count(Place.INSTALL_TURN) and not self._has_discoveries(
            settings.install_turns, Place.TURN, *_TURN_TAKEN, installs=True
        ):
            actor, record = places.first(Place.INSTALL_TURN)
            places.move(record, actor, Place.TURN)
            return True
        if places.count(Place.TURN) and not self._has_discoveries(_turns(settings), *_TURN_TAKEN):
            actor, record = places.first(Place.TURN)
            places.move(record, actor, Place.SLOT)
            self._bound_the_wait(record, actor)
            return True
        return False

    def _has_discoveries(self, count: int, *places: Place, installs: bool = False) -> bool:
        """Whether at least `count` discoveries are at these places. `installs`: count only those that may have to
        install something first. Called after every move, so it stops as soon as it knows."""
        found = (actor for actor in self.places.discoveries(places) if not installs or _installs(actor))
        return next(islice(found, count - 1, None), None) is not None

    def _give_free_slot(self) -> bool:
        """Give a free slot to the only one that waits for any: the pool has nothing to decide."""
        places = self.places
        if places.count(Place.SLOT) != 1:
            return False
        actor, record = places.first(Place.SLOT)
        if not places.is_free_for(actor):
            return False
        places.move(record, actor, Place.PERMIT)
        return True

    def _ask_pool(self) -> Decision[SlotHolder]:
        """Ask the pool for slots, unless nothing can have changed."""
        places, decision = self.places, _NOTHING
        if places.needs_decision(of_sessions=False):
            decision = decide(places.snapshot(self._reserve_from))
        if places.needs_decision(of_sessions=True):
            decision = both(decision, decide(places.session_snapshot()))
        for actor in decision.grants:
            assert isinstance(actor, ServerActor)  # what is started ahead waits for nothing
            places.move(places.at(Place.SLOT)[actor], actor, Place.PERMIT)
        return decision

    def _give_permit(self) -> bool:
        """Let the first that waits for a permit start. Returns whether there was one, and a permit."""
        permits = self.context.settings.start_permits
        if not self.places.count(Place.PERMIT) or self.places.count(Place.STARTING) >= permits:
            return False
        actor, record = self.places.first(Place.PERMIT)
        self._begin(record, actor)
        return True

    def _send_away(self, decision: Decision[SlotHolder]) -> None:
        """No further start can be granted a slot: stop the actors that the pool evicts, and set when to decide
        again."""
        for actor in decision.evictions:
            self._evict(actor)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if decision.look_at < math.inf:
            self._alarm = self.context.timers.at(decision.look_at, self.look)

    def _evict(self, actor: SlotHolder) -> None:
        if not isinstance(actor, ServerActor):
            assert self.warm is not None  # it has made it
            self.warm.give_up(actor)
            return
        waits = self.places.count_of(Place.SLOT, of_sessions=actor.address.is_session)
        reason = Reason.MAKES_ROOM if waits else Reason.OVER_LIMIT
        self.context.events.emit(Eviction, actor.address, actor.life.incarnation, reason=reason)
        # Patient: a call that is accepted before this is handled is finished first.
        actor.stop(Ending(Cause.EVICTED, reason=reason))

    # ---- the bound on waiting ---------------------------------------------------------------------------------------

    def _bound_the_wait(self, record: ServerRecord, actor: ServerActor) -> None:
        """Bound the time for which this actor may wait for a slot, counted from its own arrival. Calls have another
        bound."""
        since = min(actor.awaited_since, self.now())
        when = since + self.context.settings.acquire_timeout
        actor.start.deadline = self.context.timers.at(when, lambda: self._too_late(record, actor, since))

    def _too_late(self, record: ServerRecord, actor: ServerActor, since: float) -> None:
        actor.start.deadline = None
        of = " for children of sessions" if actor.address.is_session else ""
        actor.refuse_waiting(f"no slot of {self.places.slots_for(actor)}{of} became free in time", since)
        if actor.start.place is Place.SLOT and actor.start.deadline is None:
            self._bound_the_wait(record, actor)

    def held(self) -> list[Holdup]:
        """What holds calls now, the most calls first. Empty nearly always."""
        found, places = list[Holdup](), self.places
        for place in (Place.SLOT, Place.PERMIT, Place.BREAKER):
            for of_sessions in (False, True):
                if not places.count_of(place, of_sessions=of_sessions):
                    continue
                waiting = [
                    actor
                    for actor in places.at(place)
                    if actor.is_awaited and actor.address.is_session is of_sessions
                ]
                if waiting:
                    found.append(self._held_at(place, waiting, of_sessions=of_sessions))
        return sorted(found, key=lambda each: -each.calls)

    def _held_at(self, place: Place, waiting: list[ServerActor], *, of_sessions: bool) -> Holdup:
        places, settings = self.places, self.context.settings
        calls = sum(
            max(1, actor.queued) for actor in waiting
        )  # a call whose name is looked for is in no queue yet
        servers = tuple(dict.fromkeys(actor.address.server for actor in waiting))
        wait = "1 call waits" if calls == 1 else f"{calls} calls wait"
        match place:
            case Place.SLOT:
                has = [one for one in places.holders() if one.address.is_session is of_sessions]
                has.sort(key=lambda one: -one.in_flight)
                by = tuple(str(one.address) for one in has)
                if of_sessions:
                    most, key, whose = (
                        settings.max_session_connections,
                        "maxSessionConnections",
                        " of sessions",
                    )
                    until = "one has not been called for a minute, its session has ended"
                else:
                    most, key, whose, until = (
                        settings.max_connections,
                        "maxConnections",
                        "",
                        "one has nothing to do",
                    )
                what = f"{wait} for a slot: all {most}{whose} are taken"
                return Holdup(what, f"Wait until {until}, or raise {key}.", calls, servers, by)
            case Place.PERMIT:
                by = tuple(str(one.address) for one in places.at(Place.STARTING))
                what = f"{wait} until fewer servers start: {settings.start_permits} may at a time"
                return Holdup(what, "Wait, or raise startPermits.", calls, servers, by)
            case _:
                what = f"{wait} for a circuit breaker, because the server has failed"
                step = f"Wait, or try it now: greenroom refresh {typed(servers[0])}"
                return Holdup(what, step, calls, servers)


_NOTHING: Decision[SlotHolder] = Decision()
_TURN_TAKEN = (Place.STARTING, Place.PERMIT, Place.SLOT)


def _installs(actor: ServerActor) -> bool:
    return is_installer(actor.definition.command, actor.definition.args)


def _turns(settings: Settings) -> int:
    """How many discoveries may start at a time: a fifth of the permits is left for called actors."""
    return max(1, settings.start_permits - max(1, settings.start_permits // 5))


def made_out_to(server: str, refusal: CallError) -> CallError:
    """A copy of a refusal, for one more caller. `server`: the server that was called."""
    refused = refusal.copy()
    refused.server = server
    return refused


class Holdup(msgspec.Struct, frozen=True):
    """What holds calls now. `by`: who has what they wait for, the busy ones first."""

    what: str  # in words: how many calls, and for what they wait
    step: str  # what to do
    calls: int
    servers: tuple[str, ...]  # whose calls they are
    by: tuple[str, ...] = ()


_LOGIN_LOOKS: Final = 1.0  # seconds between two looks at the login of a parked server


class _LoginPlace(msgspec.Struct):
    """Where a server's login is."""

    url: str
    pi: str | None  # where pi keeps its own, if its settings say so
    made: str | None  # the login at the last attempt to connect
    stamp: object = None
    is_watched: bool = False


class LoginWatch:
    """Notices that somebody has logged in at a server that is parked because it wants a login, and calls
    `logged_in(server)`.

    `greenroom auth` is another process, and all it does is to write a file. As long as a server is parked, its file is
    looked at every second, through the room's one timer. Nothing is looked at while no server is parked. A login counts
    as new when it is another one than at the last attempt to connect. A renewed token does not, so a server that
    refuses every token is not tried again and again.
    """

    def __init__(self, context: RoomContext, servers: ServerList, logged_in: Callable[[str], None]) -> None:
        self._context = context
        self._servers = servers
        self._logged_in = logged_in
        self._places: dict[str, _LoginPlace] = {}

    def connecting(self, definition: ServerDefinition) -> None:
        """An attempt to connect begins. `definition` is expanded."""
        from ..actors.login.login_auth import logins, may_log_in

        if definition.url is None or not may_log_in(definition):
            self._places.pop(definition.name, None)
            return
        place = self._places.get(definition.name)
        if place is None or (place.url, place.pi) != (definition.url, definition.pi_logins):
            place = self._places[definition.name] = _LoginPlace(definition.url, definition.pi_logins, None)
        place.made = logins(place.pi).made(definition.name, definition.url)

    def parked(self, server: str) -> None:
        place = self._places.get(server)
        if place is not None and not place.is_watched:
            place.is_watched = True
            self._wait(server, place)

    def _is_parked(self, server: str) -> bool:
        record = self._servers.records.get(server)
        if record is None:
            return False
        return any(one.available.state is AvailabilityState.NEEDS_LOGIN for one in record.with_children())

    def _wait(self, server: str, place: _LoginPlace) -> None:
        now = self._context.backend.now()
        self._context.timers.at(now + _LOGIN_LOOKS, lambda: self._look(server, place))

    def _look(self, server: str, place: _LoginPlace) -> None:
        from ..actors.login.login_auth import logins

        if self._servers.closing is not None or self._places.get(server) is not place:
            return
        if not self._is_parked(server):
            place.is_watched = False
            return
        store = logins(place.pi)
        stamp = store.stamp(server, place.url)
        if stamp != place.stamp:
            place.stamp = stamp
            made = store.made(server, place.url) if stamp is not None else None
            if made is not None and made != place.made:
                place.is_watched = False
                try:
                    self._logged_in(server)
                except CallError:  # it was disabled, or removed, meanwhile
                    return
                return
        self._wait(server, place)
