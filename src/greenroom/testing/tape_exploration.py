"""What an agent of this program does under each single fault of a tape, in virtual time: `explore_tape`.

The faults and the judgement are those of `greenroom explore` (`tape.what_if`). Each run has a loop and a room of its
own, in the default order of `explore`, so it is the same run each time; a timeout of a minute costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import anyio

from ..config.argument_checks import texts
from ..protocol.errors import UsageError
from ..supervisor.room import Greenroom
from ..tape.tape_reader import Tape, config_of, read_tape
from ..tape.what_if import (
    NOTHING,
    AgentOutcome,
    Judge,
    Trial,
    TrialResult,
    WhatIf,
    Wording,
    trials_of,
)
from .exploration import RunPlan, backend_of, refuse_a_loop, run_once

Agent = Callable[[Greenroom], Awaitable[object]]
_WORDING: Final = Wording("ignore", "by_order", "", "the room that it is given")
_TIME_LIMIT: Final = 3600.0  # virtual seconds
_DEFAULT_CALL_TIMEOUT: Final = 60.0


def explore_tape(
    tape: str | os.PathLike[str],
    agent: Agent,
    *,
    only: Collection[str] = (),
    runs: int | None = None,
    ignore: Collection[str] = (),
    reads: Collection[str] = (),
    by_order: bool = False,
    time_limit: float = _TIME_LIMIT,
    backend: str = "trio",
    **options: Any,
) -> WhatIf:
    """Run `agent(room)` once for each single fault that is possible on a tape, and report which faults it survives.

    `only`: try only faults of these servers. `runs`: the most runs with a fault. `ignore`, `by_order`: which arguments
    may differ, as in `Greenroom.replay`. `reads`: names of more tools that only read, as they are called.
    `time_limit`: virtual seconds for each run. `options`: the arguments of `Greenroom.open`, except `connectors`. An
    agent that raises has failed. Print the result to see a table; `tried` has each run.

    Raises `BadTape`, `UsageError` for a server that is not on the tape, when nothing on it can go wrong, and when the
    agent does not do without any fault what is on the tape.
    """
    refuse_a_loop()
    for names, what in ((only, "only"), (ignore, "ignore"), (reads, "reads")):
        texts(names, what)
    read = read_tape(tape)
    trials = trials_of(read, only=only, call_timeout=_longest_wait(read))
    plan = trials if runs is None else trials[:runs]
    judge = Judge(read, ignore=ignore, any_arguments=by_order, reads=reads)
    given: dict[str, Any] = {"ignore": ignore} if ignore else {}
    given |= {"by_order": True} if by_order else {}
    given |= options

    def tried(trial: Trial) -> TrialResult:
        with TemporaryDirectory(prefix="greenroom-") as folder:
            record = Path(folder) / "run.tape"
            faults = [trial.fault] if trial.fault else []
            room = partial(Greenroom.replay, tape, faults=faults, record=record, **given)
            ended = _ended(agent, room, time_limit, backend)
            runs = [read_tape(record)] if record.exists() else []  # its room may not have opened
            return judge.judge(trial, runs, ended)

    base = tried(NOTHING)
    if why := base.why_not_of_the_tape(_WORDING):
        raise UsageError(why)
    return WhatIf(
        os.fspath(tape),
        base,
        [tried(trial) for trial in plan],
        len(trials) - len(plan),
        partial(_replay_call, os.fspath(tape), given),
    )


def _replay_call(tape: str, given: Mapping[str, Any], fault: str) -> str:
    """The room in which the agent meets this fault again."""
    options = {"faults": [fault], **given}
    said = (f"{name}={getattr(value, '__name__', repr(value))}" for name, value in options.items())
    return f"Greenroom.replay({tape!r}, {', '.join(said)})"


def _ended(agent: Agent, open_room: Callable[[], Greenroom], time_limit: float, backend: str) -> AgentOutcome:
    took = 0.0

    async def body() -> None:
        nonlocal took
        began = anyio.current_time()
        try:
            with anyio.move_on_after(time_limit) as limit:
                async with open_room() as room:
                    await agent(room)
        finally:
            took = anyio.current_time() - began
        if limit.cancelled_caught:
            raise TimeoutError(
                f"it did not end within {time_limit:,g} virtual seconds, which do not wait for threads and sockets"
            )

    run = run_once(RunPlan(backend_of(backend)), body, [], 0)
    return AgentOutcome(None if run.error is None else _in_words(run.error), took)


def _in_words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _longest_wait(tape: Tape) -> float:
    """The longest timeout of a call on the tape, in seconds."""
    config = config_of(tape)
    entries = (config["settings"], *config["mcpServers"].values())
    found = [entry.get("requestTimeoutMs") for entry in entries]
    return max([_DEFAULT_CALL_TIMEOUT, *(each / 1000 for each in found if isinstance(each, int | float))])
