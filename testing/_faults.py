"""Fault scripts: what a fake server does wrong, as data.

    FaultScript.of(
        Fault("greeting", "delay", seconds=2, start=1),
        Fault("call", "crash", exit_code=3, nth=2),
    )

A script is an ordered list of faults. Each says at which step something happens, in which start of the server and at
which occurrence of the step (all, if it does not say), what is done, and with what. The same script is played by
`FakeServer` in memory and virtual time, and by the executable `greenroom.testing.servers.scripted` as a real process;
the words are in `_vocabulary`, how they are played in `_fault_plan`.

A fault that could never be played is refused when it is made, with what to write instead: a test whose fault silently
does not happen is worse than none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from ..protocol.errors import UsageError
from ._vocabulary import FIELDS, Entry, problem_with

Step = Literal["start", "greeting", "list", "call", "ping", "idle", "stop"]
Doing = Literal[
    "delay", "hang", "crash", "refuse", "garbage", "flood", "list_changed", "expire", "answer_twice",
    "answer_late", "drop_answer",
]  # fmt: skip
SignalName = Literal["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV"]


def _as_tuple(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


@attrs.frozen
class Fault:
    """One thing that goes wrong. Raises `UsageError` when it makes no sense, saying what to write.

    `start`: only in this start of the server, from 1. `nth`: only at this occurrence of the step within a start.
    `tool`: only calls of this tool. `after` (with `idle`): seconds of quiet. The rest belongs to what is done.
    """

    at: Step
    do: Doing
    start: int | None = attrs.field(default=None, kw_only=True)
    nth: int | None = attrs.field(default=None, kw_only=True)
    tool: str | None = attrs.field(default=None, kw_only=True)
    after: float | None = attrs.field(default=None, kw_only=True)
    seconds: float | None = attrs.field(default=None, kw_only=True)  # delay
    exit_code: int | None = attrs.field(default=None, kw_only=True)  # crash; 1 if it has no signal either
    signal: SignalName | None = attrs.field(default=None, kw_only=True)  # crash
    text: str | None = attrs.field(default=None, kw_only=True)  # refuse; crash: last words
    code: int | None = attrs.field(default=None, kw_only=True)  # refuse; -32603
    notifications: int | None = attrs.field(default=None, kw_only=True)  # flood: how many
    stderr: int | None = attrs.field(default=None, kw_only=True)  # flood: bytes
    tools: tuple[str, ...] | None = attrs.field(default=None, converter=_as_tuple, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if problem := problem_with(self.as_dict()):
            raise UsageError(f"This fault cannot be played: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """What was said, and nothing else."""
        said = self.entry.said()
        return said | {"tools": list(said["tools"])} if "tools" in said else said

    @property
    def entry(self) -> Entry:
        """As the players read it."""
        return Entry(*(getattr(self, name) for name in FIELDS))

    def __str__(self) -> str:
        rest = ", ".join(
            f"{name}={value!r}" for name, value in self.as_dict().items() if name not in ("at", "do")
        )
        return f"{self.do} at {self.at}" + (f" ({rest})" if rest else "")


@attrs.frozen
class FaultScript:
    """Faults in order. Those of one step are played one after the other."""

    faults: tuple[Fault, ...] = attrs.field(default=(), converter=tuple[Fault, ...])

    @classmethod
    def of(cls, *faults: Fault) -> FaultScript:
        """A script of these."""
        return cls(faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    @property
    def entries(self) -> list[Entry]:
        """As the players read them."""
        return [fault.entry for fault in self.faults]

    def __len__(self) -> int:
        return len(self.faults)

    def __add__(self, other: FaultScript) -> FaultScript:
        return FaultScript(self.faults + other.faults)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults)) or "nothing goes wrong"

    def to_json(self) -> str:
        """A JSON array, one line, that `from_json` and `--script` read."""
        return json.dumps([fault.as_dict() for fault in self.faults])

    @classmethod
    def from_json(cls, text: str | bytes) -> FaultScript:
        """The script that `to_json` wrote, or that somebody wrote by hand. Raises `UsageError`, naming the fault."""
        try:
            read: Any = json.loads(text)
        except ValueError as error:
            raise UsageError(f"This fault script is no JSON: {error}.") from None
        if not isinstance(read, list):
            raise UsageError('A fault script is an array, like [{"at": "call", "do": "crash"}].')
        return cls(tuple(map(_read, range(1, len(read) + 1), read)))  # pyright: ignore[reportUnknownArgumentType]


def _read(number: int, entry: Any) -> Fault:
    if problem := problem_with(entry):
        raise UsageError(f"Fault {number} of the script cannot be played: {problem}")
    fields: Mapping[str, Any] = entry
    return Fault(**fields)
