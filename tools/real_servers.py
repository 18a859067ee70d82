"""Install the real MCP servers the tests run against, under `.build/servers/`: `python -m tools.real_servers`.

They are rows of the world run (`tools/world/_table.py`), which has their versions. What they need comes in the versions
of `constraints.txt`, so that a test fails for a change of ours alone. A second run does nothing and needs no network.

Without Node.js the npm servers are left out, and the tests that need them say so; with `CI=true` that is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.world._table import SERVERS, ServerRow
from tools.world.installing import ROOT, InstallFailed, install_in, is_installed_in, node_is_there

HOME = ROOT / ".build" / "servers"
NAMES = ("time", "git", "sqlite", "everything", "filesystem", "memory")
ROWS: Mapping[str, ServerRow] = {row.name: row for row in SERVERS if row.name in NAMES}


def main() -> int:
    """Install what is missing, and print one line each. Returns 0 when all are there, or Node.js is missing outside
    CI."""
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    complete = True
    for name, row in ROWS.items():
        if row.index == "npm" and not node_is_there():
            said = "left out, it needs node and npm (version 20 or newer) on PATH"
            complete = complete and not in_ci
        elif is_installed(name):
            said = "ready"
        else:
            said = _install(row)
            complete = complete and said == "installed"
        print(f"{name:<11} {row.pins}: {said}")
    return 0 if complete else 1


def executable(name: str) -> Path:
    """Where server `name`'s program is, once installed."""
    row = ROWS[name]
    return HOME / name / ("node_modules/.bin" if row.index == "npm" else "bin") / row.words[0]


def is_installed(name: str) -> bool:
    """True when `name` is there in the pinned version."""
    return is_installed_in(HOME / name, ROWS[name].pins.split())


def _install(row: ServerRow) -> str:
    pins = row.pins.split()
    # A server with its own SDK cannot use our pins.
    constraints = None if len(pins) > 1 else ROOT / "constraints.txt"
    try:
        install_in(HOME / row.name, row.index, pins, constraints=constraints)
    except InstallFailed as error:
        return f"not installed: {error}"
    return "installed"


if __name__ == "__main__":
    sys.exit(main())
