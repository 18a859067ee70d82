"""The MCP clients whose configuration `greenroom init` can write: for each the file, the section of its servers, and
how our entry looks in it. To support another one, add a row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ...supervisor.config_files import Surroundings

_Entry = Callable[[str, Sequence[str]], dict[str, Any]]


def _plain(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"command": command, "args": [*args]}


def _typed(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", "command": command, "args": [*args]}


def _zed(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"source": "custom", "command": command, "args": [*args], "env": {}}


def _opencode(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"type": "local", "command": [command, *args], "enabled": True}


@attrs.frozen
class Client:
    """A client. `files`: its possible files for all projects, best first; a missing one is made at the first place."""

    title: str
    files: Callable[[Surroundings], Sequence[Path]]
    section: str = "mcpServers"
    entry: _Entry = _plain
    programs: Sequence[str] = ()  # which start it, where that is done by a command

    def file(self, around: Surroundings) -> Path:
        """The file to change: the first that exists, or else where it should be."""
        places = self.files(around)
        return next((path for path in places if path.exists()), places[0])

    def is_found(self, around: Surroundings) -> bool:
        """Whether the client seems to be installed: its file is there, or the folder of its own that holds it, or its
        command."""
        return any(
            path.exists() or (path.parent != around.home and path.parent.is_dir())
            for path in self.files(around)
        ) or any(shutil.which(program, path=around.environ.get("PATH", "")) for program in self.programs)


def _home(*paths: str) -> Callable[[Surroundings], Sequence[Path]]:
    return lambda around: [around.home / path for path in paths]


def _data(path: str) -> Callable[[Surroundings], Sequence[Path]]:
    return lambda around: [around.application_data() / path]


def _codex_files(around: Surroundings) -> Sequence[Path]:
    return [Path(around.environ.get("CODEX_HOME") or around.home / ".codex") / "config.toml"]


def _zed_files(around: Surroundings) -> Sequence[Path]:
    if around.platform == "win32":
        return [around.application_data() / "Zed" / "settings.json"]
    return [_config_home(around) / "zed" / "settings.json"]


def _opencode_files(around: Surroundings) -> Sequence[Path]:
    folder = _config_home(around) / "opencode"
    return [folder / "opencode.json", folder / "opencode.jsonc"]


def _config_home(around: Surroundings) -> Path:
    return Path(around.environ.get("XDG_CONFIG_HOME") or around.home / ".config")


CLIENTS: Final[Mapping[str, Client]] = {
    "claude-desktop": Client("Claude Desktop", _data("Claude/claude_desktop_config.json")),
    "claude-code": Client("Claude Code", _home(".claude.json"), entry=_typed, programs=("claude",)),
    "cursor": Client("Cursor", _home(".cursor/mcp.json"), programs=("cursor",)),
    "vscode": Client("VS Code", _data("Code/User/mcp.json"), "servers", _typed, ("code",)),
    "windsurf": Client("Windsurf", _home(".codeium/windsurf/mcp_config.json"), programs=("windsurf",)),
    "codex": Client("Codex", _codex_files, "mcp_servers", programs=("codex",)),
    "zed": Client("Zed", _zed_files, "context_servers", _zed, ("zed", "zeditor")),
    "gemini": Client("Gemini CLI", _home(".gemini/settings.json"), programs=("gemini",)),
    "opencode": Client("opencode", _opencode_files, "mcp", _opencode, ("opencode",)),
}


def surroundings(environ: Mapping[str, str], platform: str) -> Surroundings:
    """What the places of the files depend on, for this process."""
    return Surroundings(Path.home(), Path.home(), environ, platform)
