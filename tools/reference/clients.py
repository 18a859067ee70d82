"""The page of MCP clients, from the table by which `greenroom init` finds their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from greenroom.cli.client_files import CLIENTS, ClientProgram
from greenroom.config.importers import Surroundings

from .markdown import page, table

_ENVIRONMENTS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "linux": ("Linux", {}),
    "darwin": ("macOS", {}),
    "win32": ("Windows", {"APPDATA": "%APPDATA%"}),
}


def client_page() -> str:
    """Each client with its file on each system, and where our entry stands in it."""
    return page(
        "# MCP clients",
        "The clients whose file `greenroom init` can write. [Write Greenroom into your clients](../clients.md) shows "
        "how. Of several files it takes the first that exists. `CODEX_HOME`, `COPILOT_HOME` and, where it is "
        "`~/.config`, `XDG_CONFIG_HOME` are heeded.",
        table(
            ("`CLIENT`", "is", "its file", "our entry is in"),
            [
                (f"`{name}`", client.title, _files(client), f"`{client.section}`")
                for name, client in CLIENTS.items()
            ],
        ),
    )


def _files(client: ClientProgram) -> str:
    """On one line: the systems that have the same files together."""
    systems: dict[str, list[str]] = {}
    for platform, (name, environ) in _ENVIRONMENTS.items():
        around = Surroundings(Path("~"), Path("~"), environ, platform)
        files = " or ".join(f"`{path.as_posix()}`" for path in client.files(around))
        systems.setdefault(files, []).append(name)
    if len(systems) == 1:
        return next(iter(systems))
    return "; ".join(f"{', '.join(names)}: {files}" for files, names in systems.items())
