"""Two agents and one hat: in every order, whoever gives up at whatever moment, whatever the shop does."""

import anyio
import pytest

from greenroom import CallError, Greenroom
from greenroom.testing import (
    FakeServer,
    Fault,
    FaultScript,
    assert_one_outcome_each,
    explore,
    exploring,
    fake_connectors,
    tool,
)

CONFIG = {"mcpServers": {"shop": {"command": "not started here"}}}


class Hats:
    """The code under test: a hat that was not sold is there again."""

    def __init__(self, room: Greenroom) -> None:
        self.room, self.left, self.sold = room, 1, 0

    async def sell(self) -> None:
        if not self.left:
            return
        self.left -= 1
        try:
            await self.room.call("shop_order", {"item": "hat"})
        except BaseException as error:  # being cancelled is not a CallError
            self.left += 1
            if not isinstance(error, CallError):
                raise
        else:
            self.sold += 1


async def one_hat(script: FaultScript) -> None:
    shop = FakeServer(tools=[tool("order")], script=script)
    connectors = fake_connectors({"shop": shop})
    async with Greenroom.open(CONFIG, cache_path=":memory:", bootstrap=False, connectors=connectors) as room:
        await room.connect("shop")
        hats = Hats(room)
        with exploring():  # not the opening of the room
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hats.sell, name="ann")
                tasks.start_soon(hats.sell, name="bob")
    assert hats.sold + hats.left == 1
    assert_one_outcome_each(room)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_hat_is_sold_or_still_there(backend: str) -> None:
    faults = {"none": FaultScript(), "dies": FaultScript.of(Fault("call", "crash"))}

    explored = explore(one_hat, faults=faults, cancel=["ann", "bob"], backend=backend)

    assert explored.exhausted, explored
