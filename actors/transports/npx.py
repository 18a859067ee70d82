"""Starts what `npx` or `npm exec` would start, without npm, when the package is installed already.

It looks where npm would look, in npm's order: the `node_modules` of the working directory, packages installed with
`-g`, and the folder of the `_npx` cache that belongs to just these words (`wanted`). It reads a few small files,
anew at each start of an incarnation, in a thread, because a home folder may be on a network. Whenever anything is
unclear, the command is started as it is written.

An exact version that is in the cache does not change. For everything else npm asks its registry for the newest
version; we let it do so once a day. npm touches its folder when it looks at it (since npm 11), and where the room has
a folder for its own files, an empty file there says when we last left a start to npm.

A program that ends before it has said a word is left to npm from then on, until the room ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import attrs

from ...config.model import ServerDefinition
from ...config.private_files import make_folder, open_own, read_regular
from ...config.reading import is_object
from ..peer import PeerHooks
from ..workers import apart
from .stdio import StdioConnection, StdioConnector, untagged_environment

FRESH: Final = 86_400.0  # seconds for which what npm found in its registry counts
_LONGEST: Final = 16 * 1024 * 1024  # bytes of a file that is read
_HEAD: Final = 256  # bytes that tell what a file is
_UNUSUAL: Final = (OSError, ValueError, OverflowError, RecursionError)


@attrs.frozen
class Direct:
    """What is started in place of npm."""

    command: tuple[str, ...]  # with its arguments
    file: str  # the program's
    bin: str  # the folder of programs that npm would put on PATH


@attrs.frozen
class NpxConnector:
    """The connector of a server whose command is `npx` or `npm exec`. `through` makes that of a definition."""

    definition: ServerDefinition
    wanted: Wanted
    through: Callable[[ServerDefinition], StdioConnector]
    notes: Path | None  # a folder of ours for the days on which npm was asked; None: nothing is written
    silent: set[str]  # programs that ended without a word; shared by all incarnations of a room

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[StdioConnection]:
        """As that of `StdioConnector`."""
        environment = untagged_environment(self.definition)
        look = partial(look_up, self.wanted, environment, self.definition.cwd, self.notes, time.time())
        direct = None
        with suppress(OSError):  # no descriptor is left: the start below tells
            direct = await apart(look)
        if direct is None or direct.file in self.silent:
            async with self.through(self.definition).open(hooks) as connection:
                yield connection
            return
        async with self.through(_started_as(direct, self.definition, environment)).open(hooks) as connection:
            try:
                yield connection
            finally:
                if not connection.peer.has_spoken:
                    self.silent.add(direct.file)


def _started_as(
    direct: Direct, definition: ServerDefinition, environment: Mapping[str, str]
) -> ServerDefinition:
    path = os.pathsep.join((direct.bin, environment.get("PATH", os.defpath)))
    command, *args = direct.command
    return attrs.evolve(definition, command=command, args=tuple(args), env={**definition.env, "PATH": path})


def look_up(
    wanted: Wanted, environment: Mapping[str, str], cwd: str | None, notes: Path | None, now: float
) -> Direct | None:
    """What to start for `wanted` at `now`, seconds since 1970; None: npm. Blocks. Never raises."""
    try:
        return _Search(wanted, environment, os.path.abspath(cwd or "."), now).find(notes)
    except _UNUSUAL:
        return None


@attrs.frozen
class _Search:
    wanted: Wanted
    environment: Mapping[str, str]
    cwd: str
    now: float

    def find(self, notes: Path | None) -> Direct | None:
        home = self.environment.get("HOME")
        path = self.environment.get("PATH")
        if not home or shutil.which("node", path=path) is None:
            return None
        places = folders(self.environment, _text(os.path.join(home, ".npmrc")))
        if places is None:
            return None
        root = self._root()
        if root is None:
            return None
        tree = os.path.join(root, "node_modules")
        manifest = _json(self._package_in(tree, "package.json"))
        if manifest is not None:
            if self.wanted.is_bare or (self.wanted.version is not None and is_it(self.wanted, manifest)):
                return self._program(tree, manifest)
            if self.wanted.version is None:
                return None  # whether it is in the range, or the newest, is npm's to say
        if self._is_on_the_way(root, home, places.prefix):
            return None
        cache = os.path.join(_at_home(places.cache, home), "_npx", self.wanted.folder)
        return self._cached(cache, notes)

    def _root(self) -> str | None:
        """The folder that npm takes for the project; None: it may be part of a larger one, or has its own rules."""
        above = [self.cwd, *(os.fspath(folder) for folder in Path(self.cwd).parents)]
        root = next((folder for folder in above if _is_project(folder)), self.cwd)
        own = _json(os.path.join(root, "package.json"))
        bins = (own or {}).get("bin", {})
        if not isinstance(bins, dict) or self.wanted.spec in bins:
            return None  # npm would start the project's own program of that name
        if any("workspaces" in (_json(os.path.join(folder, "package.json")) or {}) for folder in above):
            return None
        home = self.environment.get("HOME")
        return None if root != home and os.path.exists(os.path.join(root, ".npmrc")) else root

    def _is_on_the_way(self, root: str, home: str, prefix: str | None) -> bool:
        """Whether npm would find a program before it looks into its cache."""
        package, found = self.wanted.package, shutil.which("npx", path=self.environment.get("PATH"))
        prefixes = [_at_home(prefix, home)] if prefix else []
        prefixes += [os.path.dirname(os.path.dirname(found))] if found else []
        places = [os.path.join(one, "lib", "node_modules", package) for one in prefixes]
        if self.wanted.program is None and self.wanted.is_bare:
            places += [os.path.join(one, "bin", package) for one in prefixes]
            above = (root, *map(os.fspath, Path(root).parents))
            places += [os.path.join(folder, "node_modules", ".bin", package) for folder in above]
        return any(map(os.path.lexists, places))

    def _cached(self, folder: str, notes: Path | None) -> Direct | None:
        tree = os.path.join(folder, "node_modules")
        note = None if notes is None else notes / self.wanted.folder
        if self.wanted.version is None and not self._is_fresh(folder, note):
            if note is not None:
                _touch(note, self.now)
            return None
        manifest = _json(self._package_in(tree, "package.json"))
        own = _json(os.path.join(folder, "package.json"))
        lock = _json(os.path.join(tree, ".package-lock.json"))
        if os.path.lexists(os.path.join(folder, "concurrency.lock")):
            return None  # an npm is at work in it
        return self._program(tree, manifest) if is_installed_for(self.wanted, own, lock, manifest) else None

    def _is_fresh(self, *places: str | Path | None) -> bool:
        return any(0 <= self.now - _changed(place) < FRESH for place in places if place is not None)

    def _program(self, tree: str, manifest: Any) -> Direct | None:
        """The program of the package in a `node_modules`. The link that npm made to it must lead to it."""
        found = program_of(self.wanted, manifest)
        if found is None:
            return None
        name, relative = found
        package, programs = os.path.realpath(self._package_in(tree)), os.path.join(tree, ".bin")
        file = os.path.realpath(os.path.join(package, relative))
        if (
            os.path.commonpath((package, file)) != package
            or os.path.realpath(os.path.join(programs, name)) != file
        ):
            return None
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            before = starts_with(opened.read(_HEAD))
        if before is None or (not before and not os.access(file, os.X_OK)):
            return None
        return Direct((*before, file, *self.wanted.args), file, programs)

    def _package_in(self, tree: str, *names: str) -> str:
        return os.path.join(tree, self.wanted.package, *names)


def _is_project(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in ("package.json", "node_modules"))


def _at_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _changed(path: str | Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _touch(note: Path, now: float) -> None:
    """Note that npm is asked now. If that cannot be written, npm is asked again next time."""
    with suppress(OSError):
        make_folder(note.parent)
        descriptor = open_own(note, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(descriptor, (now, now))
        finally:
            os.close(descriptor)


def _text(path: str) -> str:
    """The text of a file; empty when there is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return read_regular(path, _LONGEST).decode()
    return ""


