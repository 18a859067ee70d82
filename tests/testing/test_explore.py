"""Exploration finds what one order shows, says exactly how to repeat it, and runs everything within its bounds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio._core._run as trio_run
from tests.support import run_virtual
from tests.support.rows import for_each
from trio.testing import MockClock

from greenroom.protocol.errors import UsageError
from greenroom.testing import (
    Exploration,
    NotRepeatableError,
    ScheduleError,
    StuckError,
    explore,
    exploring,
    seed_schedule,
)
from greenroom.testing.exploration import Choices, RunPlan, parse_plan

checkpoint = anyio.lowlevel.checkpoint
Scenario = Callable[[], Coroutine[Any, Any, object]]


async def together(*bodies: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(body, name=getattr(body, "func", body).__name__)


def by_chance(scenario: Scenario, seeds: int = 50) -> None:
    """The scenario holds in the orders that follow from some seeds."""
    for seed in range(seeds):
        seed_schedule(seed)
        trio.run(scenario, clock=MockClock(autojump_threshold=0))


def found(scenario: Scenario, backend: Any, **options: Any) -> str:
    """The schedule that was found. It fails again."""
    explored = explore(scenario, backend=backend, raises=False, **options)
    assert explored.failure is not None, explored
    assert not explored.exhausted
    again = explore(scenario, replay=explored.failure.schedule, raises=False)
    assert again.failure is not None
    assert (again.runs, again.failure.schedule) == (1, explored.failure.schedule)
    assert type(again.failure.error) is type(explored.failure.error)
    return explored.failure.schedule


# ---- it finds what others miss -------------------------------------------------------------------------------------


async def two_withdrawals() -> None:
    """Looks, asks somebody, and takes. The second one comes when the first is long done, unless that one is slow."""
    balance = 10

    async def withdraw(turns: int) -> None:
        nonlocal balance
        for _ in range(turns):
            await checkpoint()
        if balance >= 10:
            await checkpoint()
            balance -= 10

    await together(partial(withdraw, 0), partial(withdraw, 4))
    assert balance == 0


async def connections_that_are_accepted() -> None:
    """Whoever is cancelled between accepting and serving forgets to close."""
    is_open = 0
    send, receive = anyio.create_memory_object_stream[str](1)

    async def server() -> None:
        nonlocal is_open
        await receive.receive()
        is_open += 1
        await anyio.sleep(1)  # who is it?
        is_open -= 1

    async def client() -> None:
        await anyio.sleep(5)
        await send.send("hello")

    with send, receive:
        await together(server, client)
    assert is_open == 0


async def two_locks() -> None:
    """One takes them in the other order, later."""
    one, other = anyio.Lock(), anyio.Lock()

    async def forwards() -> None:
        async with one, other:
            await checkpoint()

    async def backwards() -> None:
        for _ in range(6):
            await checkpoint()
        async with other, one:
            await checkpoint()

    await together(forwards, backwards)


async def one_order_of_four() -> None:
    """Of all orders in which four tasks run within a turn, one is wrong."""
    came: list[int] = []

    async def come(number: int) -> None:
        came.append(number)

    await together(*(partial(come, number) for number in range(4)))
    assert came != [1, 3, 0, 2]


def test_a_check_that_is_too_old_when_it_is_acted_upon(backend: str) -> None:
    by_chance(two_withdrawals)
    run_virtual(backend, two_withdrawals)
    schedule = found(two_withdrawals, backend)
    assert schedule.startswith(f"{backend}:")
    assert schedule.count("=") == 1


def test_what_is_leaked_when_it_is_cancelled_at_one_moment(backend: str) -> None:
    by_chance(connections_that_are_accepted)
    assert explore(connections_that_are_accepted, backend=backend, deviations=2).exhausted
    assert found(connections_that_are_accepted, backend, cancel="server").startswith(
        f"{backend}/cancel=server@"
    )


def test_tasks_that_wait_for_each_other(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenroom.testing.exploration.LOOP_STUCK", 0.05)
    monkeypatch.setattr("greenroom.testing.virtual_time.LOOP_STUCK", 0.05)
    by_chance(two_locks)
    found(two_locks, backend)
    with pytest.raises(StuckError, match="every task waits, and no deadline is set: backwards, forwards"):
        explore(two_locks, backend=backend)


def test_one_order_of_many_needs_as_many_deviations_as_it_takes(backend: str) -> None:
    assert explore(one_order_of_four, backend=backend, deviations=1).exhausted
    assert found(one_order_of_four, backend, deviations=3).count("=") == 2


# ---- everything within the bounds ----------------------------------------------------------------------------------


def _orders(backend: Any, deviations: int, tasks: int = 3) -> tuple[list[str], Exploration]:
    seen: list[str] = []

    async def scenario() -> None:
        came: list[str] = []

        async def come(name: str) -> None:
            came.append(name)
            await checkpoint()
            came.append(name)

        with exploring():
            await together(*(partial(come, name) for name in "abc"[:tasks]))
        seen.append("".join(came))

    return seen, explore(scenario, backend=backend, deviations=deviations)


def test_every_interleaving_is_run(backend: str) -> None:
    seen, explored = _orders(backend, 6)
    assert set(seen) == {"".join(it) for it in itertools.permutations("aabbcc")}
    assert explored.exhausted
    assert explored.runs == len(seen)


def test_the_fewest_deviations_come_first(backend: str) -> None:
    runs = [_orders(backend, deviations, tasks=2)[0] for deviations in range(3)]
    assert len(runs[0]) == 1
    for fewer, more in itertools.pairwise(runs):
        assert more[: len(fewer)] == fewer
        assert len(more) > len(fewer)


def test_it_is_the_same_tree_each_time(backend: str) -> None:
    assert _orders(backend, 2) == _orders(backend, 2)


def test_without_deviations_there_is_one_run(backend: str) -> None:
    seen, explored = _orders(backend, 0)
    assert seen == ["abcabc"]
    assert str(explored) == f"1 runs, 0 deviations, up to {explored.choices} choices each: every one"


def test_each_moment_of_a_task_is_cancelled(backend: str) -> None:
    reached: list[str] = []

    async def scenario() -> None:
        steps = "-"

        async def worker() -> None:
            nonlocal steps
            for step in "abc":
                await checkpoint()
                steps += step

        async def other() -> None:
            for _ in range(5):
                await checkpoint()

        await together(worker, other)
        reached.append(steps)

    explored = explore(scenario, backend=backend, deviations=0, cancel="worker")
    assert explored.exhausted
    assert reached == ["-abc", "-", "-a", "-ab"]


def test_nothing_happens_between_two_moments_of_waiting(backend: str) -> None:
    """While time passes and no task goes on, there is one moment to be cancelled, and not one for each turn."""
    reached: list[float] = []

    async def scenario() -> None:
        async def worker() -> None:
            with anyio.move_on_after(50):
                await anyio.sleep(100)
            await anyio.sleep(100)

        await together(worker)
        reached.append(anyio.current_time())

    explore(scenario, backend=backend, cancel="worker", deviations=0)
    assert reached == [150.0, 0.0, 50.0]


def test_two_tasks_of_one_name_are_cancelled_each_alone(backend: str) -> None:
    ended: list[list[str]] = []

    async def scenario() -> None:
        one_by_one: list[str] = []

        async def worker(name: str) -> None:
            try:
                await anyio.sleep(1)
                one_by_one.append(name)
            finally:
                one_by_one.append(f"/{name}")

        await together(partial(worker, "a"), partial(worker, "b"))
        ended.append(sorted(one_by_one))

    async def named() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 1, name="sleeper")

    explore(scenario, backend=backend, deviations=0, cancel=["worker"])
    assert ended[0] == ["/a", "/b", "a", "b"]
    assert ["/a", "/b", "b"] in ended
    assert ["/a", "/b", "a"] in ended
    assert explore(scenario, replay=f"{backend}/cancel=worker#2@1").runs == 1
    assert ended[-1] == ["/a", "/b", "a"]
    assert explore(named, backend=backend, cancel="sleeper").runs > 1


def test_a_task_that_is_cancelled_before_it_began_is_no_warning() -> None:
    async def scenario() -> None:
        async def late() -> None: ...

        async def worker() -> None:
            await checkpoint()

        task = asyncio.create_task(late())
        task.cancel()
        await together(worker)

    assert explore(scenario, backend="asyncio", cancel="worker").exhausted


def test_each_fault_is_given(backend: str) -> None:
    given: list[str] = []

    async def scenario(fault: str) -> None:
        given.append(fault)
        assert fault != "B"

    faults = {"a": "A", "b": "B", "c": "C"}
    explored = explore(scenario, faults=faults, backend=backend, raises=False)
    assert explored.failure is not None
    assert explored.failure.schedule == f"{backend}/fault=b"
    assert given == ["A", "B", "B"], "what has failed is run twice"
    assert explore(scenario, faults=faults, replay=f"{backend}/fault=c").exhausted
    with pytest.raises(UsageError, match="names a fault that is not given; given: a, b, c"):
        explore(scenario, faults=faults, replay=f"{backend}/fault=d")


def test_a_held_task_goes_on_though_another_one_never_waits(backend: str) -> None:
    async def scenario() -> None:
        is_over = False

        async def spin() -> None:
            while not is_over:
                await checkpoint()

        async def end() -> None:
            nonlocal is_over
            await checkpoint()
            is_over = True

        await together(spin, end)

    assert explore(scenario, backend=backend).exhausted


def test_time_does_not_pass_while_a_task_is_held(backend: str) -> None:
    async def scenario() -> None:
        async def now() -> None:
            await checkpoint()
            assert anyio.current_time() == 0.0

        await together(now, partial(anyio.sleep, 3_600), now)
        assert anyio.current_time() == 3_600.0

    assert explore(scenario, backend=backend, deviations=2).exhausted


def test_only_what_is_marked_is_explored(backend: str) -> None:
    async def scenario(*, marked: bool) -> None:
        async def work() -> None:
            await checkpoint()

        await together(work, work, work)
        if marked:
            with exploring():
                await together(work, work)
        await together(work, work, work)

    all_of_it = explore(partial(scenario, marked=False), backend=backend, cancel="work")
    some_of_it = explore(partial(scenario, marked=True), backend=backend, cancel="work")
    assert some_of_it.runs < all_of_it.runs / 3
    run_virtual(backend, partial(scenario, marked=True))


# ---- limits --------------------------------------------------------------------------------------------------------


def test_a_limit_is_told(backend: str) -> None:
    explored = explore(two_withdrawals, backend=backend, deviations=0, runs=1)
    assert explored.exhausted
    explored = explore(one_order_of_four, backend=backend, deviations=1, runs=5)
    assert (explored.runs, explored.exhausted) == (5, False)
    assert explored.cut == "cut at the limit of 5 runs, within 1 deviations"
    assert str(explored).endswith(explored.cut)
    explored = explore(one_order_of_four, backend=backend, deviations=1, choices=2)
    assert explored.cut == "choices after the first 2 of a run were left alone"
    assert (explored.choices, explored.exhausted) == (2, False)


def test_tasks_without_end_are_found(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenroom.testing.exploration.TOO_LONG", 500)

    async def spin() -> None:
        while True:
            await checkpoint()

    with pytest.raises(StuckError, match="tasks run without end"):
        explore(spin, backend=backend)


def test_what_cannot_be_ended_is_an_error_and_no_hang(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenroom.testing.exploration.LOOP_STUCK", 0.02)
    monkeypatch.setattr("greenroom.testing.virtual_time.LOOP_STUCK", 0.02)

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

    with pytest.raises((StuckError, trio.TrioInternalError), match=r"cannot be cancelled|internal error"):
        explore(stubborn, backend=backend)
    monkeypatch.setattr("sys.unraisablehook", lambda *_: None)  # what is left of the loop complains
    gc.collect()


def test_a_task_that_outlives_its_scenario_is_found() -> None:
    async def scenario() -> None:
        asyncio.create_task(asyncio.sleep(60), name="left")  # noqa: RUF006

    with pytest.raises(AssertionError, match="tasks outlive the scenario: left"):
        explore(scenario, backend="asyncio")


# ---- how it is told ------------------------------------------------------------------------------------------------


def test_a_failure_is_raised_with_all_that_repeats_it(backend: str) -> None:
    with pytest.raises(AssertionError) as caught:
        explore(two_withdrawals, backend=backend)
    (note,) = caught.value.__notes__
    schedule = found(two_withdrawals, backend)
    assert note.startswith(f"schedule: {schedule}  (run ")
    assert "withdraw is held until the others wait" in note
    assert f'explore(..., replay="{schedule}")' in note


def test_pytests_own_outcomes_are_failures_and_an_interrupt_is_not(backend: str) -> None:
    async def fails() -> None:
        pytest.fail("no")

    async def ends(error: type[BaseException]) -> None:
        raise error

    with pytest.raises(pytest.fail.Exception) as caught:
        explore(fails, backend=backend)
    assert caught.value.__notes__
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error) as ended:
            explore(partial(ends, error), backend=backend)
        assert not hasattr(ended.value, "__notes__")


def test_a_scenario_that_is_not_the_same_each_time_is_an_error(backend: str) -> None:
    runs = itertools.count()

    async def grows() -> None:
        async def work() -> None: ...

        await together(*[work] * (3 + next(runs) % 2))

    async def swaps() -> None:
        names = ["ab", "ba"] if next(runs) % 2 else ["ba", "ab"]
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(checkpoint, name=name)

    async def fails_once() -> None:
        await together(checkpoint, checkpoint)
        assert next(runs) != 2

    with pytest.raises(NotRepeatableError, match=r"did not repeat what .* had done before"):
        explore(grows, backend=backend)
    with pytest.raises(NotRepeatableError, match="did not repeat"):
        explore(swaps, backend=backend)
    runs = itertools.count()
    with pytest.raises(NotRepeatableError, match="when it was run again"):
        explore(fails_once, backend=backend)


@for_each(
    ("replay", "said"),
    [
        ("trio:99=1", "there are . choices, and no choice 99"),
        ("trio:0=9", "choice 0 has . ways, and no way 9"),
        ("trio/cancel=withdraw@99", "withdraw lives for . turns, and not for 99"),
        ("trio/cancel=nobody@1", "nobody lives for 0 turns"),
        ("curio:1=1", "is not a backend"),
        ("trio:x", "is not a schedule"),
        ("trio/fault=dies", "names a fault that is not given; given: none"),
    ],
)
def test_a_schedule_of_something_else_is_refused(replay: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        explore(two_withdrawals, replay=replay)


def test_what_cannot_be_meant_is_refused() -> None:
    async def inside() -> None:
        explore(two_withdrawals)

    with pytest.raises(UsageError, match=r"No task is called 'teller'; there are: .*withdraw"):
        explore(two_withdrawals, cancel="teller")
    for backend in ("trio", "asyncio"):
        with pytest.raises(UsageError, match=f"{backend} runs already: call explore from a plain function"):
            run_virtual(backend, inside)
    with pytest.raises(UsageError, match="cannot be part of a schedule"):
        explore(two_withdrawals, cancel="a/b")
    with pytest.raises(UsageError, match="is not a backend"):
        explore(two_withdrawals, backend="curio")


@for_each(
    "text",
    [
        "trio",
        "trio:0=1",
        "asyncio:3=1,12=20",
        "trio:1=1/cancel=a.b#2@7/fault=dies at once",
        "asyncio/cancel=w@1",
    ],
)
def test_a_schedule_is_its_text(text: str) -> None:
    assert str(parse_plan(text)) == text


@for_each(
    ("picks", "order"),
    [
        ((), "abcd"),
        (((1, 1),), "bcda"),
        (((1, 3),), "dabc"),
        (((1, 1), (2, 2)), "bacd"),
        (((0, 1),), "bcd"),
        (((0, 4),), "abc"),
        (((0, 4), (1, 1)), "bc"),
        (((0, 1), (1, 0), (2, 2)), "dbc"),
    ],
)
def test_what_a_choice_means(picks: tuple[tuple[int, int], ...], order: str) -> None:
    choices = Choices(RunPlan("trio", picks), [], 100)
    assert "".join(choices.order("abcd", "abcd")) == order
    assert len(choices.told) == sum(pick > 0 for _, pick in picks)
    left = [name for name in "abcd" if name not in order]
    assert choices.order(left, left) == left, "nobody else is left, so it goes on"


# ---- around it -----------------------------------------------------------------------------------------------------


def test_nothing_stays_changed(backend: str) -> None:
    random.seed(5)
    drawn = random.random()
    random.seed(5)
    before = trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING, gc.isenabled()
    explore(one_order_of_four, backend=backend)
    assert (trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING, gc.isenabled()) == before
    assert random.random() == drawn


def test_chance_is_the_same_in_each_run(backend: str) -> None:
    drawn: set[float] = set()

    async def scenario() -> None:
        assert not gc.isenabled(), "what it collects may call back, at any moment"
        drawn.add(random.random())
        await together(checkpoint, checkpoint)

    for seed in (1, 2):
        random.seed(seed)
        explore(scenario, backend=backend)
    assert len(drawn) == 1


def test_a_loop_without_the_switch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio.BaseEventLoop, "_run_once")
    with pytest.raises(ScheduleError, match="CPython's own"):
        explore(one_order_of_four, backend="asyncio")
    monkeypatch.delattr(trio_run, "_r")
    with pytest.raises(ScheduleError, match="constraints"):
        explore(one_order_of_four)


def test_callbacks_of_asyncio_keep_their_places() -> None:
    seen: set[str] = set()

    async def scenario() -> None:
        came: list[str] = []

        async def task(name: str) -> None:
            came.append(name)

        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(task("a"))]
        loop.call_soon(came.append, "1")
        tasks.append(asyncio.create_task(task("b")))
        loop.call_soon(came.append, "2")
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)
        seen.add("".join(came))

    explore(scenario, backend="asyncio", deviations=2)
    assert {"a1b2", "b1a2"} <= seen
    assert all(it.index("1") < it.index("2") for it in seen)
