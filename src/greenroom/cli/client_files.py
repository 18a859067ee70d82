"""Our entry in a client's file, and the servers that move from there to our own file: what would be written, as texts.

Every new text is read again and compared with what it should mean. If it differs in anything but our entry, it is
refused (`CannotEdit`), so a form of file that the editors do not know costs a message and never a configuration.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Final

import attrs

from ..config.file_formats import parse_json
from ..config.files import own_file
from ..config.importers import Surroundings, shaped, with_texts
from ..config.model import Config
from ..config.references import expand_path
from ..protocol.errors import GreenroomError
from ..protocol.json_values import is_array, is_object
from . import json_edit
from .file_edits import CannotEdit, read

# ---- The MCP clients whose configuration `greenroom init` can write --------------------------------------------------
#
# For each the file, the section of its servers, and how our entry looks in it. To support another one, add a row.

_Entry = Callable[[str, Sequence[str]], dict[str, Any]]


def _plain(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"command": command, "args": [*args]}


def _typed(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"type": "stdio", "command": command, "args": [*args]}


def _zed(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"source": "custom", "command": command, "args": [*args], "env": {}}


def _opencode(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"type": "local", "command": [command, *args], "enabled": True}


def _copilot(command: str, args: Sequence[str]) -> dict[str, Any]:
    return {"type": "local", "command": command, "args": [*args], "tools": ["*"]}


def _goose(command: str, args: Sequence[str]) -> dict[str, Any]:
    named = {"name": "Greenroom", "description": "All MCP servers", "enabled": True, "timeout": 300}
    return {"type": "stdio", "cmd": command, "args": [*args], **named}


@attrs.frozen
class ClientProgram:
    """A client. `files`: its possible files for all projects, best first; a missing one is made at the first place."""

    title: str
    files: Callable[[Surroundings], Sequence[Path]]
    section: str = "mcpServers"
    entry: _Entry = _plain
    programs: Sequence[str] = ()  # which start it, where that is done by a command
    folder: str = ""  # its own in the home directory, if it is not the one that holds the file

    def file(self, around: Surroundings) -> Path:
        """The file to change: the first that exists, or else where it should be."""
        places = self.files(around)
        return next((path for path in places if path.exists()), places[0])

    def is_found(self, around: Surroundings) -> bool:
        """Whether the client seems to be installed: its file is there, or the folder of its own that holds it, or its
        command."""
        return (
            any(
                path.exists() or (path.parent != around.home and path.parent.is_dir())
                for path in self.files(around)
            )
            or any(shutil.which(program, path=around.environ.get("PATH", "")) for program in self.programs)
            or (bool(self.folder) and (around.home / self.folder).is_dir())
        )

    def is_written(self, around: Surroundings) -> bool:
        """Whether the client's file has an entry that starts Greenroom. A file that cannot be read has none."""
        return any(starts_us(entry) for entry in self.entries(around).values())

    def entries(self, around: Surroundings) -> Mapping[Any, Any]:
        """The servers in the client's file."""
        return _members(self.file(around), self.section)


def _home(*paths: str) -> Callable[[Surroundings], Sequence[Path]]:
    return lambda around: [around.home / path for path in paths]


def _data(path: str) -> Callable[[Surroundings], Sequence[Path]]:
    return lambda around: [around.application_data() / path]


def _codex_files(around: Surroundings) -> Sequence[Path]:
    return [Path(around.environ.get("CODEX_HOME") or around.home / ".codex") / "config.toml"]


def _zed_files(around: Surroundings) -> Sequence[Path]:
    if around.platform == "win32":
        return [around.application_data() / "Zed" / "settings.json"]
    return [around.config_home() / "zed" / "settings.json"]


def _opencode_files(around: Surroundings) -> Sequence[Path]:
    folder = around.config_home() / "opencode"
    return [folder / "opencode.json", folder / "opencode.jsonc"]


def _cline_files(around: Surroundings) -> Sequence[Path]:
    """Of the extension of VS Code, and of its command line."""
    extension = around.application_data() / "Code/User/globalStorage/saoudrizwan.claude-dev"
    return [
        extension / "settings/cline_mcp_settings.json",
        around.home / ".cline/data/settings/cline_mcp_settings.json",
    ]


def _copilot_files(around: Surroundings) -> Sequence[Path]:
    return [Path(around.environ.get("COPILOT_HOME") or around.home / ".copilot") / "mcp-config.json"]


def _goose_files(around: Surroundings) -> Sequence[Path]:
    if around.platform == "win32":
        return [around.application_data() / "Block/goose/config/config.yaml"]
    return [around.config_home() / "goose/config.yaml"]