def _json(path: str) -> dict[str, Any] | None:
    """The object in a file; None when there is no file. Raises `ValueError` for anything else."""
    text = _text(path)
    if not text:
        return None
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(path)
    return found  # pyright: ignore[reportUnknownVariableType]


# --------------------------------------------------------------------------------------------------------------
#
#
# What a command line of `npx` or `npm exec` asks for, and whether an installed package is it. Nothing is read here.
#
# npm stays the parent of the server that it starts, in a hundred megabytes of memory, and asks its registry at each
# start which version is the newest. So where the package is installed already, the server is started without npm
# (`NpxConnector`). Everything that we do not understand for certain is None here, and is left to npm.
#
# `npx`'s cache has a folder for each set of packages that was asked for. Its name is a digest of what was asked, so the
# folder is the answer to these words and no others.

_NAME: Final = r"(?:@[a-z0-9~-][\w.~-]*/)?[a-z0-9~-][\w.~-]*"
_SPEC: Final = re.compile(rf"({_NAME})(?:@([\w.+^~<>=|* -]+))?", re.IGNORECASE | re.ASCII)
_EXACT: Final = re.compile(r"[=v]*(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)(?:\+[0-9A-Za-z.-]+)?")
_YES: Final = frozenset({"-y", "--yes"})
_PACKAGE: Final = frozenset({"-p", "--package"})
# The first line of a script for node (`#!/usr/bin/env node …`). The group has the words after `node`.
_FOR_NODE: Final = re.compile(
    rb"#!\s*(?:/usr)?/bin/env\s+(?:-S\s+)?node((?:[ \t]+[\w=./:@-]+)*)[ \t]*\r?(?:\n|$)"
)
_SETTINGS: Final = frozenset(
    {"cache", "loglevel", "progress", "fund", "audit", "update_notifier", "yes", "color"}
)
_CHANGES: Final = frozenset({"node_options", "script_shell", "package", "call", "global", "workspaces"})


