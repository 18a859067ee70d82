"""A cluster in virtual time: `python -m benchmarks.cluster_simulation [--hosts N --servers N --sessions N --seed N]`.

What decides is the real thing: placement, the register and the leases of `greenroom.cluster`, circuit breakers, the
pool. What is modelled is the rest: messages take 1 to 20 ms, one in a hundred is lost and one in a hundred takes up to
a second; clocks run up to 5 % differently; a start takes half a second; a call takes no time. Fronts see the register
as it was up to a second ago, and do what `cluster.membership` does. Faults come one after the other, in a fixed plan.

It prints what each fault cost, and checks at each start of a shared server that no other child of it lives, by the true
time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Final

import attrs

from greenroom.cluster.leases import (
    FencedReply,
    GrantReply,
    HostLease,
    JoinReply,
    JoinRequest,
    LeaseTimes,
    Register,
    RenewalReply,
    UnknownHostReply,
    WaitReply,
)
from greenroom.cluster.placement import ClusterView, HostInfo, OpenBreaker, owner
from greenroom.protocol.address import Address
from greenroom.supervisor.policy.breaker import Admission, BreakerPolicy, CircuitBreaker
from greenroom.supervisor.policy.pool import IdleConnections, PoolLimits, SlotWaiter, Snapshot, decide

from ._pictures import DARK

TIMES: Final = LeaseTimes()
POLICY: Final = BreakerPolicy()
START: Final = 0.5  # seconds
PATIENCE: Final = 45.0  # seconds that a call waits
LATE: Final = 1.0  # seconds from which on a call counts as held up


@attrs.frozen
class Size:
    hosts: int
    servers: int
    sessions: int
    calls: float  # a second
    slots: int  # of each host
    seconds: float = 300.0


@attrs.define(eq=False)
class Second:
    """What happened within one second."""

    calls: int = 0
    held_up: int = 0  # calls that waited for a second or more
    lost: int = 0  # sent to a host that was gone
    refused: int = 0  # not sent within their time
    moves: int = 0  # shared servers that live elsewhere than before
    starts: int = 0


class World:
    """The true time, and what comes when."""

    def __init__(self, size: Size, seed: int) -> None:
        self.size = size
        self.random = random.Random(seed)
        self.now = 0.0
        self.seconds: list[Second] = [Second() for _ in range(int(size.seconds) + 100)]
        self.register: Register | None = Register(1, TIMES, 0.0)
        self.registers = 1
        self.hosts: dict[str, Host] = {}
        self.view = ClusterView("")
        self.by_name: dict[str, HostInfo] = {}
        self.lived: dict[str, str] = {}  # by shared server: the host where it was last
        self.alive: dict[str, Host] = {}  # by shared server: where its child lives, by the true time
        self.sessions: dict[int, HostInfo] = {}
        self.doubles = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = until

    @property
    def second(self) -> Second:
        return self.seconds[int(self.now)]

    def message(self) -> float | None:
        """How long one message takes; None if it is lost."""
        draw = self.random.random()
        if draw < 0.01:
            return None
        return self.random.uniform(0.001, 0.02) if draw < 0.99 else self.random.uniform(0.02, 1.0)

    def ask(self, host: Host, act: Callable[[Register], object], answered: Callable[[object], None]) -> None:
        """A request of a host to the register. It gives up after a second."""
        there, back = self.message(), self.message()
        is_over = False

        def give_up() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answered(None)

        def come() -> None:
            if self.register is None or host.is_cut_off:
                return
            said = act(self.register)

            def arrive() -> None:
                nonlocal is_over
                if not is_over and not host.is_cut_off:
                    is_over = True
                    answered(said)

            if back is not None:
                self.after(back, arrive)

        self.after(1.0, give_up)
        if there is not None:
            self.after(there, come)

    def look(self) -> None:
        """The fronts look at the register, once a second."""
        if self.register is not None:
            view = self.register.view(self.view.number, self.now)
            if view is not None:
                self.view = view
                self.by_name = {host.name: host for host in view.hosts}
        self.after(1.0, self.look)

    def start_register_again(self, after: float) -> None:
        self.register = None

        def begin() -> None:
            self.registers += 1
            self.register = Register(self.registers, TIMES, self.now)

        self.after(after, begin)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call(self, server: str, began: float, session: int | None = None) -> None:
        """What a front does for one call, until it is served or its time is over."""
        waited = self.now - began
        if waited > PATIENCE:
            self.second.refused += 1
            return
        host = self._host_for(server, session)
        if host is None:
            self.after(LATE, lambda: self.call(server, began, session))
            return
        if host.is_gone or host.is_stopped:  # the call is in its socket, and ends with its lease
            self.second.lost += 1
            return
        again = host.serve(server, session)
        if again is not None:
            self.after(again, lambda: self.call(server, began, session))
            return
        self.second.held_up += waited >= LATE
        if session is None:
            before, self.lived[server] = self.lived.get(server), host.name
            self.second.moves += before is not None and before != host.name

    def _host_for(self, server: str, session: int | None) -> Host | None:
        if session is None:
            holder = self.view.held.get(server)
            info = self.by_name.get(holder) if holder is not None else owner(Address(server), {}, self.view)
        else:
            info = self.sessions.get(session)
            if (
                info is None
                or self.by_name.get(info.name, info).epoch != info.epoch
                or info.name not in self.by_name
            ):
                info = owner(Address.of_session(server, str(session)), {}, self.view)
                if info is not None:
                    self.sessions[session] = info
        if info is None or info.is_late or self.by_name.get(info.name, info).is_late:
            return None
        host = self.hosts.get(info.name)
        return host if host is None or host.epoch == info.epoch or host.is_gone else None


class Host:
    """One host, with its own clock."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.epoch: str | None = None
        self.is_gone = False  # killed
        self.is_stopped = False
        self.is_cut_off = False  # from the register
        self.lease = HostLease(TIMES)
        self.number = 0
        self.claims: dict[str, float] = {}  # when each was used last
        self.live: dict[str, float] = {}  # connections, and since when each is idle
        self.starting: dict[str, float] = {}
        self.breakers: dict[str, CircuitBreaker] = {}
        self.is_asking = False
        self._rate = rate
        self._round = 0

    @property
    def clock(self) -> float:
        return self.world.now * self._rate

    def join(self) -> None:
        if self.is_gone or self.is_stopped or self.epoch is not None:
            return
        sent, about = self.clock, JoinRequest(self.name, "http://h", 1, "1", "r")

        def answered(said: object) -> None:
            if not isinstance(said, JoinReply) or self.is_gone or self.is_stopped:
                self.world.after(0.5, self.join)
                return
            if self.world.register is not None:
                for former in said.predecessors:
                    self.world.register.predecessor_gone(said.epoch, former.epoch, self.world.now)
            self.epoch, self.number, self.is_asking = said.epoch, 0, False
            self.lease.renewed(sent)
            self._round += 1
            self._renew(self._round)
            self._hold_to_deadline(self._round)

        self.world.ask(self, lambda register: register.join(about, self.world.now), answered)

    def _renew(self, life: int) -> None:
        if life != self._round or self.epoch is None or self.is_gone or self.is_stopped:
            return
        self.world.after(TIMES.renew_every / self._rate, lambda: self._renew(life))
        if self.is_asking:
            return
        if not self.lease.may_serve(self.clock):
            self.close()
            return
        self._give_back()
        sent, epoch, self.number, self.is_asking = self.clock, self.epoch, self.number + 1, True
        number, claims, breakers = self.number, frozenset(self.claims), self._open_breakers()

        def answered(said: object) -> None:
            self.is_asking = False
            if life != self._round or self.epoch is None:
                return
            if isinstance(said, RenewalReply):
                self.lease.renewed(sent)
                for server, told in said.breakers.items():
                    self.breakers[server] = self._breaker(server).told(POLICY, self.clock, told)
            elif isinstance(said, UnknownHostReply):
                self._come_back(life)
            elif isinstance(said, FencedReply):
                self.close()

        self.world.ask(
            self,
            lambda register: register.renew(epoch, number, claims, breakers, False, self.world.now),
            answered,
        )

    def _come_back(self, life: int) -> None:
        sent = self.clock
        about = JoinRequest(
            self.name, "http://h", 1, "1", "r", epoch=self.epoch, claims=frozenset(self.claims)
        )

        def answered(said: object) -> None:
            if life == self._round and isinstance(said, JoinReply):
                self.lease.renewed(sent)

        if self.lease.may_serve(self.clock):
            self.world.ask(self, lambda register: register.join(about, self.world.now), answered)

    def _hold_to_deadline(self, life: int) -> None:
        """The guard: it runs also where the host is stopped."""
        if life != self._round or self.is_gone:
            return
        left = self.lease.children_until - self.clock
        if left <= 0:
            self._end_children()
            if not self.is_stopped:
                self.close()
            return
        self.world.after(left / self._rate, lambda: self._hold_to_deadline(life))

    def close(self) -> None:
        """This life is over; the next begins."""
        self._end_children()
        self.epoch = None
        self._round += 1
        self.claims.clear()
        self.world.after(0.5, self.join)

    def _end_children(self) -> None:
        for key in [*self.live, *self.starting]:
            if self.world.alive.get(key) is self:
                del self.world.alive[key]
        self.live.clear()
        self.starting.clear()

    def kill(self) -> None:
        self.is_gone = True
        self._end_children()
        self._round += 1

    def wake(self) -> None:
        self.is_stopped = False
        if self.lease.is_over(self.clock):
            self.close()
        else:
            self._renew(self._round)

    # ---- serving ----------------------------------------------------------------------------------------------------

    def serve(self, server: str, session: int | None) -> float | None:
        """None: served. Otherwise the seconds after which the front asks again."""
        now = self.clock
        if self.epoch is None or not self.lease.may_serve(now):
            return LATE
        if session is None and server not in self.claims:
            return self._claim(server)
        if session is None:
            self.claims[server] = now
        key = server if session is None else f"{server}#{session}"
        if key in self.live:
            self.live[key] = now
            return None
        if key in self.starting:
            return START
        breaker, admits = self._breaker(server).admit(now)
        self.breakers[server] = breaker
        if admits is Admission.NONE:
            return max(LATE, breaker.retry_in(now))
        return START if self._has_slot(key, server if session is not None else None) else LATE

    def _claim(self, server: str) -> float:
        if self.is_asking or self.epoch is None:
            return 0.05
        self.number, self.is_asking = self.number + 1, True
        epoch, number = self.epoch, self.number

        def answered(said: object) -> None:
            self.is_asking = False
            if isinstance(said, GrantReply) and self.epoch == epoch and self.number == number:
                self.claims[server] = self.clock
            elif isinstance(said, WaitReply | FencedReply | UnknownHostReply):
                return

        self.world.ask(self, lambda register: register.claim(epoch, number, server, self.world.now), answered)
        return 0.1

    def _has_slot(self, key: str, group: str | None) -> bool:
        """Ask the pool; start if it grants. It may ask the longest idle one to end."""
        now = self.clock
        decision = decide(
            Snapshot(
                now=now,
                limits=PoolLimits(slots=self.world.size.slots),
                shared=len(self.live) + len(self.starting),
                staying=len(self.live),
                idle=IdleConnections(sorted(self.live.items(), key=itemgetter(1))[:1]),
                waiting=[SlotWaiter(key, now, group)],
                candidates=1,
            )
        )
        for gone in decision.evictions:
            del self.live[gone]
            if self.world.alive.get(gone) is self:
                del self.world.alive[gone]
        if not decision.grants:
            return bool(decision.evictions) and self._has_slot(key, group)
        self._start(key)
        return True

    def _start(self, key: str) -> None:
        world, life = self.world, self._round
        self.starting[key] = self.clock
        world.second.starts += 1
        if "#" not in key:
            world.doubles += world.alive.get(key, self) is not self
            world.alive[key] = self

        def started() -> None:
            if life != self._round or self.starting.pop(key, None) is None:
                return
            server = key.partition("#")[0]
            if server.endswith("13"):  # one in a hundred does not start half of the time
                if world.random.random() < 0.5:
                    draw = world.random.random()
                    failed = self._breaker(server).connect_failed(POLICY, self.clock, "it failed", draw)
                    self.breakers[server] = failed
                    if world.alive.get(key) is self:
                        del world.alive[key]
                    return
                self.breakers[server] = CircuitBreaker()
            self.live[key] = self.clock

        world.after(START, started)

    def _give_back(self) -> None:
        now = self.clock
        for server, used in list(self.claims.items()):
            if server not in self.live and server not in self.starting and now - used > 10.0:
                del self.claims[server]

    def _breaker(self, server: str) -> CircuitBreaker:
        return self.breakers.get(server, CircuitBreaker())

    def _open_breakers(self) -> dict[str, OpenBreaker]:
        now, found = self.clock, dict[str, OpenBreaker]()
        for server, breaker in self.breakers.items():
            refusal = breaker.open_here(now)
            if refusal is not None:
                found[server] = refusal
        return found