CLIENTS: Final[Mapping[str, ClientProgram]] = {
    "claude-desktop": ClientProgram("Claude Desktop", _data("Claude/claude_desktop_config.json")),
    "claude-code": ClientProgram("Claude Code", _home(".claude.json"), entry=_typed, programs=("claude",)),
    "cursor": ClientProgram("Cursor", _home(".cursor/mcp.json"), programs=("cursor",)),
    "vscode": ClientProgram("VS Code", _data("Code/User/mcp.json"), "servers", _typed, ("code",)),
    "windsurf": ClientProgram("Windsurf", _home(".codeium/windsurf/mcp_config.json"), programs=("windsurf",)),
    "codex": ClientProgram("Codex", _codex_files, "mcp_servers", programs=("codex",)),
    "zed": ClientProgram("Zed", _zed_files, "context_servers", _zed, ("zed", "zeditor")),
    "gemini": ClientProgram("Gemini CLI", _home(".gemini/settings.json"), programs=("gemini",)),
    "opencode": ClientProgram("opencode", _opencode_files, "mcp", _opencode, ("opencode",)),
    "cline": ClientProgram("Cline", _cline_files),
    "continue": ClientProgram("Continue", _home(".continue/mcpServers/mcp.json"), folder=".continue"),
    "copilot-cli": ClientProgram("Copilot CLI", _copilot_files, entry=_copilot, programs=("copilot",)),
    "goose": ClientProgram("Goose", _goose_files, "extensions", _goose, ("goose",)),
    "junie": ClientProgram("JetBrains Junie", _home(".junie/mcp/mcp.json"), folder=".junie"),
    "kiro": ClientProgram("Kiro", _home(".kiro/settings/mcp.json"), programs=("kiro",), folder=".kiro"),
    "lm-studio": ClientProgram("LM Studio", _home(".lmstudio/mcp.json")),
}


def surroundings(environ: Mapping[str, str], platform: str) -> Surroundings:
    """Everything that the places of the files depend on, for this process."""
    return Surroundings(Path.home(), Path.home(), environ, platform)


OURS: Final = "mcpServers"
TAKEN: Final = "Greenroom's own file has another server of this name"
_ASKS: Final = re.compile(r"\$\{(input:[^}]*|workspaceFolder[^}]*|selectedText|file[^}]*)\}")
_Change = Callable[[dict[str, Any]], None]


@attrs.frozen
class Move:
    """The servers that move from the client's file to ours; the others stay, each with the reason."""

    servers: Mapping[str, Any]
    stay: Mapping[str, str]


def our_command() -> tuple[str, list[str]]:
    """The program and the arguments before `serve` with which a client starts this Greenroom. The program is a whole
    path, because desktop clients have another PATH."""
    here = Path(sys.argv[0])
    found = str(here.absolute()) if here.stem == "greenroom" and here.is_file() else shutil.which("greenroom")
    if found is None:
        return sys.executable, ["-m", "greenroom"]
    if "archive-v0" in PurePath(found).parts:  # the cache of uvx, which is cleared some day
        return shutil.which("uvx") or "uvx", ["greenroom"]
    return found, []


def decoded(path: Path, data: bytes | None) -> str:
    """The text of the file, with its byte order mark and line ends. Raises `CannotEdit`."""
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise CannotEdit(
            f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8, then try again."
        ) from None


