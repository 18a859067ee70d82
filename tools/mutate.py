"""Change the policies everywhere, by machine, and see a test go red: mutmut over what the hand-written table may miss.

mutmut works on a copy of the tree whose links are followed (it knows no links), so the working tree is never touched.
It leaves alone what is decorated, and much of the pool is properties; so in the copy each property is first rewritten
as a method and a property that calls it. What survives must be in `EQUIVALENT`, with the reason why no test could see
it; the outcome is written to `.build/mutants/policies-by-machine.md`. Exits 1 when any other mutant survives, or when
a reason has nothing left to explain.

Arguments choose among the files (`pool.py`), and then nothing is written.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.package_tree import PACKAGE, copy_package

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / ".build" / "mutants" / "policies-by-machine.md"
MUTMUT = Path(sys.executable).with_name("mutmut")
CHILDREN = "2"

# The tests that must notice a mutant, by its file. In `PURE`, the definitions that are mutated, where these are not all
# of a file: a policy stands beside what acts on its decisions. That is not mutated here: whole rooms run to see it, and
# most mutants of it hang. The hand-written table is for that.
TESTS = {
    "protocol/lifecycle.py": ("protocol/test_lifecycle.py",),
    "supervisor/policy/breaker.py": ("supervisor/test_circuit_breaker.py", "supervisor/test_restart.py"),
    "supervisor/policy/endings.py": ("supervisor/test_restart.py",),
    "supervisor/policy/pool.py": ("supervisor/test_pool.py",),
    "supervisor/reload.py": ("supervisor/test_reload_plan.py",),
}
PURE = {
    "supervisor/policy/breaker.py": ("Admission", "BreakerPolicy", "CircuitBreaker", "Intensity"),
    "supervisor/policy/endings.py": ("AfterEnding", "_same", "after"),
    "supervisor/policy/pool.py": (
        *("PoolLimits", "SlotWaiter", "IdleConnections", "Snapshot", "Decision"),
        *(
            "decide",
            "may_expire",
            "_evictions",
            "_earned_at",
            "_reserve_opens",
            "_has_slot",
            "_wanted",
        ),
    ),
}


class Change(NamedTuple):
    """One mutant that lived: the file, and the lines that were replaced and put in their place."""

    file: str
    old: str
    new: str


_RESTART = "supervisor/policy/endings.py"
_SAME = "return MappingProxyType(dict.fromkeys(Lifecycle, after))"
_TOO_EARLY = (
    "it runs while the module is imported, before a mutant is switched on; test_restart has every cell"
)
_RELOAD = "supervisor/reload.py"
_NOT_SPARED = "equal settings complete both definitions alike: it only spares the work to complete them"
_USABLE = "name: definition if is_same else with_settings(definition, config.settings)"
EQUIVALENT: dict[Change, str] = {
    Change(
        _RELOAD, "is_same = old.settings.inherit_env == new.settings.inherit_env", "is_same = None"
    ): _NOT_SPARED,
    Change(_RELOAD, _USABLE, _USABLE.replace("is_same else", "(is_same) and False else")): _NOT_SPARED,
    Change(_RESTART, _SAME, "return MappingProxyType(None)"): _TOO_EARLY,
    Change(_RESTART, _SAME, "return MappingProxyType(dict.fromkeys(None, after))"): _TOO_EARLY,
    Change(_RESTART, _SAME, "return MappingProxyType(dict.fromkeys(Lifecycle, None))"): _TOO_EARLY,
    Change(_RESTART, _SAME, "return MappingProxyType(dict.fromkeys(after))"): _TOO_EARLY,
    Change(_RESTART, _SAME, "return MappingProxyType(dict.fromkeys(Lifecycle, ))"): _TOO_EARLY,
}


def main() -> int:
    files = [file for file in TESTS if not sys.argv[1:] or any(file.endswith(word) for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        _prepare(tree, files)
        _mutmut(tree, "run", "--max-children", CHILDREN, *(name for file in files for name in _mutated(file)))
        fates = {name: fate for name, fate in _fates(tree) if fate != "not checked"}
        lived = {
            name: _change(tree, name) for name, fate in fates.items() if fate not in ("killed", "timeout")
        }
    return _judge(files, fates, lived)


def _mutated(file: str) -> Iterator[str]:
    """The mutants of a file, by the patterns that mutmut takes."""
    module = f"greenroom.{file.removesuffix('.py').replace('/', '.')}"
    if file not in PURE:
        yield f"{module}.*"
    for name in PURE.get(file, ()):
        yield f"{module}.x_{name}__mutmut_*"
        yield f"{module}.x\u01c1{name}\u01c1*"


# ---- the copy ------------------------------------------------------------------------------------------------------


def _prepare(tree: Path, files: list[str]) -> None:
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    copy_package(ROOT, tree / PACKAGE)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=skipped)
    for file in files:
        path = tree / PACKAGE / file
        path.write_text(_without_properties(path.read_text(encoding="utf-8")), encoding="utf-8")
    _configure(tree, files)


def _configure(tree: Path, files: list[str]) -> None:
    """The project's own settings for pytest, and mutmut's. The package is not installed in there: no metadata."""
    whole = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pytest_part = whole[whole.index("[tool.pytest.ini_options]") :]
    mutated = [f"src/greenroom/{file}" for file in files]
    tests = [f"tests/{test}" for file in files for test in TESTS[file]]
    mutmut_part = f"""
