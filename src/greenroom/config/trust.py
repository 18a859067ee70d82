"""Whose configuration is obeyed: a project's files only after their owner has said yes.

Files that are found in the working directory or above it come with a repository. Whoever wrote them could start any
program, send the reader's variables anywhere, or have further files read. So a file of a project is obeyed only if
what matters in it is the same as when `greenroom trust` showed it and its owner agreed. What an `envFile` holds
matters, too, whatever its variables are called: only the value of one that is a credential may change (`may_rotate`),
so that a key can be rotated. And so does a document of an HTTP API that is a file: its hosts are where credentials are
sent. Rejected: a list of the variables that can run code, which is never complete; of a document only the hosts, which
could be written in many places of it.

The files in the user's own folders, and a file that was named, are obeyed as they are.

The agreements are one file of the user's state folder (0600). It holds digests and paths, and nothing of the content.
A file that cannot be read, or that somebody else could have written, holds no agreement. Where two processes write at
once, one of the changes may be lost; the loser's file is asked about again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from ..protocol.errors import UNTRUSTED, Problem
from ..protocol.json_values import is_array, is_number, is_object
from ..protocol.lazy_patterns import lazy_pattern
from .asked_values import BEARER, command_in
from .credentials import SECRET_WORD, is_place
from .foreign_keys import ALIASES, is_remark
from .keys import SECTIONS
from .loader_variables import loaders_among
from .masking import Hider
from .model import SERVER_KEY, SETTING_KEY
from .parse import ConfigLayer, merge
from .private_files import alone, make_folder, read_own, read_regular, replacing
from .references import expand_path, is_url, named_path, referred_to
from .scrubbing import REDACTED
from .self_reference import servers_of_itself

_VERSION: Final = 1


class ProjectFile(msgspec.Struct, frozen=True):
    """A file of a project that needs its owner's yes. `digest` is None when no digest can be made of it: then it is
    never obeyed. `servers`: the names of the servers that it defines. `matter` is what matters of it, and of the files
    that it names: under `envFiles`, what was read of each (`secret_sources.agreed_part`; None: it could not be read),
    and under `documents`, the print of each document of an HTTP API that is a file."""

    file: str
    directory: str
    matter: Mapping[str, Any]
    servers: tuple[str, ...]
    digest: str | None

    def of_file(self, kind: Literal["envFiles", "documents"], path: Path) -> Any:
        """What matters of a file that it names; None: it could not be read."""
        return self.matter.get(kind, {}).get(str(path))


Judge = Callable[[ProjectFile], bool]


def trust_file(home: Path, environ: Mapping[str, str]) -> Path:
    """Where the user's agreements are kept."""
    state = Path(environ.get("XDG_STATE_HOME") or "")
    return (state if state.is_absolute() else home / ".local" / "state") / "greenroom" / "trust.json"


def obeyed(
    layers: Iterable[ConfigLayer],
    projects: Collection[str],
    cwd: Path,
    environ: Mapping[str, str],
    judge: Judge,
    *,
    found: bool,
) -> tuple[list[ConfigLayer], list[ProjectFile]]:
    """The layers that are obeyed, and the files that are not. `projects`: the paths that belong to a project.
    `found`: our own files were discovered, not named."""
    kept: list[ConfigLayer] = []
    left: list[ProjectFile] = []
    for layer in layers:
        asked = _asked(layer, cwd, environ, found) if layer.source in projects else None
        if asked is None or judge(asked):
            kept.append(layer)
        else:
            left.append(asked)
    return kept, left


def refusals(left: Iterable[ProjectFile], command: str) -> tuple[list[Problem], dict[str, Problem]]:
    """A warning for each file that is not obeyed, and the reason for each of its servers. `command`: the command that
    shows these files and asks."""
    warnings: list[Problem] = []
    reasons: dict[str, Problem] = {}
    for one in left:
        step = f"run `{command}` in {one.directory} to see what it would do, and to allow it"
        if one.digest is None:
            step = "its content cannot be compared, so it cannot be trusted: write it anew"
        what = f"came with this directory and is not trusted, so nothing in it is used: {step}"
        warnings.append(Problem(one.file, what, fatal=False))
        for name in one.servers:
            reasons.setdefault(
                name,
                Problem(one.file, f"is not trusted, so its servers are left out: {step}", code=UNTRUSTED),
            )
    return warnings, reasons


