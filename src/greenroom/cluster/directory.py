"""The directory: where hosts renew their leases, and where everybody learns which hosts there are.

`Directory` is what hosts and fronts hold, however far away it is. It is not on the way of calls. `LocalDirectory` is a
register in this process, for tests and for a cluster in one process; `ray_cluster` has the one for many machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

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


class Directory(Protocol):
    """What a `Register` can be asked, from anywhere. Each method is bounded in time, and raises `DirectorySilent`."""

    async def join(self, about: JoinRequest) -> JoinReply | FencedReply: ...

    async def predecessor_gone(self, epoch: str, gone: str) -> None: ...

    async def renew(
        self,
        epoch: str,
        number: int,
        claims: Collection[str],
        breakers: Mapping[str, OpenBreaker],
        is_leaving: bool = False,
    ) -> RenewalReply | FencedReply | UnknownHostReply: ...

    async def claim(
        self, epoch: str, number: int, server: str
    ) -> GrantReply | HolderReply | WaitReply | FencedReply | UnknownHostReply: ...

    async def leave(self, epoch: str) -> None: ...

    async def drain(self, name: str, is_draining: bool) -> bool: ...

    async def offer_config(self, version: int, raw: bytes) -> None: ...

    async def post_config(self, raw: bytes) -> int: ...

    async def config(self) -> tuple[int, bytes]: ...

    async def spend(self, front: str, number: int, spent: SpentLimits) -> SpentLimits: ...

    async def view(self, known: str = "") -> ClusterView | None: ...


class LocalDirectory:
    """A directory in this process. `silence` it to see what happens without one."""

    def __init__(
        self,
        times: LeaseTimes | None = None,
        *,
        number: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = clock
        self.register: Register = Register(number, times or LeaseTimes(), clock())
        self.is_silent = False

    async def _asked(self) -> float:
        await checkpoint()
        if self.is_silent:
            raise DirectorySilent("The directory of the cluster does not answer.")
        return self._now()

    async def join(self, about: JoinRequest) -> JoinReply | FencedReply:
        return self.register.join(about, await self._asked())

    async def predecessor_gone(self, epoch: str, gone: str) -> None:
        self.register.predecessor_gone(epoch, gone, await self._asked())

    async def renew(
        self,
        epoch: str,
        number: int,
        claims: Collection[str],
        breakers: Mapping[str, OpenBreaker],
        is_leaving: bool = False,
    ) -> RenewalReply | FencedReply | UnknownHostReply:
        return self.register.renew(epoch, number, claims, breakers, is_leaving, await self._asked())

    async def claim(
        self, epoch: str, number: int, server: str
    ) -> GrantReply | HolderReply | WaitReply | FencedReply | UnknownHostReply:
        return self.register.claim(epoch, number, server, await self._asked())

    async def leave(self, epoch: str) -> None:
        self.register.leave(epoch, await self._asked())

    async def drain(self, name: str, is_draining: bool) -> bool:
        return self.register.drain(name, is_draining, await self._asked())

    async def offer_config(self, version: int, raw: bytes) -> None:
        self.register.offer_config(version, raw, await self._asked())

    async def post_config(self, raw: bytes) -> int:
        return self.register.post_config(raw, await self._asked())

    async def config(self) -> tuple[int, bytes]:
        await self._asked()
        return self.register.config()

    async def spend(self, front: str, number: int, spent: SpentLimits) -> SpentLimits:
        return self.register.spend(front, number, spent, await self._asked())

    async def view(self, known: str = "") -> ClusterView | None:
        return self.register.view(await self._asked(), known)
