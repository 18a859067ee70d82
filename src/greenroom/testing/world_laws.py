"""What must hold in a `World` whenever it has settled, whatever was done to it.

Each law is a function of the world that raises `AssertionError` with a sentence. The laws compare three things: the
trace checker, the fake servers (what reached them), and the room's own records (permits, slots, breakers, load).
`settled` are checked after every step, `ended` once the room has closed.

"Nobody starves" is three laws. Every actor that waits is in a queue that will serve it. No later one is served before
it (the trace checker looks at the queues with every event). And when every server is well and nothing else happens,
every server that may come back does so (`recovered`, checked at the end of a search).
"""

from __future__ import annotations

from collections.abc import Callable

from ..actors.call import Call
from ..config.model import Isolation, Lifecycle, RestartPolicy, ServerDefinition
from ..protocol.address import Address
from ..protocol.errors import CallError, GreenroomError, Reach
from ..protocol.events import BreakerMove, Place
from ..protocol.lifecycle import Cause, Means, State
from .room_inside import PATIENCE, SESSION_REST, ActorLook
from .trace_checker import EPS, AddressLife
from .world import ECHO, RESET, OneCall, World

# ---- Outcomes: how a call may end, and what must have happened to its server, or to the room, to explain it ----------
#
# A table maps (code, reach) to a check. An outcome that is not in the table is a violation. One that is in it must be
# explained by what the trace checker saw and the world did while the call was open. The search depends on this: an
# oracle that accepts any error finds nothing.

# The causes that take a server down. SCOPE_ENDED is one of them for a session that was opened again while the children
# of its predecessor are still being stopped.
_TAKEN_DOWN = tuple(cause for cause in Cause if cause.has(Means.FINAL) and cause is not Cause.SHUTDOWN)


def outcomes_have_reasons(world: World) -> None:
    """Each call has at most one outcome, and the faults so far explain it."""
    for call in world.calls:
        assert len(call.outcomes) <= 1, f"{call} ended {len(call.outcomes)} times: {call.outcomes}"
        if call.outcomes and call.ended is not None and not call.is_judged:
            call.is_judged = True
            why = _why_not(world, call, call.outcomes[0], call.ended)
            assert why is None, (
                f"{call}, begun at {call.began:g}, ended at {call.ended:g} as {call.outcomes[0]!r}: {why}"
            )


def _why_not(world: World, call: OneCall, outcome: str | GreenroomError, ended: float) -> str | None:
    if outcome == "cancelled":
        return None if call.asked_to_leave else "nobody cancelled it"
    if isinstance(outcome, str):
        return None if f'"n": {call.number},' in outcome else "somebody else's answer"
    reach = outcome.reach if isinstance(outcome, CallError) else Reach.NOT_SENT
    if reach is Reach.NOT_SENT and _has_come(world, call):
        return "its server got it"
    why = _REASONS.get((outcome.code, reach), _never)(world, call, ended)
    if why is not None and reach is Reach.SENT and _has_come(world, call):
        # Its connection was lost, it was to be sent once more, and then this kept it from being sent.
        unsent = _REASONS.get((outcome.code, Reach.NOT_SENT), _never)(world, call, ended)
        return why if unsent is not None or _lost(world, call, ended) is not None else None
    return why


def _has_come(world: World, call: OneCall) -> bool:
    """Whether the call has ever reached its server."""
    fake = world.servers.get(call.server)
    return fake is not None and any(sent.get("arguments", {}).get("n") == call.number for sent in fake.calls)


def _never(world: World, call: OneCall, ended: float) -> str | None:
    return "nothing here can end so"


def _lives(world: World, call: OneCall) -> list[AddressLife]:
    scope = f"session:{call.session}" if call.session else None
    return [
        life
        for address, life in world.checker.lives.all.items()
        if address.server == call.server and (scope is None or address.scope in (scope, "shared"))
    ]


