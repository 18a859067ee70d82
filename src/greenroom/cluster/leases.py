"""Who may run what, for how long: the lease of a host, and the register of all leases. Pure; time is an argument.

The rule: *never two living children of one server that everybody shares*. Three parts keep it.

* A host may start a child of such a server only while it holds the server's **claim**, which the register grants to one
  host at a time. Claims belong to the host's lease.
* A host counts its lease from the moment at which it *sent* its last good renewal (`HostLease`). It takes no calls in
  the last seconds of the lease, and its children are gone when the lease is over: a process that is not ours to stop,
  the guard, holds that deadline.
* The register counts the same lease from the moment at which it *received* the renewal, and adds a margin for clocks
  that run at different speeds. Only then are the claims free for others.

Each life of a host has an **epoch**, which is never used again. Everything that it sends names its epoch, and a number
that grows. So what comes late from a former life means nothing, and a renewal that was overtaken by a claim does not
give that claim back.

A register that was started again knows nothing. Hosts whose lease is good join it with what they hold, under the epoch
that they had, and it grants nothing else before all leases of its predecessor are over.

Rejected: a lease for each server, which is a message for each server every two seconds; and believing a host that says
its predecessor must be dead. It has to end it (`Predecessor`), and say so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import attrs
import msgspec

from ..protocol.bounds import LIMITS_FILLED
from .placement import ClusterView, HostInfo, OpenBreaker

SpentLimits = Mapping[
    tuple[str, ...], float
]  # calls that limits have let pass, by the limit and for whom it counts
_FRONT_STAYS: Final = 60.0  # seconds that a front may be silent before its share of limits is forgotten
_LATE: Final = 2.5  # renewals that a host may miss before nothing new is placed there


@attrs.frozen
class LeaseTimes:
    """How long a lease lasts, in seconds. The same for all hosts and the register."""

    length: float = 10.0
    renew_every: float = 2.0
    refuse_before: float = 3.0  # so long before its end a host takes no more calls
    drift: float = 1.0  # for clocks that run at different speeds: a tenth of the length covers ten per cent


class HostLease:
    """The lease as its host sees it, by the host's own monotonic clock."""

    def __init__(self, times: LeaseTimes) -> None:
        self._times = times
        self._sent = -math.inf  # when the last good renewal was sent

    def renewed(self, sent_at: float) -> None:
        """A renewal (or joining) that was sent at this time was granted."""
        self._sent = max(self._sent, sent_at)

    def may_serve(self, now: float) -> bool:
        """Whether calls may be taken and children started."""
        return now < self.serves_until

    @property
    def serves_until(self) -> float:
        return self._sent + self._times.length - self._times.refuse_before

    @property
    def children_until(self) -> float:
        """When all children have to be gone."""
        return self._sent + self._times.length

    def is_over(self, now: float) -> bool:
        return now >= self.children_until


@attrs.frozen
class JoinRequest:
    """What a host says when it joins. `epoch` and `claims`: of the lease that it has, if the register has forgotten
    it."""

    name: str
    url: str
    pid: int
    began: str  # when this process was started, as its system says: another one may get its number
    run_id: str  # the mark of its children's processes
    labels: Mapping[str, str] = attrs.field(factory=dict[str, str])
    resources: Mapping[str, float] = attrs.field(factory=dict[str, float])
    epoch: str | None = None
    claims: frozenset[str] = frozenset()
    link_port: int = 0  # of its door for links


@attrs.frozen
class Predecessor:
    """The former life of a host, which may not be over. The new one ends what is left of it, and says so."""

    epoch: str
    pid: int
    began: str
    run_id: str


@attrs.frozen
class JoinReply:
    epoch: str
    predecessors: tuple[Predecessor, ...] = ()


@attrs.frozen
class RenewalReply:
    """What a host has to know, and nothing that grows with the number of servers."""

    hosts: int  # that are there
    is_draining: bool
    config_version: int
    breakers: Mapping[str, OpenBreaker]  # of the other hosts, by server


@attrs.frozen
class FencedReply:
    """This life is over: close everything, and join anew."""


@attrs.frozen
class UnknownHostReply:
    """The register was started again. Join it with what you hold, if your lease is good."""


@attrs.frozen
class GrantReply:
    pass


@attrs.frozen
class HolderReply:
    host: str


@attrs.frozen
class WaitReply:
    seconds: float  # until it may be free


@attrs.define
class _LeaseLife:
    """One life of a host."""

    about: JoinRequest
    info: HostInfo
    heard: float
    claims: dict[str, int]  # with the number of the request that made each
    breakers: Mapping[str, OpenBreaker] = attrs.field(factory=dict[str, OpenBreaker])
    is_late: bool = False
    is_leaving: bool = False
    replaced: bool = False  # there is a newer life of this host

    def as_seen(self) -> HostInfo:
        is_draining = self.info.is_draining or self.is_leaving
        return attrs.evolve(self.info, is_late=self.is_late, is_draining=is_draining)


