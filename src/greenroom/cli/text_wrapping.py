"""Text as it fits the window of a person, or as it is where nobody looks."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import IO, Final

from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import printable

_COLUMNS: Final = 80  # of a window that does not say
# A command in a text; it stays on one line, so that it can be copied.
# A call has its arguments up to the end of the line.
_COMMAND: Final = lazy_pattern(
    r"`greenroom [^`]*`|(?:(?<=: )|^)greenroom call .+|\bgreenroom [a-z]+(?: --[a-z]+ \S+)*(?: [\w./-]+)?"
)
_INDENT: Final = lazy_pattern(r" *(?:[✓✗⚠⊘○·→] )?")  # what the further lines of a wrapped one stand below
_GLUE: Final = "\u00a0"  # textwrap does not break a line here


def on_terminal(stream: IO[str] | None = None) -> bool:
    """Whether a person sees what is printed on stdout, or on `stream`."""
    stream = stream or sys.stdout
    return stream is not None and stream.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def fitted(text: str, stream: IO[str] | None = None) -> str:
    """The text as it is printed on stdout, or on `stream`: if a person sees it there, its lines are wrapped to fit."""
    text, where = printable(text), stream or sys.stdout
    if not on_terminal(where):
        return text
    return wrapped(text, columns_of(where))


def wrapped(text: str, width: int) -> str:
    """The text in lines that fit, as `wrap` makes them."""
    return "\n".join(piece for line in text.split("\n") for piece in wrap(line, width) or [""])


def columns_of(stream: IO[str]) -> int:
    """The width of the window behind this stream, or what `COLUMNS` says."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):  # no window, or no descriptor
        return _COLUMNS


def wrap(line: str, width: int) -> list[str]:
    """The line in pieces that fit. A word that does not (a path, a URL) stays whole, so that it can be copied."""
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), line)
    mark = _INDENT.match(line)
    indent = " " * (mark.end() if mark else 0)
    lines = textwrap.wrap(
        glued,
        max(20, width),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
        replace_whitespace=False,
    )
    return [each.replace(_GLUE, " ") for each in lines]
