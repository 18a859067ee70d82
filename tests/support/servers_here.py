"""How many processes of our servers this home has: `python -m tests.support.servers_here N` waits until it is N.

A page of the docs asks so whether something is left, on a machine where other tests run servers, too (Linux).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.patience import PATIENCE

_SERVERS: Final = b"greenroom.testing.servers"


def wait_for(count: int) -> None:
    """Raises ValueError when it does not come to so many."""
    end = time.monotonic() + PATIENCE
    while (there := sum(1 for _ in servers())) != count:
        if time.monotonic() > end:
            raise ValueError(f"{there} servers are running, and {count} should")
        time.sleep(0.05)


def servers() -> Iterator[int]:
    home = f"HOME={os.environ['HOME']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_server = b"-m" in words and any(word.startswith(_SERVERS) for word in words)
            if is_server and home in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


if __name__ == "__main__":
    try:
        wait_for(int(sys.argv[1]))
    except ValueError as wrong:
        sys.exit(str(wrong))
