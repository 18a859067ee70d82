"""Standard input, output and error of a command: lines are printed, and nothing that is wrong with a stream is an error
of the command.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import IO


def print_line(text: str, stream: IO[str] | None, end: str = "\n") -> None:
    """Print the text at once; nothing if the stream was closed when Python started (None)."""
    if stream is not None:
        stream.write(text + end)
        stream.flush()


def fill_the_gaps() -> None:
    """Put the null device in place of a closed standard descriptor. Otherwise the next file that is opened
    would get its number, and then messages for standard error would be written into that file."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    while nowhere <= 2:
        nowhere = os.open(os.devnull, os.O_RDWR)
    os.close(nowhere)


def never_fail_on_a_letter() -> None:
    """Print characters that the terminal cannot show as escapes: names and descriptions may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Throw away what is still buffered. Otherwise the interpreter would write it again when it exits."""
    with suppress(OSError, ValueError, AttributeError):  # there is no stdout to forget
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
