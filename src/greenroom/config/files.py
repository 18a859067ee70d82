"""Finds and reads the configuration: from files, or given in any other form."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..protocol.errors import ConfigError, Problem, UsageError
from ..protocol.json_values import is_object
from .argument_checks import path_of
from .file_formats import read_file
from .importers import ImportedFiles, Surroundings, imported_layers, places_of
from .model import Config, Pinning, ServerDefinition
from .parse import ConfigLayer, imports_of, merge, parse_config, servers_elsewhere, skipped
from .private_files import config_home
from .references import expand_path, is_url, named_path
from .self_reference import without_self_reference
from .trust import Agreements, Judge, ProjectFile, obeyed, refusals, trust_file

# ---- Find and read the configuration files --------------------------------------------------------------------------
#
# A file that was *named* is the only one used; if it is missing or broken, that is an error. Files that are
# *found* are merged, and the nearer ones are stronger. A broken one is skipped with a warning, because it may
# belong to another program, and the servers of the other files must still be served:
#
#     ./.greenroom/mcp.json  over  ./.mcp.json  over  $XDG_CONFIG_HOME/greenroom/mcp.json over
#     ~/.config/mcp/mcp.json  over  what they import  over  what an imported file of pi imports
#
# The files of a project are obeyed only if their owner has trusted them (`trust`); the others are obeyed as they are.
# What is left out is a problem in the list, and each of its servers is broken with that reason.
#
# Directory, home and environment are arguments and never looked up here, so that the same call gives the same
# answer. Reading is synchronous: it happens before the room is up, or in a worker thread when a running room
# reloads.


def find_files(*, cwd: Path, home: Path, environ: Mapping[str, str]) -> list[Path]:
    """Our configuration files that exist, strongest first. One that cannot be checked counts as existing."""
    return [path for path in _candidates(cwd, home, environ) if _is_there(path)]


def _candidates(cwd: Path, home: Path, environ: Mapping[str, str]) -> list[Path]:
    candidates = (
        cwd / ".greenroom" / "mcp.json",
        cwd / ".mcp.json",
        own_file(home, environ),
        home / ".config" / "mcp" / "mcp.json",
    )
    return [*dict.fromkeys(candidates)]


def own_file(home: Path, environ: Mapping[str, str]) -> Path:
    """Our file of the user, for all projects; it need not exist."""
    return config_home(home, environ) / "greenroom" / "mcp.json"


def unread_file(cwd: Path, files: Sequence[str]) -> Path | None:
    """An `mcp.json` in `cwd` that looks like a configuration of the folder and is not read, because none of `files`
    is it."""
    path = cwd / "mcp.json"
    return path if os.fspath(path) not in files and _is_there(path) else None


def load_config(
    path: str | Path | None = None,
    *,
    cwd: Path,
    home: Path,
    environ: Mapping[str, str],
    platform: str = sys.platform,
    trust: bool = False,
) -> Config:
    """The effective configuration: from the file at `path` (relative to `cwd`), or from all files that are
    found.

    `platform` is a value of `sys.platform` and decides where other programs keep their files. `trust`: obey the
    files of the project in `cwd` too, whether or not their owner has trusted them. Raises `ConfigError` only for a
    named file. References are checked against `environ` and stay as written.
    """
    agreements = Agreements(trust_file(home, environ))
    config, left, asked = _load(
        path, Surroundings(cwd, home, environ, platform), lambda one: trust or agreements.allows(one)
    )
    if trust:  # whoever says so answers for what the files name, too
        servers = {
            name: replace(each, env_file_agreed=None, openapi_agreed=None)
            for name, each in config.servers.items()
        }
        return replace(config, servers=servers) if asked else config
    agreed = {each["file"] for each in agreements.read().values() if each["directory"] == str(cwd)}
    of_project = {*project_files(config, cwd=cwd, home=home, environ=environ)}
    strange = (*(one.file for one in left), *(file for file in config.unread if file in of_project))
    config = replace(config, left_out=tuple(file for file in strange if file not in agreed))
    if not asked:
        return config
    command = "greenroom trust" if path is None else f"greenroom trust --config {shlex.quote(str(path))}"
    warnings, reasons = refusals(left, command)
    if agreements.warning is not None:
        what = f"is not used, so no project is trusted: {agreements.warning}"
        warnings.append(Problem(str(agreements.path), what, fatal=False))
    reasons = {name: why for name, why in reasons.items() if name not in config.servers}
    return replace(
        config,
        problems=(*warnings, *config.problems),
        broken={**reasons, **config.broken},
        untrusted=tuple(one.file for one in left),
        places=(*config.places, str(agreements.path)),
    )


def project_asks(
    path: str | Path | None = None,
    *,
    cwd: Path,
    home: Path,
    environ: Mapping[str, str],
    platform: str = sys.platform,
) -> tuple[ProjectFile, ...]:
    """The files of the project in `cwd` that `load_config` obeys only when they are trusted, whether or not they are;
    also those that they import. Raises `ConfigError` for a broken file that was named."""
    return _load(path, Surroundings(cwd, home, environ, platform), lambda _: True)[2]


def _load(
    path: str | Path | None, around: Surroundings, judge: Judge
) -> tuple[Config, tuple[ProjectFile, ...], tuple[ProjectFile, ...]]:
    """The configuration that `judge` allows, the files it refused, and all files it was asked about."""
    asked: list[ProjectFile] = []

    def judged(one: ProjectFile) -> bool:
        asked.append(one)
        return judge(one)

    cwd, found = around.cwd, path is None
    if path is None:
        places = _candidates(cwd, around.home, around.environ)
        own = _read_found([place for place in places if _is_there(place)])
        near = _of_project(around, lambda there: _candidates(there.cwd, there.home, there.environ))
    else:
        own, places, near = _read_named(path, around), [cwd / around.expand_home(path)], set[str]()
    ours, left = obeyed(own.layers, near, cwd, around.environ, judged, found=found)
    kinds, wrong = _imported_kinds(ours)
    foreign, theirs, more = _imports(kinds, around, judged, found=found)
    more_kinds, more_wrong = _imported_kinds(layer for layer in theirs if layer.as_ours)
    more_kinds = [kind for kind in more_kinds if kind not in kinds]
    nested, weakest, rest = _imports(more_kinds, around, judged, found=found)
    problems = (*own.problems, *wrong, *foreign.problems, *more_wrong, *nested.problems)
    layers = (*ours, *theirs, *weakest)
    config = merge(layers, environ=around.environ, strict=not found, problems=problems, is_file=True)
    places += (place for kind in (*kinds, *more_kinds) for place in places_of(kind, around))
    places += (
        Path(file) for one in asked for kind in ("envFiles", "documents") for file in one.matter.get(kind, ())
    )
    files = tuple(dict.fromkeys((*own.files, *foreign.files, *nested.files)))
    layers = (*own.layers, *foreign.layers, *nested.layers)
    usable = {layer.source for layer in layers if is_object(layer.raw)}
    is_of_folder = found and any(layer.of_folder for layer in (*ours, *theirs, *weakest))
    config = replace(
        config,
        files=files,
        unread=tuple(file for file in files if file not in usable),
        folder=str(cwd) if is_of_folder else None,
        places=tuple(dict.fromkeys(map(str, places))),
    )
    config = with_named_files(config, cwd, around.environ, asked)
    return without_self_reference(config, cwd=cwd, found=found), (*left, *more, *rest), tuple(asked)


def _imports(
    kinds: Iterable[str], around: Surroundings, judge: Judge, *, found: bool
) -> tuple[ImportedFiles, list[ConfigLayer], list[ProjectFile]]:
    """What is read for these imports, what of it is obeyed, and the files that are not."""
    read = _read_imports(kinds, around)
    near = {file for kind in kinds for file in _of_project(around, partial(places_of, kind))}
    return read, *obeyed(read.layers, near, around.cwd, around.environ, judge, found=found)


def _of_project(around: Surroundings, places: Callable[[Surroundings], list[Path]]) -> set[str]:
    """Those of the places that depend on the working directory. In the user's home directory there are none, because
    files there are the user's own."""
    of_user = {place for place in places(replace(around, cwd=around.home)) if place.is_absolute()}
    return {str(place) for place in places(around) if place not in of_user}


