"""Front doors: each name is imported, alone, when it is first used.

A front door has its names in a module beside it, which imports them and does nothing else. Type checkers import them
from there. At run time that module is only read, as the table of what stands where: so each name is written once, and
`from greenroom import Greenroom` loads no gateway and no tape. Rejected: a second table in the front door, which would
drift.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any


def names_of(door: str, names: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the module `door`, whose names the module `names` beside it imports."""

    @cache
    def homes() -> Mapping[str, str]:
        return _imported_names(door, names)

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        # `from door import module` asks for a module before it is imported: that is no use of a name.
        if name.startswith("_") or name not in homes():
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name], door), name)
        setattr(sys.modules[door], name, value)
        return value

    return get, lambda: sorted(homes())


def _imported_names(door: str, names: str) -> dict[str, str]:
    """Each public name that the module imports, with the module that it comes from, relative to `door`."""
    import ast
    from pkgutil import get_data

    source = get_data(door, f"{names.removeprefix('.')}.py")
    return {
        alias.name: f"{'.' * node.level}{node.module}"
        for node in ast.parse(source or b"").body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
