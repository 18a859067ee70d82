"""Two children of one server never live at the same time, whatever is lost, late, drifts or dies."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.profiles import examples

from greenroom.cluster.leases import (
    FencedReply,
    GrantReply,
    HolderReply,
    HostLease,
    JoinReply,
    JoinRequest,
    LeaseTimes,
    Register,
    RenewalReply,
    UnknownHostReply,
    WaitReply,
)
from greenroom.cluster.placement import owner
from greenroom.protocol.address import Address

TIMES = LeaseTimes()
NAMES = ("a", "b", "c")
SERVERS = ("x", "y")
RATES = st.sampled_from([0.95, 1.0, 1.05])  # of a clock
# Of a message. Most arrive and are answered: otherwise nothing would ever run.
FATES = st.sampled_from(["answered", "answered", "answered", "answered late", "lost", "late"])


@attrs.define(eq=False)
class Host:
    """One process, with a clock of its own. It does what `cluster.cluster_host` does, in steps that the search may
    cut."""

    name: str
    rate: float  # of its clock
    pid: int
    lease: HostLease = attrs.field(factory=lambda: HostLease(TIMES))
    epoch: str | None = None
    number: int = 0
    claims: set[str] = attrs.field(factory=set[str])
    children: set[str] = attrs.field(factory=set[str])
    is_stopped: bool = False

    def now(self, real: float) -> float:
        return 1000.0 * (1 + self.pid) + real * self.rate

    def tick(self, real: float) -> None:
        """The guard ends the children; it runs even where the host is stopped."""
        if self.lease.is_over(self.now(real)):
            self.children.clear()
            if not self.is_stopped:
                self.epoch = None
                self.claims.clear()


class Leases(RuleBasedStateMachine):
    """Messages are sent, and taken later, or never; in another order, too."""

    def __init__(self) -> None:
        super().__init__()
        self.real = 0.0
        self.directories = 1
        self.register = Register(1, TIMES, 0.0)
        self.hosts: dict[str, Host] = {}
        self.pids = 0
        self.left: dict[int, Host] = {}  # processes that are gone or replaced, with what their children were
        self.calls: list[Callable[[], None]] = []
        self.answers: list[Callable[[], None]] = []

    # ---- time and processes -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 3.0, 7.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(20):
            self.real += seconds / 20
            for host in [*self.hosts.values(), *self.left.values()]:
                host.tick(self.real)

    @initialize(rates=st.lists(RATES, min_size=2, max_size=2))
    def two_hosts_start(self, rates: list[float]) -> None:
        for name, rate in zip(NAMES, rates, strict=False):
            self._start(name, rate)

    @precondition(lambda self: len(self.hosts) < len(NAMES))
    @rule(data=st.data(), rate=RATES)
    def a_host_starts(self, data: st.DataObject, rate: float) -> None:
        self._start(data.draw(st.sampled_from([name for name in NAMES if name not in self.hosts])), rate)

    @precondition(lambda self: self.hosts)
    @rule(data=st.data(), rate=RATES)
    def a_host_is_started_beside_one_that_was_stopped(self, data: st.DataObject, rate: float) -> None:
        former = self.hosts[data.draw(st.sampled_from(sorted(self.hosts)))]
        self.left[former.pid] = former
        former.is_stopped = True
        self._start(former.name, rate)

    def _start(self, name: str, rate: float) -> None:
        self.pids += 1
        self.hosts[name] = Host(name, rate, self.pids)
        self.send(self._join(self.hosts[name]), "answered")

    @precondition(lambda self: self.hosts)
    @rule(data=st.data())
    def a_host_is_killed(self, data: st.DataObject) -> None:
        """Its guard ends its children with it."""
        host = self.hosts.pop(data.draw(st.sampled_from(sorted(self.hosts))))
        host.children.clear()

    @rule(number=st.integers(1, 2))
    def the_directory_is_started_again(self, number: int) -> None:
        self.directories += number
        self.register = Register(self.directories, TIMES, self.real)

    # ---- messages ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.hosts)
    @rule(data=st.data(), fate=FATES)
    def a_host_joins_or_renews(self, data: st.DataObject, fate: str) -> None:
        host = self.hosts[data.draw(st.sampled_from(sorted(self.hosts)))]
        now = host.now(self.real)
        if host.epoch is None:
            self.send(self._join(host), fate)
        else:
            host.number += 1
            number, claims = host.number, frozenset(host.claims)
            self.send(self._renew(host, host.epoch, number, claims, now), fate)

    @precondition(lambda self: self.hosts)
    @rule(data=st.data(), server=st.sampled_from(SERVERS), fate=FATES)
    def a_host_wants_a_server(self, data: st.DataObject, server: str, fate: str) -> None:
        host = self.hosts[data.draw(st.sampled_from(sorted(self.hosts)))]
        if host.epoch is None:
            self.send(self._join(host), fate)
        elif server not in host.claims:
            host.number += 1
            self.send(self._claim(host, host.epoch, host.number, server), fate)
        if server in host.claims and host.lease.may_serve(host.now(self.real)):
            host.children.add(server)

    @precondition(lambda self: self.hosts)
    @rule(data=st.data(), server=st.sampled_from(SERVERS))
    def a_child_ends(self, data: st.DataObject, server: str) -> None:
        host = self.hosts[data.draw(st.sampled_from(sorted(self.hosts)))]
        host.children.discard(server)
        host.claims.discard(server)

    def send(self, act: Callable[[], None], fate: str) -> None:
        if fate == "late":
            self.calls.append(act)
            return
        act()
        answer = self.answers.pop()
        if fate == "answered":
            answer()
        elif fate == "answered late":
            self.answers.append(answer)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), fate=FATES.filter(lambda fate: fate != "late"))
    def a_late_message_comes(self, data: st.DataObject, fate: str) -> None:
        self.send(self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))), fate)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def a_late_answer_comes(self, data: st.DataObject) -> None:
        self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))()

    def _join(self, host: Host) -> Callable[[], None]:
        sent = host.now(self.real)

        def act() -> None:
            said = self.register.join(JoinRequest(host.name, "http://h", host.pid, "1", "run"), self.real)

            def answered() -> None:
                if isinstance(said, JoinReply) and host.epoch is None and not host.is_stopped:
                    host.number = 0
                    host.epoch = said.epoch
                    host.lease.renewed(sent)
                    for former in said.predecessors:
                        process = self.left.pop(former.pid, None)
                        if process is not None:
                            process.children.clear()
                        self.register.predecessor_gone(said.epoch, former.epoch, self.real)

            self.answers.append(answered)

        return act

    def _renew(
        self, host: Host, epoch: str, number: int, claims: frozenset[str], sent: float
    ) -> Callable[[], None]:
        def act() -> None:
            said = self.register.renew(epoch, number, claims, {}, False, self.real)
            self.answers.append(lambda: self._told(host, epoch, said, sent))

        return act

    def _claim(self, host: Host, epoch: str, number: int, server: str) -> Callable[[], None]:
        def act() -> None:
            said = self.register.claim(epoch, number, server, self.real)

            def answered() -> None:
                # One request at a time: what comes after the next one was sent is dropped.
                if isinstance(said, GrantReply) and host.epoch == epoch and host.number == number:
                    host.claims.add(server)
                elif isinstance(said, FencedReply | UnknownHostReply):
                    self._told(host, epoch, said, 0.0)
                else:
                    assert isinstance(said, GrantReply | HolderReply | WaitReply)

            self.answers.append(answered)

        return act

    def _told(
        self, host: Host, epoch: str, said: RenewalReply | FencedReply | UnknownHostReply, sent: float
    ) -> None:
        if host.epoch != epoch or host.is_stopped:
            return
        if isinstance(said, RenewalReply):
            host.lease.renewed(sent)
        elif isinstance(said, FencedReply):
            host.epoch = None
            host.claims.clear()
            host.children.clear()
        elif not host.lease.is_over(host.now(self.real)):
            about = JoinRequest(
                host.name, "http://h", host.pid, "1", "run", epoch=epoch, claims=frozenset(host.claims)
            )
            sent_now = host.now(self.real)
            joined = self.register.join(about, self.real)
            if isinstance(joined, JoinReply):
                host.lease.renewed(sent_now)
            else:
                self._told(host, epoch, joined, 0.0)

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def no_server_has_two_children(self) -> None:
        for server in SERVERS:
            living = [h for h in [*self.hosts.values(), *self.left.values()] if server in h.children]
            assert len(living) <= 1, f"{server} lives at {[(h.name, h.pid) for h in living]}"

    def teardown(self) -> None:
        """Once nothing goes wrong any more, every server can be had within a lease."""
        for host in self.hosts.values():
            host.children.clear()
        self.hosts.clear()
        end = self.real + TIMES.length + TIMES.drift
        joined = self.register.join(JoinRequest("new", "http://n", 99, "1", "run"), end)
        assert isinstance(joined, JoinReply)
        for server in SERVERS:
            assert self.register.claim(joined.epoch, 1, server, end) == GrantReply()


TestLeases = Leases.TestCase
TestLeases.settings = settings(examples(1_500), stateful_step_count=40)


def test_a_server_is_given_back_by_leaving_it_out_and_no_earlier_renewal_does_that() -> None:
    register = Register(1, TIMES, 0.0)
    one, two = (register.join(JoinRequest(name, "http://h", 1, "1", "run"), 0.0) for name in "ab")
    assert isinstance(one, JoinReply)
    assert isinstance(two, JoinReply)
    assert register.claim(one.epoch, 2, "x", 0.0) == GrantReply()
    assert isinstance(register.renew(one.epoch, 1, (), {}, False, 0.0), RenewalReply)
    assert register.claim(two.epoch, 1, "x", 0.0) == HolderReply("a")
    assert isinstance(register.renew(one.epoch, 3, ("x",), {}, False, 1.0), RenewalReply)
    assert register.claim(two.epoch, 2, "x", 1.0) == HolderReply("a")
    register.renew(one.epoch, 4, (), {}, False, 1.0)
    assert register.claim(two.epoch, 3, "x", 1.0) == GrantReply()


def test_a_host_that_leaves_is_seen_and_given_nothing_until_it_is_gone() -> None:
    register = Register(1, TIMES, 0.0)
    one = register.join(JoinRequest("a", "http://h", 1, "1", "run"), 0.0)
    assert isinstance(one, JoinReply)
    before = register.view("", 0.0)
    register.renew(one.epoch, 1, (), {}, True, 1.0)
    after = register.view("", 1.0)
    assert before is not None
    assert after is not None
    assert after.number != before.number
    assert [(host.name, host.is_draining) for host in after.hosts] == [("a", True)]
    assert owner(Address("x"), {}, after) is None
    told = register.renew(one.epoch, 2, (), {}, True, 2.0)
    assert register.view(after.number, 2.0) is None, "nothing new"
    assert isinstance(told, RenewalReply)
    assert not told.is_draining, "nobody else has asked for it"
    register.leave(one.epoch, 3.0)
    gone = register.view("", 3.0)
    assert gone is not None
    assert gone.hosts == ()


def test_a_new_register_waits_for_a_lease_and_believes_who_holds() -> None:
    register = Register(2, TIMES, 100.0)
    assert register.renew("1.5", 7, ("x",), {}, False, 101.0) == UnknownHostReply()
    back = register.join(
        JoinRequest("a", "http://h", 1, "1", "run", epoch="1.5", claims=frozenset("x")), 101.0
    )
    other = register.join(JoinRequest("b", "http://h", 2, "1", "run"), 101.0)
    assert isinstance(back, JoinReply)
    assert back.epoch == "1.5"
    assert isinstance(other, JoinReply)
    assert register.claim(other.epoch, 1, "x", 101.0) == HolderReply("a")
    assert register.claim(other.epoch, 2, "y", 101.0) == WaitReply(10.0)
    assert register.claim(other.epoch, 3, "y", 111.0) == GrantReply()


def test_what_a_silent_host_holds_is_free_when_its_children_are_gone_by_any_clock() -> None:
    register, slow = Register(1, TIMES, 0.0), HostLease(TIMES)
    one, two = (register.join(JoinRequest(name, "http://h", 1, "1", "run"), 0.0) for name in "ab")
    slow.renewed(0.0)
    assert isinstance(one, JoinReply)
    assert isinstance(two, JoinReply)
    register.claim(one.epoch, 1, "x", 0.0)
    for second in range(1, 11):
        register.renew(two.epoch, second, (), {}, False, float(second))
    gone = slow.children_until / (
        1 - TIMES.drift / TIMES.length / 1.1
    )  # in real seconds, by a clock that is slow
    assert isinstance(register.claim(two.epoch, 11, "x", gone - 0.01), WaitReply)
    assert register.claim(two.epoch, 12, "x", TIMES.length + TIMES.drift) == GrantReply()
    assert isinstance(register.renew(one.epoch, 9, ("x",), {}, False, 12.0), FencedReply)
