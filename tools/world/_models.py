"""Holds what `tools_for` gives and `run` answers against the types of the packages of the models' APIs.

The script (`models/play_types.py`) runs where these packages are installed beside this checkout. Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from ._adapters import said_by
from ._install import ROOT, InstallFailed, install, interpreter

SCRIPT = Path(__file__).parent / "models" / "play_types.py"


@attrs.define
class ModelRow:
    """A format. `held`: definitions and answers that were compared."""

    name: str
    held: int = 0
    problems: list[str] = attrs.field(factory=list[str])


def play_models(pins: Sequence[str]) -> list[ModelRow]:
    """Each format, and first a row for what was wrong with all of them."""
    try:
        home = install("models", "types", "pypi", ("-e", str(ROOT), *pins))
    except InstallFailed as error:
        return [ModelRow("all", problems=[f"not installed: {error}"])]
    [python] = interpreter(home, "pypi")
    said = said_by(python, SCRIPT)
    rows = [ModelRow(name, held) for name, held in said.get("held", {}).items()]
    for problem in said["problems"]:
        row = next((row for row in rows if problem.startswith((f"{row.name} ", f"{row.name}:"))), None)
        if row is None:
            rows.insert(0, row := ModelRow("all"))
        row.problems.append(problem)
    return rows
