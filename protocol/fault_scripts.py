"""Fault scripts: the faults of a fake server, or of a server on a tape, as data.

    FaultScript.of(
        Fault("initialize", "delay", seconds=2, start=1),
        Fault("call", "crash", exit_code=3, nth=2),
    )

A script is an ordered list of faults. Each says at which step it happens, and what the server then does. It may be
limited to one start of the server, and to one occurrence of the step. `FakeServer` plays a script in memory, in virtual
time; the executable `greenroom.testing.servers.scripted` plays the same script in a real process. The words are in
`fault_plan`, which also plays them.

A fault that could never be played is refused when it is made, and the error says what to write instead. Otherwise a
test could pass because its fault silently never happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from .errors import UsageError
from .fault_plan import FIELDS, FaultEntry, problem_with

Step = Literal["start", "initialize", "list", "call", "ping", "idle", "stop"]
FaultName = Literal[
    "delay", "hang", "crash", "crash_before", "refuse", "garbage", "flood", "list_changed", "expire", "answer_twice",
    "answer_late", "drop_answer",
]  # fmt: skip
SignalName = Literal["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV"]


def _as_tuple(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


@attrs.frozen
class Fault:
    """What goes wrong at one step of a server. Raises `UsageError` if it could never happen, and says what to write.

    `start`, `nth` and `tool` limit when it happens. Each other field belongs to one value of `at` or `do`, which its
    meaning names."""

    at: Step  # the step at which it happens
    do: FaultName  # what happens
    start: int | None = attrs.field(default=None, kw_only=True)  # only in this start, counted from 1
    nth: int | None = attrs.field(default=None, kw_only=True)  # only at this occurrence within a start
    tool: str | None = attrs.field(default=None, kw_only=True)  # only for calls of this tool
    after: float | None = attrs.field(default=None, kw_only=True)  # idle: after this many idle seconds
    seconds: float | None = attrs.field(default=None, kw_only=True)  # delay: how long
    exit_code: int | None = attrs.field(
        default=None, kw_only=True
    )  # crash, crash_before: 1 by default, if there is no signal
    signal: SignalName | None = attrs.field(default=None, kw_only=True)  # crash: by this signal
    text: str | None = attrs.field(default=None, kw_only=True)  # refuse: the message; crash: its last words
    code: int | None = attrs.field(default=None, kw_only=True)  # refuse: the error's code, -32603 by default
    notifications: int | None = attrs.field(default=None, kw_only=True)  # flood: how many
    stderr: int | None = attrs.field(default=None, kw_only=True)  # flood: bytes
    tools: tuple[str, ...] | None = attrs.field(
        default=None, converter=_as_tuple, kw_only=True
    )  # list_changed: the tools that it has from then on

    def __attrs_post_init__(self) -> None:
        if problem := problem_with(self.as_dict()):
            raise UsageError(f"This fault cannot be played: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """Only the fields that were given."""
        said = self.entry.said()
        return said | {"tools": list(said["tools"])} if "tools" in said else said

    @property
    def entry(self) -> FaultEntry:
        """The fault with all fields; those that were not given are None."""
        return FaultEntry(*(getattr(self, name) for name in FIELDS))

    def __str__(self) -> str:
        rest = ", ".join(
            f"{name}={value!r}" for name, value in self.as_dict().items() if name not in ("at", "do")
        )
        return f"{self.do} at {self.at}" + (f" ({rest})" if rest else "")


@attrs.frozen
class FaultScript:
    """The `faults` of a server, in order. Faults of the same step are played one after the other."""

    faults: tuple[Fault, ...] = attrs.field(default=(), converter=tuple[Fault, ...])

    def __attrs_post_init__(self) -> None:
        for each in self.faults:
            if not isinstance(each, Fault):  # pyright: ignore[reportUnnecessaryIsInstance]  # a test gave it
                said = f'like FaultScript.of(Fault("call", "crash")), not {type(each).__name__}'
                raise UsageError(f"A fault script has faults in it, {said}.")

    @classmethod
    def of(cls, *faults: Fault) -> FaultScript:
        """A script of these."""
        return cls(faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    @property
    def entries(self) -> list[FaultEntry]:
        """The faults in the form that players read."""
        return [fault.entry for fault in self.faults]

    def __len__(self) -> int:
        return len(self.faults)

    def __add__(self, other: FaultScript) -> FaultScript:
        return FaultScript(self.faults + other.faults)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults)) or "nothing goes wrong"

    def to_json(self) -> str:
        """The script as one line of JSON, for `from_json` and `--script`."""
        return json.dumps([fault.as_dict() for fault in self.faults])

    @classmethod
    def from_json(cls, text: str | bytes) -> FaultScript:
        """Read a script from JSON. Raises `UsageError`, which names the fault that cannot be played."""
        try:
            read: Any = json.loads(text)
        except ValueError as error:
            raise UsageError(f"This fault script is not JSON: {error}.") from None
        if not isinstance(read, list):
            raise UsageError('A fault script is an array, like [{"at": "call", "do": "crash"}].')
        return cls(tuple(map(_read, range(1, len(read) + 1), read)))  # pyright: ignore[reportUnknownArgumentType]


def _read(number: int, entry: Any) -> Fault:
    if problem := problem_with(entry):
        raise UsageError(f"Fault {number} of the script cannot be played: {problem}")
    fields: Mapping[str, Any] = entry
    return Fault(**fields)
