"""`greenroom cluster drain`: a host gives back what it has, and gives its account.

What the directory knows is where servers that all share run. What became of calls, and of the processes of sessions,
only the host itself knows, for as long as it lives; so it is asked again and again, and what it said last counts. Of a
host that does not answer there is no account, and what the directory says decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import attrs
from msgspec.structs import asdict

from ..cluster.membership import HostSilent, Membership
from ..cluster.placement import HostInfo
from ..protocol.status import DrainReport
from .json_shapes import DrainReportJson, Shape, says

if TYPE_CHECKING:
    from ..cluster.directory import Directory


class ClusterDrainedJson(Shape, kw_only=True):
    """What a host that drains has given back, and what became of its calls."""

    host: Annotated[str, says("its name")]
    gone: Annotated[bool, says("it has left, or its lease is over")]
    moved: Annotated[dict[str, str], says("servers that were there, and the host where each runs now")]
    free: Annotated[list[str], says("servers that rested: each starts at another host when it is used next")]
    ended: Annotated[list[str], says("servers of sessions and calls, whose processes have ended with these")]
    left: Annotated[list[str], says("servers that still run there; the exit code is 1 then")]
    calls: Annotated[
        DrainReportJson | None,
        says("what became of the calls of the host, in its present life; null: it did not say"),
    ]
    seconds: Annotated[float, says("how long it was waited", "s")]


_LOOK_EVERY: Final = 0.5  # seconds


@attrs.frozen
class Account:
    """What a host says of itself at `GET /cluster/status`."""

    links: frozenset[str] = frozenset()  # servers to which fronts have links
    calls: DrainReport | None = None
    has_heard: bool = True  # that it is to drain


@attrs.define
class HostDrain:
    """What a host that drains has given back so far, and what its calls have come to."""

    host: HostInfo
    seconds: float = 0.0
    is_gone: bool = False  # it has left, or its lease is over
    moved: Mapping[str, str] = attrs.field(factory=dict[str, str])  # to which host
    free: list[str] = attrs.field(factory=list[str])  # each starts where it is used next
    ended: list[str] = attrs.field(factory=list[str])  # those of sessions and calls
    left: list[str] = attrs.field(factory=list[str])  # what still runs there
    others: int = 0  # hosts that are in service
    calls: DrainReport | None = None  # of the host, in this life; None: it did not say
    had: set[str] = attrs.field(factory=set[str], init=False)  # servers that all share, at any time
    linked: set[str] = attrs.field(factory=set[str], init=False)  # all servers that were used, at any time

    def lines(self) -> list[str]:
        lines = [f"{name} runs at {host} now" for name, host in sorted(self.moved.items())]
        if self.free:
            where = (
                "elsewhere when used next"
                if self.others
                else "when another host is in service: there is none"
            )
            lines.append(f"{', '.join(self.free)}: will start {where}")
        if self.ended:
            lines.append(f"{', '.join(self.ended)}: ended with the sessions and calls that used them")
        if self.left:
            lines.append(f"{', '.join(self.left)}: still used there")
        else:
            lines.append(f"{self.host.name} {'is gone' if self.is_gone else 'runs nothing any more'}")
        told = self.calls
        lines.append("the host does not say what became of its calls" if told is None else str(told))
        return lines

    def summary(self) -> ClusterDrainedJson:
        return ClusterDrainedJson(
            host=self.host.name,
            gone=self.is_gone,
            moved=dict(self.moved),
            free=self.free,
            ended=self.ended,
            left=self.left,
            calls=None if self.calls is None else DrainReportJson(**asdict(self.calls)),
            seconds=round(self.seconds, 3),
        )


async def drain_host(directory: Directory, token: str, host: HostInfo, wait: float) -> HostDrain:
    """Drain a host, and wait so many seconds at most until nothing runs there."""
    membership, began = Membership(directory, lambda: token), time.monotonic()
    drained = HostDrain(host)
    try:
        await _look(membership, drained)
        await directory.drain(host.name, True)
        while True:
            has_heard = await _look(membership, drained)
            drained.seconds = time.monotonic() - began
            if (has_heard and not drained.left) or drained.seconds >= wait:
                return drained
            await anyio.sleep(min(_LOOK_EVERY, wait))
    finally:
        await membership.close()


async def _look(membership: Membership, drained: HostDrain) -> bool:
    """Bring it up to date. Returns whether the host has heard that it is to drain, as far as anybody can say."""
    await membership.refresh()
    held, host = membership.view.held, drained.host
    drained.is_gone = membership.life_of(host) is None
    told = Account() if drained.is_gone else await _account(membership, host)
    holds = set[str]() if drained.is_gone else set(membership.view.held_by(host.name))
    drained.had |= holds
    drained.linked |= told.links
    drained.calls = told.calls or drained.calls
    drained.moved = {name: held[name] for name in drained.had - holds if name in held}
    drained.free = sorted(drained.had - holds - held.keys())
    drained.ended = sorted(drained.linked - drained.had - told.links)
    drained.left = sorted(holds | told.links)
    usable = (each for each in membership.view.hosts if not each.is_draining and not each.is_late)
    drained.others = sum(each.name != host.name for each in usable)
    return told.has_heard


async def _account(membership: Membership, host: HostInfo) -> Account:
    try:
        said = await membership.ask(host, "/cluster/status")
    except HostSilent:
        return Account()
    if said.status != 200:
        return Account()
    calls: Any = said.body.get("calls")
    return Account(
        frozenset(said.body.get("links", ())),
        None if calls is None else DrainReport(**calls),
        bool(said.body.get("draining")),
    )
