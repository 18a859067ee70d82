"""`python -m tools.reference`: write the pages. `tools.docs` says when one is not what the code says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import clients, codes, commands, configuration, environment, events, faults, python

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/reference"


def main() -> None:
    made = pages()
    for path, text in made.items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    for path in left_over(ROOT, made):
        (ROOT / path).unlink()


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


def left_over(root: Path, made: Mapping[str, str]) -> list[str]:
    """Pages in the folder that are no longer made."""
    there = (path.relative_to(root).as_posix() for path in (root / FOLDER).rglob("*.md"))
    return sorted(set(there) - made.keys())


if __name__ == "__main__":
    main()
