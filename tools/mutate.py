"""Change the policies everywhere, by machine, and see a test go red: mutmut. Words as arguments choose among the files.

mutmut works on a copy of the tree in which the package is one folder, so the working tree is never touched. It leaves
alone what is decorated, and much of the pool is properties; so in the copy each property is first rewritten as a method
and a property that calls it. Exits 1, and shows them, when mutants survive. `ALIKE`: what no test could see changed.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.package_tree import PACKAGE, ROOT, copy_package

MUTMUT = Path(sys.executable).with_name("mutmut")
CHILDREN = "2"
FILES = (
    "protocol/lifecycle.py",
    "supervisor/reload.py",
    *(f"supervisor/policy/{name}.py" for name in ("breaker", "endings", "pool", "warm")),
)
TESTS = (
    "tests/protocol/test_lifecycle.py",
    *(
        f"tests/supervisor/test_{name}.py"
        for name in ("circuit_breaker", "restart", "pool", "reload_plan", "warm_pool", "reset_policy")
    ),
)
ALIKE = (
    # Words for a reader.
    r'"[a-z]+ [a-z, ]+"',
    # What a type checker alone reads.
    r"cast\(",
    # If there are enough, none of them rests.
    r"it\.idle\.has\(wanted\)",
    # Settings that are the same complete both definitions in the same way: that is left out to spare the work.
    r"is_same",
    # It runs while the module is imported, before a mutant is switched on.
    r"dict\.fromkeys\(Lifecycle, after\)",
)


def main() -> int:
    files = [file for file in FILES if not sys.argv[1:] or any(word in file for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        _prepare(tree, files)
        _mutmut(tree, "run", "--max-children", CHILDREN)
        fates = dict(_fates(tree))
        survivors = [name for name, fate in fates.items() if fate not in ("killed", "timeout")]
        print(f"{len(fates)} mutants by machine, {len(survivors)} survived")
        for name in survivors:
            print(_mutmut(tree, "show", name))
    return bool(survivors)


def _prepare(tree: Path, files: list[str]) -> None:
    copy_package(ROOT, tree / PACKAGE)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for file in files:
        path = tree / PACKAGE / file
        path.write_text(_without_properties(path.read_text(encoding="utf-8")), encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    mutmut = f"""
[tool.mutmut]
source_paths = ["{PACKAGE}"]
only_mutate = {json.dumps([f"{PACKAGE}/{file}" for file in files])}
do_not_mutate_patterns = {json.dumps(ALIKE)}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-k", "not asyncio and not real and not takes_no_time"]
pytest_add_cli_args_test_selection = {json.dumps(TESTS)}
"""
    (tree / "pyproject.toml").write_text(project + mutmut, encoding="utf-8")


def _without_properties(source: str) -> str:
    """Each `@property def x` as `def _read_x` and `x = property(…)`, which mutmut does not leave alone."""
    lines = source.splitlines()
    for node in sorted(_properties(ast.parse(source)), key=lambda node: -node.lineno):
        indent = " " * node.col_offset
        calling = f"{indent}{node.name} = property(lambda self: self._read_{node.name}())"
        lines.insert(node.end_lineno or node.lineno, calling)
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(
            f"def {node.name}(", f"def _read_{node.name}("
        )
        del lines[node.lineno - 2]
    return "\n".join(lines) + "\n"


def _properties(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and [*map(ast.unparse, node.decorator_list)] == ["property"]:
            yield node


def _mutmut(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "GREENROOM_MUTANTS": "1"}
    done = subprocess.run([MUTMUT, *words], cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutmut {words[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _fates(tree: Path) -> Iterator[tuple[str, str]]:
    """Each mutant by its name, and what became of it."""
    for line in _mutmut(tree, "results", "--all", "true").splitlines():
        name, colon, fate = line.strip().rpartition(": ")
        if colon:
            yield name, fate


if __name__ == "__main__":
    sys.exit(main())
