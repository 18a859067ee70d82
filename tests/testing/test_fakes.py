"""Fake servers as those who test their own programs use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import pytest
from tests.support import in_virtual_time, run_virtual
from tests.support.rows import for_each

from greenroom import CallError, RpcRefusal, ServerRequest, UsageError
from greenroom.errors import RemoteError
from greenroom.testing import (
    HANG,
    FakeCall,
    FakeServer,
    Fault,
    FaultScript,
    fake_connectors,
    fake_room,
    tool,
)


@in_virtual_time
async def test_a_handler_knows_which_tool_was_called_and_its_text_is_enough() -> None:
    def answer(call: FakeCall) -> str:
        return f"{call.tool}: {call['item']} {call.meta}"

    shop = FakeServer(tools=[tool("order"), tool("ask")], handler=answer)

    async with fake_room({"shop": shop}) as room:
        assert (await room.call("shop_order", {"item": "hat"})).text == "order: hat {}"
        result = await room.call("shop_ask", {"item": "cap"}, meta={"x": 1})
        assert result.text == "ask: cap {'x': 1}"


@in_virtual_time
async def test_a_handler_asks_the_person_and_the_model_and_reports_progress() -> None:
    async def answer(call: FakeCall) -> Mapping[str, Any]:
        call.progress(1, 2, "asking")
        yes = await call.elicit("Really?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
        await anyio.sleep(5.0)
        words = await call.sample("A greeting, please")
        roots = await call.ask("roots/list")
        call.progress(2, 2)
        return {"content": [], "structuredContent": {"yes": yes, "words": words, "roots": roots}}

    async def elicited(request: ServerRequest) -> Mapping[str, Any]:
        assert request.params["message"] == "Really?"
        return {"action": "accept", "content": {"sure": True}}

    async def sampled(request: ServerRequest) -> Mapping[str, Any]:
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}

    shop = FakeServer(handler=answer)

    told: list[Mapping[str, Any]] = []
    options: dict[str, Any] = {"on_elicitation": elicited, "on_sampling": sampled, "roots": ["file:///x"]}
    async with fake_room({"shop": shop}, **options) as room:
        said = (await room.call("shop_echo", {}, on_progress=told.append)).structured
        assert said["yes"] == {"action": "accept", "content": {"sure": True}}
        assert said["words"]["content"]["text"] == "hello"
        assert said["roots"]["roots"][0]["uri"] == "file:///x"
        assert [(each["progress"], each.get("message")) for each in told] == [(1, "asking"), (2, None)]
        assert [method for method, _ in shop.asked] == [
            "elicitation/create",
            "sampling/createMessage",
            "roots/list",
        ]


def test_a_client_that_cannot_be_asked_refuses_and_the_handler_hears_it(backend: str) -> None:
    async def answer(call: FakeCall) -> str:
        if "mind" not in call:
            return str(await call.elicit("Really?"))
        with pytest.raises(RpcRefusal) as caught:
            await call.elicit("Really?")
        return f"refused with {caught.value.rpc_code}"

    async def body() -> None:
        async with fake_room({"shop": FakeServer(handler=answer)}) as room:
            assert (await room.call("shop_echo", {"mind": True})).text == "refused with -32601"
            with pytest.raises(RemoteError) as caught:
                await room.call("shop_echo")
            assert caught.value.rpc_code == -32601

    run_virtual(backend, body)


@pytest.mark.parametrize("is_async", [False, True])
@in_virtual_time
async def test_what_a_handler_raises_is_shown_as_its_own_with_its_cause(is_async: bool) -> None:
    def fail(call: FakeCall) -> str:
        assert call["item"] == "cap", "only caps"
        return "sold"

    async def fail_later(call: FakeCall) -> str:
        await anyio.sleep(1.0)
        return fail(call)

    shop, other = FakeServer(handler=fail_later if is_async else fail), FakeServer()

    async with fake_room({"shop": shop, "other": other}) as room:
        with pytest.raises(
            CallError, match="handler of this FakeServer raised AssertionError: only caps"
        ) as caught:
            await room.call("shop_echo", {"item": "hat"})
        assert isinstance(caught.value.__cause__, AssertionError)
        assert shop.raised == [caught.value.__cause__]
        assert caught.value.code != "bug"
        assert (await room.call("shop_echo", {"item": "cap"})).text == "sold"
        assert shop.starts == 1, "it serves on"


@in_virtual_time
async def test_a_handler_refuses_in_its_own_words_and_one_that_returns_nonsense_is_told() -> None:
    def answer(call: FakeCall) -> Any:
        if "odd" in call:
            return {"content": [object()]}
        raise RpcRefusal(-32602, "no such hat", {"sizes": [1]})

    async with fake_room({"shop": FakeServer(handler=answer)}) as room:
        with pytest.raises(RemoteError, match="no such hat") as caught:
            await room.call("shop_echo")
        assert (caught.value.rpc_code, caught.value.data) == (-32602, {"sizes": [1]})
        with pytest.raises(RemoteError, match="raised TypeError") as odd:
            await room.call("shop_echo", {"odd": True})
        assert isinstance(odd.value.__cause__, TypeError)


@in_virtual_time
async def test_a_fake_has_resources_and_prompts() -> None:
    shop = FakeServer(
        resources={"shop://hours": "9 to 5"},
        prompts={"greet": "Say hello", "sell": lambda arguments: f"Sell {arguments['item']}"},
    )

    async with fake_room({"shop": shop}) as room:
        await room.connect("shop")
        assert [place.uri for place in room.resources()] == ["shop://hours"]
        assert (await room.read_resource("shop://hours")).text == "9 to 5"
        with pytest.raises(RemoteError, match="not found"):
            await room.read_resource("shop://nothing", "shop")
        assert sorted(prompt.name for prompt in room.prompts()) == ["shop_greet", "shop_sell"]
        said = await room.get_prompt("shop_sell", {"item": "hats"})
        assert said.messages[0]["content"]["text"] == "Sell hats"
        async with room.subscribe("shop://hours") as updates:
            shop.change_resource("shop://hours", "closed")
            assert (await anext(updates))["uri"] == "shop://hours"
        assert (await room.read_resource("shop://hours")).text == "closed"
    async with fake_room({"bare": FakeServer()}) as room:
        await room.connect("bare")
        assert (room.resources(), room.prompts()) == ((), ())


@in_virtual_time
async def test_a_room_of_fakes_takes_entries_settings_and_options() -> None:
    shop, slow = FakeServer(call_latency=HANG), FakeServer(call_latency=HANG)
    said: list[Any] = []

    entries = {"shop": {"requestTimeoutMs": 2_000}}
    async with fake_room(
        {"shop": shop, "slow": slow},
        entries=entries,
        settings={"requestTimeoutMs": 5_000},
        on_notification=lambda *heard: said.append(heard[1]),
    ) as room:
        for name, seconds in (("shop", 2.0), ("slow", 5.0)):
            await room.connect(name)
            began = anyio.current_time()
            with pytest.raises(CallError, match="did not answer"):
                await room.call(f"{name}_echo")
            assert anyio.current_time() - began == pytest.approx(seconds)
        shop.announce_tools()
        assert said == ["notifications/tools/list_changed"]


CRASH = Fault("call", "crash")


@for_each(
    ("make", "told"),
    [
        (lambda: FaultScript.of(cast("Any", "crash")), r"like FaultScript\.of\(Fault\(.*, not str"),
        (lambda: FakeServer(script=cast("Any", [CRASH])), r"like FaultScript\.of\(Fault.*, got list"),
        (lambda: FakeServer(script=cast("Any", CRASH)), r"like FaultScript\.of\(Fault.*, got Fault"),
        (lambda: FakeServer(tools=cast("Any", ["order"])), r"tools=\[tool\('order'\)\]"),
        (
            lambda: fake_room({"shop": cast("Any", FakeServer)}),
            r'"shop" must be a FakeServer, like FakeServer\(',
        ),
        (lambda: fake_connectors({"shop": cast("Any", None)}), r'"shop" must be a FakeServer'),
    ],
)
def test_what_is_no_fake_is_told_where_it_is_made(make: Callable[[], object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()


@in_virtual_time
async def test_a_handler_that_forgets_its_answer_is_told_so() -> None:
    shop = FakeServer(handler=cast("Any", lambda _: None))
    async with fake_room({"shop": shop}) as room:
        with pytest.raises(CallError, match="it returned None in place of a result or a text") as caught:
            await room.call("shop_echo")
    assert shop.raised == [caught.value.__cause__]