def _ended_as(*causes: Cause) -> Callable[[World, OneCall, float], str | None]:
    def check(world: World, call: OneCall, ended: float) -> str | None:
        lives = _lives(world, call)
        if any(life.ended_as(cause, call.began) for life in lives for cause in causes):
            return None
        return f"its server was not {' or '.join(cause.value for cause in causes)} meanwhile"

    return check


def _lost(world: World, call: OneCall, ended: float) -> str | None:
    """This is also right if the server was already ending for a weaker cause."""
    if world.truth.was("lost", call.server, call.began):
        return None
    return _ended_as(Cause.LOST)(world, call, ended)


def _unavailable(world: World, call: OneCall, ended: float) -> str | None:
    addresses = [life.address for life in _lives(world, call)] or [Address(call.server)]
    breakers = [world.checker.lives.breaker(address) for address in [*addresses, Address(call.server)]]
    return (
        None
        if any(breaker.may_refuse(call.began) for breaker in breakers)
        else "its circuit breaker admits calls"
    )


def _not_connected(world: World, call: OneCall, ended: float) -> str | None:
    """It was taken down. Somebody may have asked for it by name since then, and left before it had drained: that does
    not bring it back."""
    if (
        world.is_closed
        or world.truth.asked("shutdown", "", call.began)
        or world.truth.is_down(call.server)
        or call.was_down
    ):
        return None
    if any(world.truth.asked(what, call.server, call.began) for what in ("drained", "disabled", "removed")):
        return None
    down = (*_TAKEN_DOWN, Cause.LOST) if _stays_down(world, call) else _TAKEN_DOWN
    if any(life.endings and life.endings[-1].cause in down for life in _lives(world, call)):
        return None
    # A new session may have the same name while the child of the old one is still being stopped.
    if any(life.ended_as(Cause.SCOPE_ENDED, call.began) for life in _lives(world, call)):
        return None
    scope = f"{call.server}[session:{call.session}]"
    return None if world.truth.asked("scope ended", scope, call.began) else "it was not taken down"


def _stays_down(world: World, call: OneCall) -> bool:
    """Its connection was lost."""
    own = call.definition.restart_policy if call.definition is not None else None
    return (own or world.config.settings.restart_policy) is RestartPolicy.NEVER


def _unknown(world: World, call: OneCall, ended: float) -> str | None:
    """The index has nothing of a server that is disabled or not configured."""
    if call.definition is None or call.definition.disabled:
        return None
    was_changed = any(world.truth.asked(what, call.server, call.began) for what in ("removed", "disabled"))
    return None if was_changed else "its server is configured, and known"


def _session_is_over(world: World, call: OneCall, ended: float) -> str | None:
    scope = f"{call.server}[session:{call.session}]"
    return None if world.truth.asked("scope ended", scope, call.began) else "its session is open"


def _busy(world: World, call: OneCall, ended: float) -> str | None:
    definition = call.definition
    bound = (definition.max_queued if definition is not None else None) or world.config.settings.max_queued
    others = [
        other
        for other in world.calls
        if other.server == call.server
        and other.began <= call.began
        and (ended if other.ended is None else other.ended) >= call.began
    ]
    return None if len(others) > bound else f"only {len(others)} calls were open"


def _waited(world: World, call: OneCall, ended: float) -> str | None:
    """It waited as long as a call may wait, and was not sent."""
    limit = world.config.settings.queue_timeout
    if ended - call.began < min(limit, world.config.settings.acquire_timeout) - EPS:
        return f"it had waited {ended - call.began:g} s of {limit:g} s"
    return None if _something_held_it(world, call) else "nothing kept it from being sent"


