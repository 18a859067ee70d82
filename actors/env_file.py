"""Reads an environment file: `NAME=value` lines, as other tools have them in `.env`.

It is read when an incarnation starts, and its values are kept nowhere. Comments, `export`, quotes and values of several
lines are understood as python-dotenv does. References in it stay as they are: a variable of ours that a value names by
accident must not reach a server.
"""

from __future__ import annotations

import io
import os
from typing import Final

from .._own_files import NotOurs, read_regular
from ..protocol.errors import ConnectFailed
from ..protocol.loader_variables import loaders_among

LARGEST: Final = 1 << 16  # bytes; python-dotenv takes a third of a second for the worst of them


def variables_in(file: str, server: str, is_asked: bool = False) -> dict[str, str]:
    """The variables in `file`, for `server`. A name without `=` gives none, and any other line that cannot be read is
    an error, because half of a file is worse than none. `is_asked`: a project's file names it; then it may set nothing
    that decides what the server runs, for nobody was asked about that. Blocks; call it in a thread. Raises
    `ConnectFailed`, which names the file and shows nothing of it."""
    from dotenv.parser import parse_stream

    try:
        text = read_regular(file, LARGEST).decode("utf-8-sig")
    except (OSError, OverflowError, ValueError) as error:
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, {_why(error)}.', server=server
        ) from None
    lines = [*parse_stream(io.StringIO(text))]
    if (bad := next((line.original for line in lines if line.error), None)) is not None:
        blank = len(bad.string) - len(bad.string.lstrip())  # the empty lines before it count as its own
        place = bad.line + bad.string[:blank].count("\n")
        what = f"cannot be read in line {place}: write NAME=value there, or make it a # comment"
        raise ConnectFailed(f'The envFile of server "{server}", {file}, {what}.', server=server)
    named = {line.key: line.value for line in lines if line.key is not None and line.value is not None}
    if any(
        "\0" in part or "=" in name or not name for name, value in named.items() for part in (name, value)
    ):
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, has a name or a value that no process can be given.',
            server=server,
        )
    if is_asked and (loaders := loaders_among(named)):
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, sets {", ".join(loaders)}, which decides what the server runs. '
            'A project\'s envFile may not: write it into "env" of the server, and run `greenroom trust`.',
            server=server,
        )
    return named


def _why(error: OSError | OverflowError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist: create it, or correct the path"
        case OverflowError():
            return f"has more than {LARGEST:,} bytes: name another file"
        case UnicodeDecodeError():
            return f"is not UTF-8 (byte {error.start}): save it as UTF-8"
        case NotOurs() | IsADirectoryError():
            return "is not a regular file: name the file itself"
        case OSError():
            return f"cannot be read ({error.strerror or os.strerror(error.errno or 0)})"
        case _:
            return "cannot be read (it is no path)"