def meaning(path: Path, text: str) -> dict[str, Any]:
    """The value of the text; an empty text counts as `{}`. Raises `ConfigError` or `CannotEdit`."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise CannotEdit(
                f"{path} is not valid TOML: {error}. Correct it by hand, then try again."
            ) from None
    if path.suffix == ".yaml":
        found = _yaml(path, text)
    elif all(token.kind in ("space", "comment") for token in json_edit.tokens_of(text)):
        return {}
    else:
        found = parse_json(text, str(path))
    if not isinstance(found, dict):
        raise CannotEdit(f"{path} holds no object ({{…}}): correct it by hand, then try again.")
    return found  # pyright: ignore[reportUnknownVariableType]  (the text is foreign)


def with_member(path: Path, text: str, keys: Sequence[str], value: Any) -> str:
    """`text` with `value` at `keys`; unchanged when it is there. Raises `ConfigError` or `CannotEdit`."""
    old = meaning(path, text)
    there = _get(old, keys)
    if there == value and isinstance(there, bool) is isinstance(value, bool):  # 1 is no `true`
        return text
    mark, rest = _after_mark(text)
    new = mark + _editor(path).put(rest, keys, value)
    return _checked(path, text, new, lambda new: _set(path, new, keys, value))


def without_member(path: Path, text: str, keys: Sequence[str]) -> str:
    """`text` without what is at `keys`. Raises `ConfigError` or `CannotEdit`."""
    if _get(meaning(path, text), keys) is None:
        return text
    mark, rest = _after_mark(text)
    new = mark + _editor(path).remove(rest, keys)
    return _checked(path, text, new, lambda new: _drop(new, keys))


def movable(
    kind: str, client: ClientProgram, around: Surroundings, there: Any, ours: Mapping[str, Any]
) -> Move:
    """The servers of the client's file (whose value is `there`) that can move to ours, in the form that they have
    there."""
    section = there.get(client.section) if is_object(there) else None
    servers: dict[str, Any] = {}
    stay: dict[str, str] = {}
    for name, entry in section.items() if is_object(section) else ():
        if starts_us(entry):
            continue
        new = _as_ours(kind, client, around, str(name), entry)
        if new is None:
            stay[str(name)] = "it is not of a form that we can run"
        elif asked := _ASKS.search(json.dumps(entry)):
            stay[str(name)] = f"it uses ${{{asked[1].split(':')[0]}…}}, which only its client can fill in"
        elif _leads_elsewhere(new.get("cwd"), around):
            stay[str(name)] = "its cwd is relative to where its client is started: write the whole path"
        elif name in ours and ours[name] != _with_its_env_file(new, client, around):
            stay[str(name)] = TAKEN
        else:
            servers[str(name)] = _with_its_env_file(new, client, around)
    return Move(servers, stay)


def starts_us(entry: Any) -> bool:
    """Whether the entry starts Greenroom itself. Such an entry never moves into Greenroom."""
    if not is_object(entry):
        return False
    words: list[Any] = []
    for each in (entry.get("command"), entry.get("cmd"), entry.get("args")):  # `cmd` is Goose's
        words += each if is_array(each) else [each]
    return any(isinstance(word, str) and PurePath(word).stem == "greenroom" for word in words)


def of_its_own(kind: str, client: ClientProgram, around: Surroundings) -> dict[str, Any]:
    """The servers that the client starts itself, each in our form; None: we could not run it. A file that cannot be
    read has none."""
    return {
        str(name): _as_ours(kind, client, around, str(name), entry)
        for name, entry in client.entries(around).items()
        if not starts_us(entry)
    }


def run_twice(own: Mapping[str, Any], config: Config) -> list[str]:
    """Those of a client's own servers that `config` has as well, under whatever name."""
    ours = {
        (each.command, each.args, each.url, frozenset(each.env))
        for each in config.servers.values()
        if (each.command or each.url) and not each.disabled
    }
    return [name for name, entry in own.items() if is_object(entry) and _program_of(entry) in ours]