def _something_held_it(world: World, call: OneCall) -> bool:
    faults = ("failing", "hung", "slow", "late", "lost", "full pipe")
    if any(world.truth.was(fault, call.server, call.began) for fault in faults):
        return True
    settings = world.config.settings
    crowded = settings.max_connections < len(world.servers) + len(world.sessions) + 1
    definition = call.definition
    isolation = (definition and definition.isolation) or world.config.settings.isolation
    apart = isolation not in (None, Isolation.PERSISTENT)
    # Earlier failures have made its circuit breaker refuse, or other starts hold the permits or slots.
    return (
        crowded
        or apart
        or any(life.endings for life in _lives(world, call))
        or any(world.truth.was("failing", name, call.began) for name in world.servers)
        or _is_bounded(definition)
    )


def _is_bounded(definition: ServerDefinition | None) -> bool:
    return definition is not None and definition.max_in_flight is not None


def _timed_out(world: World, call: OneCall, ended: float) -> str | None:
    definition = call.definition
    limit = (
        definition.call_timeout if definition is not None else None
    ) or world.config.settings.call_timeout
    if ended - call.began < limit - EPS:
        return f"it had had {ended - call.began:g} s of {limit:g} s"
    return None if world.truth.was("slow", call.server, call.began) else "its server was not slow"


_drained = _ended_as(
    Cause.DRAINED,
    Cause.RESTART,
    Cause.RELOAD,
    Cause.DISABLED,
    Cause.REMOVED,
    Cause.SHUTDOWN,
    Cause.SCOPE_ENDED,
)
_REASONS: dict[tuple[str, Reach], Callable[[World, OneCall, float], str | None]] = {
    ("connect_failed", Reach.NOT_SENT): _ended_as(Cause.CONNECT_FAILED),
    ("server_unavailable", Reach.NOT_SENT): _unavailable,
    ("server_not_connected", Reach.NOT_SENT): _not_connected,
    ("server_disabled", Reach.NOT_SENT): _not_connected,
    ("tool_not_found", Reach.NOT_SENT): _unknown,
    ("server_not_found", Reach.NOT_SENT): _unknown,
    ("invalid_request", Reach.NOT_SENT): _session_is_over,
    ("server_busy", Reach.NOT_SENT): _busy,
    ("timeout", Reach.NOT_SENT): _waited,
    ("timeout", Reach.SENT): _timed_out,
    ("call_failed", Reach.NOT_SENT): _lost,
    ("call_failed", Reach.SENT): _lost,
    ("drained", Reach.SENT): _drained,
    ("drained", Reach.NOT_SENT): _drained,
}


Law = Callable[[World], None]
_LIVE = (State.CONNECTING, State.CONNECTED, State.DRAINING)


def nothing_unlawful_was_told(world: World) -> None:
    """The trace checker found no violation: transitions are in the table, in order, with a reason, and so on."""
    assert not world.checker.violations, "\n".join(world.checker.violations)
    assert not world.background.unexpected, "\n".join(world.background.unexpected)


def one_connection_each(world: World) -> None:
    """Every live connection of a server belongs to an actor, or was started ahead."""
    for name, fake in world.servers.items():
        owners = [actor for actor in _actors(world, name) if actor.state in _LIVE]
        ahead = [child for child in world.inside.warm(name) if child.state != "taken"]
        assert fake.live <= len(owners) + len(ahead), (
            f"{name}: {fake.live} live connections of {len(owners)} actors and {len(ahead)} warm children"
        )


def each_start_is_in_one_place(world: World) -> None:
    """The lists of all places agree with the places of the actors' starts."""
    at = {place: world.inside.at(place) for place in Place}
    for actor in _actors(world):
        places = [place for place in Place if actor in at[place]]
        assert places == [actor.place] or (not places and actor.place is Place.OUT), (
            f"{actor} is {actor.place.value}, and listed as {[place.value for place in places]}"
        )
    listed = sum(map(world.inside.count, Place))
    assert listed == sum(actor.place is not Place.OUT for actor in _actors(world)), "nobody's start"


