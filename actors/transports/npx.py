"""Starts what `npx` or `npm exec` would start, without npm, when the package is installed already.

npm stays the parent of the server that it starts, in a hundred megabytes of memory, and asks its registry at each
start which version is the newest.

It looks where npm would look, in npm's order: the `node_modules` of the working directory, packages installed with
`-g`, and the folder of the `_npx` cache that belongs to just these words (`npx_request.wanted`). It reads a few small
files, anew at each start of an incarnation, in a thread, because a home folder may be on a network. Whenever anything
is unclear, the command is started as it is written.

An exact version that is in the cache does not change. For everything else npm asks its registry for the newest
version; we let it do so once a day. npm touches its folder when it looks at it (since npm 11), and where the room has
a folder for its own files, an empty file there says when we last left a start to npm.

A program that ends before it has said a word is left to npm from then on, until the room ends.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from ...config.model import ServerDefinition
from ...config.private_files import make_folder, open_own, read_regular
from ..peer import PeerHooks
from ..workers import apart
from .child_environment import untagged_environment
from .npx_request import NpxRequest, folders, starts_with
from .stdio import StdioConnection, StdioConnector

FRESH: Final = 86_400.0  # seconds for which what npm found in its registry counts
_LONGEST: Final = 16 * 1024 * 1024  # bytes of a file that is read
_HEAD: Final = 256  # bytes that tell what a file is
_UNUSUAL: Final = (OSError, ValueError, OverflowError, RecursionError)


@attrs.frozen
class DirectStart:
    """What is started in place of npm."""

    command: tuple[str, ...]  # with its arguments
    file: str  # the program's
    bin: str  # the folder of programs that npm would put on PATH

    def in_place_of(self, definition: ServerDefinition, environment: Mapping[str, str]) -> ServerDefinition:
        """The definition that starts it where this one starts npm."""
        path = os.pathsep.join((self.bin, environment.get("PATH", os.defpath)))
        command, *args = self.command
        return msgspec.structs.replace(
            definition, command=command, args=tuple(args), env={**definition.env, "PATH": path}
        )


@attrs.frozen
class NpxConnector:
    """The connector of a server whose command is `npx` or `npm exec`. `through` makes that of a definition."""

    definition: ServerDefinition
    wanted: NpxRequest
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
        async with self.through(direct.in_place_of(self.definition, environment)).open(hooks) as connection:
            try:
                yield connection
            finally:
                if not connection.peer.has_spoken:
                    self.silent.add(direct.file)


def look_up(
    wanted: NpxRequest, environment: Mapping[str, str], cwd: str | None, notes: Path | None, now: float
) -> DirectStart | None:
    """What to start for `wanted` at `now`, seconds since 1970; None: npm. Blocks. Never raises."""
    try:
        return _PackageSearch(wanted, environment, os.path.abspath(cwd or "."), now).find(notes)
    except _UNUSUAL:
        return None


@attrs.frozen
class _PackageSearch:
    wanted: NpxRequest
    environment: Mapping[str, str]
    cwd: str
    now: float

    def find(self, notes: Path | None) -> DirectStart | None:
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
            if self.wanted.is_bare or (self.wanted.version is not None and self.wanted.is_in(manifest)):
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

    def _cached(self, folder: str, notes: Path | None) -> DirectStart | None:
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
        return self._program(tree, manifest) if self.wanted.is_installed_for(own, lock, manifest) else None

    def _is_fresh(self, *places: str | Path | None) -> bool:
        return any(0 <= self.now - _changed(place) < FRESH for place in places if place is not None)

    def _program(self, tree: str, manifest: Any) -> DirectStart | None:
        """The program of the package in a `node_modules`. The link that npm made to it must lead to it."""
        found = self.wanted.program_of(manifest)
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
        return DirectStart((*before, file, *self.wanted.args), file, programs)

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
