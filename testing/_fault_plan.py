"""Playing a fault script: which faults are due, and what the player then does.

Both fake servers use this, the one in memory and the executable, so a script means the same to both. Nothing here
waits: `perform` is a generator that yields how many seconds to wait before it goes on. One player sleeps, the other
puts the time on its heap. A `Player` has one method for each thing that can go wrong, because that differs: a crash is
the end of a process in one, and a lost connection in the other.

Only the standard library is imported; `_vocabulary` says why.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from ._vocabulary import Entry


class FaultPlan:
    """The faults of one start of a server; starts are counted from 1. `nth` of a fault counts within the start, and
    only what the fault is about: calls of its tool, or idle times of its length."""

    def __init__(self, faults: Iterable[Entry], start: int) -> None:
        self._faults = [fault for fault in faults if fault.start in (None, start)]
        self._met = [0] * len(self._faults)

    def due(self, step: str, tool: str | None = None) -> list[Entry]:
        """The faults to play now, at this step, in the order of the script."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == step and fault.tool in (None, tool) and self._is_its_turn(index)
        ]

    def due_idle(self, after: float) -> list[Entry]:
        """The faults to play now, when it has been idle for exactly `after` seconds."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == "idle" and fault.after == after and self._is_its_turn(index)
        ]

    def idle_times(self) -> Sequence[float]:
        """The idle times, in seconds and ascending, after which a fault may be due."""
        return sorted({fault.after or 0.0 for fault in self._faults if fault.at == "idle"})

    def _is_its_turn(self, index: int) -> bool:
        self._met[index] += 1
        return self._faults[index].nth in (None, self._met[index])


class Player(Protocol):
    """What a fake server can do wrong."""

    @property
    def is_over(self) -> bool: ...

    def note_fault(self, fault: Entry) -> None: ...

    def talk_junk(self) -> None: ...

    def flood(self, notifications: int, stderr: int) -> None: ...

    def change_tools(self, names: Sequence[str]) -> None: ...

    def hang(self) -> None: ...

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None: ...

    def expire(self) -> None: ...


def perform(faults: Iterable[Entry], player: Player) -> Generator[float, None, Entry | None]:
    """Play faults one after the other. Yields the seconds to wait. Returns the fault that decides the answer to the
    step: `refuse`, `answer_twice`, `answer_late`, or any other for no answer. Returns None for a normal answer."""
    decided: Entry | None = None
    for fault in faults:
        if player.is_over:
            return fault
        player.note_fault(fault)
        if fault.do == "delay":
            yield fault.seconds or 0.0
        elif fault.do == "answer_twice":
            decided = fault
        elif not _goes_on(fault, player):
            return fault
    return decided


def _goes_on(fault: Entry, player: Player) -> bool:
    """Play one fault. False: no further fault is played at this step."""
    match fault.do:
        case "garbage":
            player.talk_junk()
        case "flood":
            player.flood(fault.notifications or 0, fault.stderr or 0)
        case "list_changed":
            player.change_tools(fault.tools or ())
        case "hang":
            player.hang()
            return False
        case "crash":
            player.crash(1 if fault.exit_code is None else fault.exit_code, fault.signal, fault.text)
            return False
        case "expire":
            player.expire()
            return False
        case _:  # refuse, answer_late, drop_answer: they only decide the answer
            return False
    return True