def permits_are_conserved(world: World) -> None:
    """Only actors that start (or clean up a failed start) hold a permit, and not more of them than there are
    permits."""
    permits, held = world.config.settings.start_permits, world.inside.at(Place.STARTING)
    assert len(held) <= permits, f"{len(held)} start permits of {permits} are held"
    for actor in held:
        assert actor.state in (State.CONNECTING, State.DRAINING), f"{actor} holds a start permit"
    waiting = world.inside.count(Place.PERMIT)
    assert not waiting or len(held) == permits, "somebody waits for a permit that is free"


def slots_are_conserved(world: World) -> None:
    """Every live actor holds a slot. An actor that holds a slot is live or waits for a permit."""
    held = world.inside.holders()
    for of_sessions in (False, True):
        number = sum(actor.address.is_session is of_sessions for actor in held)
        number += sum(child.holds_slot and child.of_sessions is of_sessions for child in world.inside.warm())
        bound = world.inside.most_slots(of_sessions=of_sessions)
        assert number <= bound, f"{number} slots of {bound} are held"
        counted = world.inside.slots_counted(of_sessions=of_sessions)
        assert counted == number, f"{counted} slots are counted, and {number} are held"
    for actor in _actors(world):
        is_live = actor.state in _LIVE
        assert not is_live or actor in held, f"{actor} is live without a slot"
    for actor in held:
        waits = actor.state is State.IDLE and actor.place is Place.PERMIT
        assert waits or actor.state in _LIVE, f"{actor} holds a slot"


def what_is_warm_is_bounded(world: World) -> None:
    """No more children are started ahead than the entry says, none of a server that may have none, and none keeps its
    slot while somebody waits for one. None is used twice: that is seen by the trace checker."""
    for name, server in world.inside.servers.items():
        free = [child for child in world.inside.warm(name) if child.is_free]
        most = server.definition.warm if server.is_usable and not world.is_closed else 0
        assert len(free) <= most, f"{name}: {len(free)} children are warm, and may be {most}"
        back = sum(child.may_come_back for child in world.inside.warm(name))
        assert not server.definition.reset or len(free) + back <= server.definition.warm, (
            f"{name}: {len(free)} children are there and {back} may come back, of {server.definition.warm}"
        )
    for of_sessions in (False, True):
        warm = [child for child in world.inside.warm() if child.of_sessions is of_sessions]
        waiting = sum(actor.address.is_session is of_sessions for actor in world.inside.at(Place.SLOT))
        leaving = sum(child.state == "leaving" and child.holds_slot for child in warm)
        leaving += sum(
            actor.state is State.DRAINING for actor in world.inside.holders(of_sessions=of_sessions)
        )
        kept = [child for child in warm if child.is_free]
        assert not kept or leaving >= waiting, f"{kept[0]} keeps a slot, and {waiting} wait for one"


def nobody_meets_what_is_anothers(world: World) -> None:
    """What a process keeps of one session or call is met by no other, whoever has had it before."""
    for name, memory in world.memories.items():
        assert not memory.mixed, f"{name}: {memory.mixed[0]}"


def load_is_counted(world: World) -> None:
    """The counts of each server's calls are right and within the bounds."""
    settings = world.config.settings
    servers = world.inside.servers
    for name, load in servers.items():
        actors, definition = _actors(world, name), load.definition
        assert load.in_flight == sum(actor.in_flight for actor in actors), f"{name}: in flight is miscounted"
        assert load.queued == sum(actor.queued for actor in actors), f"{name}: queued is miscounted"
        assert load.in_flight <= (definition.max_in_flight or settings.max_in_flight), (
            f"{name}: too many in flight"
        )
        # Replays may exceed the bound of the queue, because they were accepted before.
        most = (definition.max_queued or settings.max_queued) + (
            definition.max_in_flight or settings.max_in_flight
        )
        assert load.queued <= most, f"{name}: too many queued"
    if not world.is_closed:
        counted = sum(load.in_flight + load.queued for load in servers.values())
        assert world.inside.open_calls == counted, "the tally has lost a call"


