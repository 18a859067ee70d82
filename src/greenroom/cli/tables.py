"""Answers for a person at a terminal: colours, a header row, and tables whose cells wrap by words.

Anywhere else (a pipe, a file) the commands print plain text, which does not depend on the width of a window. With
`NO_COLOR` the tables stay and nothing is coloured. rich is imported only here, when there is a terminal.
"""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

from ..protocol.safe_text import one_line, printable
from .text_wrapping import wrapped
from .typed_options import commands_typed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


MARKS: Final[Mapping[str, str]] = {"✓": "green", "✗": "red", "⚠": "yellow", "⊘": "dim", "○": ""}
STYLES: Final[Mapping[str, Mapping[str, Any]]] = {  # of a line with this mark, and of a head
    "head": {"bold": True},
    "✓": {"fg": "green"},
    "✗": {"fg": "red"},
    "⚠": {"fg": "yellow"},
    "⊘": {"dim": True},
}
_GAP: Final = 2  # columns between two cells


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def padded(text: str, width: int, is_right: bool) -> str:
    fill = " " * (width - columns(text))
    return fill + text if is_right else text + fill


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row, its cells one below the other."""
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield (" " * _GAP).join(padded(*cell, False) for cell in zip(row, widths, strict=True)).rstrip()


def cut(line: str, width: int) -> str:
    """The line in at most `width` columns, with "…" where its end is missing."""
    if columns(line) <= width:
        return line
    kept = line[: width - 1]
    while columns(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def console(stream: IO[str] | None = None) -> Console:
    from rich.console import Console

    return Console(
        file=stream or sys.stdout,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A row begins with one of `MARKS`, which has no title. The texts may be a stranger's."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    made.add_column("", no_wrap=True)
    for title in head:
        is_right = title in right
        made.add_column(
            title.upper(), justify="right" if is_right else "left", no_wrap=is_right, overflow="fold"
        )
    filled = commands_typed().filled
    for mark, *cells in rows:
        style = MARKS.get(mark, "")
        texts = [Text(one_line(filled(cell)), style=style if not at else "") for at, cell in enumerate(cells)]
        made.add_row(Text(mark, style=style), *texts)
    return made


def print_names(
    screen: Console, head: tuple[str, str], groups: Iterable[tuple[str, Sequence[tuple[str, str]]]]
) -> None:
    """Names with one line of description each, below the heading of their group ("": without one). A name that is
    longer than half a line has a line of its own, so that it can be copied."""
    from rich.text import Text

    seen = [(heading, [(one_line(name), words) for name, words in entries]) for heading, entries in groups]
    widths = [columns(name) for _, entries in seen for name, _ in entries]
    column = max((len(head[0]), *(width for width in widths if width <= screen.width // 2)))
    room = max(10, screen.width - column - _GAP)

    def print_row(name: str, words: str, style: str) -> None:
        if columns(name) > column:
            screen.print(Text(name), soft_wrap=True)
            name = ""
        row = Text(f"{padded(name, column + _GAP, False)}" if words else name)
        screen.print(row.append(words, style=style), soft_wrap=True)

    screen.print(
        Text(f"{padded(head[0].upper(), column + _GAP, False)}{head[1].upper()}", style="bold"),
        soft_wrap=True,
    )
    for heading, entries in seen:
        if heading:
            screen.print(Text(one_line(heading), style="bold cyan"), soft_wrap=True)
        for name, words in entries:
            short = textwrap.shorten(one_line(words), room, placeholder=" …")
            print_row(name, short, "dim" if heading else "")


def prose(text: str, width: int) -> str:
    """The text with its lines wrapped by words. A command stays on one line."""
    return wrapped(printable(commands_typed().filled(text)), width)
