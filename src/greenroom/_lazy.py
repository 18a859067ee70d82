"""Front doors whose names are imported when first used.

A front door has a table `_HOMES`, each module with the names it gives, and `__getattr__ = first_use(__name__, _HOMES)`.
A name is looked up once: from then on it stands in the front door itself. For type checkers the same names are imported
under `TYPE_CHECKING`, and `tools/arrows.py` reads the table as imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def first_use(module: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of `module`. `homes`: relative module names, each with what the front door takes from it."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def from_its_home(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home, module), name)
        setattr(sys.modules[module], name, value)
        return value

    return from_its_home