@attrs.frozen
class Wanted:
    """The package and program that a command line asks for."""

    spec: str  # the package as it is written
    package: str  # its name
    version: str | None  # the exact version, if one is asked for
    is_bare: bool  # neither a version nor a tag nor a range is asked for
    program: str | None  # the program's name; None: the package's own one
    args: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The name of its folder in npm's `_npx` cache."""
        return hashlib.sha512(self.spec.encode()).hexdigest()[:16]


def wanted(command: str | None, args: Sequence[str]) -> Wanted | None:
    """What the command line asks for; None: it is not `npx` or `npm exec`, or has options that only npm knows."""
    name = (command or "").rpartition("/")[2]
    if name == "npx":
        return _read(args, options_anywhere=False)
    if name == "npm" and args and args[0] in ("exec", "x"):
        return _read(args[1:], options_anywhere=True)
    return None


def _read(args: Sequence[str], *, options_anywhere: bool) -> Wanted | None:
    rest, package = list(args), None
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word in _YES:
            continue
        option, is_joined, value = word.partition("=")
        if package is not None or not (option == "--package" if is_joined else word in _PACKAGE):
            return None
        if not is_joined:
            value = rest.pop(0) if rest else ""
        package = value
    if rest[:1] == ["--"]:
        del rest[0]
    elif options_anywhere and any(word.startswith("-") for word in rest):
        return None  # npm takes options from the whole line
    if not rest:
        return None
    return _from_spec(rest[0] if package is None else package, None if package is None else rest[0], rest[1:])


def _from_spec(spec: str, program: str | None, args: Sequence[str]) -> Wanted | None:
    found = _SPEC.fullmatch(spec)
    if found is None or (program is not None and ("/" in program or program.startswith("."))):
        return None
    package, version = found.groups()
    exact = _EXACT.fullmatch(version) if version else None
    return Wanted(spec, package, exact[1] if exact else None, version is None, program, tuple(args))


def is_installed_for(wanted: Wanted, folder: Any, lock: Any, manifest: Any) -> bool:
    """Whether the install in a folder of the `_npx` cache was made for these words, was finished, and has the version.
    `folder`, `lock` and `manifest` are the contents of the folder's `package.json`, of its
    `node_modules/.package-lock.json` (which npm writes last), and of the package's `package.json`."""
    asked = _within(folder, "_npx", "packages")
    finished = _within(lock, "packages", f"node_modules/{wanted.package}", "version")
    return (
        asked == [wanted.spec]
        and finished is not None
        and finished == _version(manifest)
        and is_it(wanted, manifest)
    )


def is_it(wanted: Wanted, manifest: Any) -> bool:
    """Whether a package's `package.json` is that of the package, in the exact version if one is asked for."""
    version = _version(manifest)
    if version is None or _within(manifest, "name") != wanted.package:
        return False
    return wanted.version is None or version.partition("+")[0] == wanted.version


def program_of(wanted: Wanted, manifest: Any) -> tuple[str, str] | None:
    """The program's name, and its file relative to the package's folder; None where npm would not know either."""
    bins, own = _within(manifest, "bin"), wanted.package.rpartition("/")[2]
    if isinstance(bins, str):
        bins = {own: bins}
    if not is_object(bins) or not all(isinstance(path, str) for path in bins.values()):
        return None
    only = next(iter(bins)) if len(set(bins.values())) == 1 else own
    name = str(only if wanted.program is None else wanted.program)
    path = bins.get(name)
    if not path or "/" in name or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        return None
    return name, str(path)


def starts_with(head: bytes) -> tuple[str, ...] | None:
    """The words that start a file which begins with `head`: `node` and its options, or none if the file runs by itself.
    None: it is no program."""
    if (found := _FOR_NODE.match(head)) is not None:
        return "node", *found[1].decode().split()
    return () if head.startswith((b"#!", b"\x7fELF")) else None


@attrs.frozen
class Folders:
    """Where npm keeps things, with `~` for the home folder."""

    cache: str
    prefix: str | None  # of packages installed with `-g`; None: that of the `npx` program


def folders(environment: Mapping[str, str], user_config: str) -> Folders | None:
    """Where npm keeps things, by the environment and the text of `~/.npmrc`; None: these may change what npm would
    start."""
    said = dict[str, str]()
    for line in user_config.splitlines():
        key, equals, value = (part.strip() for part in line.partition("="))
        if equals and not key.startswith(("#", ";", "//")):
            said[_key(key)] = value.strip("\"'")
    if not _CHANGES.isdisjoint(said):
        return None
    for key, value in environment.items():
        if key.lower().startswith("npm_config_"):
            if (name := _key(key[len("npm_config_") :])) not in _SETTINGS:
                return None
            said[name] = value
    cache, prefix = said.get("cache") or "~/.npm", said.get("prefix")
    return None if "$" in f"{cache}{prefix}" else Folders(cache, prefix)


def _key(text: str) -> str:
    return text.lower().replace("-", "_")


def _version(manifest: Any) -> str | None:
    version = _within(manifest, "version")
    return version if isinstance(version, str) else None


def _within(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if is_object(value) else None
    return value