@attrs.define
class _FrontLimits:
    """What a front is told of limits."""

    heard: float
    number: int = 0  # of its last report
    told: SpentLimits = attrs.field(factory=dict[tuple[str, ...], float])  # the answer to that
    owed: dict[tuple[str, ...], float] = attrs.field(
        factory=dict[tuple[str, ...], float]
    )  # what others spent since


class Register:
    """All leases and claims of a cluster. `number`: how many registers there were, with this one. What a `Directory`
    asks for by its name takes the time last."""

    def __init__(self, number: int, times: LeaseTimes, now: float) -> None:
        self.times = times
        self._number = number
        self._opens = now if number <= 1 else now + times.length + times.drift
        self._lives: dict[str, _LeaseLife] = {}  # by epoch
        self._holders: dict[str, str] = {}  # by server: the epoch
        self._draining: set[str] = set()
        self._config: tuple[int, bytes] = (0, b"")
        self._count = 0
        self._changes = 0
        self._look_at = math.inf  # before that no life is late, or over, that is not known to be
        self._present: tuple[int, int] = (-1, 0)  # after so many changes: how many hosts are there
        self._troubled: set[str] = set()  # epochs of lives with circuit breakers that refuse
        self._fronts: dict[str, _FrontLimits] = {}

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def join(self, about: JoinRequest, now: float) -> JoinReply | FencedReply:
        """A host comes, or comes back to a register that has forgotten it."""
        self._sweep(now)
        epoch = about.epoch
        if epoch is None:
            self._count += 1
            epoch = f"{self._number}.{self._count}"
        elif any(self._holders.get(server, epoch) != epoch for server in about.claims):
            return FencedReply()
        former = [life for life in self._lives.values() if life.about.name == about.name]
        former = [life for life in former if life.info.epoch != epoch]
        for life in former:
            life.replaced = True
        is_draining = about.name in self._draining
        info = HostInfo(
            about.name,
            about.url,
            epoch,
            about.labels,
            about.resources,
            is_draining,
            link_port=about.link_port,
        )
        self._end(epoch)  # if it is known, it says anew what it holds
        self._lives[epoch] = _LeaseLife(about, info, now, dict.fromkeys(about.claims, 0))
        self._look_at = min(self._look_at, self._late(self._lives[epoch]))
        self._holders.update(dict.fromkeys(about.claims, epoch))
        self._changes += 1
        left = (
            Predecessor(life.info.epoch, life.about.pid, life.about.began, life.about.run_id)
            for life in former
        )
        return JoinReply(epoch, tuple(left))

    def predecessor_gone(self, epoch: str, gone: str, now: float) -> None:
        """The host with this epoch has ended what was left of its former life `gone`."""
        life, former = self._lives.get(epoch), self._lives.get(gone)
        if life is not None and former is not None and former.about.name == life.about.name:
            self._end(gone)

    def renew(
        self,
        epoch: str,
        number: int,
        claims: Collection[str],
        breakers: Mapping[str, OpenBreaker],
        is_leaving: bool,
        now: float,
    ) -> RenewalReply | FencedReply | UnknownHostReply:
        """A host goes on, and says what it holds; what it does not name is free. `number`: of this request; each of a
        host's requests has a greater one than those before. `breakers`: those of its circuit breakers that refuse.
        `is_leaving`: it ends when its last calls have ended, so place nothing there."""
        self._sweep(now)
        life = self._lives.get(epoch)
        if life is None or life.replaced:
            return self._stranger(epoch)
        life.heard = max(life.heard, now)
        if life.is_late or life.is_leaving != is_leaving:
            life.is_late, life.is_leaving = False, is_leaving
            self._changes += 1
        for server in [each for each, made in life.claims.items() if made < number and each not in claims]:
            self._release(life, server)
        life.breakers = breakers
        (self._troubled.add if breakers else self._troubled.discard)(epoch)
        others = self._open_breakers(life, now)
        return RenewalReply(self._hosts(), life.info.is_draining, self._config[0], others)

    def claim(
        self, epoch: str, number: int, server: str, now: float
    ) -> GrantReply | HolderReply | WaitReply | FencedReply | UnknownHostReply:
        """A host wants to run this server."""
        self._sweep(now)
        life = self._lives.get(epoch)
        if life is None or life.replaced:
            return self._stranger(epoch)
        holder = self._holders.get(server)
        if holder is not None and holder != epoch:
            other = self._lives[holder]
            if other.is_late or other.replaced:
                return WaitReply(max(0.0, self._ends(other) - now))
            return HolderReply(other.about.name)
        if holder is None and now < self._opens:
            return WaitReply(self._opens - now)
        life.claims[server] = max(number, life.claims.get(server, 0))
        if holder is None:
            self._holders[server] = epoch
            self._changes += 1
        return GrantReply()

    def leave(self, epoch: str, now: float) -> None:
        """A host has ended, and all its children are gone."""
        self._sweep(now)
        self._end(epoch)

    def drain(self, name: str, is_draining: bool, now: float) -> bool:
        """Place nothing more at this host, or place there again. Returns whether there is such a host."""
        self._sweep(now)
        (self._draining.add if is_draining else self._draining.discard)(name)
        found = [life for life in self._lives.values() if life.about.name == name and not life.replaced]
        for life in found:
            life.info = attrs.evolve(life.info, is_draining=is_draining)
            self._changes += 1
        return bool(found)

    # ---- what all know ----------------------------------------------------------------------------------------------

    def offer_config(self, version: int, raw: bytes, now: float) -> None:
        """Somebody has this version of the configuration, which counts if it is the newest."""
        if version > self._config[0]:
            self._config = (version, raw)
            self._changes += 1

    def post_config(self, raw: bytes, now: float) -> int:
        """Take another configuration. Returns its version."""
        version = self._config[0] + 1
        self.offer_config(version, raw, now)
        return version

    def config(self, now: float) -> tuple[int, bytes]:
        """The configuration with its version; 0 and nothing when there is none."""
        return self._config

    def spend(self, front: str, number: int, spent: SpentLimits, now: float) -> SpentLimits:
        """What limits have let pass at a front since its report before. Returns the same of all others. A report with
        the `number` of the one before is that one again, because its answer was lost. A front that is not heard for
        long is forgotten."""
        self._fronts = {n: one for n, one in self._fronts.items() if now - one.heard < _FRONT_STAYS}
        asks = self._fronts.setdefault(front, _FrontLimits(now))
        asks.heard = now
        if number == asks.number:
            return asks.told
        for other in self._fronts.values():
            for key, calls in spent.items() if other is not asks else ():
                if key in other.owed or len(other.owed) < LIMITS_FILLED:
                    other.owed[key] = other.owed.get(key, 0.0) + calls
        asks.number, asks.told, asks.owed = number, asks.owed, {}
        return asks.told

    def view(self, known: str, now: float) -> ClusterView | None:
        """What fronts have to know; None if it still is the one of this number."""
        self._sweep(now)
        number = f"{self._number}.{self._changes}"
        if number == known:
            return None
        current = (life for life in self._lives.values() if not life.replaced)
        hosts = tuple(sorted((life.as_seen() for life in current), key=lambda info: info.name))
        held = {server: self._lives[epoch].about.name for server, epoch in self._holders.items()}
        return ClusterView(number, hosts, held, self._config[0])

    # ---- within -----------------------------------------------------------------------------------------------------

    def _hosts(self) -> int:
        """How many hosts are there. Counted anew only after a change: each renewal asks."""
        if self._present[0] != self._changes:
            present = [life for life in self._lives.values() if not life.replaced and not life.is_late]
            self._present = (self._changes, len(present))
        return self._present[1]

    def _open_breakers(self, asks: _LeaseLife, now: float) -> dict[str, OpenBreaker]:
        found = dict[str, OpenBreaker]()
        lives = [self._lives[epoch] for epoch in self._troubled]
        for life in [each for each in lives if each is not asks and not each.is_late and not each.replaced]:
            for server, one in life.breakers.items():
                left = msgspec.structs.replace(one, seconds=one.seconds - (now - life.heard))
                if left.seconds > 0 and (server not in found or found[server].seconds < left.seconds):
                    found[server] = left
        return found

    def _stranger(self, epoch: str) -> FencedReply | UnknownHostReply:
        """What to say to a life that is not known: that it is over, if this register has given its epoch."""
        return (
            FencedReply()
            if epoch.startswith(f"{self._number}.") or epoch in self._lives
            else UnknownHostReply()
        )

    def _ends(self, life: _LeaseLife) -> float:
        return life.heard + self.times.length + self.times.drift

    def _late(self, life: _LeaseLife) -> float:
        return life.heard + _LATE * self.times.renew_every

    def _sweep(self, now: float) -> None:
        """End the lives whose lease is over, and see which are late. A renewal only moves these moments on, so it is
        enough to look when the first of them comes that was known at the last look."""
        if now < self._look_at:
            return
        for life in [life for life in self._lives.values() if now >= self._ends(life)]:
            self._end(life.info.epoch)
        for life in self._lives.values():
            if not life.is_late and now >= self._late(life):
                life.is_late = True
                self._changes += 1
        moments = (self._ends(life) if life.is_late else self._late(life) for life in self._lives.values())
        self._look_at = min(moments, default=math.inf)

    def _end(self, epoch: str) -> None:
        life = self._lives.get(epoch)
        if life is not None:
            for server in list(life.claims):
                self._release(life, server)
            del self._lives[epoch]
            self._troubled.discard(epoch)
            self._changes += 1

    def _release(self, life: _LeaseLife, server: str) -> None:
        del life.claims[server]
        if self._holders.get(server) == life.info.epoch:
            del self._holders[server]
        self._changes += 1
