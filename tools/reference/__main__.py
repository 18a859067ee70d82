"""`python -m tools.reference`: write the pages, or check them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import codes, commands, configuration, events, python

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/reference"


def main(arguments: Sequence[str]) -> int:
    made = pages()
    if list(arguments) == ["--check"]:
        wrong = stale(ROOT, made)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        return 1 if wrong else 0
    for path, text in made.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


def pages() -> Mapping[str, str]:
    return {
        f"{FOLDER}/servers.md": configuration.server_keys(),
        f"{FOLDER}/settings.md": configuration.settings(),
        f"{FOLDER}/bounds.md": configuration.bounds(),
        f"{FOLDER}/commands.md": commands.command_page(),
        f"{FOLDER}/events.md": events.event_page(),
        f"{FOLDER}/errors.md": codes.codes(ROOT),
        **{f"{FOLDER}/{name}": text for name, text in python.python_pages().items()},
        f"{FOLDER}/metrics.md": events.metric_page(),
    }


def stale(root: Path, made: Mapping[str, str]) -> list[str]:
    return [
        f"{path}: it is not what the code says; run `python -m tools.reference`"
        for path, text in made.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
