"""Plays each adapter with its framework, in an environment into which the extra was installed alone.

The scene is the same for all (`adapters/stage.py`). Besides, pyright reads the adapter and its example there, because
the frameworks are not in the environment of `make check`. How each framework tells its model of each fault is a column
of a table in the docs: it is written by `--write`, and otherwise compared.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools import package_tree

from ._table import ADAPTERS, AdapterRow, RowResult, WorldRun
from .installing import HOME, ROOT, interpreter, said_by

SCRIPTS, MODELS = (Path(__file__).parent / name for name in ("adapters", "models"))
PAGE = ROOT / "docs" / "frameworks" / "what-a-model-is-told.md"
BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"
PATIENCE = 900.0  # seconds for one adapter's scene, or for reading it
_LEFT_OPEN = ("reportUnknown", "reportMissingTypeStubs", "reportDeprecated")
Told = Mapping[str, Sequence[str]]  # of each fault: the words, and how they are shown


def play_adapter(adapter: AdapterRow, run: WorldRun) -> Iterator[RowResult]:
    """The second number is that of the calls that a tape answered as they were answered when it was recorded."""
    [python] = interpreter(adapter.installed("adapters", "-e", f"{ROOT}{adapter.extra}"))
    said = said_by((python, SCRIPTS / f"play_{adapter.play}.py"), PATIENCE, PYTHONPATH=str(MODELS))
    told = (_write if run.writes else _compare)(adapter.name, said.get("told", {}))
    problems = [*said["problems"], *_types(python, adapter), *told]
    yield RowResult([adapter.name, f"`{adapter.pins}`", str(said.get("replayed", 0))], problems)


def _types(python: str, adapter: AdapterRow) -> Iterator[str]:
    """What pyright says of the adapter and of its example."""
    _make_tree()
    example = f"with_{adapter.play}.py"
    files = [f"build/types/greenroom/adapters/{adapter.module}.py", f"examples/{example}"]
    config = (
        HOME / "adapters" / f"{adapter.play}.json"
    )  # pyright reads only what is beneath it, or relative to it
    up = os.path.relpath(ROOT, config.parent)
    settings = {
        "include": [f"{up}/{file}" for file in files],
        "exclude": ["**/__pycache__"],  # and not what begins with a dot, as it is otherwise
        "extraPaths": [f"{up}/build/types"],
        "typeCheckingMode": "strict",
    }
    config.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    # All of it is one value over many lines.
    pyright = (sys.executable, "-m", "pyright", "--outputjson", "-p", str(config), "--pythonpath", python)
    said = said_by(pyright, PATIENCE)
    if said["summary"]["filesAnalyzed"] != len(files):
        yield f"pyright read {said['summary']['filesAnalyzed']} files"
    for one in said["generalDiagnostics"]:
        name = Path(one["file"]).name
        # An example has what the framework's own types leave open.
        if not (name == example and one.get("rule", "").startswith(_LEFT_OPEN)):
            yield f"{name}: {one['message']}"


@functools.cache
def _make_tree() -> None:
    """What the type checker reads."""
    package_tree.main()


# ---- the table in the docs ------------------------------------------------------------------------------------------
def _compare(name: str, told: Told) -> Iterator[str]:
    """What the page says otherwise."""
    cells = _cells()
    differ = [fault for fault, (_, how) in told.items() if cells.get((fault, name)) != how]
    if differ:
        yield f"{PAGE.relative_to(ROOT)} says otherwise (--write): {', '.join(differ)}"


def _write(name: str, told: Told) -> list[str]:
    """Write the column of this adapter. Nothing is wrong then."""
    cells = _cells()
    for fault, (words, how) in told.items():
        cells[fault, "the words"], cells[fault, name] = words, how
    faults = dict.fromkeys([*told, *(fault for fault, _ in cells)])
    there = {column for _, column in cells}
    columns = ["the words", *(adapter.name for adapter in ADAPTERS if adapter.name in there)]
    lines = [
        f"| what happens | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {fault} | {' | '.join(cells.get((fault, each), '') for each in columns)} |"
            for fault in faults
        ),
    ]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{chr(10).join(lines)}\n\n{END}{after}", encoding="utf-8")
    return []


def _cells() -> dict[tuple[str, str], str]:
    """The table on the page, by fault and column."""
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    return {
        (row[0], column): cell
        for row in rows[1:]
        for column, cell in zip(rows[0][1:], row[1:], strict=False)
        if cell
    }
