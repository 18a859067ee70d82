"""With the fixtures of our pytest plugin."""

import trio
from trio.testing import MockClock

from greenroom.testing import tool
from greenroom.testing.pytest_plugin import FakeServers, Rooms


def test_the_shop_is_asked_once(fake_server: FakeServers, room: Rooms) -> None:
    shop = fake_server("shop", tools=[tool("order", "Orders one")], call_latency=20.0)

    async def main():
        async with room(settings={"approve": "off"}) as opened:
            result = await opened.call("shop_order", {"item": "hat"})
            assert result.text == '{"item": "hat"}'

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(shop.calls) == 1
