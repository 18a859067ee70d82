"""A room against everything at once: the schedule, the faults and the moments are drawn.

Rules start calls, cancel them, crash, hang and refuse servers, connect, drain and restart them, and let time pass; the
order in which trio runs tasks is drawn too, so races are found and shrink. After each rule the invariants of DESIGN
must hold, and in the end: each accepted call has exactly one outcome, one that the model allows; nothing is alive; no
permit is held; every transition was one of the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.pump import Pump
from tests.support.rooms import open_room, record_events, teach
from tests.support.seeds import seed_schedule

from greenroom import CallError, Event, Greenroom, Kind, State
from greenroom.actors import Call
from greenroom.protocol.lifecycle import TABLE
from greenroom.testing._fake import HANG, FakeServer, tool

NAMES = ("a", "b", "k")
SERVERS = st.sampled_from(NAMES)
MOMENTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
TOOLS = [tool("echo"), tool("safe", annotations={"readOnlyHint": True})]

# What a call may end as, and what must have been done to its server (or to the room) for it to.
ALLOWED = {
    ("connect_failed", "not_sent"): {"refused", "hung", "crashed"},
    ("server_unavailable", "not_sent"): {"refused", "hung", "crashed"},
    ("server_not_connected", "not_sent"): {"drained", "closed"},
    ("server_busy", "not_sent"): {"bounded"},
    ("timeout", "not_sent"): {"refused", "hung", "crashed", "bounded", "crowded"},
    ("timeout", "sent"): {"hung"},
    ("call_failed", "not_sent"): {"crashed", "hung"},
    ("call_failed", "sent"): {"crashed", "hung"},
    ("drained", "not_sent"): {"drained", "closed"},
    ("drained", "sent"): {"drained", "closed"},
}


class OneCall:
    def __init__(self, number: int, server: str, drains: int) -> None:
        self.number = number
        self.server = server
        self.drains = drains  # of its server, when it began
        self.scope = trio.CancelScope()
        self.asked_to_leave = False
        self.outcomes: list[Any] = []


class Rooms(RuleBasedStateMachine):
    """One room of three servers: two lazy, one kept alive."""

    room: Greenroom

    @initialize(
        seed=st.integers(0, 2**16),
        permits=st.sampled_from([1, 10]),
        threshold=st.sampled_from([1, 2, 5]),
        slots=st.sampled_from([2, 20]),
    )
    def open(self, seed: int, permits: int, threshold: int, slots: int) -> None:
        seed_schedule(seed)
        self.pump = Pump()
        self.calls: list[OneCall] = []
        self.servers = {name: FakeServer(tools=TOOLS) for name in NAMES}
        self.events: list[Event] = []
        self.closed = False
        crowded = {"crowded"} if slots < len(NAMES) else set[str]()
        self.drains: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.done_to = {"a": crowded | set(), "b": crowded | {"bounded"}, "k": crowded | set()}
        self.room = open_room(
            self.servers,
            entries={
                "a": {"idleTimeout": 0.05},
                "b": {"maxInFlight": 1, "maxQueued": 3, "idleTimeout": 0.1},
                "k": {"lifecycle": "keep-alive"},
            },
            failureThreshold=threshold,
            cooldownMs=3_000,
            maxConnections=slots,
        )

        async def start() -> None:
            await self.room.start(self.pump.nursery)
            self.room._runtime.root.admission.permits.places = permits
            self.events = record_events(self.room)
            for name in NAMES:
                await teach(self.room, name, TOOLS)

        self.pump.run(start)

    def background(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Something that waits, in a task of its own; that it fails is its own affair, that it ends is ours."""

        async def job() -> None:
            try:
                await ask()
            except CallError:
                pass
            finally:
                self.waiting -= 1

        async def go() -> None:
            self.waiting += 1
            self.pump.nursery.start_soon(job)

        self.pump.run(go)

    waiting = 0

    # ---- rules -------------------------------------------------------------------------------------------------------

    @rule(server=SERVERS, which=st.sampled_from(["echo", "safe"]), count=st.integers(1, 4))
    def call(self, server: str, which: str, count: int) -> None:
        async def burst() -> None:
            for _ in range(count):
                one = OneCall(len(self.calls), server, self.drains[server])
                self.calls.append(one)
                self.pump.nursery.start_soon(self._call, one, f"{server}_{which}")

        self.pump.run(burst)

    async def _call(self, one: OneCall, name: str) -> None:
        with one.scope:
            try:
                one.outcomes.append((await self.room.call(name, {"n": one.number})).text)
            except CallError as error:
                one.outcomes.append(error)
        if one.scope.cancelled_caught:
            one.outcomes.append("cancelled")

    @precondition(lambda self: any(not call.outcomes for call in self.calls))
    @rule(pick=st.integers(0, 99), delay=MOMENTS)
    def cancel_a_call(self, pick: int, delay: float) -> None:
        waiting = [call for call in self.calls if not call.outcomes]
        one = waiting[pick % len(waiting)]
        one.asked_to_leave = True

        async def later() -> None:
            await anyio.sleep(delay)
            one.scope.cancel()

        self.background(later)

    @rule(server=SERVERS, delay=MOMENTS)
    def crash(self, server: str, delay: float) -> None:
        self.done_to[server].add("crashed")

        async def later() -> None:
            await anyio.sleep(delay)
            self.servers[server].crash()

        self.background(later)

    @rule(server=SERVERS, seconds=st.sampled_from([0.5, 1.0, 3.0, 8.0, 70.0, HANG]))
    def answer_slowly(self, server: str, seconds: float) -> None:
        self.servers[server].call_latency = seconds
        if seconds > 10.0:
            self.done_to[server].add("hung")

    @rule(server=SERVERS, seconds=st.sampled_from([0.5, 3.0, HANG]), stop=st.booleans())
    def start_or_stop_slowly(self, server: str, seconds: float, stop: bool) -> None:
        setattr(self.servers[server], "stop_latency" if stop else "start_latency", seconds)
        if seconds == HANG:
            self.done_to[server].add("hung")

    @rule(server=SERVERS, how=st.sampled_from(["refuse_start", "refuse_greeting"]))
    def refuse(self, server: str, how: str) -> None:
        setattr(self.servers[server], how, "no")
        self.done_to[server].add("refused")

    @rule(server=SERVERS)
    def read_nothing(self, server: str) -> None:
        self.servers[server].blocked = True
        self.done_to[server].add("hung")

    @rule(server=SERVERS)
    def heal(self, server: str) -> None:
        fake = self.servers[server]
        fake.start_latency = fake.stop_latency = fake.call_latency = 0.0
        fake.refuse_start = fake.refuse_greeting = None
        fake.blocked = False

    @rule(server=SERVERS)
    def announce(self, server: str) -> None:
        async def go() -> None:
            self.servers[server].announce_tools()

        self.pump.run(go)

    @rule(server=SERVERS, what=st.sampled_from(["connect", "drain", "restart", "find"]), patience=MOMENTS)
    def ask(self, server: str, what: str, patience: float) -> None:
        if what in ("drain", "restart"):
            self.done_to[server].add("drained")
            self.drains[server] += 1

        async def impatiently() -> None:
            with anyio.move_on_after(patience or 1_000):
                await (
                    self.room.find(f"{server}_echo") if what == "find" else getattr(self.room, what)(server)
                )

        self.background(impatiently)

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0, 10.0, 31.0, 61.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.pump.advance(seconds)

    # ---- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "room") or self.closed:
            return
        root = self.room._runtime.root
        assert all(server.most_live <= 1 for server in self.servers.values()), "two connections at once"
        permits, pool = root.admission.permits, root.admission.pool
        assert permits.held <= permits.places
        assert (
            sum(server.live for server in self.servers.values())
            <= len(tuple(pool.holders))
            <= pool.limits.slots
        )
        for actor in permits._held:
            assert actor.life.state in (State.CONNECTING, State.DRAINING), f"{actor} holds a permit"
        for call in self.calls:
            self.check(call)
        for name, record in root.records.items():
            actors = [actor for actor in root.actors.values() if actor.address.server == name]
            assert record.load.in_flight == sum(actor.in_flight for actor in actors)
            assert record.load.queued == sum(actor.queued for actor in actors)
            if record.gate.probing:
                assert record.probe is not None, "half-open for nobody"
                assert not isinstance(record.probe, Call) or not record.probe.ended, "the probe has ended"
        tally = self.room._runtime.stage.tally
        assert tally.open == sum(
            record.load.in_flight + record.load.queued for record in root.records.values()
        )

    def check(self, call: OneCall) -> None:
        assert len(call.outcomes) <= 1, call.outcomes
        if not call.outcomes:
            return
        (end,) = call.outcomes
        if end == "cancelled":
            assert call.asked_to_leave
        elif isinstance(end, CallError):
            done = self.done_to[call.server] | ({"closed"} if self.closed else set[str]())
            if end.code == "drained" and self.drains[call.server] == call.drains:
                done.discard("drained")  # nobody asked for it while this call was on its way
            assert ALLOWED[end.code, str(end.reach)] & done, repr(end)
        else:
            assert end == f'{{"n": {call.number}}}', "somebody else's answer"

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        try:
            self.end()
        finally:
            self.pump.close()

    def end(self) -> None:
        self.pump.advance(100.0)
        self.holds()
        self.closed = True
        self.background(self.room.aclose)
        self.pump.advance(20.0)
        report = self.room.drain_report
        assert report is not None, "the room did not end in time"
        assert report.adds_up
        for call in self.calls:
            assert len(call.outcomes) == 1, f"call {call.number} has no outcome"
            self.check(call)
        self.pump.advance(1_100.0)
        assert self.waiting == 0, "somebody still waits"
        assert all(server.live == 0 for server in self.servers.values())
        self.check_trace()

    def check_trace(self) -> None:
        ends: dict[int | None, int] = {}
        for event in self.events:
            if event.kind is Kind.TRANSITION and event.before is not State.CLOSED:
                assert event.before is not None
                assert event.after in TABLE[event.before].values(), event
            if event.kind is Kind.CALL and event.detail == "ended":
                ends[event.call] = ends.get(event.call, 0) + 1
            assert event.kind is not Kind.NOTE or "Traceback" not in event.detail, event.detail
        report = self.room.drain_report
        assert report is not None
        assert (set(ends.values()) or {1}) == {1}
        assert len(ends) == report.accepted


Rooms.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRooms = Rooms.TestCase
