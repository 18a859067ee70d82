"""The directory: where hosts renew their leases, and where everybody learns which hosts there are.

`Directory` is what hosts and fronts hold, however far away it is. It is not on the way of calls. `LocalDirectory` is a
register in this process, for tests and for a cluster in one process; `ray_cluster` has the one for many machines.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from anyio.lowlevel import checkpoint

from ..protocol.errors import GreenroomError
from .leases import (
    FencedReply,
    GrantReply,
    HolderReply,
    JoinReply,
    JoinRequest,
    LeaseTimes,
    Register,
    RenewalReply,
    SpentLimits,
    UnknownHostReply,
    WaitReply,
)
from .placement import ClusterView, OpenBreaker


class DirectorySilent(GreenroomError):
    """The directory of the cluster does not answer, or not in time. Ask again."""


class Directory(ABC):
    """What a `Register` can be asked, from anywhere. Each verb is bounded in time, and raises `DirectorySilent`."""

    look_every: float = 1.0  # seconds between two looks of a front at what is there

    @abstractmethod
    async def ask(self, verb: str, *args: Any) -> Any:
        """What the register answers to this verb, which is the name of its method."""

    async def join(self, about: JoinRequest) -> JoinReply | FencedReply:
        return await self.ask("join", about)

    async def predecessor_gone(self, epoch: str, gone: str) -> None:
        await self.ask("predecessor_gone", epoch, gone)

    async def renew(
        self,
        epoch: str,
        number: int,
        claims: Collection[str],
        breakers: Mapping[str, OpenBreaker],
        is_leaving: bool = False,
    ) -> RenewalReply | FencedReply | UnknownHostReply:
        return await self.ask("renew", epoch, number, frozenset(claims), dict(breakers), is_leaving)

    async def claim(
        self, epoch: str, number: int, server: str
    ) -> GrantReply | HolderReply | WaitReply | FencedReply | UnknownHostReply:
        return await self.ask("claim", epoch, number, server)

    async def leave(self, epoch: str) -> None:
        await self.ask("leave", epoch)

    async def drain(self, name: str, is_draining: bool) -> bool:
        return await self.ask("drain", name, is_draining)

    async def offer_config(self, version: int, raw: bytes) -> None:
        await self.ask("offer_config", version, raw)

    async def post_config(self, raw: bytes) -> int:
        return await self.ask("post_config", raw)

    async def config(self) -> tuple[int, bytes]:
        return await self.ask("config")

    async def spend(self, front: str, number: int, spent: SpentLimits) -> SpentLimits:
        return await self.ask("spend", front, number, dict(spent))

    async def view(self, known: str = "") -> ClusterView | None:
        return await self.ask("view", known)


class LocalDirectory(Directory):
    """A directory in this process. Set `is_silent` to see what happens without one."""

    def __init__(
        self,
        times: LeaseTimes | None = None,
        *,
        number: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = clock
        times = times or LeaseTimes()
        self.look_every: float = times.renew_every / 2
        self.register: Register = Register(number, times, clock())
        self.is_silent = False

    async def ask(self, verb: str, *args: Any) -> Any:
        await checkpoint()
        if self.is_silent:
            raise DirectorySilent("The directory of the cluster does not answer.")
        return getattr(self.register, verb)(*args, self._now())