def nobody_serves_on_the_wrong_process(world: World) -> None:
    """A hung server is not sent its probe. Calls of a server with a new definition are not sent to the old process."""
    for actor in _actors(world):
        if actor.state is not State.CONNECTED or actor.address.is_call:
            continue
        breaker, server = actor.breaker.state, actor.address.server
        is_hung = (
            breaker.tripped and world.checker.lives.breaker(actor.address).refuses_for is BreakerMove.SILENT
        )
        was_hung = is_hung and actor.connected_at < breaker.failed_at - EPS
        assert not was_hung, f"{actor} was found hung, and is still connected"
        began = world.checker.lives.of(actor.address).connecting_at
        assert began >= world.truth.redefined_at.get(server, began) - EPS, (
            f"{actor} runs on its old definition"
        )


def the_silent_are_found_dead(world: World) -> None:
    """The health of keep-alive servers is checked: one interval to ask, one to suspect, one to confirm a loss."""
    limit = 3 * world.config.settings.health_interval
    for actor in _actors(world):
        server = actor.address.server
        is_kept = actor.definition.lifecycle is Lifecycle.KEEP_ALIVE and actor.address.is_shared
        if is_kept and actor.is_connected and actor.has_nothing_to_do and server in world.truth.silent_since:
            life = world.checker.lives.of(actor.address)
            since = max(world.truth.silent_since[server], life.rested_at, world.truth.reloaded_at)
            assert world.now - since <= limit + EPS, f"{actor} has said nothing for {world.now - since:g} s"


def half_open_breakers_have_a_prober(world: World) -> None:
    """When a breaker is half-open, exactly one probe is under way; while it is tripped, nothing else is sent."""
    behind: dict[int, list[ActorLook]] = {}
    for actor in _actors(world):
        behind.setdefault(id(actor.breaker), []).append(actor)
    for actors in behind.values():
        name, breaker = actors[0].address.server, actors[0].breaker
        probe, state = breaker.probe, breaker.state
        if state.probing:
            assert probe is not None, f"{name}: half-open for nobody"
            assert not isinstance(probe, Call) or not probe.ended, f"{name}: its probe has ended"
        if state.tripped:
            sent = [call for actor in actors for call in actor.open_calls]
            since = [call for call in sent if call.sent_at > state.failed_at + EPS]
            assert len(since) <= 1, f"{name}: {len(since)} calls went through a tripped circuit breaker"


def whoever_waits_is_in_a_queue(world: World) -> None:
    """An idle server with a reason to start waits for its circuit breaker, a slot or a permit, and something will end
    each wait."""
    for actor in _actors(world):
        if actor.state is not State.IDLE or world.is_closed:
            continue
        waits_for = actor.waiting_for
        wanted = bool(actor.queued) or actor.is_waited_for
        by_policy = actor.is_wanted_by_policy or actor.is_listening
        assert waits_for is None or wanted or by_policy, f"{actor} waits, and nobody wants it"
        match actor.place:
            case Place.BREAKER:
                breaker = actor.breaker
                is_probed = breaker.state.probing or (
                    breaker.parent is not None and breaker.parent.state.probing
                )
                assert breaker.timer is not None or is_probed, (
                    f"{actor}: nothing will let it through its circuit breaker"
                )
            case Place.SLOT:
                assert actor.has_deadline, f"{actor} may wait for a slot for ever"
            case _:
                assert waits_for is not None or not wanted, f"{actor} is wanted and waits for nothing"