def project_files(config: Config, *, cwd: Path, home: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The found files that belong to the project in `cwd`, trusted or not. Anybody who can write to them could start
    programs, if they are trusted."""
    places = [str(path) for path in _candidates(cwd, home, environ)]
    near, users = places[:2], places[2:]
    is_home = home.is_relative_to(cwd)

    def of_project(file: str) -> bool:
        return file in near or (not is_home and file not in users and Path(file).is_relative_to(cwd))

    return tuple(filter(of_project, config.files))


def working_directory(path: str | Path | None) -> Path:
    """The directory that `load_config(path)` looks in. If it has been deleted, `path` must be absolute, and
    no other files are found. Raises `UsageError` for a relative path then."""
    try:
        return Path.cwd()
    except OSError:
        if path is None or not (Path(path).is_absolute() or Path(path).parts[:1] == ("~",)):
            text = "The working directory is gone. Change to another, or name the configuration by its whole path."
            raise UsageError(text) from None
        return Path(os.sep, "deleted working directory")


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # reading it will say why it cannot be


def _read_named(path: str | Path, around: Surroundings) -> ImportedFiles:
    label = str(path)  # as the user wrote it
    problems: list[Problem] = []
    raw = read_file(around.cwd / around.expand_home(path), label, problems.append)
    return ImportedFiles((ConfigLayer(label, raw),), tuple(problems), (label,))


def _read_found(paths: Sequence[Path]) -> ImportedFiles:
    layers: list[ConfigLayer] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            layers.append(ConfigLayer(str(path), read_file(path, str(path), problems.append)))
        except ConfigError as error:
            problems += (skipped(problem) for problem in error.problems)
    return ImportedFiles(tuple(layers), tuple(problems), tuple(map(str, paths)))


def _imported_kinds(layers: Iterable[ConfigLayer]) -> tuple[list[str], list[Problem]]:
    """The kinds that our files import, those of stronger files first, each kind once."""
    kinds: dict[str, None] = {}
    problems: list[Problem] = []
    for layer in layers:
        wanted, wrong = imports_of(layer.raw, layer.source)
        kinds |= dict.fromkeys(wanted)
        problems += wrong
    return [*kinds], problems


def _read_imports(kinds: Iterable[str], around: Surroundings) -> ImportedFiles:
    read = [imported_layers(kind, around) for kind in kinds]
    return ImportedFiles(
        tuple(layer for each in read for layer in each.layers),
        tuple(problem for each in read for problem in each.problems),
        tuple(file for each in read for file in each.files),
    )


# ---- The files that servers name, made absolute, and their state ----------------------------------------------------
#
# They are `envFile` and the document of `openapi`. A relative path starts at the folder of the configuration file that
# names it. The content is read when a server starts (`supervisor.connectors`). The state (inode, size, time) is taken
# when the configuration is read: with it, a reload sees that the file has changed, and starts the server again; what is
# known of a server from another document does not count.
#
# Who said yes to a project's file said yes to what these held then (`trust`). The definition has it, so that a start
# compares what it reads (`secret_sources`, `actors.transports.api_document`).


def with_named_files(
    config: Config, cwd: Path, environ: Mapping[str, str], asked: Iterable[ProjectFile] = ()
) -> Config:
    """The configuration with these files found and among its `places`, which are watched. `asked`: the files of a
    project, which are obeyed after a yes."""
    agreed = {one.file: one for one in asked}
    changed: dict[str, ServerDefinition] = {}
    files: list[str] = []
    for name, definition in config.servers.items():
        more: dict[str, Any] = {}
        if definition.env_file is not None:
            path = _path(definition, "env_file", definition.env_file, cwd, environ)
            of_project = agreed.get(definition.sources.get("env_file", ""))
            known: Mapping[str, str | None] | None = None
            if of_project is not None:
                known = of_project.of_file("envFiles", path) or {}
            more = {"env_file": str(path), "env_file_state": _state(path), "env_file_agreed": known}
            files.append(str(path))
        if definition.openapi is not None and not is_url(expand_path(definition.openapi, environ)):
            path = _path(definition, "openapi", definition.openapi, cwd, environ)
            of_project = agreed.get(definition.sources.get("openapi", ""))
            print_ = None if of_project is None else of_project.of_file("documents", path) or ""
            more |= {"openapi": str(path), "openapi_state": _state(path), "openapi_agreed": print_}
            files.append(str(path))
        if definition.uploads is not None:
            more["uploads"] = str(_path(definition, "uploads", definition.uploads, cwd, environ))
        if more:
            changed[name] = replace(definition, **more)
    if not changed:
        return config
    places = tuple(dict.fromkeys((*config.places, *files)))
    return replace(config, servers={**config.servers, **changed}, places=places)


def _path(
    definition: ServerDefinition, attribute: str, file: str, cwd: Path, environ: Mapping[str, str]
) -> Path:
    return named_path(file, definition.sources.get(attribute, ""), cwd, environ)


def _state(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def open_config(source: str | os.PathLike[str] | Mapping[str, Any] | Config) -> Config:
    """The configuration, from any of its forms. Raises `ConfigError`."""
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        if lost := servers_elsewhere(source, "the configuration"):
            raise ConfigError(lost)
        return parse_config(source, source="the configuration", environ=os.environ)
    file = Path(path_of(source, "The configuration", ', a dict like {"mcpServers": {…}} or a Config'))
    return load_config(
        file,
        cwd=working_directory(file),
        home=Path.home(),
        environ=os.environ,
        trust=True,  # a program chose it, which may choose to start anything
    )


def with_objects(config: Config, servers: Mapping[str, Any]) -> Config:
    """The configuration with the servers that were given in code. They replace entries of the same name. Their tools
    are not pinned: they are the program's own, and no command could accept a change of them."""
    given = {
        name: ServerDefinition(name, in_process=server, pinning=Pinning.OFF)
        for name, server in servers.items()
    }
    broken = {name: problem for name, problem in config.broken.items() if name not in given}
    return replace(config, servers={**config.servers, **given}, broken=broken) if given else config