def _asked(layer: ConfigLayer, cwd: Path, environ: Mapping[str, str], found: bool) -> ProjectFile | None:
    """What the owner is asked about this file; None if nothing in it needs an answer."""
    if not what_matters(layer.raw, imported=layer.only_servers):
        return None
    alone = merge([replace(layer, imported=False)])
    itself = servers_of_itself(alone, cwd=cwd, found=found)
    matter = what_matters(layer.raw, imported=layer.only_servers, without=itself)
    if not matter:  # nothing but this gateway itself, which is left out anyway
        return None
    names = tuple(name for name in (*alone.servers, *alone.broken) if name not in itself)
    try:
        named = _named_files(matter, layer.source, cwd, environ)
        files = {"envFiles": _env_files(named), "documents": {p: _print_in(p) for p in named["openapi"]}}
        matter |= {kind: found for kind, found in files.items() if found}
        known = digest(layer.source, str(cwd), matter)
    except ValueError:
        known = None
    return ProjectFile(layer.source, str(cwd), matter, names, known)


def _named_files(
    matter: Mapping[str, Any], source: str, cwd: Path, environ: Mapping[str, str]
) -> dict[str, dict[str, None]]:
    """The files whose content matters that the servers of a file name, by the key that names them. Raises `ValueError`
    if they are too many, or too large together."""
    found: dict[str, dict[str, None]] = {key: {} for key in _LARGEST}
    size = dict.fromkeys(found, 0)
    for entry in matter.get("mcpServers", {}).values():
        for name, file in entry.items():
            key = "openapi" if name == "spec" else ALIASES.get(name, name)
            if key not in found or not isinstance(file, str) or is_url(expand_path(file, environ)):
                continue
            path = named_path(file, source, cwd, environ)
            if str(path) not in found[key]:
                with suppress(OSError, ValueError):
                    size[key] += path.stat().st_size
                found[key][str(path)] = None
                if size[key] > _LARGEST[key] or len(found[key]) > _MOST_FILES:
                    raise ValueError("the files that it names are too many, or too large")
    return found


def _env_files(named: Mapping[str, Iterable[str]]) -> dict[str, Mapping[str, str | None] | None]:
    from .secret_sources import agreed_part_of

    return {path: agreed_part_of(path) for path in named["envFile"]}


def _print_in(path: str) -> str | None:
    try:
        return document_print(read_regular(path, _LARGEST["openapi"]))
    except (OSError, OverflowError, ValueError):
        return None


def document_print(data: bytes) -> str:
    """What is compared of a document, for the yes to a project's file that names it."""
    return hashlib.sha256(data).hexdigest()


def _is_agreement(each: object) -> bool:
    return is_object(each) and all(isinstance(each.get(place), str) for place in ("file", "directory"))


