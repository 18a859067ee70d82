"""What is answered from a tape although the agent has not done what was done on it: that is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time

from greenroom import CallError, Greenroom
from greenroom.testing import FakeServer, fake_room, tool

TOOLS = [tool("find", annotations={"readOnlyHint": True}), tool("add"), tool("ask")]
FIND, ADD = ("shop_find", {}), ("shop_add", {"item": "milk"})
TOO_EARLY = (
    "Answered too early: shop_find with {}, with call #3. That was read after call #2, shop_add with "
    '{"item":"milk"}, which has not been made.'
)


def shop() -> FakeServer:
    """With a list of things, which one of the tools asks its client for."""
    state: list[str] = []

    async def handler(call: Any) -> str:
        if call.tool == "add":
            state.append(call["item"])
        if call.tool == "ask":
            return str(await call.elicit("Which hat?"))
        return str(state)

    return FakeServer(tools=TOOLS, handler=handler, call_latency=1.0)


async def recorded(folder: Path, calls: Sequence[Any], **options: Any) -> Path:
    """One after another. Those of a list in it are made at once."""
    tape = folder / "shop.tape"
    async with fake_room({"shop": shop()}, record=tape, **options) as room:
        await make(room, calls)
    return tape


async def make(room: Greenroom, calls: Sequence[Any]) -> None:
    for one in calls:
        async with anyio.create_task_group() as tasks:
            for name, arguments in one if isinstance(one, list) else [one]:
                tasks.start_soon(room.call, name, arguments)


async def differences(tape: Path, calls: Sequence[Any], **options: Any) -> list[str]:
    async with Greenroom.replay(tape, bootstrap=False, **options) as room:
        assert room.tape is not None
        await make(room, calls)
        return room.tape.differences


@in_virtual_time
async def test_a_read_that_is_answered_with_what_a_missing_write_did_is_told(tmp_path: Path) -> None:
    tape = await recorded(tmp_path, [FIND, ADD, FIND, ADD, FIND])
    assert await differences(tape, [FIND, ADD, FIND, ADD, FIND]) == []
    assert await differences(tape, [FIND, FIND]) == [TOO_EARLY]
    assert await differences(tape, [FIND, FIND, FIND, ADD, ADD]) == [TOO_EARLY], "a write is told once"
    assert await differences(tape, [FIND, FIND], strict=False) == [TOO_EARLY]
    assert len(await differences(tape, [FIND, ADD, FIND, FIND])) == 1
    assert await differences(tape, [FIND, ADD, ADD, FIND]) == []


@in_virtual_time
async def test_what_was_recorded_at_once_may_come_in_any_order(tmp_path: Path) -> None:
    tape = await recorded(tmp_path, [[ADD, FIND], FIND])
    assert await differences(tape, [FIND, ADD, FIND]) == []


@in_virtual_time
async def test_a_write_that_a_fault_has_kept_from_its_answer_counts_as_made(tmp_path: Path) -> None:
    tape = await recorded(tmp_path, [FIND, ADD, FIND])
    for fault in ("shop call 2: crash", "shop call 2: refuse text=no", "shop call 2: drop answer"):
        async with Greenroom.replay(tape, bootstrap=False, faults=[fault]) as room:
            assert room.tape is not None
            await make(room, [FIND])
            with pytest.raises(CallError):
                await room.call(*ADD)
            await make(room, [FIND])
            assert room.tape.differences == room.tape.refused == room.tape.unplayed == []


ACCEPTS = {"action": "accept", "content": {"size": 7, "color": "red"}}
DECLINES = {"action": "decline"}


@pytest.mark.parametrize(
    ("was", "now", "how"),
    [
        (ACCEPTS, ACCEPTS, None),
        (None, None, None),
        (ACCEPTS, DECLINES, '"decline", and was "accept"'),
        (ACCEPTS, None, 'refused, and was "accept"'),
        (None, ACCEPTS, '"accept", and was refused'),
        (ACCEPTS, {"action": "accept", "content": {"size": 8, "color": "red"}}, "other content (size)"),
        (ACCEPTS, {"action": "accept", "content": {"size": 7}}, "other content (color)"),
    ],
)
@in_virtual_time
async def test_a_question_of_a_server_that_is_answered_otherwise_is_told(
    tmp_path: Path, was: Any, now: Any, how: str | None
) -> None:
    def answering(answer: Any) -> dict[str, Any]:
        async def answers(_request: Any) -> Any:
            return answer

        return {} if answer is None else {"on_elicitation": answers}

    asks = [("shop_ask", {})]
    async with fake_room({"shop": shop()}, record=tmp_path / "shop.tape", **answering(was)) as room:
        try:
            await room.call("shop_ask", {})
        except CallError:
            assert was is None
    tape = tmp_path / "shop.tape"
    async with Greenroom.replay(tape, bootstrap=False, **answering(now)) as room:
        assert room.tape is not None
        try:
            await make(room, asks)
        except ExceptionGroup:
            assert was is None, "it ends as recorded"
        told = room.tape.differences
    begin = "Answered otherwise than on the tape: elicitation/create of call #1, shop_ask with {}: "
    assert told == ([] if how is None else [f"{begin}{how}."])
    if how == "other content (size)":
        assert await differences(tape, asks, ignore=["size"], **answering(now)) == []


@in_virtual_time
async def test_stars_of_an_agent_are_no_secret_that_was_cut_out(tmp_path: Path) -> None:
    tape = tmp_path / "shop.tape"
    async with fake_room({"shop": shop()}, record=tape, redact=["pin"]) as room:
        for arguments in ({"item": "***"}, {"item": "[REDACTED]"}, {"item": "hat ***", "pin": 4711}):
            await room.call("shop_add", arguments)
    async with Greenroom.replay(tape, bootstrap=False) as room:
        with pytest.raises(CallError, match="Not on the tape: shop_add"):
            await room.call("shop_add", {"item": "something else"})
        await room.call("shop_add", {"item": "[REDACTED]"})
        await room.call("shop_add", {"item": "***"})
        await room.call("shop_add", {"item": "hat ***", "pin": 5813})
        assert room.tape is not None
        assert room.tape.untaken == []