# ---- The plan of faults ---------------------------------------------------------------------------------------------


@attrs.frozen
class Fault:
    at: float
    name: str
    act: Callable[[World], None]


def some(world: World, share: float) -> list[Host]:
    alive = [host for host in world.hosts.values() if host.epoch is not None and not host.is_gone]
    return world.random.sample(alive, max(1, round(share * len(alive))))


def killed(world: World) -> None:
    for host in some(world, 0.05):
        host.kill()


def started_again(world: World) -> None:
    """Where hosts were killed, others are started."""
    for name, host in list(world.hosts.items()):
        if host.is_gone:
            world.hosts[name] = Host(world, name, world.random.uniform(0.95, 1.05))
            world.hosts[name].join()


def cut_off(world: World) -> None:
    for host in some(world, 0.10):
        host.is_cut_off = True
        world.after(15.0, lambda host=host: setattr(host, "is_cut_off", False))


def stopped(world: World) -> None:
    for host in some(world, 0.05):
        host.is_stopped = True
        world.after(25.0, host.wake)


def directory_down(world: World) -> None:
    world.start_register_again(3.0)


def more(world: World) -> None:
    first = len(world.hosts)
    for number in range(first, first + max(1, first // 10)):
        world.hosts[f"host-{number}"] = Host(world, f"host-{number}", world.random.uniform(0.95, 1.05))
        world.hosts[f"host-{number}"].join()


def drained(world: World) -> None:
    for host in some(world, 0.05):
        if world.register is not None:
            world.register.drain(host.name, True, world.now)


PLAN: Final = (
    Fault(60, "5 % of the hosts killed", killed),
    Fault(95, "as many started again", started_again),
    Fault(120, "10 % cut off from the directory for 15 s", cut_off),
    Fault(160, "5 % stopped for 25 s", stopped),
    Fault(200, "the directory started again, 3 s", directory_down),
    Fault(240, "10 % more hosts", more),
    Fault(270, "5 % drained", drained),
)


def simulate(size: Size, seed: int) -> World:
    """Everything, from the first host to the end."""
    world = World(size, seed)
    draw = world.random
    for number in range(size.hosts):
        host = world.hosts[f"host-{number}"] = Host(world, f"host-{number}", draw.uniform(0.95, 1.05))
        world.after(draw.uniform(0, 2), host.join)
    world.at(2.5, world.look)

    def arrive() -> None:
        world.after(draw.expovariate(size.calls), arrive)
        world.second.calls += 1
        if draw.random() < 0.5:
            world.call(f"server-{draw.randrange(size.servers)}", world.now)
        else:
            world.call(f"own-{draw.randrange(200)}", world.now, draw.randrange(size.sessions))

    def one_session_ends() -> None:
        """A session in a thousand ends each second, and another one comes in its place."""
        world.after(draw.expovariate(size.sessions / 1_000), one_session_ends)
        world.sessions.pop(draw.randrange(size.sessions), None)

    world.at(5.0, arrive)
    world.at(5.0, one_session_ends)
    for fault in PLAN:
        world.at(fault.at, lambda fault=fault: fault.act(world))
    world.run(size.seconds)
    return world


# ---- What came of it ------------------------------------------------------------------------------------------------


def recovered(world: World, fault: Fault, until: float) -> float:
    """The seconds after which, for five seconds on end, at most one call in a thousand was held up, lost or refused."""
    calm = 0
    for second in range(int(fault.at), int(until)):
        it = world.seconds[second]
        bad = it.held_up + it.lost + it.refused
        calm = calm + 1 if bad <= max(1, it.calls // 1_000) + _usual(world) else 0
        if calm == 5:
            return max(0.0, second - 4 - fault.at)
    return math.inf


def _usual(world: World) -> float:
    """What is held up in a calm second: servers that fail, and starts that wait for a slot."""
    calm = [it.held_up + it.lost + it.refused for it in world.seconds[40:60]]
    return statistics.mean(calm) + 3 * statistics.pstdev(calm)


def report(world: World) -> list[str]:
    lines = [
        f"| what happens | calls held up ≥ {LATE:g} s | lost (sent) | refused | servers moved | recovered after |"
    ]
    lines.append("|---|---|---|---|---|---|")
    ends = [*(fault.at for fault in PLAN[1:]), world.size.seconds]
    for fault, end in zip(PLAN, ends, strict=True):
        span = world.seconds[int(fault.at) : int(end)]
        total = [sum(getattr(it, name) for it in span) for name in ("held_up", "lost", "refused", "moves")]
        took = recovered(world, fault, end)
        lines.append(
            f"| {fault.name} | {' | '.join(f'{value:,}' for value in total)} | "
            f"{'not before the next' if math.isinf(took) else f'{took:.0f} s'} |"
        )
    return lines


def balance(world: World) -> tuple[float, float]:
    """The most servers and the most sessions of one host, as a multiple of the mean."""
    servers, sessions = (
        Counter(world.view.held.values()),
        Counter(info.name for info in world.sessions.values()),
    )
    hosts = max(1, len(world.view.hosts))
    return tuple(
        max(each.values(), default=0) / max(1, sum(each.values()) / hosts) for each in (servers, sessions)
    )  # type: ignore[return-value]


def picture(world: World) -> str:
    """The share of calls that did not get their answer at once, second by second, and what happened when."""
    width, height, left, top, floor = 760, 300, 50, 60, 260
    size = world.size

    def x(second: float) -> float:
        return left + (width - left - 20) * second / size.seconds

    def line(colour: str, share: Callable[[Second], float]) -> str:
        """As steps of five seconds: one is too short for a rate."""
        spans = [world.seconds[at : at + 5] for at in range(5, int(size.seconds), 5)]
        shares = [sum(map(share, span)) / max(1, sum(it.calls for it in span)) for span in spans]
        points = [(x(5 + 5 * at), floor - (floor - top) * min(1.0, one)) for at, one in enumerate(shares)]
        drawn = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>'

    title = f"{size.hosts:,} hosts: calls without an answer at once"
    shapes = [f'<text x="{left}" y="24" font-size="14" font-weight="bold">{title}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = floor - (floor - top) * share
        shapes.append(f'<line x1="{left}" y1="{y}" x2="{width - 20}" y2="{y}" stroke="#ddd"/>')
        shapes.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end" fill="#666">{share:.0%}</text>')
    for at, fault in enumerate(PLAN):
        shapes.append(
            f'<line x1="{x(fault.at):.1f}" y1="{top}" x2="{x(fault.at):.1f}" y2="{floor}" stroke="#bbb"/>'
        )
        shapes.append(
            f'<text x="{x(fault.at) + 3:.1f}" y="{top - 18 + 13 * (at % 2)}" font-size="10">{fault.name}</text>'
        )
    shapes.append(line("#3b6ea5", lambda it: it.held_up))
    shapes.append(line("#b5473c", lambda it: it.lost + it.refused))
    shapes.append(f'<text x="{left}" y="{height - 14}" fill="#3b6ea5">held up for a second or more</text>')
    shapes.append(f'<text x="{left + 220}" y="{height - 14}" fill="#b5473c">lost or refused</text>')
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join(
        [head, DARK, f'<rect width="{width}" height="{height}" fill="#fff"/>', *shapes, "</svg>", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--servers", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--calls", type=float, default=1_000, help="a second")
    parser.add_argument("--slots", type=int, default=200, help="of each host")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path, help="an SVG of what happened in each second")
    given = parser.parse_args()
    world = simulate(Size(given.hosts, given.servers, given.sessions, given.calls, given.slots), given.seed)
    calls = sum(it.calls for it in world.seconds)
    print(
        f"{given.hosts:,} hosts, {given.servers:,} servers, {given.sessions:,} sessions, {calls:,} calls, "
        f"seed {given.seed}"
    )
    print("\n".join(report(world)))
    servers, sessions = balance(world)
    print(f"most at one host ÷ mean: servers {servers:.2f}, sessions {sessions:.2f}")
    print(f"two children of one server at once: {world.doubles}")
    if given.picture is not None:
        given.picture.write_text(picture(world))


if __name__ == "__main__":
    main()
