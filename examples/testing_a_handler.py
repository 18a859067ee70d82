"""A shop that asks before it sells: a handler that knows its tool, waits, and asks the person behind the client."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from greenroom import CallError, ServerRequest
from greenroom.testing import FakeCall, FakeServer, fake_room, tool


async def sell(call: FakeCall) -> str:
    """`call` is the arguments, and knows what was called. A text is result enough."""
    assert call["item"] in ("hat", "cap"), "the agent orders what the shop does not have"
    if call.tool == "price":
        return "12"
    call.progress(1, total=2, message="asking")
    answer = await call.elicit(f"Really a {call['item']}?")
    return "sold" if answer["action"] == "accept" else "not sold"


async def yes(request: ServerRequest) -> Mapping[str, Any]:
    return {"action": "accept", "content": {}}


def test_the_agent_says_yes() -> None:
    shop = FakeServer(
        tools=[tool("order"), tool("price")],
        handler=sell,
        resources={"shop://hours": "9 to 5"},
        prompts={"greet": lambda arguments: f"Greet {arguments['who']}."},
    )

    async def main() -> None:
        async with fake_room({"shop": shop}, on_elicitation=yes) as room:
            assert (await room.call("shop_price", {"item": "hat"})).text == "12"
            assert (await room.call("shop_order", {"item": "hat"})).text == "sold"
            assert [method for method, _ in shop.asked] == ["elicitation/create"]
            assert (await room.read_resource("shop://hours")).text == "9 to 5"
            greeting = await room.get_prompt("shop_greet", {"who": "Ann"})
            assert greeting.messages[0]["content"]["text"] == "Greet Ann."
            with pytest.raises(CallError, match="what the shop does not have") as caught:
                await room.call("shop_order", {"item": "boat"})
            assert isinstance(caught.value.__cause__, AssertionError)  # of `sell`, with its traceback

    anyio.run(main)
