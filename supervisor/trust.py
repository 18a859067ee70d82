"""Whose configuration is obeyed: a project's files only after their owner has said yes.

Files that are found in the working directory or above it come with a repository. Whoever wrote them could start any
program, send the reader's variables anywhere, or have further files read. So a file of a project is obeyed only if
what matters in it (`protocol._config_trust`) is the same as when `greenroom trust` showed it and its owner agreed. The
files in the user's own folders, and a file that was named, are obeyed as they are.

The agreements are one file of the user's state folder (0600). It holds digests and paths, and nothing of the content.
A file that cannot be read, or that somebody else could have written, holds no agreement. Where two processes write at
once, one of the changes may be lost; the loser's file is asked about again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from .._own_files import make_folder, read_own, replacing
from ..protocol.config_parse import Layer, digest, is_object, merge, what_matters
from ..protocol.errors import UNTRUSTED, Problem
from .self_reference import servers_of_itself

_VERSION: Final = 1


@attrs.frozen
class ProjectFile:
    """A file of a project that needs its owner's yes. `digest` is None when no digest can be made of it: then it is
    never obeyed. `servers`: the names of the servers that it defines."""

    file: str
    directory: str
    matter: Mapping[str, Any]
    servers: tuple[str, ...]
    digest: str | None


Judge = Callable[[ProjectFile], bool]


def trust_file(home: Path, environ: Mapping[str, str]) -> Path:
    """Where the user's agreements are kept."""
    state = Path(environ.get("XDG_STATE_HOME") or "")
    return (state if state.is_absolute() else home / ".local" / "state") / "greenroom" / "trust.json"


def obeyed(
    layers: Iterable[Layer], projects: Collection[str], cwd: Path, judge: Judge, *, found: bool
) -> tuple[list[Layer], list[ProjectFile]]:
    """The layers that are obeyed, and the files that are not. `projects`: the paths that belong to a project.
    `found`: our own files were discovered, not named."""
    kept: list[Layer] = []
    left: list[ProjectFile] = []
    for layer in layers:
        asked = _asked(layer, cwd, found) if layer.source in projects else None
        if asked is None or judge(asked):
            kept.append(layer)
        else:
            left.append(asked)
    return kept, left


def refusals(left: Iterable[ProjectFile], command: str) -> tuple[list[Problem], dict[str, Problem]]:
    """What is said of files that are not obeyed: a warning for each, and the reason for each of their servers.
    `command`: the one that shows them and asks."""
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


def _asked(layer: Layer, cwd: Path, found: bool) -> ProjectFile | None:
    """What the owner is asked about this file; None if nothing in it needs an answer."""
    if not what_matters(layer.raw, imported=layer.only_servers):
        return None
    alone = merge([attrs.evolve(layer, imported=False)])
    itself = servers_of_itself(alone, cwd=cwd, found=found)
    matter = what_matters(layer.raw, imported=layer.only_servers, without=itself)
    if not matter:  # nothing but this gateway itself, which is left out anyway
        return None
    names = tuple(name for name in (*alone.servers, *alone.broken) if name not in itself)
    try:
        known = digest(layer.source, str(cwd), matter)
    except ValueError:
        known = None
    return ProjectFile(layer.source, str(cwd), matter, names, known)


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
        rest = {
            key: each for key, each in self.read().items() if (each["file"], each["directory"]) not in places
        }
        now = round(time.time())
        fresh = {
            key: {"file": one.file, "directory": one.directory, "since": now} for key, one in agreed.items()
        }
        self._write({**rest, **fresh})

    def forget(self, directory: str) -> list[str]:
        """Take back every yes that was given in `directory`. Returns the files. Raises `OSError`."""
        known = self.read()
        gone = {key: each for key, each in known.items() if each["directory"] == directory}
        if gone:
            self._write({key: each for key, each in known.items() if key not in gone})
        return sorted(str(each["file"]) for each in gone.values())

    def _unusable(self, why: str) -> dict[str, dict[str, Any]]:
        self.warning = why
        return {}

    def _write(self, known: Mapping[str, Any]) -> None:
        make_folder(self.path.parent)
        with replacing(self.path) as file:
            file.write(json.dumps({"version": _VERSION, "trusted": known}, indent=2).encode())
