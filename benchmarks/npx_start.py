"""How long a server takes to connect that is started by npx, and without npx, and how much memory its processes take.

`python -m benchmarks.npx_start @modelcontextprotocol/server-memory`: the package must be in npx's cache (run `npx -y`
with it once). Linux only.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import anyio

from greenroom import Greenroom

TIMES = 7


async def start(package: str, resolve: bool) -> tuple[float, float]:
    """Connect once. Returns seconds, and MiB of the server and all processes below it (PSS)."""
    entry = {"command": "npx", "args": ["-y", package], "resolveNpx": resolve}
    config = {"mcpServers": {"m": entry}, "settings": {"bootstrap": False}}
    async with Greenroom.open(config, cache_path=":memory:") as room:
        began = time.perf_counter()
        await room.connect("m")
        seconds, pid = time.perf_counter() - began, room.status()[0].pid
        assert pid is not None
        return seconds, memory(pid)


def memory(pid: int) -> float:
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = next(
        line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")
    )
    return int(own.split()[1]) / 1024 + sum(memory(int(child)) for child in below)


def main() -> None:
    for resolve in (False, True):
        seconds, mib = zip(*(anyio.run(start, sys.argv[1], resolve) for _ in range(TIMES)), strict=True)
        how = "without npx" if resolve else "by npx"
        print(
            f"{how}: {statistics.median(seconds):.2f} s, {statistics.median(mib):.0f} MiB (median of {TIMES})"
        )


if __name__ == "__main__":
    main()
