"""Plays each adapter with its framework, in an environment into which the extra was installed alone.

The scene is the same for all (`adapters/stage.py`). Besides, pyright reads the adapter and its example there, because
the frameworks are not in the environment of `make check`. How each framework tells its model of each fault is a column
of a table in the docs: it is written by `--write`, and otherwise compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from tools import package_tree

from ._install import HOME, ROOT, InstallFailed, install, interpreter
from ._table import Adapter

SCRIPTS = Path(__file__).parent / "adapters"
PAGE = ROOT / "docs" / "frameworks" / "what-a-model-is-told.md"
BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"
PATIENCE = 900.0  # seconds for one adapter's scene, or for reading it
_LEFT_OPEN = ("reportUnknown", "reportMissingTypeStubs", "reportDeprecated")
Told = Mapping[str, Sequence[str]]  # of each fault: the words, and how they are shown


@attrs.define
class AdapterRow:
    name: str
    pins: str
    problems: list[str] = attrs.field(factory=list[str])
    told: Told = attrs.field(factory=dict[str, Sequence[str]])
    replayed: int = 0  # calls that a tape answered as they were answered when it was recorded


def play_adapters(adapters: Sequence[Adapter]) -> list[AdapterRow]:
    """One after the other."""
    package_tree.main()  # what the type checker reads
    return [_play(adapter) for adapter in adapters]


def _play(adapter: Adapter) -> AdapterRow:
    row = AdapterRow(adapter.name, " ".join(adapter.pins))
    try:
        home = install("adapters", adapter.name, "pypi", ("-e", f"{ROOT}{adapter.extra}", *adapter.pins))
    except InstallFailed as error:
        row.problems.append(f"not installed: {error}")
        return row
    [python] = interpreter(home, "pypi")
    said = said_by(python, SCRIPTS / f"play_{adapter.play}.py")
    row.told = said.get("told", {})
    row.replayed = said.get("replayed", 0)
    row.problems += [*said["problems"], *_types(python, adapter)]
    return row


def said_by(python: str, script: Path) -> Mapping[str, Any]:
    """What the script prints in its last line; or a problem in place of it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [python, str(script)]
    try:
        done = subprocess.run(run, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"problems": [f"not done within {PATIENCE:g} s"]}
    try:
        return json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {"problems": [f"its script failed: {done.stderr.strip()[-300:]}"]}


def _types(python: str, adapter: Adapter) -> list[str]:
    """What pyright says of the adapter and of its example."""
    module, example = (
        f"build/types/greenroom/adapters/{adapter.module}.py",
        f"examples/with_{adapter.play}.py",
    )
    config = (
        HOME / "adapters" / f"{adapter.play}.json"
    )  # it reads only what is beneath a configuration, or relative to it
    up = os.path.relpath(ROOT, config.parent)
    settings = {
        "include": [f"{up}/{module}", f"{up}/{example}"],
        "exclude": ["**/__pycache__"],  # and not what begins with a dot, as it is otherwise
        "extraPaths": [f"{up}/build/types"],
        "typeCheckingMode": "strict",
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    pyright = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(config), "--pythonpath", python]
    done = subprocess.run(pyright, capture_output=True, text=True, check=False, timeout=PATIENCE)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return [f"pyright failed: {done.stderr.strip()[-300:]}"]
    found = said["generalDiagnostics"]
    if said["summary"]["filesAnalyzed"] != len(settings["include"]):
        return [f"pyright read {said['summary']['filesAnalyzed']} files"]
    # An example has what the framework's own types leave open.
    names = [(Path(one["file"]).name, one) for one in found]
    return [
        f"{name}: {one['message']}"
        for name, one in names
        if not (name == Path(example).name and one.get("rule", "").startswith(_LEFT_OPEN))
    ]


# ---- the table in the docs ------------------------------------------------------------------------------------------
def compare(rows: Sequence[AdapterRow]) -> None:
    """Note in each row what the page says otherwise."""
    cells = _cells()
    for row in rows:
        said = {fault: cells.get((fault, row.name)) for fault in row.told}
        differ = [fault for fault, (_, how) in row.told.items() if said[fault] != how]
        if differ:
            row.problems.append(f"{PAGE.relative_to(ROOT)} says otherwise (--write): {', '.join(differ)}")


def write(rows: Sequence[AdapterRow], names: Sequence[str]) -> None:
    """Write the columns of these adapters; `names`: of all adapters, in their order."""
    cells, texts = _cells(), dict[str, str]()
    for row in rows:
        for fault, (words, how) in row.told.items():
            cells[fault, row.name] = how
            texts[fault] = words
    faults = list(dict.fromkeys([*texts, *(fault for fault, _ in cells)]))
    columns = [name for name in names if any(column == name for _, column in cells)]
    lines = [
        f"| a call, or | the words | {' | '.join(columns)} |",
        f"|---|---|{'---|' * len(columns)}",
        *(
            f"| {fault} | {texts.get(fault) or cells.get((fault, 'the words'), '')} | "
            f"{' | '.join(cells.get((fault, name), '') for name in columns)} |"
            for fault in faults
        ),
    ]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{chr(10).join(lines)}\n\n{END}{after}", encoding="utf-8")


def _cells() -> dict[tuple[str, str], str]:
    """The table on the page, by fault and column."""
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    if not rows:
        return {}
    head, *rest = rows
    return {
        (row[0], column): cell
        for row in rest
        for column, cell in zip(head[1:], row[1:], strict=False)
        if cell
    }