class Agreements:
    """What the user has agreed to, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warning: str | None = None  # why nothing is trusted

    def allows(self, one: ProjectFile) -> bool:
        return one.digest is not None and one.digest in self.read()

    def read(self) -> dict[str, dict[str, Any]]:
        """`{digest: {file, directory, since}}`; empty, and a warning, when the file cannot be used."""
        try:
            said = json.loads(read_own(self.path))
            known = said["trusted"] if said["version"] == _VERSION else None
        except FileNotFoundError:
            return {}
        except OSError as error:
            return self._unusable(error.strerror or "it cannot be read")
        except (ValueError, LookupError, TypeError, RecursionError):
            known = None
        if not is_object(known) or not all(map(_is_agreement, known.values())):
            return self._unusable("its content is not what was written: remove it, and trust again")
        return {str(key): {**each} for key, each in known.items()}

    def add(self, files: Iterable[ProjectFile]) -> None:
        """Remember a yes for these files, in place of an older one for the same file. Raises `OSError`."""
        agreed = {one.digest: one for one in files if one.digest is not None}
        places = {(one.file, one.directory) for one in agreed.values()}
        now = round(time.time())
        fresh = {
            key: {"file": one.file, "directory": one.directory, "since": now} for key, one in agreed.items()
        }
        make_folder(self.path.parent)
        with alone(self.path):
            rest = {
                key: each
                for key, each in self.read().items()
                if (each["file"], each["directory"]) not in places
            }
            self._write({**rest, **fresh})

    def forget(self, directory: str) -> list[str]:
        """Take back every yes that was given in `directory`. Returns the files. Raises `OSError`."""
        with alone(self.path):
            known = self.read()
            gone = {key: each for key, each in known.items() if each["directory"] == directory}
            if gone:
                self._write({key: each for key, each in known.items() if key not in gone})
        return sorted(str(each["file"]) for each in gone.values())

    def _unusable(self, why: str) -> dict[str, dict[str, Any]]:
        self.warning = why
        return {}

    def _write(self, known: Mapping[str, Any]) -> None:
        with replacing(self.path) as file:
            file.write(json.dumps({"version": _VERSION, "trusted": known}, indent=2).encode())


_ALSO: Final = ("imports", "settings", "adapter", "profiles")  # of an imported file only the servers are read
_HARMLESS: Final = frozenset(
    "connectTimeoutMs description drainTimeoutMs icon idleTimeout installTimeoutMs maxInFlight maxQueued"
    " requestTimeoutMs stopTimeoutMs title version".split()
)
_MOST_FILES: Final = 256  # under each key
_LARGEST: Final[Mapping[str, int]] = {"envFile": 1 << 17, "openapi": 1 << 26}  # bytes, of all under one key
_MATTER_VERSION: Final = 1  # of the digest; another version asks again


def what_matters(raw: Any, *, imported: bool = False, without: Container[str] = ()) -> dict[str, Any]:
    """The part of a file's content that needs the owner's yes; empty if there is none. `without`: servers that are
    left out anyway."""
    if not is_object(raw):
        return {}
    servers: dict[str, Any] = {}
    for section in SECTIONS:
        entries = raw.get(section)
        for name, entry in entries.items() if is_object(entries) else ():
            if name in without or not is_object(entry):
                continue
            said = {str(key): value for key, value in entry.items() if not _is_harmless(str(key), value)}
            if said:
                servers.setdefault(str(name), said)
    rest = {} if imported else {key: raw[key] for key in _ALSO if raw.get(key)}
    return {**({"mcpServers": servers} if servers else {}), **rest}


def digest(file: str, directory: str, matter: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what matters in `file` when it is found from `directory`, which relative commands depend on.
    Raises `ValueError` when it cannot be written down."""
    try:
        text = json.dumps([_MATTER_VERSION, file, directory, matter], sort_keys=True, default=str)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return hashlib.sha256(text.encode()).hexdigest()


def _is_harmless(key: str, value: Any) -> bool:
    if is_remark(key) or ALIASES.get(key, key) in _HARMLESS:
        return True
    return (key == "disabled" and value is True) or (key == "enabled" and value is False)


# ---- What a file of a project would do, as `greenroom trust` shows it to its owner -----------------------------------
#
# Everything but secrets.
#
# Secrets are hidden as in the printed configuration (`masking`), with some differences. An owner decides here
# about what runs and what is sent. So the command that gives a value is shown, and so are variables that decide what a
# program runs (`loader_variables`), paths, and what a shell could run, wherever they stand. And what is hidden keeps
# the names of the variables that are in it.
#
# A key whose form we know is read in that form. In another form nobody reads it, so nothing says which part of it is
# secret, and all of it is hidden. A number is hidden where a text would be: it may be somebody's PIN.

_VALUES: Final = frozenset({"env", "headers"})
_PATHS: Final = frozenset({"cwd", "socket", "envFile", "openapi", "uploads", "bearerTokenEnv"})
_NAMED: Final = frozenset({"auth", "oauth", "requestHeadersCommand", "http"})  # with keys of known meaning
_LOGINS: Final = frozenset({"oauth", "bearer"})  # the words of `auth`
_TEXTS: Final = _VALUES | _PATHS | {"args", "command", "url"}
_PLAIN: Final = frozenset({"type", "transport", "transportType", "enabled", *SERVER_KEY}) - _TEXTS
_SECRET_PARTS: Final = frozenset({"authorizationParams", "env_http_headers"})
_RUNS: Final = lazy_pattern(r"[;|&`<>]|\$\(")


def shown_matter(matter: Mapping[str, Any]) -> dict[str, Any]:
    """What matters in a file (`what_matters`), in the same shape, without secrets."""
    found: dict[str, Any] = {}
    for key, value in matter.items():
        match key:
            case "mcpServers":
                found[key] = {name: _entry(each) if is_object(each) else each for name, each in value.items()}
            case "envFiles":
                found[key] = _files_shown(value)
            case "documents":
                found[key] = value  # their prints
            case _:
                found[key] = _by_name("", value)
    return found


