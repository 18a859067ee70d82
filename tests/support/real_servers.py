"""Real servers that were written by others, as `mcpServers` entries.

`real_server("git", tmp_path)` is one of them, ready to start on the test's own folder. `tools/real_servers.py` installs
them (`make test` does it first). A test whose server is missing names it and is skipped, which fails in CI.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tools.real_servers import executable, is_installed


@attrs.frozen
class RealServer:
    """One server: its `mcpServers` entry, what it is known to have, and a call that works."""

    name: str
    entry: Mapping[str, Any]
    era: str  # the protocol version it negotiates at best
    tool_count: int  # for a client that declares no capabilities
    tool: str
    arguments: Mapping[str, Any]
    answer: str  # part of the text of the call's result


def real_server(name: str, folder: Path) -> RealServer:
    """The server called `name` (see `REAL_SERVERS`), working on `folder`. Skips the test when it is not installed."""
    if not is_installed(name):
        pytest.skip(f"the real server {name!r} is not installed: run `make test`, with node and npm on PATH")
    return _MAKERS[name](folder)


def _time(_folder: Path) -> RealServer:
    entry = {"command": os.fspath(executable("time")), "args": ["--local-timezone", "UTC"]}
    return RealServer(
        "time", entry, "2026-07-28", 2, "get_current_time", {"timezone": "UTC"}, '"timezone": "UTC"'
    )


def _git(folder: Path) -> RealServer:
    repository = folder / "repository"
    repository.mkdir(parents=True, exist_ok=True)
    author = ("-c", "user.name=Stage", "-c", "user.email=stage@example.invalid", "-c", "commit.gpgsign=false")
    for command in (
        ("init", "--quiet"),
        (*author, "commit", "--quiet", "--allow-empty", "-m", "first night"),
    ):
        subprocess.run(("git", *command), cwd=repository, check=True, capture_output=True)
    entry = {"command": os.fspath(executable("git")), "args": ["--repository", os.fspath(repository)]}
    arguments = {"repo_path": os.fspath(repository), "max_count": 1}
    return RealServer("git", entry, "2026-07-28", 12, "git_log", arguments, "first night")


def _sqlite(folder: Path) -> RealServer:
    """Made with the old SDK (version 1)."""
    entry = {
        "command": os.fspath(executable("sqlite")),
        "args": ["--db-path", os.fspath(folder / "stage.db")],
    }
    return RealServer("sqlite", entry, "2025-11-25", 6, "list_tables", {}, "[")


def _everything(_folder: Path) -> RealServer:
    entry = {"command": "node", "args": [os.fspath(executable("everything")), "stdio"]}
    return RealServer("everything", entry, "2025-11-25", 13, "echo", {"message": "cue"}, "Echo: cue")


def _filesystem(folder: Path) -> RealServer:
    (folder / "script.txt").write_text("enter ghost\n", encoding="utf-8")
    entry = {"command": "node", "args": [os.fspath(executable("filesystem")), os.fspath(folder)]}
    arguments = {"path": os.fspath(folder / "script.txt")}
    return RealServer("filesystem", entry, "2025-11-25", 14, "read_text_file", arguments, "enter ghost")


def _memory(folder: Path) -> RealServer:
    environment = {"MEMORY_FILE_PATH": os.fspath(folder / "memory.jsonl")}
    entry = {"command": "node", "args": [os.fspath(executable("memory"))], "env": environment}
    return RealServer("memory", entry, "2025-11-25", 9, "read_graph", {}, "entities")


_MAKERS: Mapping[str, Callable[[Path], RealServer]] = {
    "time": _time,
    "git": _git,
    "sqlite": _sqlite,
    "everything": _everything,
    "filesystem": _filesystem,
    "memory": _memory,
}
REAL_SERVERS = tuple(_MAKERS)