def _program_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an entry starts or reaches. Only the names of its variables count: each client writes a value in its own
    way, and a program with other variables is another server."""
    args, env = entry.get("args") or (), entry.get("env") or ()
    return entry.get("command"), tuple(args), entry.get("url") or entry.get("httpUrl"), frozenset(env)


def would_move(kind: str, client: ClientProgram, around: Surroundings) -> Move:
    """What `movable` says of both files as they are."""
    ours = _members(own_file(around.home, around.environ), OURS)
    return movable(kind, client, around, {client.section: client.entries(around)}, ours)


def _members(file: Path, name: str) -> Mapping[Any, Any]:
    """The servers in this section of a file. A file that cannot be read has none."""
    try:
        text = decoded(file, read(file))
        try:
            said = json.loads(text)  # nearly every file; some are megabytes of what their client keeps there
        except (ValueError, RecursionError):
            said = meaning(file, text)
    except (GreenroomError, OSError, OverflowError):
        return {}
    section = said.get(name) if is_object(said) else None
    return section if is_object(section) else {}


# ---- details -------------------------------------------------------------------------------------------------
def _after_mark(text: str) -> tuple[str, str]:
    """The byte order mark, if there is one, and the rest."""
    rest = text.removeprefix("\ufeff")
    return text[: len(text) - len(rest)], rest


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        found = yaml.safe_load(text.removeprefix("\ufeff"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CannotEdit(f"{path} is not valid YAML: {error}. Correct it by hand, then try again.") from None
    return {} if found is None else found


def _editor(path: Path) -> ModuleType:
    if path.suffix == ".yaml":
        from . import yaml_edit

        return yaml_edit
    if path.suffix != ".toml":
        return json_edit
    from . import toml_edit

    return toml_edit


def _checked(path: Path, old: str, new: str, expected: _Change) -> str:
    wanted = copy.deepcopy(meaning(path, old))
    expected(wanted)
    if _form(meaning(path, new)) != _form(wanted):
        raise CannotEdit(f"{path} has a form that we cannot change safely. Write the entry by hand.")
    return new


def _form(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _get(found: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        found = found.get(key) if is_object(found) else None
    return found


def _set(path: Path, found: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        if found.get(key) is None:
            found[key] = {}
        if not is_object(found[key]):
            raise CannotEdit(f'{path}: "{key}" is not an object ({{…}}): correct it by hand, then try again.')
        found = found[key]
    found[keys[-1]] = value


def _drop(found: dict[str, Any], keys: Sequence[str]) -> None:
    for key in keys[:-1]:
        found = found[key]
    del found[keys[-1]]


def _as_ours(kind: str, client: ClientProgram, around: Surroundings, name: str, entry: Any) -> Any:
    if not is_object(entry):
        return None
    if kind == "zed":
        return _from_zed(entry)
    if kind == "goose":
        return _from_goose(entry)
    if kind == "copilot-cli":
        rest = {key: each for key, each in entry.items() if key != "tools"}
        tools: Any = entry.get("tools", ["*"])
        entry = rest if tools == ["*"] else {**rest, "includeTools": tools}
    if kind == "gemini":
        entry = _from_gemini(entry, around.environ)
    new: Any = shaped(kind, {client.section: {name: entry}}, around)
    found = _get(new, (OURS, name))
    return (
        found
        if is_object(found) and (found.get("command") or found.get("url") or found.get("httpUrl"))
        else None
    )


def _leads_elsewhere(path: Any, around: Surroundings) -> bool:
    """Whether it is a relative path, which means another file where the entry moves to."""
    return isinstance(path, str) and bool(path) and not os.path.isabs(expand_path(path, around.environ))


def _with_its_env_file(
    entry: Mapping[Any, Any], client: ClientProgram, around: Surroundings
) -> Mapping[Any, Any]:
    """The entry with the same meaning in our file: a relative `envFile` starts at the folder of its own file."""
    file: Any = entry.get("envFile")
    if not _leads_elsewhere(file, around):
        return entry
    return {**entry, "envFile": os.path.join(client.file(around).parent, file)}


def _from_zed(entry: Mapping[Any, Any]) -> Any:
    """The entry without what only Zed writes: `source`, and in older files an object `command` with the program."""
    new = {key: value for key, value in entry.items() if key != "source"}
    command: Any = new.get("command")
    if is_object(command):
        inner: dict[Any, Any] = {("command" if key == "path" else key): each for key, each in command.items()}
        new = {**new, **inner}
    return new if isinstance(new.get("command"), str) or new.get("url") else None


_GOOSE: Final = {"cmd": "command", "envs": "env", "uri": "url"}


def _from_goose(entry: Mapping[Any, Any]) -> Any:
    """The entry in our words. An extension that is a part of Goose is none, nor one whose secrets Goose keeps."""
    if entry.get("type") not in ("stdio", "sse", "streamable_http") or entry.get("env_keys"):
        return None
    new = {_GOOSE.get(key, key): each for key, each in entry.items() if key not in ("type", "env_keys")}
    return new if isinstance(new.get("command"), str) or new.get("url") else None


_DOLLAR: Final = re.compile(r"\$([A-Za-z_]\w*)")


def _from_gemini(entry: Mapping[Any, Any], environ: Mapping[str, str]) -> Any:
    """The entry with its references in our form: Gemini also writes `$NAME`, and leaves what is not set as it is
    written; names in capitals may be set elsewhere. The scopes of a login are one text here."""

    def braced(found: re.Match[str]) -> str:
        return f"${{{found[1]}}}" if found[1] in environ or found[1].isupper() else found[0]

    new: dict[Any, Any] = with_texts(entry, lambda text: _DOLLAR.sub(braced, text))
    oauth: Any = new.get("oauth")
    scopes: Any = oauth.get("scopes") if is_object(oauth) else None
    if is_array(scopes) and "scope" not in oauth and all(isinstance(each, str) for each in scopes):
        rest = {key: each for key, each in oauth.items() if key != "scopes"}
        new["oauth"] = {**rest, "scope": " ".join(map(str, scopes))}
    return new


# ---- The difference of two texts of a file, in which only our own entry can be read ---------------------------------
#
# A client's file holds other people's keys to other people's servers. Keys, marks and the form stay; every value and
# every comment is shown as `…`.


def diff(before: str, after: str, file: Path, *, ours: str = "") -> str:
    """A unified diff of the masked texts. `ours`: the name of the entry whose values are shown in `after`."""
    old = _masked(before, file, "").splitlines()
    new = _masked(after, file, ours).splitlines()
    return "\n".join(difflib.unified_diff(old, new, str(file), str(file), lineterm="", n=2))


def _masked(text: str, file: Path, ours: str) -> str:
    return _editor(file).masked(text.removeprefix("\ufeff"), ours, _like)


def _like(raw: str) -> str:
    quote = raw[0] if raw[:1] in "\"'" else ""
    return quote + "…" + "\n" * raw.count("\n") + quote
