"""The servers that other programs have configured, for `imports`.

Each kind of program is a row: its possible files (by platform) and, if its format differs, a function that turns
its content into ours. To support another program, add a row. When a kind has several files, the first readable one
counts. Programs that merge their files themselves (opencode, pi) are the exception: there, nearer files are stronger.

An importer translates keys that mean the same and leaves the others in place. The parser names every unknown key,
so nothing is dropped silently. No problem here is fatal. A program that is not installed is a warning, because the
configuration asked for it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..protocol.errors import ConfigError, Problem
from ..protocol.json_values import is_array, is_number, is_object, object_or_empty
from ..protocol.lazy_patterns import lazy_pattern
from .asked_values import BEARER
from .file_formats import read_file, read_text
from .parse import ConfigLayer, skipped
from .private_files import config_home

_Shape = Callable[[Any, "Surroundings"], Any]


class Surroundings(msgspec.Struct, frozen=True):
    """Everything that the places and variables of other programs depend on. `platform`: a value of `sys.platform`.
    `file`: the file that is read, for what stands in it relative to it."""

    cwd: Path
    home: Path
    environ: Mapping[str, str]
    platform: str
    file: Path | None = None

    def expand_home(self, path: str | Path) -> Path:
        """The path with a leading `~` replaced by the home directory."""
        parts = Path(path).parts
        return self.home.joinpath(*parts[1:]) if parts[:1] == ("~",) else Path(path)

    def application_data(self) -> Path:
        """Where desktop programs keep their settings on this platform."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData" / "Roaming")
        return self.config_home()

    def config_home(self) -> Path:
        """Where other programs keep their settings on Linux, and some on every platform."""
        return config_home(self.home, self.environ)


class ImportedFiles(msgspec.Struct, frozen=True):
    """The configuration that was read from some files, strongest first. `files`: the files that exist, also those that
    cannot be read."""

    layers: tuple[ConfigLayer, ...]
    problems: tuple[Problem, ...]
    files: tuple[str, ...]


_NOWHERE: Final = Path(os.devnull)  # no program has servers for this folder


def imported_layers(kind: str, around: Surroundings) -> ImportedFiles:
    """The configuration of the program `kind` in our format, and the problems."""
    row = _KINDS[kind]
    layers: list[ConfigLayer] = []
    problems: list[Problem] = []
    files: list[str] = []
    there = [path for path in row.files(around) if _exists(path)]
    for path in there:
        files.append(str(path))
        try:
            raw = _toml(path) if path.suffix == ".toml" else read_file(path, str(path), problems.append)
        except ConfigError as error:
            problems += (skipped(problem) for problem in error.problems)
            continue
        here = replace(around, file=path)
        shaped = row.shape(raw, here)
        of_folder = shaped != row.shape(raw, replace(here, cwd=_NOWHERE))
        layers.append(ConfigLayer(str(path), shaped, imported=True, as_ours=row.as_ours, of_folder=of_folder))
        if not row.all_count:
            break
    if not there:
        looked = ", ".join(str(path) for path in row.files(around))
        problems.append(
            Problem(f"imports: {kind}", f"no file of it was found (looked for {looked})", fatal=False)
        )
    return ImportedFiles(tuple(layers), tuple(problems), tuple(files))


def places_of(kind: str, around: Surroundings) -> list[Path]:
    """The paths at which `imported_layers` looks."""
    return _KINDS[kind].files(around)


def shaped(kind: str, raw: Any, around: Surroundings) -> Any:
    """The content of a file of the program `kind` in our format; unchanged when that program writes as we do."""
    row = _KINDS.get(kind)
    return raw if row is None else row.shape(raw, around)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True


