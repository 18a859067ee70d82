"""A race that an exploration has found is on a tape: the code that had it fails with the tape again, and mended code
does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from greenroom import CallError, Greenroom, UsageError
from greenroom.cli.main import run as command
from greenroom.tape.tape_reader import read_tape
from greenroom.testing import FakeServer, World, explore, exploring, fake_room, tool

Program = Callable[[Greenroom], Awaitable[object]]


class Account:
    """What is drawn is paid out by a server."""

    def __init__(self, room: Greenroom) -> None:
        self.room = room
        self.balance = 10

    async def racy(self, amount: int) -> None:
        """It looks, asks somebody, and takes."""
        if self.balance >= amount:
            await self.room.call("bank_pay", {"amount": amount})
            self.balance -= amount

    async def mended(self, amount: int) -> None:
        """It takes before it asks."""
        if self.balance >= amount:
            self.balance -= amount
            await self.room.call("bank_pay", {"amount": amount})

    async def two_draw(self, draw: Callable[[int], Awaitable[None]]) -> None:
        async def first() -> None:
            await draw(10)

        async def later() -> None:
            for _ in range(40):
                await anyio.lowlevel.checkpoint()
            await draw(10)

        with exploring():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
                tasks.start_soon(later)
        assert self.balance == 0, f"{self.balance} are left of 10"


async def racy(room: Greenroom) -> None:
    account = Account(room)
    await account.two_draw(account.racy)


async def mended(room: Greenroom) -> None:
    account = Account(room)
    await account.two_draw(account.mended)


def with_bank(program: Program) -> Callable[[], Awaitable[None]]:
    async def scenario() -> None:
        async with fake_room({"bank": FakeServer(tools=[tool("pay")])}) as room:
            await room.connect("bank")
            await program(room)

    return scenario


def over(tape: Path, program: Program) -> Callable[[], Awaitable[None]]:
    """The same without the bank."""

    async def scenario() -> None:
        async with Greenroom.replay(tape, bootstrap=False) as room:
            await room.connect("bank")
            await program(room)

    return scenario


def found(folder: Path, backend: str) -> tuple[Path, str]:
    """The tape of the race, and its schedule."""
    assert explore(with_bank(racy), backend=backend, deviations=0).exhausted, "it is no race"
    explored = explore(with_bank(racy), backend=backend, record=folder, raises=False)
    assert explored.failure is not None, explored
    (tape,) = folder.glob("*.tape")
    assert explored.failure.tape == tape
    assert any(f'explore(..., replay="{tape}")' in note for note in explored.failure.error.__notes__)
    return tape, explored.failure.schedule


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_tape_fails_again_on_the_code_that_had_the_race_and_not_on_the_mended(
    tmp_path: Path, backend: str
) -> None:
    tape, schedule = found(tmp_path / "races", backend)
    with pytest.raises(AssertionError, match="-10 are left of 10"):
        explore(with_bank(racy), replay=tape)
    again = explore(with_bank(racy), replay=tape, raises=False)
    assert again.failure is not None
    assert (again.runs, again.failure.schedule) == (1, schedule), "it is the same run"
    with pytest.raises(AssertionError, match="-10 are left of 10"):
        explore(over(tape, racy), replay=tape)
    for scenario in (with_bank(mended), over(tape, mended)):
        explored = explore(scenario, replay=tape)
        assert explored.exhausted
        assert explored.runs > 10, "what was changed is tried in every order, not in one"


def test_a_cancelled_task_and_a_fault_are_on_the_tape_as_well(tmp_path: Path) -> None:
    async def scenario(bonus: int) -> None:
        async with fake_room({"bank": FakeServer(tools=[tool("pay")])}) as room:
            await room.connect("bank")
            paid = 0

            async def draw() -> None:
                nonlocal paid
                await room.call("bank_pay", {"amount": 10})
                paid += 10

            with exploring():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(draw, name="draw")
        assert paid + bonus >= 10

    faults = {"rich": 10, "poor": 0}
    with pytest.raises(AssertionError):
        explore(scenario, faults=faults, cancel="draw", deviations=0, record=tmp_path)
    (tape,) = tmp_path.glob("*.tape")
    again = explore(scenario, faults=faults, replay=tape, raises=False)
    assert again.failure is not None
    assert again.failure.schedule.startswith("trio/cancel=draw@")
    assert again.failure.schedule.endswith("/fault=poor")
    with pytest.raises(UsageError, match="names a fault that is not given; given: rich"):
        explore(scenario, faults={"rich": 10}, replay=tape)


def test_such_a_tape_is_told_and_others_are_no_schedules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape, schedule = found(tmp_path / "races", "trio")
    assert command(["tape", str(tape)]) == 0
    told = capsys.readouterr().out
    assert f"It is the run {schedule} of an exploration, which failed." in told
    assert told.count("bank_pay") == 2

    async def recorded() -> None:
        bank: Any = {"bank": FakeServer(tools=[tool("pay")])}
        async with fake_room(bank, record=tmp_path / "plain.tape") as room:
            await room.call("bank_pay", {})

    anyio.run(recorded)
    with pytest.raises(UsageError, match="is not of an exploration"):
        explore(with_bank(racy), replay=tmp_path / "plain.tape")
    with pytest.raises(UsageError, match="There is no tape"):
        explore(with_bank(racy), replay="nowhere.tape")


def test_a_folder_that_cannot_be_written_is_no_failure_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "races").write_text("a file")
    with pytest.raises(UsageError, match="No tape can be recorded"):
        explore(with_bank(racy), record=tmp_path / "races")


def test_a_race_without_a_room_is_told_without_a_tape(tmp_path: Path) -> None:
    async def scenario() -> None:
        came: list[str] = []

        async def come(name: str) -> None:
            came.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come, "ann")
            tasks.start_soon(come, "bob")
        assert came == ["ann", "bob"]

    explored = explore(scenario, record=tmp_path, raises=False)
    assert explored.failure is not None
    assert explored.failure.tape is None
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_a_search_is_recorded_with_what_happened_to_its_servers(tmp_path: Path) -> None:
    tape = tmp_path / "trace.tape"
    world = World({"notes": {}}, seed=7, record=tape)
    try:
        world.call("notes", count=2)
        world.faults.slow_down("notes", "call", 5.0)
        world.call("notes")
        world.faults.lose("notes")
        world.advance(1.0)
        world.close()
    finally:
        world.run.close()
    assert [call.outcome for call in read_tape(tape).calls] == ["result", "result", "call_failed"]

    async def replayed() -> None:
        async with Greenroom.replay(tape, bootstrap=False) as room:
            for number in range(2):
                await room.call("notes_echo", {"n": number, "who": None})
            with pytest.raises(CallError, match="was lost"):
                await room.call("notes_echo", {"n": 2, "who": None})

    anyio.run(replayed)
