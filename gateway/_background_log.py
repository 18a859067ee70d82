"""The log of a background room: its standard error, in a file of bounded size.

When the file has grown to its bound, it takes the place of the one before it, and a new one is begun. So there are at
most two. Only the user can read them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from .._own_files import make_folder, open_own

LARGEST: Final = 1 << 20  # bytes of each of the two files
_HEAD: Final = re.compile(r"greenroom: (?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* )?")  # of each of our lines
_LAST_LINES: Final = 2048  # bytes of the end of a log that an error quotes


def open_log(path: Path) -> int:
    """A descriptor to append to the log. Raises `OSError`."""
    make_folder(path.parent)
    _turn_over(path)
    return open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def end_of(path: Path) -> str:
    """The last lines of a log, for an error message; empty when there are none."""
    with suppress(OSError), open(open_own(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return " ".join(_HEAD.sub("", line).strip() for line in lines[-3:])
    return ""


def keep_small(path: Path) -> None:
    """Begin a new log, if standard error goes to one that has grown to its bound. Raises `OSError`."""
    if os.fstat(2).st_size >= LARGEST:
        new = open_log(path)
        os.dup2(new, 2, inheritable=True)
        os.close(new)


def _turn_over(path: Path) -> None:
    with suppress(FileNotFoundError):
        if os.stat(path, follow_symlinks=False).st_size >= LARGEST:
            os.replace(path, path.with_name(path.name + ".old"))