def _toml(path: Path) -> Any:
    import tomllib  # only one client keeps its servers in TOML

    try:
        return tomllib.loads(read_text(path, str(path)))
    except RecursionError:
        what = 'is nested too deeply: correct the file, or remove it from "imports"'
        raise ConfigError([Problem(str(path), what)]) from None
    except ValueError as error:  # not TOML, or an integer longer than Python will read
        raise ConfigError([Problem(str(path), f"is not valid TOML: {error}")]) from None


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON, with each text in it changed; names of members stay."""
    if isinstance(value, str):
        return change(value)
    if is_object(value):
        return {key: with_texts(each, change) for key, each in value.items()}
    return [with_texts(each, change) for each in value] if is_array(value) else value


# ---- shapes ----------------------------------------------------------------------------------------------
def _servers(raw: Any, section: str, entry: Callable[[Mapping[Any, Any]], Mapping[Any, Any]]) -> Any:
    """`{"mcpServers": …}` from another section. A value that is no object stays, and the parser complains about it."""
    servers = raw.get(section) if is_object(raw) else None
    if not is_object(servers):
        return raw if not is_object(raw) else {} if servers is None else {"mcpServers": servers}
    return {"mcpServers": {n: entry(each) if is_object(each) else each for n, each in servers.items()}}


def _as_is(raw: Any, around: Surroundings) -> Any:
    return raw


def _claude_code(raw: Any, around: Surroundings) -> Any:
    """`~/.claude.json` is the whole state of a program. Servers of this project are stronger than those for all."""
    if not is_object(raw):
        return raw
    projects = raw.get("projects")
    here = projects.get(str(around.cwd)) if is_object(projects) else None
    everywhere, local = raw.get("mcpServers"), here.get("mcpServers") if is_object(here) else None
    return {**raw, "mcpServers": {**object_or_empty(everywhere), **local}} if is_object(local) else raw


_VS_CODE: Final = lazy_pattern(
    r"\$\{(workspaceFolder|workspaceFolderBasename|userHome|pathSeparator|/|env:(\w+))\}"
)


def _vscode(raw: Any, around: Surroundings) -> Any:
    """Its own variables are replaced. `${input:…}` asks a person and cannot be replaced; the parser says so. In `env`,
    a number is its text, and null takes a variable away."""
    separator = "\\" if around.platform == "win32" else "/"
    known = {
        "workspaceFolder": str(around.cwd),
        "workspaceFolderBasename": around.cwd.name,
        "userHome": str(around.home),
        "pathSeparator": separator,
        "/": separator,
    }

    def replace(match: re.Match[str]) -> str:
        return f"${{{match[2]}}}" if match[2] else known[match[1]]

    def entry(said: Mapping[Any, Any]) -> Mapping[Any, Any]:
        read: dict[Any, Any] = with_texts(said, lambda text: _VS_CODE.sub(replace, text))
        if is_object(env := read.get("env")):
            read["env"] = {name: _as_text(each) for name, each in env.items() if each is not None}
        return read

    if not is_object(raw):
        return raw
    section = next((key for key in ("servers", "mcpServers", "mcp-servers") if key in raw), "servers")
    return _servers(raw, section, entry)


def _as_text(value: Any) -> Any:
    """A number as the text that JavaScript makes of it."""
    if not is_number(value):
        return value
    return str(int(value)) if value == value // 1 and abs(value) < 1e21 else repr(value)


def _codex(raw: Any, around: Surroundings) -> Any:
    section = "mcp_servers" if is_object(raw) and "mcp_servers" in raw else "mcpServers"
    return _servers(raw, section, lambda entry: entry)  # the parser knows its keys


def _opencode(raw: Any, around: Surroundings) -> Any:
    return _servers(raw, "mcp", lambda entry: _opencode_entry(entry, around))


# A file's content as a whole value. Elsewhere in a text it cannot be read here, and the parser says so.
_OF_FILE: Final = lazy_pattern(rf"(?P<before>(?:{BEARER})?)\{{file:(?P<path>[^}}]+)\}}")


def _opencode_entry(entry: Mapping[Any, Any], around: Surroundings) -> dict[Any, Any]:
    """`command` is program and arguments in one array; `timeout` is milliseconds for listing tools. `{file:…}` is read
    when the server starts, as the output of a command, so that no configuration holds it."""

    def asked(text: str) -> str:
        if found := _OF_FILE.fullmatch(text.strip()):
            path = around.expand_home(found["path"].strip())
            if path.is_absolute() or around.file is not None:
                whole = path if around.file is None else around.file.parent / path
                return f"{found['before']}!cat -- {shlex.quote(str(whole))}"
        return text

    mapped: dict[Any, Any] = {
        key: with_texts(value, asked) if key in ("command", "environment", "headers") else value
        for key, value in entry.items()
    }
    command = mapped.get("command")
    if is_array(command) and command:
        mapped["command"], mapped["args"] = command[0], list(command[1:])
    return mapped


# ---- places ----------------------------------------------------------------------------------------------
def _at_home(*paths: str) -> Callable[[Surroundings], list[Path]]:
    return lambda around: [around.home / path for path in paths]


def _near_and_home(near: str, *paths: str) -> Callable[[Surroundings], list[Path]]:
    return lambda around: [around.cwd / near, *(around.home / path for path in paths)]


def _claude_desktop_files(around: Surroundings) -> list[Path]:
    return [around.application_data() / "Claude" / "claude_desktop_config.json"]


def _vscode_files(around: Surroundings) -> list[Path]:
    return [around.cwd / ".vscode" / "mcp.json", around.application_data() / "Code" / "User" / "mcp.json"]


def _opencode_files(around: Surroundings) -> list[Path]:
    """The nearest one up to the root of the repository, then the user's own."""
    config = around.config_home() / "opencode"
    names = ("opencode.json", "opencode.jsonc")
    near = [folder / name for folder in _up_to_root(around.cwd) for name in names]
    nearest = next(([path] for path in near if _exists(path)), [around.cwd / names[0]])
    return [*nearest, *(config / name for name in names)]


