"""Real processes in the place of `npx`: each "installs" with a few lines of shell, then runs a server."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from .gateway import FAULTY

SPEAKS = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo fetched $i >&2; sleep 0.2; done"
SPAWNS = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2; done"
COMPUTES = f"""{sys.executable} -S -c '
import time
for _ in range(12):
    enough = time.process_time() + 0.03
    while time.process_time() < enough:
        pass
    time.sleep(0.17)
'"""
HANGS = "echo stuck >&2; sleep 60 & wait"


def held(folder: Path) -> str:
    """An install that goes on, and says so, until `release`."""
    return f"i=0; until [ -e {folder}/go ]; do i=$((i + 1)); echo fetched $i >&2; sleep 0.1; done"


def release(folder: Path) -> None:
    (folder / "go").touch()


def npx(folder: Path, name: str, install: str, *faults: str) -> dict[str, Any]:
    """The entry of a server that our own `npx` installs with these lines of shell and then runs. In `name.log` it logs
    `npx PID` when it begins, and `undone PID` on SIGTERM."""
    script = folder / name / "npx"
    script.parent.mkdir()
    log = folder / f"{name}.log"
    server = " ".join([sys.executable, "-S", os.fspath(FAULTY), "--log", os.fspath(log), *faults])
    lines = [
        "#!/bin/sh",
        f"trap 'sleep 0.1; echo undone $$ >> {log}; exit 143' TERM",
        f"echo npx $$ >> {log}",
        install,
        "trap - TERM",
        f"exec {server}",
    ]
    script.write_text("\n".join(lines))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"command": os.fspath(script), "args": ["-y", name]}


def logged(folder: Path, word: str) -> list[int]:
    """The pids behind `word` in the logs."""
    lines = [line.split() for log in sorted(folder.glob("*.log")) for line in log.read_text().splitlines()]
    return [int(line[1]) for line in lines if line[0] == word]
