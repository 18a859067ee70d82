"""What an agent does when one thing goes wrong: which faults are tried over a tape, and what a run with one has shown.

A trial is one fault at one place of the tape: each call of a tool in turn, and the start of each server. The command
line runs the agent as a process, `testing` runs it as a function. Either records the run. What the agent did is judged
by comparing that recording with the tape, and by how the run ended:

* it *survived*: it ended well, and has every answer that it had on the tape, if need be at a second attempt;
* it *gave up a call*: it ended well, and lacks an answer;
* it *failed*: it ended badly, or not in time.

And whatever it came to: it *asked again* if a call that may change something was made more often than on the tape,
though an earlier attempt may have run. That is what loses money.

Rejected: two faults at once. There are too many pairs, and each agent that we have seen fails with one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs
import msgspec

from ..protocol.errors import Reach, UsageError
from ..protocol.json_values import object_or_empty
from ..protocol.near_names import meant
from ..protocol.safe_text import counted, one_line
from .call_matching import compared
from .tape_faults import has_happened
from .tape_lines import CallLine
from .tape_reader import Tape, check_names, reading_tools

CALL_TIMEOUT: Final = 2.0  # seconds; nobody wants to wait for each of many calls as long as in life
NEVER_STARTS: Final = "never starts"
_SHOWN: Final = 100  # characters of arguments
_COLUMN: Final = 2  # between two columns
_PLACE: Final = 30  # characters of a call in the table


def deeds(call_timeout: float) -> dict[str, str]:
    """What is tried at each call: its name in the table, and what a fault says of it."""
    return {
        "crash before": "crash before sent",
        "crash after": "crash after sent",
        "lost answer": "drop answer",
        "too slow": f"delay seconds={call_timeout * 2:g}",
        "hangs": "hang",
        "error": 'refuse text="It did not work."',
    }


class TrialVerdict(StrEnum):
    SURVIVED = "survived"
    GAVE_UP = "gave up a call"
    FAILED = "failed"
    NOT_TRIED = "not tried"  # the fault did not happen


_MARKS: Final = {
    TrialVerdict.SURVIVED: "✓",
    TrialVerdict.GAVE_UP: "○",
    TrialVerdict.FAILED: "✗",
    TrialVerdict.NOT_TRIED: "–",
}
_AGAIN: Final = "! again"


@attrs.frozen
class Trial:
    """One fault at one place. `fault`: as for `replay --fault`; empty: nothing goes wrong. `call`: its number on the
    tape, and `tool` its name."""

    fault: str
    server: str
    deed: str
    call: int | None = None
    tool: str = ""

    @property
    def place(self) -> str:
        return self.server if self.call is None else f"#{self.call} {self.tool}"


NOTHING: Final = Trial("", "", "nothing goes wrong")


def trials_of(tape: Tape, *, only: Collection[str] = (), call_timeout: float = CALL_TIMEOUT) -> list[Trial]:
    """Every single fault of this tape. `only`: of these servers. Raises `UsageError`."""
    check_names(only, tape.servers, "server")
    calls = [call for call in tape.calls if call.method == "tools/call" and (not only or call.server in only)]
    if not calls:
        raise UsageError(f"There is no call of a tool on the tape {tape.path} that could go wrong.")
    trials = [
        Trial(f"{call.server} call {call.n}: {what}", call.server, deed, call.n, call.tool or call.server)
        for call in calls
        for deed, what in deeds(call_timeout).items()
    ]
    called = dict.fromkeys(call.server for call in calls)
    return trials + [Trial(f"{name} start: crash", name, NEVER_STARTS) for name in called]


@attrs.frozen
class AgentOutcome:
    """How a run of the agent ended. `failure`: in words; None: well."""

    failure: str | None
    seconds: float


@attrs.frozen
class TrialResult:
    """What one trial has shown. `missing`: calls whose recorded answer it did not get; `again`: calls that may change
    something and that it made again though they may have run. Both with their arguments, in words."""

    trial: Trial
    verdict: TrialVerdict
    why: str
    missing: tuple[str, ...]
    again: tuple[str, ...]
    calls: int
    seconds: float

    @property
    def is_bad(self) -> bool:
        return self.verdict is TrialVerdict.FAILED or bool(self.again)

    @property
    def cell(self) -> str:
        return f"{_MARKS[self.verdict]} {self.verdict}{f' {_AGAIN}' if self.again else ''}"

    def why_not_of_the_tape(self, words: Wording) -> str:
        """Why the run in which nothing went wrong is not that of the tape, so that others would show nothing. Empty: it
        is."""
        if self.verdict is TrialVerdict.FAILED:
            return f"Without any fault, the agent failed: {self.why}"
        if self.missing:
            text = (
                "Without any fault, the agent did not get every answer that is on the tape; the first that it did not "
                f"get: {self.missing[0]}. If its arguments differ from run to run, name those that differ "
                f"({words.ignore}), or let all of them differ ({words.by_order})."
            )
            if words.shows:
                text += (
                    f" If it finds other tools than those on the tape, choose what it sees ({words.shows})."
                )
            return text if self.calls else text + _ELSEWHERE.format(door=words.door)
        return ""

    def details(self, repeats: Callable[[str], str]) -> Iterator[str]:
        if not self.is_bad and self.verdict is not TrialVerdict.GAVE_UP:
            return
        yield ""
        why = f", {self.why}" if self.why else ""
        yield f"{one_line(self.trial.place, 80)}, {self.trial.deed}: {self.verdict}{why}"
        yield from (f"  asked again, and it may have run: {each}" for each in self.again)
        yield from (f"  without the answer to: {each}" for each in self.missing)
        yield f"  {repeats(self.trial.fault)}"

    def as_json(self) -> Mapping[str, Any]:
        return {
            "fault": self.trial.fault,
            "server": self.trial.server,
            "call": self.trial.call,
            "tool": self.trial.tool,
            "deed": self.trial.deed,
            "verdict": self.verdict.value,
            "why": self.why,
            "askedAgain": list(self.again),
            "missing": list(self.missing),
            "calls": self.calls,
            "seconds": round(self.seconds, 3),
        }


Key = tuple[str, str, str]  # server, method, parameters


class Judge:
    """Compares runs with the tape. `ignore`: names of members that may differ; `any_arguments`: all may. `reads`: tools
    that only read, though their servers do not say so. Raises `UsageError` for one that was never called."""

    def __init__(
        self,
        tape: Tape,
        *,
        ignore: Collection[str] = (),
        any_arguments: bool = False,
        reads: Collection[str] = (),
    ) -> None:
        self._tape = tape
        self._ignore = ignore
        self._any = any_arguments
        self._reads = {name: reading_tools(tape.listed_of(name)) for name in tape.servers}
        called = {call.tool: call for call in tape.calls if call.tool is not None}
        for name in reads:
            if name not in called:
                raise UsageError(f"{name} was never called on the tape.{meant(name, called)}")
            self._reads[called[name].server].add(str(object_or_empty(called[name].said).get("name")))
        self._tools = {self._place(call): call.tool for call in tape.calls if call.tool is not None}
        self._recorded = Counter(self._key(call) for call in tape.calls)
        self._answered = Counter(self._key(call) for call in tape.calls if call.outcome == "result")

    def judge(self, trial: Trial, runs: Sequence[Tape], ended: AgentOutcome) -> TrialResult:
        """What this trial has shown. `runs`: what was recorded of it."""
        calls = [call for run in runs for call in run.calls]
        answered = Counter(self._key(call) for call in calls if call.outcome == "result")
        ran = Counter(self._key(call) for call in calls if self._may_have_run(call))
        missing = tuple(self._words(key) for key in self._answered if answered[key] < self._answered[key])
        again = tuple(
            self._words(key) for key in ran if self._changes(key) and ran[key] > max(1, self._recorded[key])
        )
        if ended.failure is not None:
            verdict = TrialVerdict.FAILED
        elif trial.fault and not any(has_happened(run, trial.fault) for run in runs):
            verdict = TrialVerdict.NOT_TRIED
        else:
            verdict = TrialVerdict.GAVE_UP if missing else TrialVerdict.SURVIVED
        return TrialResult(trial, verdict, ended.failure or "", missing, again, len(calls), ended.seconds)

    def _key(self, call: CallLine) -> Key:
        params = object_or_empty(call.said)
        about = {"name": params.get("name")} if self._any and "name" in params else params
        return call.server, call.method, compared(about, self._ignore)

    def _changes(self, key: Key) -> bool:
        server, method, params = key
        name = object_or_empty(msgspec.json.decode(params)).get("name")
        return method == "tools/call" and str(name) not in self._reads.get(server, ())

    def _may_have_run(self, call: CallLine) -> bool:
        return call.outcome == "result" or call.reach is Reach.SENT

    def _words(self, key: Key) -> str:
        """A call by the name that the agent uses."""
        server, method, text = key
        params = object_or_empty(msgspec.json.decode(text))
        name = str(params.get("name", params.get("uri", "")))
        shown = self._tools.get((server, method, name), f"{server} {method} {name}")
        return one_line(f"{shown} {compared(params.get('arguments', {}))}", _SHOWN)

    def _place(self, call: CallLine) -> tuple[str, str, str]:
        return call.server, call.method, str(object_or_empty(call.said).get("name"))


_ELSEWHERE: Final = (
    " It has called nothing here at all. Does it use {door}, and not a configuration of its own?"
)


@attrs.frozen
class Wording:
    """What the one who explores calls the options of the runs, and the door by which the agent finds its tools.
    `shows`: the options that choose which tools it sees; empty: there are none."""

    ignore: str
    by_order: str
    shows: str
    door: str


# ---- as a table, and as data ----------------------------------------------------------------------------------------


@attrs.frozen
class WhatIf:
    """All that was tried. `left_out`: how many trials were not, for want of runs. `repeats`: what to write for a replay
    with this fault, with all that the runs had."""

    tape: str
    base: TrialResult
    tried: Sequence[TrialResult]
    left_out: int
    repeats: Callable[[str], str]

    @property
    def is_good(self) -> bool:
        """Nothing failed, and nothing was asked again that may have run."""
        return not self.base.is_bad and not any(one.is_bad for one in self.tried)

    def __str__(self) -> str:
        return "\n".join(self.told())

    def told(self) -> Iterator[str]:
        """A table of what became of each fault at each place, and below it the runs that went wrong, in detail."""
        yield from _table(self.tried)
        counts = Counter(one.verdict for one in self.tried)
        said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in TrialVerdict if counts[verdict])
        yield ""
        yield f"{counted(len(self.tried), 'fault')} tried: {said}."
        again = sum(bool(one.again) for one in self.tried)
        if again:
            yield f"! {counted(again, 'time')} the agent asked again for what may have run already."
        if self.left_out:
            yield f"{counted(self.left_out, 'fault')} left out: --runs is the bound."
        for one in self.tried:
            yield from one.details(self.repeats)

    def as_json(self) -> dict[str, Any]:
        return {
            "tape": self.tape,
            "isGood": self.is_good,
            "leftOut": self.left_out,
            "base": self.base.as_json(),
            "trials": [one.as_json() for one in self.tried],
        }


def _table(tried: Sequence[TrialResult]) -> Iterator[str]:
    """A row for each call, with marks alone, so that it fits a window of 80 columns; then what the marks mean."""
    of_calls = [one for one in tried if one.trial.call is not None]
    head = list(dict.fromkeys(one.trial.deed for one in of_calls))
    rows: dict[str, dict[str, str]] = {}
    for one in of_calls:
        mark = f"{_MARKS[one.verdict]} !" if one.again else _MARKS[one.verdict]
        rows.setdefault(one_line(one.trial.place, _PLACE), {})[one.trial.deed] = mark
    titles = [deed.partition(" ")[::2] if " " in deed else ("", deed) for deed in head]
    lines = [
        ("", *(above for above, _ in titles)),
        ("", *(below for _, below in titles)),
        *((place, *(row.get(deed, "") for deed in head)) for place, row in rows.items()),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield (
            (" " * _COLUMN).join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    if of_calls:
        verdicts = {one.verdict for one in of_calls}
        said = [f"{mark} {verdict}" for verdict, mark in _MARKS.items() if verdict in verdicts]
        yield "   ".join([*said, *(["! asked again"] if any(one.again for one in of_calls) else ())])
    for one in tried:
        if one.trial.call is None:
            yield f"{one_line(one.trial.server, 40)} {one.trial.deed}: {one.cell}"
