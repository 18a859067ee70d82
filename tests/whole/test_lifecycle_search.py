"""The lifecycle proved by search: see `greenroom.testing` for what is drawn and what must hold.

By default in seconds; `make soak` looks for as long as it takes to run some thousand times as many steps. What judges
the search is judged below it: whatever the trace checker, the outcomes and the laws can complain of is shown to them
once, and they have to say so. That they do not complain of what is lawful is shown by the search itself, which goes red
when they do (but for one rule, which is tried here); that it finds faults of the runtime, by `tools/mutants.py`.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Self

import anyio
import attrs
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from msgspec.structs import replace
from tests.support.profiles import examples

from greenroom import Reach
from greenroom.actors.call import Call
from greenroom.config.model import Lifecycle, Settings
from greenroom.config.parse import parse_config
from greenroom.events import Event
from greenroom.protocol.address import Address
from greenroom.protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    Drained,
    GreenroomError,
    ServerDown,
    ServerLost,
    Unavailable,
    UnknownTool,
    UsageError,
)
from greenroom.protocol.events import (
    BreakerMove,
    CallAccepted,
    CallEnded,
    CallSent,
    CatalogueChanged,
    ConnectStep,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Step,
    Transition,
    WarmChildMoved,
    WarmMove,
)
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State
from greenroom.testing import World, world_laws
from greenroom.testing.room_machine import RoomMachine
from greenroom.testing.trace_checker import Seats, TraceChecker
from greenroom.testing.world import OneCall, tools_of
from greenroom.testing.world_laws import outcomes_have_reasons

RoomMachine.TestCase.settings = settings(
    examples(300),
    stateful_step_count=30,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRooms = RoomMachine.TestCase


# ---- the trace checker --------------------------------------------------------------------------------------------

IDLE, CONNECTING, CONNECTED = State.IDLE, State.CONNECTING, State.CONNECTED
DRAINING, CLOSED = State.DRAINING, State.CLOSED


CALL_STEPS: dict[str, Any] = {"accepted": CallAccepted, "sent": CallSent, "ended": CallEnded}


class Told:
    """A trace checker and the one who tells it: events as they come, and the ground truth (`wrong`: until when)."""

    def __init__(self, entry: dict[str, Any] | None = None, **room: Any) -> None:
        raw = {"mcpServers": {"a": {"command": "fake", **(entry or {})}}, "settings": room}
        self.config = parse_config(raw)
        self.wrong: dict[str, float] = {}
        self.asks: dict[str, float] = {}
        self.asked_by_name: dict[str, float] = {}
        self.asks_for: dict[str, str] = {}
        self.queues: dict[str, tuple[Address, ...]] = {}
        self.taken = Seats(capacity=20, minimum=0, staying=1, shared=1, leaving=0, waiting=0)
        self.checker = TraceChecker(self)
        self.at, self._seq = 0.0, 0

    def was(self, fault: str, server: str, since: float) -> bool:
        return fault in self.wrong and self.wrong[fault] >= since

    def asked(self, what: str, server: str, since: float) -> bool:
        if what in ("connect", "find", "drained") and server in self.asked_by_name:
            return self.asked_by_name[server] >= since
        return self.asks_for.get(server) == what or (what in self.asks and self.asks[what] >= since)

    def lines(self) -> dict[str, tuple[Address, ...]]:
        return self.queues

    def seats(self, *, of_sessions: bool) -> Seats:
        return self.taken

    def tell(self, make: type[Event], *, skip: int = 0, **more: Any) -> Self:
        self._seq += 1 + skip
        address, number = more.pop("address", Address("a")), more.pop("incarnation", 1)
        self.checker.read(make(self._seq, self.at, address, number, **more))
        return self

    def step(self, before: State, after: State, cause: Cause | None = None, **more: Any) -> Self:
        return self.tell(Transition, before=before, after=after, cause=cause, **more)

    def start(self, **more: Any) -> Self:
        return self.step(IDLE, CONNECTING, **more)

    def connect(self, **more: Any) -> Self:
        return self.start(**more).step(CONNECTING, CONNECTED, **more)

    def leave(self, cause: Cause, *, before: State = CONNECTED, **more: Any) -> Self:
        return self.step(before, DRAINING, cause, **more).step(DRAINING, CLOSED, cause, **more)

    def fail(self, incarnation: int = 1, **more: Any) -> Self:
        """One start that fails, and had a reason to."""
        self.wrong["failing"] = math.inf
        self.step(IDLE if incarnation == 1 else CLOSED, CONNECTING, incarnation=incarnation, **more)
        return self.leave(Cause.CONNECT_FAILED, before=CONNECTING, incarnation=incarnation, **more)

    def call(self, number: int, *steps: str, **more: Any) -> Self:
        for step in steps:
            outcome = {"outcome": more.get("outcome", "result")} if step == "ended" else {}
            whose = {"call": number, "method": "tools/call", "tool": "a_echo", "client": None}
            where = {"address": more.get("address", Address("a")), "in_flight": more.get("in_flight", 0)}
            self.tell(CALL_STEPS[step], **whose, **outcome, **where)
        return self

    @property
    def violations(self) -> list[str]:
        return [re.split(r": \w+\(seq=", text)[0] for text in self.checker.violations]


def _later(told: Told, seconds: float) -> Told:
    told.at += seconds
    return told


def _tripped() -> Told:
    """A circuit breaker that has tripped, and a server that is up again behind it."""
    told = Told(failureThreshold=1, cooldownMs=5_000).fail()
    _later(told, 10.0).step(CLOSED, CONNECTING, incarnation=2)
    return told.step(CONNECTING, CONNECTED, incarnation=2)


def _asked(told: Told, what: str) -> Told:
    told.asks[what] = math.inf
    return told


def _wrong(told: Told, what: str, until: float = math.inf) -> Told:
    told.wrong[what] = until
    return told


def _seated(told: Told, **seats: int) -> Told:
    told.taken = attrs.evolve(told.taken, **seats)
    return told


ANN, BOB, ONE_CALL = Address.of_session("a", "ann"), Address.of_session("a", "bob"), Address("a", "call:1")


def _passed(
    in_line: str,
    *,
    before: tuple[str, ...] = ("first", "a"),
    stays: bool = True,
    to: Place | None = None,
    **asked: float,
) -> Told:
    """`a` leaves a queue in which `first` may stay. `asked`: when somebody asked for a server by name; it is 14 now."""
    told = _later(Told(), 14.0)
    told.asked_by_name = asked
    told.queues = {"slot": (), "permit": (), in_line: tuple(map(Address, before))}
    told.tell(Step, step=ConnectStep.STARTED)
    told.queues = {"slot": (), "permit": (), in_line: (Address("first"),) if stays else ()}
    return told.tell(StartMoved, place=to or (Place.PERMIT if in_line == "slot" else Place.STARTING))


def _restarts(settings: dict[str, Any], forget_after: int = 0) -> Told:
    told = Told(failureThreshold=50, restartBackoff={"minMs": 1, "maxMs": 1}, **settings)
    for number in (1, 2, 3, 4):
        _later(told, 1.0).fail(number)
        if number == forget_after:
            told.checker.forget("a")
    return told


_OVER = Cause.SCOPE_ENDED


def _child(told: Told, *moves: WarmMove) -> Told:
    """What becomes of a child that `ann` takes over."""
    for move in moves:
        told.tell(WarmChildMoved, move=move, child="warm:1", warm=1, by="session:ann")
    return told


TAKEN, RETURNED, RESETTING, RESET = WarmMove.TAKEN, WarmMove.RETURNED, WarmMove.RESETTING, WarmMove.RESET
UNLAWFUL: dict[str, tuple[Callable[[], Told], str]] = {
    "one child of two": (lambda: _child(Told(), TAKEN, TAKEN), "a[session:ann] has taken it over already"),
    "given back by nobody": (lambda: _child(Told(), RETURNED), "nobody had taken it over"),
    "reset for nobody": (lambda: _child(Told(), RESETTING), "nobody had taken it over"),
    "reset without a call of its tool": (lambda: _child(Told(), TAKEN, RESET), "it was not being reset"),
    "reset while it is used": (
        lambda: _child(_child(Told(), TAKEN).connect(address=ANN), RESETTING),
        "a[session:ann] is not over",
    ),
    "used before it is reset": (
        lambda: _child(
            _child(Told(), TAKEN).connect(address=ANN).leave(_OVER, address=ANN), RESETTING, TAKEN
        ).connect(address=ANN),
        "its child is not reset yet",
    ),
    "a gap": (lambda: Told().tell(CatalogueChanged).tell(CatalogueChanged, skip=1), "event 2 is missing"),
    "nobody's": (
        lambda: Told().step(IDLE, CONNECTING, address=None),
        "the checker cannot read it: AssertionError()",
    ),
    "passed at a slot": (lambda: _passed("slot"), "first has waited longer for a slot"),
    "no such row": (lambda: Told().step(IDLE, CONNECTED), "the table has no such transition"),
    "twice": (lambda: Told().start().start(), "it was connecting"),
    "a skipped number": (lambda: Told().start(incarnation=2), "its incarnation is 1"),
    "down": (
        lambda: _asked(Told(), "down").start(),
        "it was taken down, and nobody asked for it by name",
    ),
    "below the minimum": (
        lambda: _seated(_later(Told({"idleTimeout": 1}).connect(), 60.0), minimum=1, staying=0).leave(
            Cause.IDLE_TIMEOUT
        ),
        "0 are left, and the minimum is 1",
    ),
    "evicted for nobody": (
        lambda: _seated(Told().connect(), leaving=2, waiting=1).leave(Cause.EVICTED),
        "2 leave, and 1 wait for a slot",
    ),
    "a session's child that has not rested": (
        lambda: _later(_seated(Told().connect(address=ANN), leaving=1, waiting=1), 59.0).leave(
            Cause.EVICTED, address=ANN
        ),
        "it had not rested for a minute",
    ),
    "a breaker that refuses": (lambda: _later(Told().fail(), 0.7).fail(2), "its circuit breaker refuses"),
    "around a breaker that refuses at once": (
        lambda: _asked(_later(Told().fail(), 0.7), "connect").fail(2),
        "a second start within a second, around a circuit breaker that refuses",
    ),
    "too many restarts": (
        lambda: _restarts({"restartIntensity": 2, "restartPeriodMs": 2_500}),
        "restart 3 within 2.5 s",
    ),
    "gone with calls": (
        lambda: _wrong(Told().connect(), "lost").leave(Cause.LOST, in_flight=1),
        "gone with calls in flight",
    ),
    "sent too early": (lambda: Told().start().call(1, "accepted", "sent"), "sent while connecting"),
    "sent after its end": (
        lambda: Told().connect().call(1, "accepted", "sent", "ended", "sent"),
        "sent after its end",
    ),
    "overtaken": (
        lambda: Told().connect().call(1, "accepted").call(2, "accepted", "sent"),
        "call 1 was accepted before it",
    ),
    "a second probe": (
        lambda: _later(_tripped().call(1, "accepted", "sent", in_flight=1), 1.0).call(
            2, "accepted", "sent", in_flight=2
        ),
        "call 1 is the probe already",
    ),
    "ended twice": (
        lambda: Told().connect().call(1, "accepted", "sent", "ended", "ended"),
        "its second outcome",
    ),
    "never accepted": (lambda: Told().connect().call(1, "ended"), "it was never accepted"),
    "our own error": (lambda: Told().tell(Note, code=NoteCode.BUG), "an error of our own"),
    "a loss for nothing": (
        lambda: _wrong(_later(Told().connect(), 9.0), "lost", 8.0).leave(Cause.LOST),
        "there was no reason for it",
    ),
    "a hang that was a loss": (
        lambda: _wrong(Told().connect(), "lost").leave(Cause.LOST, reason=Reason.UNRESPONSIVE),
        "there was no reason for it",
    ),
    "a well server fails": (
        lambda: _wrong(_later(Told(), 9.0).start(), "failing", 8.0).leave(
            Cause.CONNECT_FAILED, before=CONNECTING
        ),
        "there was no reason for it",
    ),
    "nobody asked for a login": (
        lambda: Told().start().leave(Cause.NEEDS_AUTH, before=CONNECTING),
        "there was no reason for it",
    ),
    "idle too early": (
        lambda: _later(Told({"idleTimeout": 1}).connect(), 59.0).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "eviction at work": (
        lambda: Told().connect().step(CONNECTED, DRAINING, Cause.EVICTED, in_flight=1),
        "there was no reason for it",
    ),
    "drained unasked": (lambda: Told().connect().leave(Cause.DRAINED), "there was no reason for it"),
    "a room that is open": (lambda: Told().connect().leave(Cause.SHUTDOWN), "there was no reason for it"),
    "a session that is open": (
        lambda: Told().connect(address=ANN).leave(Cause.SCOPE_ENDED, address=ANN),
        "there was no reason for it",
    ),
    "a bug": (lambda: Told().connect().leave(Cause.BUG), "there was no reason for it"),
}


def test_the_trace_checker_says_what_cannot_be() -> None:
    silent = [case for case, (make, said) in UNLAWFUL.items() if said not in make().violations]
    assert silent == []


def test_what_a_full_pipe_took_first_may_overtake() -> None:
    """Lawful, and so seldom drawn that the search does not miss it."""
    told = _wrong(Told().connect(), "full pipe").call(1, "accepted").call(2, "accepted", "sent")
    assert told.violations == []


# ---- the circuit breaker, as a bystander knows it ------------------------------------------------------------------


# ---- outcomes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    made = World({"a": {}, "b": {"idleTimeout": 1}})
    yield made
    made.run.close()


def _ended(world: World, *outcomes: str | GreenroomError, after: float = 0.0) -> OneCall:
    call = OneCall(len(world.calls), "a", "echo", None, world.now, world.config.servers["a"])
    call.outcomes, call.ended = list(outcomes), world.now + after
    world.calls.append(call)
    return call


def _timeout(reach: Reach) -> CallError:
    return CallTimeout("", server="a", reach=reach, timeout=1.0)


UNREASONED: dict[str, tuple[str | GreenroomError, float, str]] = {
    "cancelled": ("cancelled", 0.0, "nobody cancelled it"),
    "almost its own": ('{"n": 03, "who": null}', 0.0, "somebody else's answer"),
    "another's": ('{"n": 7, "who": null}', 0.0, "somebody else's answer"),
    "connect": (ConnectFailed("", server="a"), 0.0, "its server was not failed to connect meanwhile"),
    "unavailable": (Unavailable("a", failed_ago=1, retry_in=1), 0.0, "its circuit breaker admits calls"),
    "down": (ServerDown("", server="a"), 0.0, "it was not taken down"),
    "unknown": (UnknownTool("a_echo"), 0.0, "its server is configured, and known"),
    "no session": (UsageError("its session is over"), 0.0, "its session is open"),
    "busy": (Busy("a", in_flight=1, queued=1, oldest_age=1, retry_in=1), 0.0, "only 1 calls were open"),
    "too early unsent": (_timeout(Reach.NOT_SENT), 1.0, "it had waited 1 s of 45 s"),
    "waited for nothing": (_timeout(Reach.NOT_SENT), 30.0, "nothing kept it from being sent"),
    "too early sent": (_timeout(Reach.SENT), 59.0, "it had had 59 s of 60 s"),
    "not slow": (_timeout(Reach.SENT), 60.0, "its server was not slow"),
    "lost unsent": (ServerLost("", server="a", reach=Reach.NOT_SENT), 0.0, "was not lost meanwhile"),
    "lost sent": (ServerLost("", server="a", reach=Reach.SENT), 0.0, "was not lost meanwhile"),
    "drained unsent": (Drained("", server="a"), 0.0, "its server was not drained or restart or"),
    "drained sent": (Drained("", server="a", reach=Reach.SENT), 0.0, "its server was not drained or"),
    "half sent": (ConnectFailed("", server="a").copy(Reach.SENT), 0.0, "nothing here can end so"),
    "answered": (ServerLost("", server="a", reach=Reach.ANSWERED), 0.0, "nothing here can end so"),
}


@pytest.mark.parametrize("case", UNREASONED)
def test_an_outcome_without_a_reason_is_named(world: World, case: str) -> None:
    outcome, after, said = UNREASONED[case]
    world.advance(1.0)
    call = _ended(world, outcome, after=after)
    with pytest.raises(AssertionError, match=f"call 0 of a_echo, begun at 1, ended at .*{said}"):
        outcomes_have_reasons(world)
    assert call.is_judged


def test_a_second_outcome_is_named(world: World) -> None:
    _ended(world, "cancelled", '{"n": 0, "who": null}')
    with pytest.raises(AssertionError, match="call 0 of a_echo ended 2 times"):
        outcomes_have_reasons(world)


def test_what_waits_in_the_background_of_a_world_may_fail_with_our_errors_only(world: World) -> None:
    async def fail(error: Exception) -> None:
        await anyio.sleep(1.0)
        raise error

    world.background.start(lambda: fail(ServerDown("down", server="a")))
    world.background.start(lambda: fail(ValueError("odd")))
    assert world.background.waiting == 2
    world.advance(1.0)
    assert world.background.waiting == 0
    assert world.background.unexpected == ["ValueError('odd') came out of the room"]


# ---- laws ----------------------------------------------------------------------------------------------------------


def _servers(world: World) -> Any:
    """Where faults are planted that no room has."""
    return world.inside.machinery.servers


def _well(world: World) -> Any:
    """`a` is connected and idle."""
    world.call("a")
    return _servers(world).actor("a")


def _at_work(world: World, tool: str = "echo", count: int = 2) -> Any:
    world.faults.slow_down("a", "call", 5.0)
    world.call("a", tool, count=count)
    return _servers(world).actor("a")


def _starting(world: World, count: int = 3) -> Any:
    world.faults.slow_down("a", "start", 5.0)
    world.call("a", count=count)
    return _servers(world).actor("a")


def _at_permit(world: World) -> Any:
    """`a` holds the only permit, `b` waits for it."""
    _permits(world, 1)
    _starting(world)
    world.call("b")
    return _servers(world).actor("b")


def _permits(world: World, count: int) -> None:
    world.inside.machinery.config = msgspec.structs.replace(
        world.config, settings=msgspec.structs.replace(world.config.settings, start_permits=count)
    )
    world.inside.machinery.context.settings = world.config.settings


def _put(world: World, actor: Any, place: Place) -> None:
    """There, against all rules: nobody is told."""
    _servers(world).starts.places.move(actor.record, actor, place)


def _change(what: Any, **more: Any) -> None:
    for name, value in more.items():
        setattr(what, name, value)


def _kept(world: World) -> Any:
    actor = _well(world)
    actor.record.definition = msgspec.structs.replace(actor.record.definition, lifecycle=Lifecycle.KEEP_ALIVE)
    return actor


def _bounded(actor: Any, **bounds: int) -> None:
    actor.record.definition = msgspec.structs.replace(actor.record.definition, **bounds)


def _tripped_breaker(actor: Any, failed_at: float, **more: Any) -> None:
    actor.record.breaker.state = replace(
        actor.record.breaker.state, tripped=True, failed_at=failed_at, **more
    )


def _hung(world: World) -> None:
    actor = _well(world)
    _tripped_breaker(actor, world.now + 1.0)
    world.checker.lives.breaker(actor.address).refuses_for = BreakerMove.SILENT


def _half_open(actor: Any, *, ended: bool | None) -> None:
    actor.record.breaker.state = replace(actor.record.breaker.state, probing=True)
    if ended is not None:
        actor.record.breaker.probe = Call("ping", None)
        actor.record.breaker.probe.ended = ended


def _lives_as(world: World, actor: Any, seconds: float, **more: Any) -> None:
    life = world.checker.lives.of(actor.address)
    _change(life, since=world.now - seconds, **more)


def _drains(world: World, seconds: float) -> None:
    world.faults.slow_down("a", "stop", 4.0)
    actor = _well(world)
    world.ask("drain", "a")
    _lives_as(world, actor, seconds)


def _lost_at_work(world: World) -> None:
    actor = _at_work(world)
    world.ask("drain", "a")
    actor.life = replace(actor.life, ending=Ending(Cause.LOST))


def _silent(world: World, seconds: float) -> None:
    actor = _kept(world)
    world.truth.silent_since["a"] = world.now - seconds
    world.checker.lives.of(actor.address).rested_at = world.truth.reloaded_at = -math.inf


def _idle_for(world: World, seconds: float, server: str = "a") -> None:
    world.call(server)
    actor = _servers(world).actor(server)
    world.checker.lives.of(actor.address).rested_at = world.now - seconds


def _slots(world: World, count: int) -> None:
    settings = msgspec.structs.replace(world.inside.machinery.context.settings, max_connections=count)
    world.inside.machinery.context.settings = settings


def _rests_while_another_waits(world: World) -> None:
    _well(world)
    _slots(world, 1)
    _put(world, _servers(world).actor("b"), Place.SLOT)


def _waits_beside_a_free_slot(world: World) -> None:
    _put(world, _servers(world).actor("b"), Place.SLOT)


def _queued_too_long(world: World) -> None:
    _starting(world).calls.waiting[0].deadline = world.now - 1.0


def _seen_twice(world: World, times: int, tool: str) -> None:
    _well(world)
    world.call("a", tool)
    world.servers["a"].calls.extend([world.servers["a"].calls[-1]] * (times - 1))


IDLE_LIMIT, HEALTH = Settings().idle_timeout, 3 * Settings().health_interval
BROKEN: dict[str, tuple[world_laws.Law, Callable[[World], object], str]] = {
    "a complaint": (world_laws.nothing_unlawful_was_told, lambda w: w.checker.violations.append("oh"), "oh"),
    "a surprise": (
        world_laws.nothing_unlawful_was_told,
        lambda w: w.background.unexpected.append("ah"),
        "ah",
    ),
    "nobody's child": (
        world_laws.one_connection_each,
        lambda w: (_well(w), _change(w.servers["a"], live=2)),
        "a: 2 live connections of 1 actors",
    ),
    "a permit kept": (
        world_laws.permits_are_conserved,
        lambda w: _put(w, _well(w), Place.STARTING),
        "holds a start permit",
    ),
    "too many permits": (
        world_laws.permits_are_conserved,
        lambda w: (_starting(w), _permits(w, 0)),
        "1 start permits of 0 are held",
    ),
    "a free permit": (
        world_laws.permits_are_conserved,
        lambda w: (_at_permit(w), _permits(w, 2)),
        "somebody waits for a permit that is free",
    ),
    "in two places": (
        world_laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.BREAKER].setdefault(_well(w), _well(w).record),
        "a connected #1> is live, and listed as \\['breaker', 'live'\\]",
    ),
    "listed nowhere": (
        world_laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.LIVE].pop(_well(w)),
        "a connected #1> is live, and listed as \\[\\]",
    ),
    "nobody's start": (
        world_laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.LIVE].setdefault(copy.copy(_well(w))),
        "nobody's start",
    ),
    "too many slots": (
        world_laws.slots_are_conserved,
        lambda w: (_well(w), _slots(w, 0)),
        "1 slots of 0 are held",
    ),
    "no slot": (
        world_laws.slots_are_conserved,
        lambda w: _put(w, _well(w), Place.OUT),
        "is live without a slot",
    ),
    "a slot for nothing": (
        world_laws.slots_are_conserved,
        lambda w: _put(w, _servers(w).actor("b"), Place.LIVE),
        "idle .* holds a slot",
    ),
    "in flight": (
        world_laws.load_is_counted,
        lambda w: _change(_at_work(w).record.load, in_flight=1),
        "a: in flight is miscounted",
    ),
    "queued": (
        world_laws.load_is_counted,
        lambda w: _change(_starting(w).record.load, queued=1),
        "a: queued is miscounted",
    ),
    "over its places": (
        world_laws.load_is_counted,
        lambda w: _bounded(_at_work(w), max_in_flight=1),
        "a: too many in flight",
    ),
    "over its queue": (
        world_laws.load_is_counted,
        lambda w: _bounded(_starting(w), max_in_flight=1, max_queued=1),
        "a: too many queued",
    ),
    "the tally": (
        world_laws.load_is_counted,
        lambda w: _change(w.inside.machinery.context.tally, accepted=1),
        "the tally has lost a call",
    ),
    "a hung one serves": (
        world_laws.nobody_serves_on_the_wrong_process,
        _hung,
        "was found hung, and is still connected",
    ),
    "an old one serves": (
        world_laws.nobody_serves_on_the_wrong_process,
        lambda w: (_well(w), w.truth.redefined_at.update(a=w.now + 1.0)),
        "runs on its old definition",
    ),
    "silent": (
        world_laws.the_silent_are_found_dead,
        lambda w: _silent(w, HEALTH + 1.0),
        f"a connected #1> has said nothing for {HEALTH + 1:g} s",
    ),
    "half-open for nobody": (
        world_laws.half_open_breakers_have_a_prober,
        lambda w: _half_open(_well(w), ended=None),
        "a: half-open for nobody",
    ),
    "its probe has ended": (
        world_laws.half_open_breakers_have_a_prober,
        lambda w: _half_open(_well(w), ended=True),
        "a: its probe has ended",
    ),
    "two through a tripped breaker": (
        world_laws.half_open_breakers_have_a_prober,
        lambda w: _tripped_breaker(_at_work(w), -1.0),
        "a: 2 calls went through a tripped circuit breaker",
    ),
    "waits for nothing": (
        world_laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.OUT),
        "b idle #1> is wanted and waits for nothing",
    ),
    "waits, unwanted": (
        world_laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _servers(w).actor("b"), Place.SLOT),
        "b idle #1> waits, and nobody wants it",
    ),
    "a breaker without an end": (
        world_laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.BREAKER),
        "nothing will let it through its circuit breaker",
    ),
    "a slot without an end": (
        world_laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.SLOT),
        "may wait for a slot for ever",
    ),
    "waits beside a free slot": (
        world_laws.pressure_makes_room,
        _waits_beside_a_free_slot,
        "1 wait for a slot, and one is free",
    ),
    "idle under pressure": (
        world_laws.pressure_makes_room,
        _rests_while_another_waits,
        "is idle while 1 wait for a slot",
    ),
    "connects for ever": (
        world_laws.nothing_outstays_its_time,
        lambda w: _lives_as(w, _starting(w), world_laws.PATIENCE + 1.0),
        "connects for 301 s",
    ),
    "drains for ever": (
        world_laws.nothing_outstays_its_time,
        lambda w: _drains(w, Settings().drain_timeout + Settings().stop_timeout + 1.0),
        f"a draining #1> drains for {Settings().drain_timeout + Settings().stop_timeout + 1:g} s",
    ),
    "lost, and at work": (
        world_laws.nothing_outstays_its_time,
        _lost_at_work,
        "is lost, and has calls in flight",
    ),
    "idle for ever": (
        world_laws.nothing_outstays_its_time,
        lambda w: _idle_for(w, IDLE_LIMIT + 1.0),
        f"a connected #1> is idle for {IDLE_LIMIT + 1:g} s, its limit is {IDLE_LIMIT:g} s",
    ),
    "queued for ever": (world_laws.nothing_outstays_its_time, _queued_too_long, "a call outstayed the queue"),
    "nothing at the far end": (
        world_laws.far_ends_agree,
        lambda w: _at_work(w).peer._open.clear(),
        "a: 2 calls in flight, 0 at its far end",
    ),
    "run twice": (
        world_laws.far_ends_agree,
        lambda w: _seen_twice(w, 2, "echo"),
        "call 1 of a_echo reached its server 2 times",
    ),
    "older": (
        world_laws.versions_only_grow,
        lambda w: w.versions.seen.update(a=1),
        "a: version 0 replaced a newer one",
    ),
    "a lost timer": (
        world_laws.no_timer_is_lost,
        lambda w: (_at_work(w), w.inside.machinery.context.timers._heap.clear()),
        "^1 timers will never fire",
    ),
    "left over": (
        world_laws.nothing_outlives_its_session,
        lambda w: _servers(w).actor("a", "session:ann"),
        "its session is over",
    ),
    "still queued": (world_laws.recovered, _starting, "still has 3 calls queued"),
    "still in flight": (world_laws.recovered, _at_work, "still has 2 calls in flight"),
    "kept, and not live": (
        world_laws.recovered,
        lambda w: (_kept(w), _servers(w).actor("a").stop(Ending(Cause.EVICTED))),
        "a is kept alive, and is not live",
    ),
    "no outcome": (
        world_laws.recovered,
        lambda w: _change(_ended(w), ended=None),
        "call 0 of a_echo has no outcome",
    ),
}


@pytest.mark.changes_the_books
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_law_is_told(world: World, case: str) -> None:
    law, break_it, said = BROKEN[case]
    law(world)
    break_it(world)
    with pytest.raises(AssertionError, match=said):
        law(world)


def test_an_older_version_is_told_though_a_newer_one_has_followed_at_once(world: World) -> None:
    for version in (2, 1, 3):
        world.do(lambda version=version: world.inside.teach("a", tools_of(version)))
    with pytest.raises(AssertionError, match="a: version 1 replaced a newer one"):
        world_laws.versions_only_grow(world)


LEFT: dict[str, tuple[Callable[[World], object], str]] = {
    "the sums": (
        lambda w: _report(w, accepted=99),
        "the drain report does not add up",
    ),
    "a call": (lambda w: w.calls[0].outcomes.clear(), "call 0 of a_echo has no outcome"),
    "an acceptance": (
        lambda w: w.checker.calls.accepted.update({99: w.checker.lives.of(Address("a"))}),
        "calls \\[99\\] were accepted and never ended",
    ),
    "an event": (lambda w: w.checker.calls.ended.update({99: 1}), "the events and the report disagree"),
    "an asker": (lambda w: _change(w.background, waiting=1), "somebody still waits"),
    "a server": (lambda w: _change(w.servers["b"], live=1), "b is still alive"),
    "a permit": (
        lambda w: _servers(w).starts.places._at[Place.STARTING].setdefault("x"),
        "a start permit was never given back",
    ),
    "a slot": (
        lambda w: _servers(w).starts.places._at[Place.LIVE].setdefault("x"),
        "a slot was never given back",
    ),
}


def _report(world: World, **more: int) -> None:
    report = world.room.drain_report
    assert report is not None
    world.inside.machinery.report = msgspec.structs.replace(report, **more)


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_at_the_end_is_told(world: World, case: str) -> None:
    leave, said = LEFT[case]
    _well(world)
    with pytest.raises(AssertionError, match="the room did not end in time"):
        world_laws.ended(world)
    world.close()
    world_laws.ended(world)
    leave(world)
    with pytest.raises(AssertionError, match=said):
        world_laws.ended(world)
