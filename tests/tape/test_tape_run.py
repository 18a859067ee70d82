"""What was called in a run, as a program without pytest asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time

from greenroom import Greenroom
from greenroom.errors import CallError, CallTimeout, Unavailable, UnknownTool
from greenroom.testing import FakeServer, TapeRun, fake_room, tool

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("shop_look", {"item": "hat", "of": {"sizes": [1, 2]}}),
    ("shop_order", {"item": "hat"}),
    ("shop_order", {"item": "coat"}),
    ("shop_pay", {}),
]


async def replayed(folder: Path) -> TapeRun:
    """A run that makes the recorded calls, one that is not on the tape, and one of a tool that there is not."""
    place, tools = folder / "shop.tape", [tool(name) for name in ("look", "order", "pay", "cancel")]
    async with fake_room({"shop": FakeServer(tools=tools)}, record=place) as room:
        for name, arguments in CALLS:
            await room.call(name, arguments)
    async with Greenroom.replay(place) as room:
        for name, arguments in CALLS:
            given = dict(arguments)
            await room.call(name, given)
            given["item"] = "changed after the call"
        with pytest.raises(CallError):
            await room.call("shop_pay", {"twice": True})
        with pytest.raises(UnknownTool):
            await room.call("shop_steal", {})
        assert room.tape is not None
        return room.tape


@in_virtual_time
async def test_plain_lists_say_what_was_called(tmp_path: Path) -> None:
    run = await replayed(tmp_path)
    assert run.made == [*CALLS, ("shop_pay", {"twice": True})]
    assert run.calls("shop_order") == [{"item": "hat"}, {"item": "coat"}]
    assert run.called_once("shop_look") == CALLS[0][1]
    run.never_called("shop_cancel")
    run.before("shop_look", "shop_order")
    assert [params["arguments"] for _, _, params in run.refused] == [{"twice": True}]
    assert run.untaken == []


@in_virtual_time
async def test_a_call_by_which_a_circuit_breaker_tries_its_server_counts_too(tmp_path: Path) -> None:
    place, settings = (
        tmp_path / "shop.tape",
        {"failureThreshold": 2, "cooldownMs": 1000, "requestTimeoutMs": 300},
    )
    orders = [("shop_order", {"n": number}) for number in range(3)]
    async with fake_room(
        {"shop": FakeServer(tools=[tool("order")])}, record=place, settings=settings
    ) as room:
        for name, arguments in orders:
            await room.call(name, arguments)
    faults = ["shop call 1: drop answer", "shop call 2: drop answer"]
    async with Greenroom.replay(place, faults=faults) as room:
        for name, arguments in orders[:2]:
            with pytest.raises(CallTimeout):
                await room.call(name, arguments)
        with pytest.raises(Unavailable):
            await room.call(*orders[2])
        await anyio.sleep(2)
        await room.call(*orders[2])
        assert room.tape is not None
        assert room.tape.made == orders


@in_virtual_time
async def test_an_assertion_that_fails_tells_what_was_called(tmp_path: Path) -> None:
    run = await replayed(tmp_path)
    third = r'\n  3\. shop_order {"item":"coat"}\n'
    for check, words in [
        (lambda: run.called_once("shop_order"), "shop_order was called 2 times, not once"),
        (lambda: run.called_once("shop_cancel"), "shop_cancel was called 0 times, not once"),
        (lambda: run.never_called("shop_cancel", "shop_pay"), "shop_pay was called"),
        (lambda: run.before("shop_order", "shop_look"), "shop_look was called before shop_order"),
        (lambda: run.before("shop_look", "shop_cancel"), "shop_cancel was not called"),
    ]:
        with pytest.raises(AssertionError, match=f"^{words}. Calls of this run:(.|\n)*{third}"):
            check()


@in_virtual_time
async def test_of_a_tool_that_there_is_not_nothing_is_asserted(tmp_path: Path) -> None:
    run = await replayed(tmp_path)
    for check in (
        lambda: run.never_called("shop_cancell"),
        lambda: run.called_once("shop_cancell"),
        lambda: run.before("shop_cancell", "shop_look"),
    ):
        with pytest.raises(AssertionError, match=r"There is no tool shop_cancell, .*There is: shop_cancel"):
            check()


@in_virtual_time
async def test_of_a_server_that_never_ran_nobody_knows_the_tools(tmp_path: Path) -> None:
    place = tmp_path / "two.tape"
    servers = {name: FakeServer(tools=[tool("get")]) for name in ("a", "b")}
    async with fake_room(servers, record=place) as room:
        await room.call("a_get", {})
    async with Greenroom.replay(place, bootstrap=False) as room:
        await room.call("a_get", {})
        assert room.tape is not None
        room.tape.never_called("b_drop_all")


@in_virtual_time
async def test_what_is_no_longer_kept_is_not_asserted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.tape.tape_run.MOST", 3)
    run = await replayed(tmp_path)
    with pytest.raises(AssertionError, match="more than 3 calls"):
        run.never_called("shop_cancel")