[tool.mutmut]
source_paths = ["src/greenroom"]
only_mutate = {mutated}
also_copy = ["tests"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-k", "not asyncio and not real and not takes_no_time"]
pytest_add_cli_args_test_selection = {tests}
"""
    (tree / "pyproject.toml").write_text(pytest_part + mutmut_part, encoding="utf-8")


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
        if isinstance(node, ast.FunctionDef) and [ast.unparse(each) for each in node.decorator_list] == [
            "property"
        ]:
            yield node


# ---- the run -------------------------------------------------------------------------------------------------------


def _mutmut(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "GREENROOM_MUTANTS": "1"}
    done = subprocess.run([MUTMUT, *words], cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutmut {words[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _fates(tree: Path) -> Iterator[tuple[str, str]]:
    for line in _mutmut(tree, "results", "--all", "true").splitlines():
        name, colon, fate = line.strip().rpartition(": ")
        if colon:
            yield name, fate


def _change(tree: Path, name: str) -> Change:
    """What mutmut shows as a diff."""
    diff = _mutmut(tree, "show", name).splitlines()
    file = next(line for line in diff if line.startswith("+++ ")).removeprefix("+++ src/greenroom/")
    return Change(file, _lines(diff, "-"), _lines(diff, "+"))


def _lines(diff: list[str], sign: str) -> str:
    return " ".join(line[1:].strip() for line in diff if line.startswith(sign) and line[:3] != sign * 3)


# ---- the judgement -------------------------------------------------------------------------------------------------


def _judge(files: list[str], fates: dict[str, str], lived: dict[str, Change]) -> int:
    explained = {change for change in lived.values() if change in EQUIVALENT}
    survivors = [change for change in lived.values() if change not in EQUIVALENT]
    idle = [change for change in EQUIVALENT if change.file in files and change not in explained]
    print(f"{len(fates)} mutants, {len(lived)} lived, {len(survivors)} of them without a reason")
    for title, changes in (("survived", survivors), ("explained, but dead", idle)):
        for change in changes:
            print(f"{title}: {change.file}\n  - {change.old}\n  + {change.new}")
    if files == list(TESTS):
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(_report(fates, lived), encoding="utf-8")
    return bool(survivors or idle)


def _report(fates: dict[str, str], lived: dict[str, Change]) -> str:
    made, dead = Counter(map(_file_of, fates)), Counter(_file_of(name) for name in fates if name not in lived)
    lines = [
        "# General mutants of the policies",
        "",
        "Each comparison, number, operator, argument and statement of the policies, changed by mutmut; `make mutants`.",
        "",
        "| file | mutants | killed |",
        "|---|---|---|",
        *(f"| `{file}` | {made[file]} | {dead[file]} |" for file in TESTS),
        "",
        "## What lived",
        "",
        "No test could notice these: the changed code does the same, or differs only where it cannot be reached.",
        "",
        "| file | was | became | why it is the same |",
        "|---|---|---|---|",
    ]
    for change in sorted(set(lived.values())):
        was, became = (text.replace("|", "\\|") for text in (change.old, change.new))
        lines.append(
            f"| `{change.file}` | `{was}` | `{became}` | {EQUIVALENT.get(change, '**unexplained**')} |"
        )
    return "\n".join(lines) + "\n"


def _file_of(mutant: str) -> str:
    """`supervisor/policy/breaker.py` of `greenroom.supervisor.policy.breaker.xǁCircuitBreakerǁadmit__mutmut_1`."""
    return "/".join(mutant.split(".")[1:-1]) + ".py"


if __name__ == "__main__":
    sys.exit(main())
