"""Playing a fault script: which faults are due, and what each makes its player do.

Both fake servers, the one in memory and the executable, are driven from here, so one script means the same to both.
Nothing here waits: `perform` is a generator that yields the seconds to wait before it goes on, which one player sleeps
through and the other puts on its heap. What a deed *is* (a line on stdout, a note; the end of a process, a lost
connection) is the player's: a `Player` has one method for each.

Only the standard library is imported, see `_vocabulary`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from ._vocabulary import Entry


class FaultPlan:
    """What is due in one start of a server, counted from 1. `nth` counts within the start, over what the fault means:
    the calls of its tool, the times it was idle for so long."""

    def __init__(self, faults: Iterable[Entry], start: int) -> None:
        self._faults = [fault for fault in faults if fault.start in (None, start)]
        self._met = [0] * len(self._faults)

    def due(self, step: str, tool: str | None = None) -> list[Entry]:
        """The faults to play now that `step` has come, in the order of the script."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == step and fault.tool in (None, tool) and self._is_its_turn(index)
        ]

    def due_idle(self, after: float) -> list[Entry]:
        """The faults to play now that it has been idle for exactly that long."""
        return [
            fault
            for index, fault in enumerate(self._faults)
            if fault.at == "idle" and fault.after == after and self._is_its_turn(index)
        ]

    def idle_times(self) -> Sequence[float]:
        """After how many idle seconds something may be due, ascending."""
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
    """Play faults one after the other. Yields seconds to wait; returns the one that decides how the step is answered
    (`refuse`, `answer_twice`, `answer_late`; any other: not at all), or None: as if nothing were wrong."""
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
    """Do it. False: nothing of the script follows at this step."""
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
        case _:  # refuse, answer_late, drop_answer: the answer is the whole of it
            return False
    return True
