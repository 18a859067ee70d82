"""The search: a Hypothesis state machine over a `World`. Use it as it is, or with your own rules and invariants.

Everything is drawn: the order of trio's tasks, how many servers may be live and start at once, when a circuit breaker
trips, the calls, cancellations, faults, repairs and commands, and how much time passes. Delays are drawn from a few
values, which are also the latencies of the servers. So two timers often fire at the same moment, and that is where
races are. After every step `world_laws` must hold. At the end all faults are removed, and every server that may
come back must come back. Then the room closes, and nothing of it may be left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..protocol.lifecycle import Reason
from . import world_laws
from .fake_servers import HANG
from .world import ECHO, LONG, RESET, SAFE, World

MOMENTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
INDEX = st.integers(0, 99)
_PERSISTENT = "persistent"


@attrs.frozen
class _Choice:
    """Turns drawn numbers into servers and sessions."""

    world: World
    entries: Mapping[str, Mapping[str, Any]]
    isolation: str  # the room's
    focus: Sequence[str]  # few servers in each example, so that much happens to one of them

    def server(self, index: int) -> str:
        return self.focus[index % len(self.focus)]

    def is_shared(self, server: str) -> bool:
        """Whether all callers share one child of it."""
        return self.entries[server].get("isolation", self.isolation) == _PERSISTENT

    def session_for(self, server: str, index: int) -> tuple[bool, str | None]:
        """Whether the server can be called now, and from which session."""
        sessions = tuple(self.world.sessions)
        if self.is_shared(server):
            return True, None
        return bool(sessions), sessions[index % len(sessions)] if sessions else None


def _wait(world: World, seconds: float) -> None:
    if seconds:
        world.advance(seconds)


class RoomMachine(RuleBasedStateMachine):
    """One room, and everything that can be done to it. `self.world` is the world, `self.world.room` the room.

    Subclass it, set `entries` (the `mcpServers` entries; each gets a fake server) and `settings`, add rules and
    invariants, and run it as any Hypothesis state machine: `TestMine = Mine.TestCase`.
    """

    entries: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "lazy": {"idleTimeout": 0.05},
        "narrow": {"maxInFlight": 1, "maxQueued": 3, "idleTimeout": 0.1},
        "kept": {"lifecycle": "keep-alive"},
        "apart": {"isolation": "per_session"},
        "ahead": {"isolation": "per_session", "warm": 2, "idleTimeout": 0.1},
        "again": {"isolation": "per_session", "warm": 2, "reset": RESET, "idleTimeout": 0.2},
        "other": {"idleTimeout": 1.0},
    }
    settings: ClassVar[Mapping[str, Any]] = {}
    session_names: ClassVar[tuple[str, ...]] = ("ann", "bob")

    world: World
    _apart: list[str]  # servers with a child for each session
    _is_crowded: bool  # there are fewer slots than servers, and a server waits for one briefly
    _is_broken = False  # a law is broken: further steps would only hide which

    @initialize(
        seed=st.integers(0, 2**16),
        permits=st.sampled_from([1, 10]),
        threshold=st.sampled_from([1, 1, 2, 5, 50, 50]),
        slots=st.sampled_from([20, 2, 3]),
        for_sessions=st.sampled_from([100, 1, 2]),
        minimum=st.sampled_from([0, 0, 2]),
        backoff=st.sampled_from([1_000, 50]),
        acquire=st.sampled_from([30_000, 1_000]),
        focus=st.integers(0, 2**7 - 1),
        is_herd=st.booleans(),
        pace=st.fixed_dictionaries(
            {step: st.sampled_from([0.0, 0.5, 1.0]) for step in ("start", "call", "stop")}
        ),
    )
    def open(
        self,
        seed: int,
        permits: int,
        threshold: int,
        slots: int,
        for_sessions: int,
        minimum: int,
        backoff: int,
        acquire: int,
        focus: int,
        is_herd: bool,
        pace: dict[str, float],
    ) -> None:
        names = tuple(self.entries)
        chosen = [name for place, name in enumerate(names) if focus >> place & 1] or names
        drawn = {
            "startPermits": permits,
            "failureThreshold": threshold,
            "cooldownMs": 1_000,
            "maxConnections": max(slots, self.settings.get("minConnections", minimum) + 1),
            "maxSessionConnections": for_sessions,
            "minConnections": minimum,
            "acquireTimeoutMs": acquire,
            "restartBackoff": {"minMs": backoff, "maxMs": 60_000},
        }
        isolation = self.settings.get("isolation", _PERSISTENT)
        self.world = World(self.entries, {**drawn, **self.settings}, seed=seed, pace=pace)
        self._choice = _Choice(self.world, self.entries, isolation, chosen)
        self._apart = [name for name in names if not self._choice.is_shared(name)]
        self._is_crowded = acquire < 30_000 and slots < len(names)
        if is_herd:  # all servers are called at once, before any is connected
            for name in names:
                if self._choice.session_for(name, 0)[0]:
                    self.world.call(name)

    # ---- calls ------------------------------------------------------------------------------------------------------

    @rule(
        server=INDEX, tool=st.sampled_from([ECHO, SAFE]), count=st.integers(1, 4), session=INDEX, then=MOMENTS
    )
    def call(self, server: int, tool: str, count: int, session: int, then: float) -> None:
        name = self._choice.server(server)
        can, who = self._choice.session_for(name, session)
        if can:
            self.world.call(name, tool, count=count, session=who)
            _wait(self.world, then)

    @rule(count=st.integers(1, 3), session=INDEX, then=MOMENTS)
    def call_all(self, count: int, session: int, then: float) -> None:
        for name in self._choice.focus:
            can, who = self._choice.session_for(name, session)
            if can:
                self.world.call(name, SAFE, count=count, session=who)
        _wait(self.world, then)

    @rule(server=INDEX, session=INDEX, turns=st.integers(0, 6))
    def call_and_leave(self, server: int, session: int, turns: int) -> None:
        name = self._choice.server(server)
        can, who = self._choice.session_for(name, session)
        if can:
            self.world.call(name, SAFE, session=who, leave_after=turns)

    @precondition(lambda self: self.world.pending)
    @rule(pick=INDEX, delay=MOMENTS)
    def cancel(self, pick: int, delay: float) -> None:
        pending = self.world.pending
        self.world.cancel(pending[pick % len(pending)], delay)

    # ---- what servers do --------------------------------------------------------------------------------------------

    @rule(
        server=INDEX,
        delay=MOMENTS,
        loss=st.sampled_from([Reason.DIED, Reason.DIED, Reason.EXPIRED]),
        then=MOMENTS,
    )
    def lose(self, server: int, delay: float, loss: Reason, then: float) -> None:
        self.world.faults.lose(self._choice.server(server), delay, loss)
        _wait(self.world, then)

    @rule(server=INDEX, seconds=st.sampled_from([1.0, 0.5, 3.0, 8.0, 70.0, HANG]))
    def answer_slowly(self, server: int, seconds: float) -> None:
        self.world.faults.slow_down(self._choice.server(server), "call", seconds)

    @rule(
        server=INDEX,
        step=st.sampled_from(["start", "initialize", "list", "stop"]),
        seconds=st.sampled_from([1.0, 0.5, 3.0, HANG]),
    )
    def start_or_stop_slowly(self, server: int, step: str, seconds: float) -> None:
        self.world.faults.slow_down(self._choice.server(server), step, seconds)

    @rule(server=INDEX, how=st.sampled_from(["refuse_start", "refuse_initialize"]))
    def refuse(self, server: int, how: str) -> None:
        self.world.faults.refuse(self._choice.server(server), how)

    @rule(server=INDEX, blocked=st.booleans(), then=st.sampled_from([0.0, 100.0]))
    def deafen(self, server: int, blocked: bool, then: float) -> None:
        """A server reads nothing any more. Only after a long silence can be seen whether its health is checked."""
        self.world.faults.deafen(self._choice.server(server), blocked=blocked)
        _wait(self.world, then)

    @rule(server=INDEX)
    def break_reset(self, server: int) -> None:
        self.world.faults.break_reset(self._choice.server(server))

    @rule(
        server=INDEX,
        count=st.integers(2, 5),
        gap=st.sampled_from([0.0, 0.0, 0.5, 6.0]),
        leaves=st.sampled_from(["nothing", "nothing", "a call", "an answer", "no reset"]),
    )
    def follow_each_other(self, server: int, count: int, gap: float, leaves: str) -> None:
        """Sessions of one server, each of which begins when the one before has ended: the process of the one may be the
        next one's. `leaves`: what is left of one in the middle."""
        name = self._choice.server(server)
        if self._choice.is_shared(name):
            return
        for number in range(count):
            free = [who for who in self.session_names if self.world.can_open_session(who)]
            if not free:
                return
            self.world.open_session(free[0])
            self.world.call(name, session=free[0])
            self.world.advance(1.0)
            if number == count - 2 and leaves != "nothing":
                self._leave_behind(name, free[0], leaves)
            self.world.close_session(free[0])
            _wait(self.world, gap)

    def _leave_behind(self, name: str, who: str, what: str) -> None:
        if what == "no reset":
            self.world.faults.break_reset(name)
            return
        self.world.faults.slow_down(name, "call", 3.0)
        self.world.call(name, session=who)
        if what == "an answer":
            self.world.advance(0.5)
            for call in [call for call in self.world.pending if call.session == who]:
                self.world.cancel(call)
        self.world.faults.slow_down(name, "call", 0.0)

    @rule(server=INDEX)
    def heal(self, server: int) -> None:
        self.world.faults.heal(self._choice.server(server))

    @rule(server=INDEX, is_overtaken=st.booleans())
    def change_tools(self, server: int, is_overtaken: bool) -> None:
        self.world.faults.change_tools(self._choice.server(server), is_overtaken=is_overtaken)

    @precondition(lambda self: self._apart)
    @rule(server=INDEX)
    def change_tools_for_two(self, server: int) -> None:
        """One child's list of tools overtakes another's. Once an example: that two are connected is rare, and takes
        long to bring about."""
        name, self._apart = self._apart[server % len(self._apart)], []
        for who in self.session_names:
            if self.world.can_open_session(who):
                self.world.open_session(who)
            if who in self.world.sessions:
                self.world.call(name, SAFE, session=who)
        self.world.advance(1.0)
        self.world.faults.change_tools(name, is_overtaken=True)
        self.world.advance(3.0)

    @rule(
        server=INDEX,
        phase=st.sampled_from(["call", "call", "start", "stop"]),
        seconds=st.sampled_from([3.0, HANG, HANG]),
        count=st.integers(1, 3),
        gap=st.sampled_from([0.5, 0.0]),
        what=st.sampled_from(["drain", "restart", "lose", "expire", "cancel", "definition", "remove"]),
        then=st.sampled_from([0.0, 1.0, 16.0, 16.0]),
    )
    def strike(
        self, server: int, phase: str, seconds: float, count: int, gap: float, what: str, then: float
    ) -> None:
        """A fault of a server that is busy or starting. Drawn separately, both would meet too rarely."""
        name = self._choice.server(server)
        can, who = self._choice.session_for(name, 0)
        if not can:
            return
        self.world.faults.slow_down(name, phase, seconds)
        self.world.call(name, SAFE, count=count, session=who)
        _wait(self.world, gap)
        match what:
            case "lose" | "expire":
                self.world.faults.lose(name, loss=Reason.DIED if what == "lose" else Reason.EXPIRED)
            case "cancel":
                for call in [call for call in self.world.pending if call.server == name]:
                    self.world.cancel(call)
            case "definition" | "remove":
                self.world.reload(what, name)
            case _:
                self.world.ask(what, name)
        _wait(self.world, then)

    @precondition(lambda self: self._is_crowded)
    @rule(server=INDEX, count=st.integers(2, 4))
    def lose_in_a_crowd(self, server: int, count: int) -> None:
        """A server with calls that wait is lost, and busy servers take its slots while it waits for its circuit
        breaker. When it gets to the slots, its calls have waited for one for all their time."""
        narrow = [name for name, entry in self.entries.items() if entry.get("maxInFlight") == 1]
        name = narrow[server % len(narrow)] if narrow else self._choice.server(server)
        can, who = self._choice.session_for(name, 0)
        if not can:
            return
        for each in self.entries:
            self.world.faults.slow_down(each, "call", 3.0)
        if self.world.config.settings.failure_threshold > 1:  # the first loss costs nothing
            self.world.call(name, session=who)
            self.world.advance(1.0)
            self.world.faults.lose(name)
        self.world.call(name, SAFE, count=count, session=who)
        self.world.advance(1.0)
        for other in self.entries:
            can, session = self._choice.session_for(other, 0)
            if can and other != name:
                self.world.call(other, SAFE, session=session)
        self.world.faults.lose(name)
        self.world.advance(1.5)

    @rule(
        server=INDEX,
        what=st.sampled_from([ECHO, SAFE, "connect"]),
        times=st.sampled_from([2, 3, 8, 8]),
        every=st.sampled_from([0.5, 1.0]),
        is_answered=st.booleans(),
    )
    def lose_again_and_again(
        self, server: int, what: str, times: int, every: float, is_answered: bool
    ) -> None:
        """Each time the server is wanted again: by a call, which waits while the circuit breaker refuses, or by name,
        which does not."""
        name = self._choice.server(server)
        can, who = self._choice.session_for(name, 0)
        for _ in range(times if can else 0):
            if what == "connect":
                self.world.ask(what, name)
            else:
                self.world.call(name, what, session=who)
            _wait(self.world, every if is_answered else 0.0)
            self.world.faults.lose(name)
            _wait(self.world, every)

    # ---- what is asked of the room ----------------------------------------------------------------------------------

    @rule(
        server=INDEX,
        what=st.sampled_from(["connect", "restart", "drain", "find"]),
        patience=st.sampled_from([LONG, 0.5, 3.0]),
        delay=MOMENTS,
        is_impatient=st.booleans(),
        then=MOMENTS,
    )
    def ask(
        self, server: int, what: str, patience: float, delay: float, is_impatient: bool, then: float
    ) -> None:
        self.world.ask(what, self._choice.server(server), patience=patience, delay=delay)
        if is_impatient:  # and asks once more at once
            self.world.ask(what, self._choice.server(server), patience=patience, delay=delay + 0.5)
        _wait(self.world, then)

    @rule(
        server=INDEX,
        change=st.sampled_from(["same", "policy", "definition", "disable", "enable", "remove", "restore"]),
    )
    def reload(self, server: int, change: str) -> None:
        self.world.reload(change, self._choice.server(server))

    @precondition(lambda self: any(map(self.world.can_open_session, self.session_names)))
    @rule()
    def open_session(self) -> None:
        self.world.open_session(next(filter(self.world.can_open_session, self.session_names)))

    @precondition(lambda self: self.world.sessions)
    @rule(pick=INDEX)
    def close_session(self, pick: int) -> None:
        names = tuple(self.world.sessions)
        self.world.close_session(names[pick % len(names)])

    @rule(seconds=st.sampled_from([1.0, 0.5, 3.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(seconds=st.sampled_from([6.0, 10.0, 31.0, 61.0, 100.0]))
    def let_much_time_pass(self, seconds: float) -> None:
        self.world.advance(seconds)

    # ---- what holds -------------------------------------------------------------------------------------------------

    def check_invariants(self, *args: Any, **named: Any) -> None:
        """Where Hypothesis checks invariants. The laws are no `@invariant`: each would be a line between any two of the
        trace."""
        if hasattr(self, "world"):
            self._check(*world_laws.settled)
        super().check_invariants(*args, **named)

    def _check(self, *laws: world_laws.Law) -> None:
        is_broken, self._is_broken = self._is_broken, True
        for law in laws:
            law(self.world)
        self._is_broken = is_broken

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self._is_broken:
                self.end()
        finally:
            self.world.run.close()

    def end(self) -> None:
        """Remove all faults. Every server that may come back must do so. Then close the room: nothing may be left."""
        for name in self.world.servers:
            self.world.faults.heal(name)
        for seconds in (50.0, 100.0):  # over the longest backoff, cooldown, call
            self.world.advance(seconds)
            self._check(*world_laws.settled)
        self.world.advance(LONG)
        self._check(world_laws.recovered)
        self.world.close()
        self._check(*world_laws.settled, world_laws.ended)