def _up_to_root(folder: Path) -> list[Path]:
    """The folders from here to the root of the repository; only here when there is none."""
    folders = [folder, *folder.parents]
    roots = [position for position, each in enumerate(folders) if _exists(each / ".git")]
    return folders[: roots[0] + 1] if roots else [folder]


def _codex_files(around: Surroundings) -> list[Path]:
    base = Path(around.environ.get("CODEX_HOME") or around.home / ".codex")
    return [base / "config.toml", base / "config.json"]


def _pi_files(around: Surroundings) -> list[Path]:
    agent = around.expand_home(around.environ.get("PI_CODING_AGENT_DIR") or "~/.pi/agent")
    return [around.cwd / ".pi" / "mcp.json", agent / "mcp.json"]


class _ClientFiles(msgspec.Struct, frozen=True):
    files: Callable[[Surroundings], list[Path]]
    shape: _Shape = _as_is
    all_count: bool = False
    as_ours: bool = False  # its files have settings and imports, as ours have


_KINDS: Final[Mapping[str, _ClientFiles]] = {
    "cursor": _ClientFiles(_near_and_home(".cursor/mcp.json", ".cursor/mcp.json"), _vscode, all_count=True),
    "claude-code": _ClientFiles(
        _at_home(".claude/mcp.json", ".claude.json", ".claude/claude_desktop_config.json"), _claude_code
    ),
    "claude-desktop": _ClientFiles(_claude_desktop_files),
    "vscode": _ClientFiles(_vscode_files, _vscode, all_count=True),
    "windsurf": _ClientFiles(_at_home(".codeium/windsurf/mcp_config.json", ".windsurf/mcp.json")),
    "codex": _ClientFiles(_codex_files, _codex),
    "opencode": _ClientFiles(_opencode_files, _opencode, all_count=True),
    "pi": _ClientFiles(_pi_files, all_count=True, as_ours=True),
}
