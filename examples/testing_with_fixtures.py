"""With the fixtures of our pytest plugin."""

import trio
from trio.testing import MockClock

from greenroom.testing import tool


def test_the_shop_is_asked_once(fake_server, room):
    shop = fake_server("shop", tools=[tool("order", "Orders one")], call_latency=20.0)

    async def main():
        async with room(settings={"approve": "off"}) as opened:
            result = await opened.call("shop_order", {"item": "hat"})
            assert result.text == '{"item": "hat"}'

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(shop.calls) == 1