def _files_shown(files: Mapping[str, Mapping[str, str | None] | None]) -> dict[str, Any]:
    return {
        file: {name: REDACTED if text is None else _value(name, text) for name, text in variables.items()}
        if variables is not None
        else None
        for file, variables in files.items()
    }


def _entry(entry: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _of_key(ALIASES.get(str(key), str(key)), value) for key, value in entry.items()}


def _of_key(key: str, value: Any) -> Any:
    if key in _VALUES and is_object(value):
        return {str(name): _value(str(name), text) for name, text in value.items()}
    if key == "bearerToken":
        return _value(key, value)
    if key in ("args", "command") and is_array(value):
        return _arguments(value)
    if isinstance(value, str) and (key in ("url", "baseUrl") or (key == "openapi" and is_url(value))):
        return _with_names(value, Hider().url(value))
    if (key == "command" or key in _PATHS) and isinstance(value, str):
        return _with_names(value, Hider().text(value))
    if key in _NAMED and is_object(value):
        return _by_name("", value)
    if key == "auth" and isinstance(value, str) and value.lower() in _LOGINS:
        return value
    if key in _NAMED | _TEXTS:  # in a form that nobody reads
        return _by_name("", value, is_secret=True)
    if key in _PLAIN:
        return value
    return _by_name(key, value) if isinstance(value, bool | int | float | None) else REDACTED


def _value(name: str, value: Any) -> Any:
    """The value of a variable or of a header."""
    if not isinstance(value, str):
        is_kept = is_object(value) and [*value] == ["keyring"]
        return value if is_kept else _by_name(name, value, is_secret=True)
    if command_in(value) is not None:
        scheme, line = (BEARER, value.removeprefix(BEARER)) if value.startswith(BEARER) else ("", value)
        return scheme + _with_names(line, Hider().line(line))
    if _tells_what_runs(name, value) and not SECRET_WORD.search(name):
        return _with_names(value, Hider().line(value))
    return _with_names(value, Hider().value(Hider().without_defaults(value), name))


def _tells_what_runs(name: str, value: str) -> bool:
    return bool(loaders_among([name])) or is_place(value) or _RUNS.search(value) is not None


def _arguments(value: Any) -> list[Any]:
    """A list for a program. What is no text is shown as it is, and a command is shown as a line, also where a secret
    is expected: no key has such characters, and a program could run it."""
    texts = [each if isinstance(each, str) else str(each) if is_number(each) else "" for each in value]
    hidden = [
        Hider().line(text) if shown == REDACTED and _RUNS.search(text) else shown
        for text, shown in zip(texts, Hider().arguments(texts), strict=True)
    ]
    shown: list[Any] = []
    for each, text in zip(value, hidden, strict=True):
        if not isinstance(each, str):
            shown.append(REDACTED if text == REDACTED else _by_name("", each))
        else:
            shown.append(_with_names(each, text) if command_in(each) is None else _value("", each))
    return shown


def _by_name(name: str, value: Any, *, is_secret: bool = False) -> Any:
    """A value of which nothing but its name says whether it is secret."""
    if is_object(value) and name in _VALUES:
        return _of_key(name, value)
    if name in _VALUES or (name == "args" and not is_array(value)):
        name, is_secret = "", True  # in a form that nobody reads
    is_plain = not is_secret and name in SETTING_KEY  # as `secretTimeoutMs`, a number
    is_secret = is_secret or name in _SECRET_PARTS or SECRET_WORD.search(name) is not None
    if is_object(value):
        return {str(key): _by_name(str(key), each, is_secret=is_secret) for key, each in value.items()}
    if is_array(value):
        if name in ("args", "command") and not is_secret:
            return _arguments(value)
        return [_by_name(name, each, is_secret=is_secret) for each in value]
    if not isinstance(value, str):
        return REDACTED if is_secret and not is_plain and is_number(value) else value
    return _value(name, value) if is_secret else _with_names(value, Hider().line(value))


def _with_names(text: str, shown: str) -> str:
    """`shown`, and the variables of `text` that it does not name."""
    there = {name for name, _ in referred_to(shown)}
    gone = dict.fromkeys(name for name, _ in referred_to(text) if name not in there)
    return f"{shown} (with {', '.join(f'${{{name}}}' for name in gone)})" if gone else shown