def pressure_makes_room(world: World) -> None:
    """While an actor waits for a slot, no slot is free, and no idle connection that may be evicted keeps one."""
    _sessions_make_room(world)
    inside = world.inside
    waiting = sum(actor.address.is_shared for actor in inside.at(Place.SLOT))
    if not waiting:
        return
    held = inside.holders(of_sessions=False)
    shared = [actor for actor in held if not inside.is_kept(actor)]
    assert len(shared) >= inside.free_for_all, f"{waiting} wait for a slot, and one is free"
    staying = [actor for actor in held if actor.state is not State.DRAINING]
    idle = [
        actor
        for actor in shared
        if actor.is_connected and actor.has_nothing_to_do and actor.address.is_shared
    ]
    if len(staying) > inside.fewest_slots:
        leaving = len(held) - len(staying)
        assert not idle or leaving >= waiting, f"{idle[0]} is idle while {waiting} wait for a slot"


def _sessions_make_room(world: World) -> None:
    """While a child of a session waits for a slot, no other that may be evicted keeps one. They rest before they may be
    evicted."""
    inside = world.inside
    waiting = sum(actor.address.is_session for actor in inside.at(Place.SLOT))
    if not waiting:
        return
    held, slots = inside.holders(of_sessions=True), inside.most_slots(of_sessions=True)
    assert len(held) >= slots, f"{waiting} children of sessions wait for a slot, and one is free"
    rested = [
        actor
        for actor in held
        if actor.is_connected
        and actor.has_nothing_to_do
        and not actor.is_listening
        and world.now - actor.idle_since > SESSION_REST + EPS
    ]
    leaving = sum(actor.state is State.DRAINING for actor in held)
    assert not rested or leaving >= waiting, f"{rested[0]} has rested while {waiting} wait for a slot"


def nothing_outstays_its_time(world: World) -> None:
    """Connecting, draining and idling are bounded; a queued call is too."""
    settings = world.config.settings
    for actor in _actors(world):
        life, definition = world.checker.lives.of(actor.address), actor.definition
        for_seconds = world.now - life.since
        if life.state is State.CONNECTING:
            limit = definition.connect_timeout or settings.connect_timeout
            if not actor.has_listed:
                limit = max(limit, PATIENCE)
            assert for_seconds <= limit + EPS, f"{actor} connects for {for_seconds:g} s"
        elif life.state is State.DRAINING:
            was_connected = life.connected_at >= life.connecting_at
            stop_limit = definition.stop_timeout or settings.stop_timeout
            limit = (definition.drain_timeout or settings.drain_timeout) + stop_limit
            if not was_connected:  # an attempt that was given up has no calls to wait for
                limit = min(stop_limit, world.truth.slowest_stop[actor.address.server])
            assert for_seconds <= limit + EPS, f"{actor} drains for {for_seconds:g} s"
            assert not actor.is_lost or not actor.in_flight, f"{actor} is lost, and has calls in flight"
        elif life.state is State.CONNECTED:
            _check_idling(world, actor, life)
        for call in actor.waiting_calls:
            assert call.deadline >= world.now - EPS, f"{actor}: a call outstayed the queue"


def _check_idling(world: World, actor: ActorLook, life: AddressLife) -> None:
    definition = actor.definition
    limit = definition.idle_timeout or world.config.settings.idle_timeout
    is_held = world.inside.fewest_slots > 0 or actor.is_listening
    if not actor.has_nothing_to_do or not actor.address.is_shared or is_held:
        return
    if definition.lifecycle is Lifecycle.LAZY:
        # Looking for one of its tools counts as using it, and so does asking for its lists anew.
        server = life.address.server
        asked = max(world.truth.last_asked("find", server), world.truth.last_asked("connect", server))
        idle = world.now - max(life.rested_at, asked)
        assert idle <= limit + EPS, f"{actor} is idle for {idle:g} s, its limit is {limit:g} s"


