"""What a command line of `npx` or `npm exec` asks for, and whether an installed package is it. Nothing is read here.

Everything that we do not understand for certain is None here, and is left to npm.

`npx`'s cache has a folder for each set of packages that was asked for. Its name is a digest of what was asked, so the
folder is the answer to these words and no others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from ...protocol.json_values import is_object

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
class NpxRequest:
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

    def is_installed_for(self, folder: Any, lock: Any, manifest: Any) -> bool:
        """Whether the install in a folder of the `_npx` cache was made for these words, was finished, and has the
        version. `folder`, `lock` and `manifest` are the contents of the folder's `package.json`, of its
        `node_modules/.package-lock.json` (which npm writes last), and of the package's `package.json`."""
        asked = _within(folder, "_npx", "packages")
        finished = _within(lock, "packages", f"node_modules/{self.package}", "version")
        return (
            asked == [self.spec]
            and finished is not None
            and finished == _version(manifest)
            and self.is_in(manifest)
        )

    def is_in(self, manifest: Any) -> bool:
        """Whether a package's `package.json` is that of the package, in the exact version if one is asked for."""
        version = _version(manifest)
        if version is None or _within(manifest, "name") != self.package:
            return False
        return self.version is None or version.partition("+")[0] == self.version

    def program_of(self, manifest: Any) -> tuple[str, str] | None:
        """The program's name, and its file relative to the package's folder; None where npm would not know either."""
        bins, own = _within(manifest, "bin"), self.package.rpartition("/")[2]
        if isinstance(bins, str):
            bins = {own: bins}
        if not is_object(bins) or not all(isinstance(path, str) for path in bins.values()):
            return None
        only = next(iter(bins)) if len(set(bins.values())) == 1 else own
        name = str(only if self.program is None else self.program)
        path = bins.get(name)
        if not path or "/" in name or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            return None
        return name, str(path)


def wanted(command: str | None, args: Sequence[str]) -> NpxRequest | None:
    """What the command line asks for; None: it is not `npx` or `npm exec`, or has options that only npm knows."""
    name = (command or "").rpartition("/")[2]
    if name == "npx":
        return _read(args, options_anywhere=False)
    if name == "npm" and args and args[0] in ("exec", "x"):
        return _read(args[1:], options_anywhere=True)
    return None


def _read(args: Sequence[str], *, options_anywhere: bool) -> NpxRequest | None:
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


def _from_spec(spec: str, program: str | None, args: Sequence[str]) -> NpxRequest | None:
    found = _SPEC.fullmatch(spec)
    if found is None or (program is not None and ("/" in program or program.startswith("."))):
        return None
    package, version = found.groups()
    exact = _EXACT.fullmatch(version) if version else None
    return NpxRequest(spec, package, exact[1] if exact else None, version is None, program, tuple(args))


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
