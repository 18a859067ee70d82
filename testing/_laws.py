"""What must hold in a `World` whenever it has settled, whatever was done to it.

Each law is a function of the world that raises `AssertionError` with a sentence. The laws look at three things: the
book of events, the far ends (what reached the fake servers), and the room's own books (permits, slots, gates, load),
which must agree with both. `settled` are checked after every step; `ended` once the room has closed.

"Nobody starves" is three laws. Whoever waits stands in a queue that will serve him; nobody who came later is served
before him (the book looks at the queues with every event); and once every server is well and nothing else happens, everything that may come
back does (`recovered`, checked by the search at its end).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..actors import Call, ServerActor
from ..protocol.address import Address
from ..protocol.config import Isolation, Lifecycle, ServerDefinition
from ..protocol.errors import CallError, GreenroomError, Reach
from ..protocol.lifecycle import Cause, State
from ._book import EPS, Life
from ._world import ECHO, OneCall, World

Law = Callable[[World], None]

_TAKEN_DOWN = (Cause.DRAINED, Cause.DISABLED, Cause.REMOVED)
_LIVE = (State.CONNECTING, State.CONNECTED, State.DRAINING)


def nothing_unlawful_was_told(world: World) -> None:
    """Every event: a transition of the table, in order, with a reason; calls sent in order, only while connected."""
    assert not world.book.complaints, "\n".join(world.book.complaints)
    assert not world.unexpected, "\n".join(world.unexpected)


def one_connection_each(world: World) -> None:
    """Nothing of a server is alive that no actor owns."""
    for name, fake in world.servers.items():
        owners = [actor for actor in _actors(world, name) if actor.life.state in _LIVE]
        assert fake.live <= len(owners), f"{name}: {fake.live} live connections of {len(owners)} actors"


def permits_are_conserved(world: World) -> None:
    """A start permit is held by who is starting (or is being cleared away), and by no more than there are."""
    permits = world.root.admission.permits
    assert permits.held <= permits.places, f"{permits.held} start permits of {permits.places} are held"
    for actor in permits._held:
        assert actor.life.state in (State.CONNECTING, State.DRAINING), f"{actor} holds a start permit"
    assert not permits._queue or permits.held == permits.places, "somebody waits for a permit that is free"


def slots_are_conserved(world: World) -> None:
    """Who is live holds a slot; a slot is held by who is live, or waits for a permit with it."""
    pool = world.root.admission.pool
    bound = pool.limits.slots + pool.limits.reserve
    assert pool.live <= bound, f"{pool.live} slots of {bound} are held"
    for actor in _actors(world):
        is_live = actor.life.state in _LIVE
        assert not is_live or pool.holds(actor), f"{actor} is live without a slot"
    for actor in pool.holders:
        waits = actor.life.state is State.IDLE and actor.waiting_for == "permit"
        assert waits or actor.life.state in _LIVE, f"{actor} holds a slot"


def load_is_counted(world: World) -> None:
    """The bounds' own count of each server's calls is the truth, and is within the bounds."""
    settings = world.config.settings
    for name, record in world.root.records.items():
        load, actors, definition = record.load, _actors(world, name), record.definition
        assert load.in_flight == sum(actor.in_flight for actor in actors), f"{name}: in flight is miscounted"
        assert load.queued == sum(actor.queued for actor in actors), f"{name}: queued is miscounted"
        assert load.in_flight <= (definition.max_in_flight or settings.max_in_flight), (
            f"{name}: too many in flight"
        )
        # Replays go back to the queue over the bound: they were accepted before.
        most = (definition.max_queued or settings.max_queued) + (
            definition.max_in_flight or settings.max_in_flight
        )
        assert load.queued <= most, f"{name}: too many queued"
    tally = world.room._runtime.stage.tally
    loads = [record.load for record in world.root.records.values()]
    if not world.is_closed:
        assert tally.open == sum(load.in_flight + load.queued for load in loads), "the tally has lost a call"


def gates_have_a_prober(world: World) -> None:
    """Half-open means that exactly one is on its way; while tripped, nothing else is sent."""
    records = {id(actor.record): actor.record for actor in _actors(world)}
    for record in records.values():
        probe = record.probe
        if record.gate.probing:
            assert probe is not None, f"{record.definition.name}: half-open for nobody"
            assert not isinstance(probe, Call) or not probe.ended, (
                f"{record.definition.name}: its probe has ended"
            )
        if record.gate.tripped:
            since = [
                call
                for actor in _actors(world, record.definition.name)
                if actor.record is record
                for call in actor._open
                if call.sent_at > record.gate.failed_at + EPS
            ]
            assert len(since) <= 1, (
                f"{record.definition.name}: {len(since)} calls went through a tripped gate"
            )


def whoever_waits_is_in_a_queue(world: World) -> None:
    """An idle server that somebody wants stands at its gate, for a slot or for a permit; each of these will ring."""
    admission = world.root.admission
    for actor in _actors(world):
        if actor.life.state is not State.IDLE or world.is_closed:
            continue
        record = actor.record
        wanted = bool(actor.queued) or actor.is_watched
        by_policy = actor in record.standing or actor in record.wanted or bool(actor.wishes.uris)
        assert actor.waiting_for is None or wanted or by_policy, f"{actor} waits, and nobody wants it"
        match actor.waiting_for:
            case None:
                assert not wanted, f"{actor} is wanted and waits for nothing"
            case "gate":
                assert actor in record.at_gate, f"{actor} waits for a gate that does not know it"
                assert record.gate_timer is not None or record.gate.probing, (
                    f"{actor}: nothing will open its gate"
                )
            case "slot":
                assert actor in admission.pool._waiting, f"{actor} waits for a slot and is not in the queue"
            case _:
                assert actor in admission.permits._queue, (
                    f"{actor} waits for a permit and is not in the queue"
                )


def pressure_makes_room(world: World) -> None:
    """While somebody waits for a slot nobody rests on one that may be taken."""
    pool = world.root.admission.pool
    waiting = sum(waiter.group is None for waiter in pool._waiting.values())
    if not waiting:
        return
    leaving = sum(actor.life.state is State.DRAINING for actor in pool.holders)
    resting = [
        actor
        for actor in pool.holders
        if actor.is_connected and actor.is_resting and actor.address.is_shared and actor not in pool._kept
    ]
    if pool._staying > pool.limits.minimum:
        assert not resting or leaving >= waiting, f"{resting[0]} rests while {waiting} wait for a slot"


def nothing_outstays_its_time(world: World) -> None:
    """Connecting, draining and idling are bounded; a queued call is too."""
    settings = world.config.settings
    for actor in _actors(world):
        life = world.book.life(actor.address)
        for_seconds = world.now - life.since
        if life.state is State.CONNECTING:
            assert for_seconds <= settings.connect_timeout + EPS, f"{actor} connects for {for_seconds:g}s"
        elif life.state is State.DRAINING:
            was_connected = life.connected_at >= life.connecting_at
            limit = settings.drain_timeout + settings.stop_timeout
            if not was_connected:  # an attempt that is left has no calls to wait for
                limit = min(settings.stop_timeout, world.slowest_stop[actor.address.server])
            assert for_seconds <= limit + EPS, f"{actor} drains for {for_seconds:g}s"
            is_lost = actor.life.ending is not None and actor.life.ending.cause is Cause.LOST
            assert not is_lost or not actor.in_flight, f"{actor} is lost, and has calls in flight"
        elif life.state is State.CONNECTED:
            _check_idling(world, actor, life)
        for call in actor.mailbox.user:
            assert call.queue_deadline >= world.now - EPS, f"{actor}: a call outstayed the queue"


def _check_idling(world: World, actor: ServerActor, life: Life) -> None:
    definition = actor.record.definition
    limit = definition.idle_timeout or world.config.settings.idle_timeout
    is_held = world.root.admission.pool.limits.minimum > 0 or actor.wishes.uris
    if not actor.is_resting or not actor.address.is_shared or is_held:
        return
    if definition.lifecycle is Lifecycle.LAZY:
        # Looking for a tool of it is a use of it.
        idle = world.now - max(life.rested_at, world.last_asked("find", life.address.server))
        assert idle <= limit + EPS, f"{actor} is idle for {idle:g}s, its limit is {limit:g}s"


def far_ends_agree(world: World) -> None:
    """What is in flight is in flight at the far end; nothing is run twice that may not be; nobody shares a session."""
    for name, fake in world.servers.items():
        actors = [actor for actor in _actors(world, name) if actor.life.state is State.CONNECTED]
        in_flight = sum(actor.in_flight for actor in actors)
        there = sum(
            exchange.method == "tools/call"
            for actor in actors
            for exchange in getattr(actor.peer, "_open", ())
        )
        assert there == in_flight, f"{name}: {in_flight} calls in flight, {there} at its far end"
        seen: dict[int, int] = {}
        for params in fake.calls:
            number = params["arguments"]["n"]
            seen[number] = seen.get(number, 0) + 1
        for number, times in seen.items():
            once = world.calls[number].tool == ECHO
            assert times <= (1 if once else 2), f"{world.calls[number]} reached its server {times} times"


def versions_only_grow(world: World) -> None:
    """What is known of a server is never replaced by something older."""
    for name in world.servers:
        if name not in world.config.servers:
            world.seen_versions[name] = 0
            continue
        entry = world.room.entry(name)
        if entry is None:
            world.seen_versions[name] = 0
            continue
        version = next(int(str(tool["name"])[1:]) for tool in entry.tools if str(tool["name"])[:1] == "v")
        assert version >= world.seen_versions[name], f"{name}: version {version} replaced a newer one"
        world.seen_versions[name] = version


def outcomes_have_reasons(world: World) -> None:
    """At most one outcome each, and one that what was done to its server explains."""
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
    return _REASONS.get((outcome.code, reach), _never)(world, call, ended)


def _never(world: World, call: OneCall, ended: float) -> str | None:
    return "nothing here can end so"


def _lives(world: World, call: OneCall) -> list[Life]:
    scope = f"session:{call.session}" if call.session else None
    return [
        life
        for address, life in world.book.lives.items()
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
    """Also under an ending that had begun before, for a stronger cause."""
    was_lost = any(world.was(fault, call.server, call.began) for fault in ("lost", "hung"))
    return None if was_lost else "its server was not lost meanwhile"


def _unavailable(world: World, call: OneCall, ended: float) -> str | None:
    addresses = [life.address for life in _lives(world, call)] or [Address(call.server)]
    gates = [world.book.gate(address) for address in [*addresses, Address(call.server)]]
    return None if any(gate.may_be_shut(call.began) for gate in gates) else "its gate is open"


def _not_connected(world: World, call: OneCall, ended: float) -> str | None:
    """Taken down; whoever asked for it by name since, and left before it had drained, has not brought it back."""
    if world.is_closed or world.asked("shutdown", "", call.began) or world.is_down(call.server):
        return None
    if any(world.asked(what, call.server, call.began) for what in ("drained", "disabled", "removed")):
        return None
    if any(life.causes and life.causes[-1][1] in _TAKEN_DOWN for life in _lives(world, call)):
        return None
    scope = f"{call.server}[session:{call.session}]"
    return None if world.asked("scope ended", scope, call.began) else "it was not taken down"


def _unknown(world: World, call: OneCall, ended: float) -> str | None:
    """The index has nothing of a server that is not configured, or disabled."""
    if call.definition is None or call.definition.disabled:
        return None
    was_changed = any(world.asked(what, call.server, call.began) for what in ("removed", "disabled"))
    return None if was_changed else "its server is configured, and known"


def _session_is_over(world: World, call: OneCall, ended: float) -> str | None:
    scope = f"{call.server}[session:{call.session}]"
    return None if world.asked("scope ended", scope, call.began) else "its session is open"


def _busy(world: World, call: OneCall, ended: float) -> str | None:
    definition = call.definition
    bound = (definition.max_queued if definition is not None else None) or world.config.settings.max_queued
    others = [
        other
        for other in world.calls
        if other.server == call.server and other.began <= call.began and (other.ended or ended) >= call.began
    ]
    return None if len(others) > bound else f"only {len(others)} calls were open"


def _waited(world: World, call: OneCall, ended: float) -> str | None:
    """It was not sent for as long as a call may wait."""
    limit = world.config.settings.queue_timeout
    if ended - call.began < min(limit, world.config.settings.acquire_timeout) - EPS:
        return f"it had waited {ended - call.began:g}s of {limit:g}s"
    return None if _something_held_it(world, call) else "nothing kept it from being sent"


def _something_held_it(world: World, call: OneCall) -> bool:
    faults = ("failing", "hung", "slow", "lost", "full pipe")
    if any(world.was(fault, call.server, call.began) for fault in faults):
        return True
    crowded = world.config.settings.max_connections < len(world.servers) + len(world.sessions) + 1
    definition = call.definition
    apart = definition is not None and definition.isolation not in (None, Isolation.PERSISTENT)
    # A gate that earlier failures shut; a permit or a slot that others' starts hold.
    return (
        crowded
        or apart
        or any(life.causes for life in _lives(world, call))
        or any(world.was("failing", name, call.began) for name in world.servers)
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
        return f"it had had {ended - call.began:g}s of {limit:g}s"
    return None if world.was("slow", call.server, call.began) else "its server was not slow"


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
    ("drained", Reach.SENT): _ended_as(
        Cause.DRAINED,
        Cause.RESTART,
        Cause.RELOAD,
        Cause.DISABLED,
        Cause.REMOVED,
        Cause.SHUTDOWN,
        Cause.SCOPE_ENDED,
    ),
    ("drained", Reach.NOT_SENT): _ended_as(
        Cause.DRAINED,
        Cause.RESTART,
        Cause.RELOAD,
        Cause.DISABLED,
        Cause.REMOVED,
        Cause.SHUTDOWN,
        Cause.SCOPE_ENDED,
    ),
}


def recovered(world: World) -> None:
    """Every server is well, nothing was asked, and all delays are over: nobody waits, and who should be live is."""
    for actor in _actors(world):
        assert not actor.queued, f"{actor} still has {actor.queued} calls queued"
        assert not actor.in_flight, f"{actor} still has {actor.in_flight} calls in flight"
    for name, record in world.root.records.items():
        if record.definition.lifecycle is Lifecycle.KEEP_ALIVE and record.down is None:
            assert world.root.actor(name).is_connected, f"{name} is kept alive, and is not live"
    assert not world.pending, f"{world.pending[0]} has no outcome"


def ended(world: World) -> None:
    """After the room has closed: one outcome each, and nothing is left."""
    report = world.room.drain_report
    assert report is not None, "the room did not end in time"
    assert report.adds_up, f"the drain report does not add up: {report}"
    for call in world.calls:
        assert len(call.outcomes) == 1, f"{call} has no outcome"
    open_ones = [number for number in world.book.accepted if number not in world.book.ended]
    assert not open_ones, f"calls {open_ones} were accepted and never ended"
    assert len(world.book.ended) == report.accepted, "the events and the report disagree"
    assert world.waiting == 0, "somebody still waits"
    for name, fake in world.servers.items():
        assert fake.live == 0, f"{name} is still alive"
    admission = world.root.admission
    assert not admission.permits.held, "a start permit was never given back"
    assert not admission.pool.live, "a slot was never given back"


settled: tuple[Law, ...] = (
    nothing_unlawful_was_told,
    one_connection_each,
    permits_are_conserved,
    slots_are_conserved,
    load_is_counted,
    gates_have_a_prober,
    whoever_waits_is_in_a_queue,
    pressure_makes_room,
    nothing_outstays_its_time,
    far_ends_agree,
    versions_only_grow,
    outcomes_have_reasons,
)


def _actors(world: World, server: str | None = None) -> list[Any]:
    return [actor for actor in world.root.actors.values() if server is None or actor.address.server == server]
