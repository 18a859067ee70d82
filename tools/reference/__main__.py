"""`python -m tools.reference`: write the pages, or check them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import clients, codes, commands, configuration, environment, events, faults, python

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/reference"


def main(arguments: Sequence[str]) -> int:
    made = pages()
    if list(arguments) == ["--check"]:
        wrong = stale(ROOT, made)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        return 1 if wrong else 0
    for path, text in made.items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    for path in left_over(ROOT, made):
        (ROOT / path).unlink()
    return 0


def pages() -> Mapping[str, str]:
    told = {"errors.md": codes.codes(ROOT), "events.md": events.event_page()}
    made = {
        "servers.md": configuration.server_keys(),
        "settings.md": configuration.settings(),
        "bounds.md": configuration.bounds(),
        "clients.md": clients.client_page(),
        "environment.md": environment.variable_page(ROOT),
        "metrics.md": events.metric_page(),
        "faults.md": faults.fault_page(),
        **told,
        **commands.command_pages(),
        **python.python_pages(told),
    }
    return {f"{FOLDER}/{name}": text for name, text in made.items()}


def stale(root: Path, made: Mapping[str, str]) -> list[str]:
    wrong = [
        f"{path}: it is not what the code says; run `python -m tools.reference`"
        for path, text in made.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]
    return wrong + [f"{path}: nothing makes it" for path in left_over(root, made)]


def left_over(root: Path, made: Mapping[str, str]) -> list[str]:
    """Pages in the folder that are no longer made."""
    there = (path.relative_to(root).as_posix() for path in (root / FOLDER).rglob("*.md"))
    return sorted(set(there) - made.keys())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
