"""An agent that must not order twice, and a shop that dies in the middle of an order."""

import trio
from trio.testing import MockClock

from greenroom import CallError, Greenroom, Reach
from greenroom.testing import FakeServer, Fault, FaultScript, fake_connectors, tool

CONFIG = {"mcpServers": {"shop": {"command": "not started here"}}}


async def order(room: Greenroom, item: str) -> str:
    """The code under test: what was certainly not sent is sent again, what may have run is not."""
    for _ in range(3):
        try:
            return (await room.call("shop_order", {"item": item})).text
        except CallError as error:
            if error.reach is not Reach.NOT_SENT:
                return "unknown: please look before you order again"
            await trio.sleep(5)
    return "no shop today"


def answer_of(shop: FakeServer) -> str:
    """Order a hat, in virtual time: minutes of waiting take no time."""

    async def main() -> str:
        connectors = fake_connectors({"shop": shop})
        async with Greenroom.open(
            CONFIG, cache_path=":memory:", bootstrap=False, connectors=connectors
        ) as room:
            return await order(room, "hat")

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_shop_that_does_not_open_twice() -> None:
    closed = FaultScript.of(
        Fault("start", "crash", start=1, text="no lights"),
        Fault("initialize", "refuse", start=2, text="no staff"),
    )
    shop = FakeServer(tools=[tool("order")], script=closed)

    assert answer_of(shop) == '{"item": "hat"}'
    assert (shop.starts, len(shop.calls)) == (3, 1)


def test_a_shop_that_dies_in_the_middle_of_an_order() -> None:
    dies = FaultScript.of(Fault("call", "delay", seconds=20), Fault("call", "crash", signal="SIGKILL"))
    shop = FakeServer(tools=[tool("order")], script=dies)

    assert answer_of(shop).startswith("unknown")
    assert len(shop.calls) == 1
