"""`explore_tape`: what an agent in this program does under each single fault of a tape, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run_virtual

from greenroom import CallError, Greenroom, Reach, UsageError
from greenroom.testing import FakeServer, explore_tape, fake_room, tool


async def persistent(room: Greenroom) -> None:
    """It tries three times, whatever it is."""
    for name in ("shop_look", "shop_order"):
        for attempt in range(3):
            try:
                await room.call(name, {"item": "hat"})
                break
            except CallError:
                if attempt == 2:
                    raise
                await anyio.sleep(30)


async def careful(room: Greenroom) -> None:
    """It tries again only what has certainly not run."""
    for name in ("shop_look", "shop_order"):
        for _ in range(3):
            try:
                await room.call(name, {"item": "hat"})
                break
            except CallError as error:
                if error.reach is Reach.SENT and name == "shop_order":
                    return
                await anyio.sleep(30)


async def hasty(room: Greenroom) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.call, "shop_look", {"item": "hat"})
        tasks.start_soon(room.call, "shop_order", {"item": "hat"})


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "shop.tape"

    async def main() -> None:
        tools = [tool("look", annotations={"readOnlyHint": True}), tool("order")]
        async with fake_room({"shop": FakeServer(tools=tools)}, record=path) as room:
            for name in ("look", "order"):
                await room.call(f"shop_{name}", {"item": "hat"})

    run_virtual("trio", main)
    return path


def verdicts(tape: Path, agent: Any, **options: Any) -> dict[str, str]:
    """By fault: what became of it."""
    explored = explore_tape(tape, agent, **options)
    return {one.trial.fault: one.cell for one in explored.tried}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_who_asks_again_and_who_does_not(tape: Path, backend: str) -> None:
    stubborn = verdicts(tape, persistent, backend=backend)
    assert [fault for fault, cell in stubborn.items() if "again" in cell] == [
        "shop call 2: crash after sent",
        "shop call 2: drop answer",
        "shop call 2: delay seconds=120",
        "shop call 2: hang",
    ]
    assert stubborn["shop call 1: hang"] == "✗ failed", "to ask again does not help"
    assert stubborn["shop start: crash"] == "✗ failed"
    assert stubborn['shop call 1: refuse text="It did not work."'] == "✓ survived"
    wise = verdicts(tape, careful, backend=backend)
    assert not any("again" in cell or "failed" in cell for cell in wise.values())
    assert wise["shop call 2: drop answer"] == "○ gave up a call"
    assert wise["shop call 2: crash before sent"] == "✓ survived"


def test_an_error_of_one_task_is_told_with_its_words(tape: Path) -> None:
    explored = explore_tape(tape, hasty, runs=2)
    assert explored.left_out == 11
    (crash_before, crash_after) = explored.tried
    assert (crash_before.cell, crash_after.cell) == ("✗ failed", "✗ failed"), "the order was in flight"
    told = str(explore_tape(tape, hasty))
    assert "#2 shop_order, error: failed, RemoteError: " in told
    assert "It did not work." in told
    fault = 'shop call 2: refuse text="It did not work."'
    assert f"Greenroom.replay({str(tape)!r}, faults=[{fault!r}])" in told, "what repeats it"


def test_a_tool_that_only_reads_may_be_asked_again(tape: Path) -> None:
    assert not any("again" in cell for cell in verdicts(tape, persistent, reads=["shop_order"]).values())
    with pytest.raises(
        UsageError, match=r'shop_ordr was never called on the tape. Did you mean "shop_order"?'
    ):
        explore_tape(tape, persistent, reads=["shop_ordr"])


def test_an_agent_sees_the_tools_that_it_sees_in_life(tape: Path) -> None:
    seen: list[list[str]] = []

    async def curious(room: Greenroom) -> None:
        await room.catalogued()
        seen.append(sorted(each.name for each in room.tools()))
        await careful(room)

    explore_tape(tape, curious)
    assert seen == [*[["shop_look", "shop_order"]] * 13, []], "the last one never starts"


def test_an_agent_that_never_ends_has_failed(tape: Path) -> None:
    async def patient(room: Greenroom) -> None:
        for name in ("shop_look", "shop_order"):
            while True:
                try:
                    await room.call(name, {"item": "hat"})
                    break
                except CallError:
                    await anyio.sleep(1)

    explored = explore_tape(tape, patient, time_limit=1000)
    assert [one.trial.fault for one in explored.tried if one.why] == ["shop start: crash"]
    assert "did not end within 1,000 virtual seconds, which do not wait for threads" in explored.tried[-1].why
    assert not explored.is_good


def test_what_would_show_nothing_is_refused(tape: Path) -> None:
    async def lazy(room: Greenroom) -> None:
        await room.call("shop_look", {"item": "hat"})

    async def broken(room: Greenroom) -> None:
        raise RuntimeError("no model")

    with pytest.raises(UsageError, match=r"the first that it did not get: shop_order \{"):
        explore_tape(tape, lazy)
    with pytest.raises(UsageError, match="the agent failed: RuntimeError: no model"):
        explore_tape(tape, broken)
    with pytest.raises(UsageError, match='Did you mean "shop"'):
        explore_tape(tape, persistent, only=["shp"])

    async def within() -> None:
        explore_tape(tape, persistent)

    with pytest.raises(UsageError, match="call explore from a plain function"):
        anyio.run(within)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (
            '"params":{"name":"order","arguments":{"item":"hat"}}',
            '"params":["order"]',
            "Not on the tape: shop_order",
        ),
        ('"requestTimeoutMs":', '"requestTimeoutMs":"soon","as":', "the agent failed: ConfigError"),
        ('"mcpServers":{', '"mcpServers":{"other":5,', "another form"),
    ],
)
def test_an_odd_tape_is_refused_with_what_is_odd(tape: Path, was: str, now: str, why: str) -> None:
    text = tape.read_text()
    assert was in text
    tape.write_text(text.replace(was, now))
    with pytest.raises(UsageError, match=why):
        explore_tape(tape, persistent)
