"""Where the folders of the package stand: the heart at the top of the repository, all others in `src/greenroom`.

What runs gets that from the build (`setup.py`). Two kinds of tools need the package as one tree: type checkers, which
know nothing of builds (`python -m tools.package_tree` makes `build/types/greenroom`, folders with a link to each
file, so that each module has one name and one path), and those that change a copy of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = Path("src", "greenroom")
_NO_ROOMS: Final = frozenset({"benchmarks", "tests", "tools"})


def folder_of(root: Path, room: str) -> Path:
    """The folder of this room in the repository at `root`."""
    inside = root / PACKAGE / room
    return inside if inside.is_dir() else root / room


def file_of(root: Path, path: str) -> Path:
    """The file that stands at this path in the package: "actors/call.py"."""
    room, _, rest = path.partition("/")
    return folder_of(root, room) / rest


def copy_package(root: Path, target: Path, copy: Callable[[str, str], object] = shutil.copy2) -> None:
    """Put every file of the package under `target` (…/greenroom), as they stand in a wheel."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for source, place in [
        (root / PACKAGE, target),
        *((room, target / room.name) for room in _at_the_top(root)),
    ]:
        shutil.copytree(source, place, ignore=skipped, copy_function=copy)


def _at_the_top(root: Path) -> Iterator[Path]:
    for head in sorted(root.glob("*/__init__.py")):
        if head.parent.name not in _NO_ROOMS:
            yield head.parent


def main() -> None:
    """Make the tree that type checkers read anew."""
    tree = ROOT / "build" / "types" / "greenroom"
    shutil.rmtree(tree, ignore_errors=True)
    copy_package(ROOT, tree, os.symlink)


if __name__ == "__main__":
    main()
