"""A failed exploration is told as a sequence diagram that Mermaid can draw."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from greenroom.testing import explore
from greenroom.testing.sequence_diagram import NEAR, TaskStep, mermaid


async def race() -> None:
    came: list[str] = []

    async def come(name: str, steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        came.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come, "ann", 4, name="ann")
        tasks.start_soon(come, "bob", 5, name="bob")
    assert came == ["ann", "bob"], "bob; came #first"


@pytest.mark.parametrize(
    ("backend", "options", "decided"),
    [
        ("trio", {}, "is held until the others wait"),
        ("asyncio", {}, "is held until the others wait"),
        ("trio", {"cancel": ["ann"]}, "is cancelled"),
    ],
)
def test_a_failure_is_drawn_with_its_tasks_and_what_was_decided(
    backend: str, options: dict[str, Any], decided: str
) -> None:
    failure = explore(race, backend=backend, raises=False, **options).failure
    assert failure is not None
    lines = [line.strip() for line in failure.diagram.splitlines()]
    assert lines[:4] == [
        "sequenceDiagram",
        "participant turns as the loop",
        "participant t0 as ann",
        "participant t1 as bob",
    ]
    assert f"Note over t0: {decided}" in lines
    assert lines[-1].startswith("Note over turns: AssertionError - bob, came no. first")
    assert failure.diagram in "\n".join(failure.error.__notes__)
    again = explore(race, replay=failure.schedule, raises=False).failure
    assert again is not None
    assert again.diagram == failure.diagram


def test_a_long_run_is_cut_to_what_is_near_a_deviation_and_the_end() -> None:
    steps = [TaskStep(name) for _ in range(200) for name in ("ann", "bob")]
    steps.insert(100, TaskStep("ann", "is cancelled"))
    drawn = mermaid(steps, "it failed")
    arrows = sum("->>" in line for line in drawn.splitlines())
    assert arrows <= 3 * NEAR
    left_out = sum(int(line.split()[3]) for line in drawn.splitlines() if "in the default order" in line)
    assert left_out + arrows == 400


def test_no_text_ends_a_statement_or_breaks_the_line() -> None:
    drawn = mermaid([TaskStep("an; odd\n#name"), TaskStep("b", "x" * 500)], "first\nsecond; third: #4")
    assert len(drawn.splitlines()) == 7
    assert not {";", "#"} & {*drawn}
    assert max(map(len, drawn.splitlines())) < 130
