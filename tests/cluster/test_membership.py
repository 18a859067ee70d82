"""What a front asks of the hosts, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from tests.support import in_virtual_time

from greenroom.cluster.directory import LocalDirectory
from greenroom.cluster.leases import JoinRequest
from greenroom.cluster.membership import HostReply, Membership
from greenroom.cluster.placement import HostInfo
from greenroom.config.model import ServerDefinition
from greenroom.protocol.address import Address


class Asked(Membership):
    """Its hosts take a second to answer. `paths`: what was asked of them."""

    paths: list[str]

    async def ask(
        self, host: HostInfo, path: str, body: Mapping[str, Any] | None = None, *, within: float | None = 5.0
    ) -> HostReply:
        self.paths.append(path)
        await anyio.sleep(1)
        return HostReply(200, {})


async def asked_of_one_host() -> Asked:
    directory = LocalDirectory(clock=anyio.current_time)
    await directory.join(JoinRequest("a", "http://127.0.0.1:1", 1, "", "run"))
    membership = Asked(directory, lambda: "token")
    membership.paths = []
    await membership.refresh()
    return membership


@in_virtual_time
async def test_many_sessions_of_one_server_ask_its_host_once() -> None:
    membership, placed = await asked_of_one_host(), list[str]()

    async def place(number: int) -> None:
        address = Address("one", f"session:{number}")
        placed.append((await membership.place(ServerDefinition("one", command="x"), address)).name)

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(place, number)
    assert placed == ["a"] * 100
    assert membership.paths == ["/cluster/open"]


@in_virtual_time
async def test_when_the_session_that_asks_gives_up_another_one_asks() -> None:
    membership, placed = await asked_of_one_host(), list[int]()

    async def place(number: int) -> None:
        await membership.place(ServerDefinition("one", command="x"), Address("one", f"session:{number}"))
        placed.append(number)

    async with anyio.create_task_group() as others, anyio.create_task_group() as first:
        first.start_soon(place, 0)
        await anyio.sleep(0.1)
        for number in (1, 2):
            others.start_soon(place, number)
        await anyio.sleep(0.1)
        first.cancel_scope.cancel()
    assert sorted(placed) == [1, 2]
    assert len(membership.paths) == 2