def far_ends_agree(world: World) -> None:
    """Calls in flight are in flight at the fake server too; no call runs twice that must not; no session is shared."""
    for name, fake in world.servers.items():
        actors = [actor for actor in _actors(world, name) if actor.state is State.CONNECTED]
        in_flight = sum(actor.in_flight for actor in actors)
        there = sum(exchange.method == "tools/call" for actor in actors for exchange in actor.far_requests)
        assert there == in_flight, f"{name}: {in_flight} calls in flight, {there} at its far end"
        seen: dict[int, int] = {}
        for params in fake.calls:
            if params["name"] == RESET:
                continue  # the room's own call
            number = params["arguments"]["n"]
            seen[number] = seen.get(number, 0) + 1
        for number, times in seen.items():
            once = world.calls[number].tool == ECHO
            assert times <= (1 if once else 2), f"{world.calls[number]} reached its server {times} times"


def versions_only_grow(world: World) -> None:
    """What is known of a server is never replaced by something older."""
    for name in world.servers:
        world.versions.look(name)
    assert not world.versions.violations, "\n".join(world.versions.violations)


def no_timer_is_lost(world: World) -> None:
    """Every timer that was set, has not fired and was not cancelled will fire."""
    lost = world.inside.lost_timers
    assert not lost, f"{lost} timers will never fire"


def nothing_outlives_its_session(world: World) -> None:
    """The children of a session that is over are ending."""
    for actor in _actors(world):
        scope = actor.address.scope
        if actor.address.is_session and scope.removeprefix("session:") not in world.sessions:
            assert actor.state is State.DRAINING, f"{actor}: its session is over"


def recovered(world: World) -> None:
    """When all servers are well, nothing is asked and all delays are over, nobody waits and keep-alive servers are
    live."""
    for actor in _actors(world):
        assert not actor.queued, f"{actor} still has {actor.queued} calls queued"
        assert not actor.in_flight, f"{actor} still has {actor.in_flight} calls in flight"
    for name, server in world.inside.servers.items():
        policy = server.definition.restart_policy or world.config.settings.restart_policy
        comes_back = policy in (None, RestartPolicy.ALWAYS) and server.is_usable
        if not comes_back or world.truth.was(
            "failing", name, world.now
        ):  # its own pace may be too slow for it
            continue
        if server.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            assert world.inside.actor(name).is_connected, f"{name} is kept alive, and is not live"
    assert not world.pending, f"{world.pending[0]} has no outcome"


def ended(world: World) -> None:
    """After the room has closed, each call has one outcome, and nothing is left."""
    report = world.room.drain_report
    assert report is not None, "the room was never opened"
    assert report.is_final, "the room did not end in time"
    assert report.adds_up, f"the drain report does not add up: {report}"
    for call in world.calls:
        assert len(call.outcomes) == 1, f"{call} has no outcome"
    open_ones = [number for number in world.checker.calls.accepted if number not in world.checker.calls.ended]
    assert not open_ones, f"calls {open_ones} were accepted and never ended"
    assert len(world.checker.calls.ended) == report.accepted, "the events and the report disagree"
    assert world.background.waiting == 0, "somebody still waits"
    for name, fake in world.servers.items():
        assert fake.live == 0, f"{name} is still alive"
    assert not world.inside.count(Place.STARTING), "a start permit was never given back"
    assert not world.inside.holders(), "a slot was never given back"
    assert not world.inside.warm(), "a child that was started ahead was never ended"


settled: tuple[Law, ...] = (
    nothing_unlawful_was_told,
    one_connection_each,
    each_start_is_in_one_place,
    permits_are_conserved,
    slots_are_conserved,
    what_is_warm_is_bounded,
    nobody_meets_what_is_anothers,
    load_is_counted,
    half_open_breakers_have_a_prober,
    nobody_serves_on_the_wrong_process,
    the_silent_are_found_dead,
    whoever_waits_is_in_a_queue,
    pressure_makes_room,
    nothing_outstays_its_time,
    far_ends_agree,
    versions_only_grow,
    no_timer_is_lost,
    nothing_outlives_its_session,
    outcomes_have_reasons,
)


def _actors(world: World, server: str | None = None) -> list[ActorLook]:
    return world.inside.actors(server)
