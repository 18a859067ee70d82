"""The tree of an exploration: which runs there are, in which order they are made, and what is kept of them.

A run that follows its plan shows all choices that it met. Each choice after the last deviation of its plan, made
otherwise, is the plan of another run. So each plan comes exactly once, and nothing has to be known in advance. Of a run
only its choices are kept, as numbers; the plans that follow from it are made when it is their turn.

A scenario must do the same when it is run the same: no real time, no threads, no processes, nothing kept from the run
before. Each run is compared with the one that its plan continues, and a failure is run twice. A difference is an error
(`NotRepeatableError`): what cannot be repeated has shown nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

import attrs

from ..protocol.errors import UsageError
from ._one_run import Body, Run, run_once
from ._plan import Backend, Cancel, Plan

_CAUSES: Final = (
    "A scenario must start from nothing each time, and must not depend on real time, threads, or the "
    "order of a set."
)


class NotRepeatableError(RuntimeError):
    """The scenario did something else when it was run the same way, so nothing it shows can be repeated."""


@attrs.frozen
class Failure:
    """One run that failed. `order`: its deviations, in words."""

    schedule: str
    error: BaseException
    order: tuple[str, ...]


@attrs.frozen
class Explored:
    """What was explored.

    `runs`: how many there were. `choices`: the most that one run met. `cut`: why not everything within the bounds was
    run; empty when everything was. `failure`: the first one, of those with the fewest deviations.
    """

    runs: int
    deviations: int
    choices: int
    cut: str = ""
    failure: Failure | None = None

    @property
    def exhausted(self) -> bool:
        """Every run within the bounds was made, and none failed."""
        return not self.cut and self.failure is None

    def __str__(self) -> str:
        found = "every one" if self.exhausted else self.cut or "one failed"
        return f"{self.runs} runs, {self.deviations} deviations, up to {self.choices} choices each: {found}"


@attrs.frozen
class _Seen:
    """What is kept of a run, to make others of it."""

    plan: Plan
    widths: array[int]
    prints: array[int]
    first: int  # the choices from here on are its own to do otherwise
    may_deviate: bytearray
    labels: tuple[str, ...]

    def orders(self) -> Iterator[_Made]:
        """Every plan with one deviation more."""
        number = 0
        for index, width in enumerate(self.widths):
            if width > 0:
                if index >= self.first and self.may_deviate[index]:
                    yield from ((self.plan.picking(number, pick), self, index) for pick in range(1, width))
                number += 1

    def cancels(self) -> Iterator[_Made]:
        """Every plan that also cancels."""
        turns: dict[str, int] = {}
        for index, width in enumerate(self.widths):
            if width < 0:
                label = self.labels[-1 - width]
                turns[label] = turns.get(label, 0) + 1
                if index >= self.first and self.may_deviate[index]:
                    yield attrs.evolve(self.plan, cancel=Cancel(label, turns[label])), self, index


# A plan, the run that it continues, and the index of the choice at which it deviates.
_Made = tuple[Plan, _Seen, int]


class _Stopped(Exception):
    """The search is over."""


class Search:
    def __init__(
        self, scenarios: Mapping[str | None, Body], wanted: list[str], runs: int, choices: int
    ) -> None:
        self._scenarios = scenarios
        self._wanted = wanted
        self._limit = runs
        self._most = choices
        self._runs = self._longest = 0
        self._cut = ""
        self._names: set[str] = set()  # of tasks
        self._failure: Failure | None = None

    def only(self, plan: Plan) -> Explored:
        """This run alone."""
        if plan.fault not in self._scenarios:
            names = ", ".join(name for name in self._scenarios if name is not None) or "none"
            raise UsageError(f"The schedule {plan} names a fault that is not given; given: {names}.")
        if plan.cancel is not None:
            self._wanted = [plan.cancel.task.partition("#")[0]]
        run = self._run(plan)
        if run.choices.wrong:
            raise UsageError(
                f"The schedule {plan} is not one of this scenario: {run.choices.wrong}. Has the scenario, or what it "
                "runs, changed since? Then explore it again."
            ) from run.error
        with suppress(_Stopped):
            self._look_at(run)
        return self._result(len(plan.picks))

    def all(self, backend: Backend, deviations: int) -> Explored:
        """Level by level, until something fails, a limit is reached or all is done."""
        with suppress(_Stopped):
            kept = self._first(backend)
            for _ in range(deviations):
                kept = self._with_cancels([self._try(*made) for one in kept for made in one.orders()])
        return self._result(deviations)

    def _first(self, backend: Backend) -> list[_Seen]:
        """The runs without deviation."""
        plain = [self._try(Plan(backend, fault=fault)) for fault in self._scenarios]
        if unknown := [name for name in self._wanted if name not in self._names]:
            there = ", ".join(sorted(name for name in self._names if not set(name) & set(".<>")))
            raise UsageError(f"No task is called {unknown[0]!r}; there are: {there}.")
        return self._with_cancels(plain)

    def _with_cancels(self, plain: list[_Seen]) -> list[_Seen]:
        return [*plain, *(self._try(*made) for one in plain for made in one.cancels())]

    def _try(self, plan: Plan, parent: _Seen | None = None, at: int = 0) -> _Seen:
        """Run a plan that deviates from `parent` last at its choice `at`."""
        if self._runs >= self._limit:
            self._cut = f"cut at the limit of {self._limit} runs, within {len(plan.picks)} deviations"
            raise _Stopped
        run = self._run(plan)
        choices = run.choices
        if parent is not None:
            _compare(run, parent, at + 1)
        if choices.is_cut:
            self._cut = f"choices after the first {self._most} of a run were left alone"
        self._look_at(run)
        return _Seen(
            plan,
            choices.widths,
            choices.prints,
            choices.last + 1,
            choices.inside if choices.is_marked else bytearray(b"\1" * len(choices.widths)),
            tuple(choices.labels),
        )

    def _run(self, plan: Plan) -> Run:
        run = run_once(plan, self._scenarios[plan.fault], self._wanted, self._most)
        self._names |= run.choices.names
        return run

    def _look_at(self, run: Run) -> None:
        self._runs += 1
        self._longest = max(self._longest, sum(width > 0 for width in run.choices.widths))
        if run.error is None:
            return
        again = self._run(run.plan)
        if again.error is None or again.choices.prints != run.choices.prints:
            raise NotRepeatableError(
                f"{run.plan} failed, and did something else when it was run again. {_CAUSES}"
            ) from run.error
        order = tuple(run.choices.told)
        run.error.add_note(
            "\n".join(
                [
                    f"schedule: {run.plan}  (run {self._runs} of its exploration)",
                    *(f"  {it}" for it in order),
                    f'to repeat it: explore(..., replay="{run.plan}")',
                ]
            )
        )
        self._failure = Failure(str(run.plan), run.error, order)
        raise _Stopped

    def _result(self, deviations: int) -> Explored:
        return Explored(self._runs, deviations, self._longest, self._cut, self._failure)


def _compare(run: Run, parent: _Seen, until: int) -> None:
    """Up to its last deviation, the run must have met what its parent met."""
    ours, theirs = run.choices.prints[:until], parent.prints[:until]
    if run.choices.wrong or ours != theirs or run.choices.widths[:until] != parent.widths[:until]:
        differs = next(
            (i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), len(ours)
        )
        raise NotRepeatableError(
            f"{run.plan} did not repeat what {parent.plan} had done before: they differ at choice {differs} of "
            f"{until}. {_CAUSES}"
        )
