"""The calls that wait for approval, at the head of `greenroom top`, and the keys that decide about them.

A key decides about the call that is marked, and only a person marks one. Nothing is marked by itself: when the marked
call goes away, no other takes its place. Otherwise a key that was pressed for one call could allow another. Keys that
were pressed before the marked call was shown in full are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...protocol.plain_text import one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

UP: Final = "up"
DOWN: Final = "down"
KEYS: Final = "Tab or arrows choose a call; y allows it once, s for its session, n refuses it"
_STEPS: Final[Mapping[str, int]] = {UP: -1, "k": -1, DOWN: 1, "j": 1, "\t": 1}
_VERDICTS: Final[Mapping[str, tuple[str, str]]] = {
    "y": ("once", "allowed once"),
    "s": ("session", "allowed for its session"),
    "n": ("deny", "refused"),
}
_LINES: Final = 8  # of calls that are not marked

# The pid of a gateway, the number of a call there, and a verdict; returns why it could not be done.
Decide = Callable[[int, int, str], str | None]
Which = tuple[int, int]  # the pid of a gateway, and the number of a call there


class WaitingCalls:
    def __init__(self) -> None:
        self.said = ""  # what the last key did
        self.marked: Which | None = None
        self._calls: Sequence[Mapping[str, Any]] = ()
        self._count = 0

    def see(self, calls: Sequence[Mapping[str, Any]], count: int) -> None:
        """These wait now, the first of so many."""
        self._calls, self._count = calls, count
        if self.marked not in self._all:
            self.marked = None

    @property
    def _all(self) -> list[Which]:
        return [_which(call) for call in self._calls]

    def press(self, key: str, decide: Decide) -> bool:
        """Whether the key has marked another call."""
        if key in _STEPS and self._calls:
            every = self._all
            step = _STEPS[key]
            place = every.index(self.marked) + step if self.marked is not None else min(step, 0)
            self.marked, self.said = every[place % len(every)], ""
            return True
        if key in _VERDICTS and self._calls:
            verdict, done = _VERDICTS[key]
            if self.marked is None:
                self.said = "Choose a call first, with Tab or the arrow keys."
            else:
                (pid, number), self.marked = self.marked, None
                self.said = decide(pid, number, verdict) or f"Call {number}: {done}."
        return False

    def lines(self, width: int, height: int) -> list[tuple[str, str]]:
        """What is shown, each line with its style: the marked call in full, then the others, one line for each."""
        if not self._count:
            return [(self.said, "dim")] if self.said else []
        head = "1 call waits for approval" if self._count == 1 else f"{self._count} calls wait for approval"
        lines = [(head, "bold yellow"), (KEYS, "dim")]
        if self.said:
            lines.append((one_line(self.said, 300), "bold"))
        marked = next((call for call in self._calls if _which(call) == self.marked), None)
        if marked is not None:
            question = printable(marked["question"]).splitlines()
            lines += [(self._head(marked, "▶"), "bold"), *((line, "") for line in question)]
            if sum(1 + len(text) // width for text, _ in lines) > height - 2:
                at = 3 + bool(self.said)
                text = (
                    "It does not fit into this window. Make that larger, or read it with greenroom approve."
                )
                lines.insert(at - 1, (text, "bold red"))
        others = [call for call in self._calls if call is not marked]
        lines += [(f"{self._head(call, ' ')}: {_arguments(call)}"[:width], "") for call in others[:_LINES]]
        more = self._count - len(others[:_LINES]) - (marked is not None)
        return [*lines, (f"  and {more} more", "dim")] if more > 0 else lines

    def _head(self, call: Mapping[str, Any], mark: str) -> str:
        who = one_line(call["session"] or "the room itself", 30)
        tool = one_line(f"{call['tool']} of {call['server']}", 60)
        return f"{mark} {call['number']} {tool}, for {who}, {call['left']:.0f} s left"

    def shown(self, width: int, height: int) -> Sequence[RenderableType]:
        from rich.text import Text

        return [Text(text, style=style) for text, style in self.lines(width, height)]


def _which(call: Mapping[str, Any]) -> Which:
    return call["pid"], call["number"]


def _arguments(call: Mapping[str, Any]) -> str:
    """The part of the question that differs from call to call, on one line."""
    return one_line(call["question"].partition("Arguments: ")[2].rpartition("\n")[0], 200)
