"""Runs the scenario of `docs/exploring.md` under simloop, as the page has it: another explorer of schedules.

simloop needs Python 3.12, and Greenroom runs on 3.11. So this is played where a newer Python is at hand too; the row
says it where none is.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import attrs
from tools.installed import pythons_at_hand

from ._install import ROOT, InstallFailed, install, interpreter

SCHEDULER = "simloop"
PINS = ("simloop==0.2.2", "pytest")  # the page's scenario is a test
PAGE = ROOT / "docs" / "exploring.md"
OLDEST = "3.12"
PATIENCE = 300.0  # seconds


@attrs.define
class SchedulerRow:
    """`python`: which it was played with; None: there is none that is new enough."""

    name: str
    python: str | None = None
    problems: list[str] = attrs.field(factory=list[str])


def play_scheduler() -> SchedulerRow:
    """The scenario, then what the page says under it."""
    row = SchedulerRow(PINS[0])
    row.python, python = max(
        ((version, path) for version, path in pythons_at_hand().items() if _minor(version) >= _minor(OLDEST)),
        key=lambda each: _minor(each[0]),
        default=(None, None),
    )
    if python is None:
        return row
    try:
        home = install("schedulers", SCHEDULER, "pypi", (*PINS, "-e", str(ROOT)), python=python)
    except InstallFailed as error:
        row.problems.append(f"not installed: {error}")
        return row
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    under = [block for block in blocks if f"import {SCHEDULER}" in block]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "scenario.py")
        script.write_text("\n".join([blocks[0], *under]), encoding="utf-8")
        command = [*interpreter(home, "pypi"), str(script)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=folder
            )
        except subprocess.TimeoutExpired:
            row.problems.append(f"not done within {PATIENCE:g} s")
            return row
    if not under or done.returncode:
        row.problems.append(f"the page's lines fail: {done.stderr.strip()[-300:]}" if under else "not there")
    return row


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
