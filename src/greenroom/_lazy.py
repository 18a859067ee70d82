"""Front doors whose names are imported when one of them is first used.

A front door has its names in a module beside it, which imports them and does nothing else. Type checkers import them
from there; at run time the front door does, when it is first asked for one. So each name is written once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_of(door: str, names: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the module `door`, whose names are those of the module `names` beside it."""

    def found() -> dict[str, Any]:
        module = import_module(names, door)
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        return {**public, "__all__": sorted(public)}

    def get(name: str) -> Any:
        from importlib.util import find_spec

        # `from door import module` asks for a module before it is imported: that is no use of a name.
        is_name = name == "__all__" or not (name.startswith("_") or find_spec(f"{door}.{name}"))
        known = found() if is_name else {}
        if name not in known:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        vars(sys.modules[door]).update(known)
        return known[name]

    def names_in_order() -> list[str]:
        return list(get("__all__"))

    return get, names_in_order
