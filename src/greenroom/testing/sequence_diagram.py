"""A run of an exploration as a sequence diagram, in the words of Mermaid.

Tasks are the participants, beside the loop that runs them. Steps of one task that follow each other are one arrow.
Deviations from the default order stand where they were made, and the error at the end. What is far from any of them is
left out and counted, so that a failure prints a picture and not a log.

Pure. Rejected: arrows from task to task. Who has woken whom is known to neither trio nor asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

NEAR: Final = 6  # rows before and after a deviation, and before the end
_LONGEST: Final = 100  # characters of a text
_LOOP: Final = "turns"  # `loop` is a word of Mermaid's own


class TaskStep(NamedTuple):
    """A task was run. `words`: "" for a step of it; else what was decided about it."""

    task: str
    words: str = ""


class _DiagramRow(NamedTuple):
    task: str
    words: str
    steps: int


def mermaid(steps: Sequence[TaskStep], end: str) -> str:
    """The diagram of these steps; `end` says how the run ended. No line break after the last line."""
    rows = [*_rows(steps)]
    shown = _near([number for number, row in enumerate(rows) if row.words], len(rows))
    tasks = list(dict.fromkeys(row.task for number, row in enumerate(rows) if number in shown))
    names = {task: f"t{number}" for number, task in enumerate(tasks)}
    people = (f"participant {names[task]} as {_text(task)}" for task in tasks)
    lines = [
        f"participant {_LOOP} as the loop",
        *people,
        *_lines(rows, shown, names),
        f"Note over {_LOOP}: {_text(end)}",
    ]
    return "\n".join(("sequenceDiagram", *(f"    {line}" for line in lines)))


def _rows(steps: Sequence[TaskStep]) -> Iterator[_DiagramRow]:
    for step, same in groupby(steps):
        count = sum(1 for _ in same)
        yield _DiagramRow(step.task, step.words, 0 if step.words else count)


def _near(marks: Sequence[int], count: int) -> set[int]:
    """The numbers of the rows that are shown."""
    found = set(range(max(0, count - NEAR), count))
    for mark in marks:
        found.update(range(max(0, mark - NEAR), min(count, mark + NEAR + 1)))
    return found


def _lines(rows: Sequence[_DiagramRow], shown: set[int], names: dict[str, str]) -> Iterator[str]:
    left_out = 0
    for number, row in enumerate(rows):
        if number not in shown:
            left_out += row.steps
            continue
        if left_out:
            yield f"Note over {_LOOP}: {left_out} steps in the default order"
            left_out = 0
        if row.words:
            yield f"Note over {names[row.task]}: {_text(row.words)}"
        else:
            yield f"{_LOOP}->>{names[row.task]}: {'a step' if row.steps == 1 else f'{row.steps} steps'}"


def _text(words: str) -> str:
    """The words as Mermaid takes them: one line, without the characters that end a statement or begin an entity."""
    line = " ".join(words.split()).replace(";", ",").replace("#", "no. ").replace(":", " -")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
