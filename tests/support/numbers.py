"""The numbers that a module decides: times, sizes, counts, codes.

A test of its area says what they are, as the tests of the policies do (`test_policy_numbers`). So one that was moved by
accident is noticed, even where it would take an hour to show.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def numbers_of(*modules: str) -> dict[str, object]:
    """By `module.NAME`, each constant of these modules that is a number or consists of numbers. Modules are named by
    patterns of paths in the repository, without `.py`."""
    return {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts[1:])}.{name}": value
        for path in _files(modules)
        for name, value in _numbers_in(path)
    }


def _files(modules: Iterable[str]) -> Iterable[Path]:
    for module in modules:
        yield from sorted(ROOT.glob(f"{module}.py"))


def _numbers_in(path: Path) -> Iterable[tuple[str, object]]:
    named = ".".join(("greenroom", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    names = [name for name in _assigned(ast.parse(path.read_text(encoding="utf-8"))) if name.isupper()]
    if names:
        module = importlib.import_module(named)
        yield from ((name, value) for name in names if _is_number(value := getattr(module, name)))


def _assigned(tree: ast.Module) -> Iterable[str]:
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _is_number(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_number, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return type(value) in (int, float)
